"""Shrinkers and hard thresholds for the singular values of a low-rank matrix in white noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

from dprmt._validation import check_choice, check_real
from dprmt.spectra._arrays import ArrayT, cast_like, check_shape, singular_values
from dprmt.spectra._formulas import Loss, checked_scales, shrunk
from dprmt.spectra._labels import keeps_labels
from dprmt.spectra._marchenko_pastur import MarchenkoPastur


@keeps_labels
def shrink(observed: ArrayT, shape: Sequence[int], sigma: float, loss: Loss = "frobenius") -> ArrayT:
    """Shrink noisy singular values by the rule that is optimal, for large matrices, for the given loss.

    With ``λ = F⁻¹(y)`` and the cosines ``c_u, c_v`` between clean and noisy singular vectors (square roots of
    `vector_overlaps`), y above the bulk edge becomes

    - Frobenius: ``λ·c_u·c_v = √((y²-b₊²)(y²-b₋²))/y``;
    - operator: ``λ·min(c_u/c_v, c_v/c_u)``, which is λ for square matrices;
    - nuclear: ``λ·max(0, c_u·c_v - s_u·s_v)`` with the sines ``s_u, s_v``.

    At and below the bulk edge the answer is 0.

    Parameters
    ----------
    observed : float or array
        Singular values of the noisy matrix, >= 0, any shape. Python numbers, NumPy arrays and torch tensors
        of floating dtype; the result comes back in the same form, dtype and device, computed in float64.
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0. With 0 the values come back as they are.
    loss : {"frobenius", "operator", "nuclear"}
        The norm of the error to be minimised.

    Returns
    -------
    float or array
        Of the shape of ``observed``, between 0 and `spike_map_inverse`.

    Raises
    ------
    ParameterError
        If ``observed`` is empty, negative, not finite or not of a real floating dtype, ``shape`` is not a
        pair of integers >= 1, ``sigma`` is negative or not finite, or ``loss`` is unknown.

    References
    ----------
    Eq. 9 of arXiv:2510.01137v3 (Frobenius, in a form without cancellation); Gavish & Donoho (2017),
    arXiv:1405.7511v2 (Frobenius, nuclear); Leeb (2022), arXiv:2005.11807 (operator: the rule λ of Gavish &
    Donoho is optimal for square matrices only).

    Examples
    --------
    >>> losses = "frobenius", "operator", "nuclear"
    >>> [round(shrink(20.0, (16, 81), sigma=1.0, loss=loss), 3) for loss in losses]
    [14.716, 15.733, 12.633]
    >>> shrink(12.9, (16, 81), sigma=1.0)  # bulk edge: 13
    0.0
    """
    m, n, sigma, _ = checked_scales(shape, sigma)
    check_choice("loss", loss, get_args(Loss))
    y = singular_values("observed", observed)
    return cast_like(y * 1.0 if sigma == 0 else shrunk(y, (m, n), sigma, loss), observed)


def hard_threshold(shape: Sequence[int], sigma: float | None = None) -> float:
    """The threshold at which keeping or dropping whole singular values has the least Frobenius error.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float, optional
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix.

    Returns
    -------
    float
        With ``sigma``: the threshold on the singular values, ``λ*(β)·√max(m,n)·σ`` with β = min(m,n)/max(m,n)
        and ``λ*(β)² = 2(β+1) + 8β/(β + 1 + √(β²+14β+1))``; the Frobenius shrinker halves a value there.
        Without: the coefficient ω(β) by which to multiply the *median singular value* of the noisy matrix; it
        is ``λ*(β)`` over the median of the Marchenko–Pastur law in the same units, not its cubic fit.

    Raises
    ------
    ParameterError
        If ``shape`` is not a pair of integers >= 1 or ``sigma`` is negative or not finite.

    References
    ----------
    Gavish & Donoho (2014), arXiv:1305.5870v3.

    Examples
    --------
    >>> round(hard_threshold((100, 100), sigma=0.1), 6) == round(4 / 3**0.5, 6)
    True
    >>> round(hard_threshold((100, 100)), 4)
    2.8584
    """
    m, n = check_shape(shape)
    β = min(m, n) / max(m, n)
    coefficient = math.sqrt(2 * (β + 1) + 8 * β / (β + 1 + math.sqrt(β * β + 14 * β + 1)))
    threshold = coefficient * math.sqrt(max(m, n))
    if sigma is None:
        return threshold / MarchenkoPastur((m, n), sigma=1.0).median
    return threshold * check_real("sigma", sigma, low=0.0)
