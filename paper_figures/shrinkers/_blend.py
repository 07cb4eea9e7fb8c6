"""The denoiser that is never worse than doing nothing, as far as an unbiased estimate can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._arrays import (
    Array,
    MatrixT,
    array_namespace,
    as_array,
    cast_like,
    check_finite,
    check_nonempty,
    detached,
    float64_like,
    is_tensor,
    keeps_labels,
    refuse_kernels,
    to_float64,
)
from dprmt.spectra._backends import full_spectrum
from dprmt.spectra._denoise import NEGLIGIBLE, in_safe_range, representable, reweight
from paper_figures.shrinkers._blend_weights import Floats, Moments, fit_weights, members, moments_of, squared_norm


@keeps_labels
def blend(matrix: MatrixT, sigma: float, norm_correction: bool = True) -> MatrixT:
    """Denoise a noisy matrix by the combination of shrinkers that Stein's unbiased risk estimate prefers.

    Candidates are ``f(Y) = U diag(f(y_i)) Vᵀ`` for non-negative combinations f of the identity and of three soft
    thresholds. ``⟨f(Y), X⟩`` is estimated without bias from Y alone, so cosines with X can be compared; a caution
    of 3/4 standard errors leans the comparison towards Y. There is no gate, and signal that has not emerged from
    the bulk is not lost: where the spectrum decays slowly `denoise` can be worse than doing nothing, and this is
    not.

    Parameters
    ----------
    matrix : array, shape (..., m, n)
        Y, as in `denoise`; leading axes are a batch of independent matrices. Spectra and weights are computed in
        float64, the result in float64 for float64, else in float32.
    sigma : float
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix: σ_DP·C/|B|, not the noise
        multiplier. With 0 there is nothing to remove and the matrix comes back as it is.
    norm_correction : bool
        Whether the result gets the Frobenius norm of Y. If not, it is the least-squares estimate of X; so is a
        result that would leave the range of its dtype if rescaled.

    Returns
    -------
    array, shape (..., m, n)
        In the form, dtype and device of ``matrix``. The same object, not a copy, if nothing changes: no
        combination has a positive estimated inner product with X, or none is better than Y; also for all matrices
        with one row or column, of which shrinking changes the norm only.

    Raises
    ------
    ParameterError
        If ``matrix`` has fewer than two axes, a zero-length axis, an entry that is not finite or a dtype that is
        not real floating; if ``sigma`` is negative or not finite; if the result does not fit the dtype, rescaled
        or not.

    Formal guarantees
    -----------------
    If ``matrix`` is the output of a differentially private mechanism, so is the result, with the same (ε, δ): it
    is a function of ``matrix`` and of the other arguments alone. These must not depend on the private data in
    other ways.

    The *estimated* cosine with X is never below that of Y. The true one may be, by the error of the estimate:
    ``docs/theory/sure_denoiser.md`` states how much in simulations.

    References
    ----------
    Stein's estimate for spectral functions: Candès, Sing-Long & Trzasko (2013), arXiv:1210.4139. The cone, the
    caution and the proof: `paper_figures.shrinkers._blend_weights`.

    Examples
    --------
    >>> import numpy as np
    >>> from dprmt.spectra._alignment import cosine_similarity
    >>> from dprmt.spectra._denoise import denoise
    >>> rng = np.random.default_rng(0)
    >>> clean = np.zeros((16, 768))
    >>> clean[range(16), range(16)] = 14 / np.arange(1, 17) ** 0.5  # top singular value 14; bulk edge 32
    >>> noisy = clean + rng.standard_normal((100, 16, 768))  # 100 draws of the noise
    >>> def mean_cosine(matrices):
    ...     return round(sum(cosine_similarity(matrix, clean) for matrix in matrices) / 100, 3)
    >>> mean_cosine(noisy), mean_cosine(denoise(noisy, sigma=1.0, method="paper")), mean_cosine(blend(noisy, sigma=1.0))
    (0.226, 0.18, 0.241)
    """
    array = as_array("matrix", matrix)
    if array.ndim < 2:
        raise ParameterError("matrix", tuple(array.shape), "a matrix or a stack of matrices, shape (..., m, n)")
    check_nonempty("matrix", array)
    refuse_kernels("matrix", array)
    σ = check_real("sigma", sigma, low=0.0)
    if σ == 0:
        check_finite("matrix", array)
        return array
    stack = array.reshape(-1, *array.shape[-2:])
    spectra = decompose(stack, [σ] * len(stack), ["matrix"] * len(stack))
    weights = fit_weights(spectra.moments)
    coefficients = single_layer_coefficients(weights, spectra.moments.gram, norm_correction)
    changed = changed_rows(coefficients)
    if not changed:
        return array
    blended = cast_like(combine(spectra, coefficients, changed, rescaling(coefficients, weights)), array)
    if len(changed) < len(stack):
        whole = detached(stack) * 1.0
        whole[changed] = blended
        blended = whole
    return blended.reshape(array.shape)


@dataclass(frozen=True)
class NoisySpectra:
    """A stack of noisy matrices, decomposed."""

    y: Array
    """The matrices, shape (batch, m, n), in ``unit``."""
    unit: Array
    """Powers of two, shape (batch,)."""
    vectors: Array
    """Singular vectors of the shorter side, shape (batch, r, r), r = min(m, n)."""
    values: Floats
    """Singular values in units of σ, shape (batch, r), in decreasing order."""
    moments: Moments
    """Estimates, in units of σ²."""
    dtype: Any
    """In which the matrices came."""
    names: Sequence[str]
    """What error messages call them."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of one matrix."""
        rows, columns = self.y.shape[-2:]
        return rows, columns


