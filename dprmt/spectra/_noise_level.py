"""The noise level of a matrix, from the median of its singular values."""

from __future__ import annotations

from functools import lru_cache

from dprmt.spectra._arrays import Array, MatrixT, array_namespace, check_matrices, promote_half
from dprmt.spectra._marchenko_pastur import MarchenkoPastur


def estimate_sigma(matrix: MatrixT) -> MatrixT:
    """Standard deviation of the noise in each matrix: median singular value over that of the law with σ = 1.

    In DP training σ is known; this checks it, or serves when it is not. The signal must leave the median
    alone: a signal of rank r moves the median by r/2 places among min(m, n), so the estimate is for r much
    smaller than min(m, n)/2.

    Parameters
    ----------
    matrix : array, shape (..., m, n)
        A matrix or a stack of them, either orientation; NumPy or torch, of floating dtype.

    Returns
    -------
    array, shape (...)
        Estimates >= 0 in the units of the matrix, in its form, dtype and device; half precision gives
        float32, since the rounding of the dtype would exceed the error of the estimate.

    Raises
    ------
    ParameterError
        If ``matrix`` has fewer than two axes, is empty, not finite or not of a real floating dtype.

    Notes
    -----
    On pure noise the relative error has a standard deviation of 0.7 to 1.7 times ``1/√(mn)``, larger the
    squarer the matrix (0.9 % at 16 × 768, 0.6 % at 256 × 256), and a bias of less than a third of that.

    References
    ----------
    Gavish & Donoho (2014), arXiv:1305.5870v3, who use it for the threshold at unknown noise.

    Examples
    --------
    >>> import numpy as np
    >>> noise = 0.1 * np.random.default_rng(0).standard_normal((5, 64, 256))
    >>> estimate_sigma(noise).round(3)
    array([0.099, 0.1  , 0.1  , 0.099, 0.099])
    """
    values = promote_half(check_matrices("matrix", matrix))
    spectrum = array_namespace(values).linalg.svdvals(values)
    return median_sigma(spectrum, tuple(values.shape[-2:]))


def median_sigma(spectrum: Array, shape: tuple[int, int]) -> Array:
    """The noise level of matrices of this shape from their singular values, in decreasing order."""
    return _median(spectrum) / _unit_median(shape)


@lru_cache
def _unit_median(shape: tuple[int, int]) -> float:
    return MarchenkoPastur(shape, sigma=1.0).median


def _median(values: Array) -> Array:
    # Median along the last axis of an array in decreasing order.
    count = values.shape[-1]
    return (values[..., (count - 1) // 2] + values[..., count // 2]) / 2
