r"""The polar factor of the signal in a noisy matrix: Muon's step without the directions of the noise.

Muon steps along the polar factor ``Σ ũ_i ṽ_iᵀ`` of a momentum, in which every direction has size one. In a noisy
momentum nearly all directions are noise. With the singular vectors of X uniformly distributed, the best matrix D with
``‖D‖_op <= 1`` for ``E⟨D, X⟩ - (τ/2) E‖D‖²`` is

    ``Σ d_i ũ_i ṽ_iᵀ``, d_i the c_i/τ clipped to [-1, 1], ``c_i = E[ũ_iᵀ X ṽ_i | Y]``,

and c_i is of the size of the signal for spikes and 1/min(m, n) of it in the bulk: with any price τ between the two
D keeps the spikes at size one and drops the bulk. Without a price (τ = 0) it is Muon's step that is best. Derivation:
docs/theory/when_denoising_helps.md, Theorem 7.
"""

from __future__ import annotations

from dprmt._validation import check_real
from dprmt.spectra._arrays import (
    Array,
    MatrixT,
    array_namespace,
    cast_like,
    check_matrices,
    detached,
    keeps_labels,
    promote_half,
    refuse_kernels,
    to_float64,
)
from dprmt.spectra._denoise import gate_of
from dprmt.spectra._phase_transition import bulk_edge


@keeps_labels
def spiked_polar(matrix: MatrixT, sigma: float, kappa: float | None = None) -> MatrixT:
    """The sum of ``ũ_i ṽ_iᵀ`` over the singular values of a noisy matrix that stand out from the noise.

    Parameters
    ----------
    matrix : array, shape (..., m, n)
        Y, NumPy or torch, of real floating dtype; leading axes are a batch of independent matrices. Of a momentum, the
        noise is that of `momentum_noise_scale`. It is outside automatic differentiation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix. With 0 the result is the polar
        factor of Y: directions whose singular value is 0 to rounding are left out.
    kappa : float, optional
        The gate >= 1, in units of the bulk edge, for every singular value on its own. By default that of `kappa_for`
        for the shape, which noise alone passes in 1 % of draws.

    Returns
    -------
    array, shape (..., m, n)
        D, with singular values 0 and 1, in the form, dtype and device of ``matrix``; 0 where nothing stands out.

    Raises
    ------
    ParameterError
        If ``matrix`` has fewer than two axes, is a convolution's kernel, has no entries, one that is not finite or a
        dtype that is not real floating; if ``sigma`` < 0, ``kappa`` < 1, or either is not finite.

    Formal guarantees
    -----------------
    If X has rank r, D has a larger rank with at most the probability with which noise alone passes the gate, whatever X
    (Theorem 6). As a function of ``matrix`` and public numbers it costs no privacy.

    References
    ----------
    docs/theory/when_denoising_helps.md, Theorems 6 and 7. Muon: Jordan et al. (2024).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> u, v = np.eye(16)[0], np.ones(256) / 16
    >>> step = spiked_polar(60 * np.outer(u, v) + rng.standard_normal((16, 256)), sigma=1.0)
    >>> np.linalg.matrix_rank(step), round(float(u @ step @ v), 2)  # Muon's has rank 16
    (np.int64(1), 0.96)
    """
    original = check_matrices("matrix", matrix)
    refuse_kernels("matrix", original)
    shape = int(original.shape[-2]), int(original.shape[-1])
    gate = gate_of(shape, kappa) * bulk_edge(shape, check_real("sigma", sigma, low=0.0))
    Y = promote_half(detached(original))
    xp = array_namespace(Y)
    largest = xp.amax(abs(Y), (-2, -1))[..., None]
    scale = xp.where(largest > 0, largest, xp.ones_like(largest))
    U, values, Vt = xp.linalg.svd(Y / scale[..., None], full_matrices=False)
    y = to_float64(values)
    standing = _standing(y, gate / to_float64(scale), max(shape) * xp.finfo(Y.dtype).eps)
    return cast_like((U * xp.asarray(standing, dtype=Y.dtype)[..., None, :]) @ Vt, original)


def _standing(y: Array, gate: Array, rounding: float) -> Array:
    # Above the gate, and not 0 to rounding; the matrix is scaled to the largest entry 1.
    return (y >= gate) & (y > rounding * y[..., :1])