def decompose(stack: Array, sigmas: Sequence[float], names: Sequence[str]) -> NoisySpectra:
    """Decompose matrices of one shape, each with its own noise level.

    ``stack``: the noisy matrices. It is kept, not copied, if it is of float32 or float64.
    """
    y, unit = in_safe_range(stack, names)
    m, n = shape = tuple(y.shape[-2:])
    xp = array_namespace(y)
    with np.errstate(over="ignore"):
        σ = xp.clip(float64_like(sigmas, y) / to_float64(unit), NEGLIGIBLE, 1 / NEGLIGIBLE)
    spectrum = full_spectrum(y if m <= n else y.mT, σ * (math.sqrt(m) + math.sqrt(n)))
    scaled = spectrum.values / σ[:, None]
    values = scaled.cpu().numpy() if is_tensor(scaled) else scaled
    return NoisySpectra(y, unit, spectrum.vectors, values, moments_of(values, shape), stack.dtype, names)


def norm_ratios(weights: Floats, gram: Floats) -> Floats:
    """``‖Σ w_k f_k(Y)‖/‖Y‖`` of each row."""
    total = gram[:, 0, 0]
    return np.sqrt(np.where(total > 0, squared_norm(weights, gram) / np.where(total > 0, total, 1), 0))


def single_layer_coefficients(weights: Floats, gram: Floats, norm_correction: bool) -> Floats:
    """What to multiply the members with, if every matrix keeps its noisy norm, or none is rescaled.

    Returns: (1, 0, 0, 0), to the last bit, for a matrix in which nothing is detected or which would only be rescaled.
    """
    ratios = norm_ratios(weights, gram)
    result = weights / np.where(ratios > 0, ratios, 1)[:, None] if norm_correction else weights.copy()
    shrinks = (weights * np.einsum("...ii->...i", gram))[:, 1:].any(-1)
    result[(ratios == 0) | ~shrinks if norm_correction else ratios == 0] = identity(weights)
    return result


def identity(weights: Floats) -> Floats:
    """The coefficients of a matrix that is left alone."""
    return np.eye(1, weights.shape[-1])[0]


def changed_rows(coefficients: Floats) -> list[int]:
    """Positions of the matrices that are not left alone."""
    changed: list[int] = np.flatnonzero((coefficients != identity(coefficients)).any(-1)).tolist()
    return changed


def combine(spectra: NoisySpectra, coefficients: Floats, rows: list[int], unscaled: Floats) -> Array:
    """The combinations ``Σ a_k f_k(Y)`` of some of the matrices.

    All members but the first vanish inside most of the bulk, so the others need few singular vectors, and
    rounding of small singular values does not matter.

    ``unscaled``: what to multiply a result with that would not fit the dtype in which its matrix came.
    Returns: in the dtype of the computation; all fit that of the caller's matrices.
    """
    values, a = spectra.values[rows], coefficients[rows]
    shrunk = np.einsum("bk,bkr->br", a[:, 1:], members(values, spectra.shape)[:, 1:])
    factors = shrunk / np.where(values > 0, values, 1)
    kept = int((factors > 0).any(0).sum())  # these come first
    y, unit, vectors = spectra.y, spectra.unit, spectra.vectors
    if len(rows) < len(y):
        y, unit, vectors = y[rows], unit[rows], vectors[rows]
    share = cast_like(float64_like(a[:, 0], y), y)[:, None, None]
    if kept == 0:
        result = y * share
    else:
        result = reweight(y, vectors[..., :kept], cast_like(float64_like(factors[:, :kept], y), y), out=None)
        if a[:, 0].any():
            result += y * share
    names = [spectra.names[i] for i in rows]
    return representable(result, unit, float64_like(unscaled[rows], y), spectra.dtype, names)


def rescaling(coefficients: Floats, weights: Floats) -> Floats:
    """What undoes the rescaling of each row: ``weights/coefficients``, 1 where nothing was rescaled."""
    largest = np.argmax(coefficients, -1)[:, None]
    before, after = (np.take_along_axis(rows, largest, -1)[:, 0] for rows in (weights, coefficients))
    return np.where((before > 0) & (after > 0), before / np.where(after > 0, after, 1), 1.0)
