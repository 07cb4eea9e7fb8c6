"""The gradient denoiser of Eq. 10: singular values are shrunk above the gate, nothing happens below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.spectra._arrays import (
    Array,
    MatrixT,
    array_namespace,
    as_array,
    cast_like,
    check_finite,
    check_nonempty,
    is_tensor,
    promote_half,
    refuse_kernels,
    to_float64,
)
from dprmt.spectra._backends import Backend, leading_spectrum
from dprmt.spectra._formulas import Loss, shrunk
from dprmt.spectra._labels import keeps_labels
from dprmt.spectra._representable import representable

_SAFE = 2.0**-40, 2.0**40  # range of largest entries whose squares, and sums of them, are normal in float32
NEGLIGIBLE = 1e-100  # noise so far below the data, or above, that squares would leave the range of floats


@keeps_labels
def denoise(
    matrix: MatrixT,
    sigma: float,
    kappa: float = 1.02,
    norm_correction: bool = True,
    *,
    loss: Loss = "frobenius",
    backend: Backend = "auto",
) -> MatrixT:
    """Denoise a noisy gradient matrix, or leave it alone if nothing in it stands out from the noise.

    With s₁ the top singular value of Y, b the bulk edge and Ŷ the matrix Y with its singular values shrunk by
    `shrink` (those at and below the edge to 0):

    - ``s₁ < κ·b``: Y, unchanged to the last bit;
    - otherwise: ``Ŷ·‖Y‖/‖Ŷ‖``, or Ŷ itself without ``norm_correction``.

    Parameters
    ----------
    matrix : array, shape (..., m, n)
        Y, NumPy or torch (any device), of real floating dtype; leading axes are a batch of independent
        matrices. Work is done in float64 for float64, else in float32, the gate and the shrinkage always in
        float64. It is outside automatic differentiation; keep it out of autocast regions, which would round
        its products.
    sigma : float
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix: σ_DP·C/|B|, not the
        noise multiplier. With 0 there is nothing to remove and the matrix comes back as it is.
    kappa : float
        κ >= 1, the gate in units of the bulk edge. `kappa_for` gives it for a false-alarm rate.
    norm_correction : bool
        Whether to give the shrunk matrix the Frobenius norm of the noisy one; then improvements of the layers
        add up to one of the whole gradient (`block_cosine`). False is the paper's ablation. A matrix whose
        rescaled version would leave the range of its dtype, as large float16 entries can, is not rescaled.
    loss : {"frobenius", "operator", "nuclear"}
        The shrinker. The paper's is Frobenius. Only "nuclear" shrinks values next to the edge to 0, so that a
        matrix that passes the gate may have nothing left to rescale; it is then returned unchanged.
    backend : {"auto", "gram", "lanczos", "products", "svd"}
        How to find the singular values; "auto" goes by the shape, see `dprmt.spectra._backends`.

    Returns
    -------
    array, shape (..., m, n)
        In the form, dtype and device of ``matrix``. The same object, not a copy, if no matrix passes the
        gate.

    Raises
    ------
    ParameterError
        If ``matrix`` has fewer than two axes or is a convolution's kernel (out, in, h, w), whose slices are no
        matrices to denoise; if it has a zero-length axis, an entry that is not finite or a dtype that
        is not real floating; if ``sigma`` < 0, ``kappa`` < 1, or either is not finite; if a choice is
        unknown; if the result does not fit the dtype, rescaled or not.

    Formal guarantees
    -----------------
    If ``matrix`` is the output of a differentially private mechanism, so is the result, with the same (ε, δ):
    it is a function of ``matrix`` and of the other arguments alone. These must not depend on the private data
    in other ways.

    References
    ----------
    Eq. 10 of arXiv:2510.01137v3 with the shrinker of Eq. 9; appendix H.2 without norm correction.

    Examples
    --------
    >>> import numpy as np
    >>> from dprmt.spectra._alignment import cosine_similarity
    >>> rng = np.random.default_rng(0)
    >>> clean = 60 * np.outer(np.eye(16)[0], np.ones(256) / 16)
    >>> noisy = clean + rng.standard_normal((16, 256))  # bulk edge: 20
    >>> denoised = denoise(noisy, sigma=1.0)
    >>> round(cosine_similarity(noisy, clean), 2), round(cosine_similarity(denoised, clean), 2)
    (0.68, 0.96)
    >>> noise = noisy - clean
    >>> denoise(noise, sigma=1.0) is noise
    True
    """
    array = as_array("matrix", matrix)
    if array.ndim < 2:
        raise ParameterError("matrix", tuple(array.shape), "a matrix or a stack of matrices, shape (..., m, n)")
    check_nonempty("matrix", array)
    refuse_kernels("matrix", array)
    σ = check_real("sigma", sigma, low=0.0)
    κ = check_real("kappa", kappa, low=1.0)
    check_method(loss, backend)
    if σ == 0:
        check_finite("matrix", array)
        return array
    stack = array.reshape(-1, *array.shape[-2:])
    size = len(stack)
    result = denoise_stack(stack, [σ] * size, [κ] * size, norm_correction, loss, backend, ["matrix"] * size)
    if not result.changed:
        return array
    if len(result.changed) < size:
        whole = detached(stack) * 1.0
        whole[result.changed] = cast_like(result.matrices, array)
    else:
        whole = cast_like(result.matrices, array)
    return whole.reshape(array.shape)


class DenoisedStack(NamedTuple):
    """What became of a stack of matrices."""

    changed: list[int]
    """Positions of the matrices that passed the gate."""
    matrices: Array
    """Their denoised versions, shape (len(changed), m, n), computed in float32 or wider; all fit the stack's dtype."""
    top_over_edge: list[float]
    """Top singular value in units of the bulk edge, of every matrix."""
    spikes: list[int]
    """Number of singular values above the bulk edge, of every matrix."""


def denoise_stack(
    stack: Array,
    sigmas: Sequence[float],
    kappas: Sequence[float],
    norm_correction: bool,
    loss: Loss,
    backend: Backend,
    names: Sequence[str],
    scratch: bool = False,
) -> DenoisedStack:
    """Denoise matrices of one shape, each with its own noise level and gate; into ``stack`` if it is scratch."""
    shape = m, n = tuple(stack.shape[-2:])
    y, unit = in_safe_range(stack, names)
    xp = array_namespace(y)
    with np.errstate(over="ignore"):
        σ = xp.clip(float64_like(sigmas, y) / to_float64(unit), NEGLIGIBLE, 1 / NEGLIGIBLE)
    b = σ * (math.sqrt(m) + math.sqrt(n))
    spectrum = leading_spectrum(y if m <= n else y.mT, b, backend)
    s = spectrum.values
    η = shrunk(s / σ[:, None], shape, 1.0, loss) * σ[:, None]
    norm = xp.sqrt((η * η).sum(-1))
    passed = s[:, 0] >= float64_like(kappas, y) * b
    if norm_correction:
        passed = passed & (norm > 0)
    changed = [i for i, passes in enumerate(passed.tolist()) if passes]
    weights = η / xp.where(s > 0, s, 1.0)
    scale = xp.ones_like(norm)
    if norm_correction:
        scale = _frobenius_norm(y) / xp.where(norm > 0, norm, 1.0)
        weights = weights * scale[:, None]
    chosen, vectors = pick(y, changed), pick(spectrum.vectors, changed)
    out = chosen if scratch or chosen is not y else None
    if spectrum.others is None:
        matrices = reweight(chosen, vectors, cast_like(pick(weights, changed), y), out)
    else:
        shortened = cast_like(pick(weights * s, changed), y)
        matrices = _recomposed(m <= n, vectors, shortened, pick(spectrum.others, changed), out)
    unit, scale = pick(unit, changed), pick(scale, changed)
    return DenoisedStack(
        changed=changed,
        matrices=representable(matrices, unit, 1 / scale, stack.dtype, [names[i] for i in changed]),
        top_over_edge=(s[:, 0] / b).tolist(),
        spikes=(s > b[:, None]).sum(-1).tolist(),
    )


def check_method(loss: str, backend: str) -> None:
    """Raise unless both choices are known."""
    check_choice("loss", loss, get_args(Loss))
    check_choice("backend", backend, get_args(Backend))


def detached(array: Array) -> Array:
    """The array outside automatic differentiation."""
    return array.detach() if is_tensor(array) else array


def in_safe_range(stack: Array, names: Sequence[str]) -> tuple[Array, Array]:
    """The matrices in float32 or float64, each in units of a power of two, and the units.

    These are near the top entry for all if one of them is so large or small that its squares might leave the
    range, else 1.
    """
    y = promote_half(detached(stack))
    y = y if y.dtype.itemsize <= 8 else to_float64(y)
    xp = array_namespace(y)
    peaks = xp.maximum(xp.amax(y, (-2, -1)), -xp.amin(y, (-2, -1)))
    largest = peaks.tolist()
    if not math.isfinite(sum(largest)):
        bad = next(i for i, peak in enumerate(largest) if not math.isfinite(peak))
        raise ParameterError(names[bad], largest[bad], "finite in every entry")
    if _SAFE[0] < min(largest) and max(largest) < _SAFE[1]:
        return y, xp.ones_like(peaks)
    unit = xp.ldexp(xp.ones_like(peaks), xp.frexp(peaks)[1] - 1)
    return y / unit[:, None, None], unit


def reweight(y: Array, vectors: Array, weights: Array, out: Array | None) -> Array:
    """``U diag(w) Uᵀ Y`` for wide matrices, ``Y V diag(w) Vᵀ`` for tall ones."""
    weighted = vectors * weights[:, None, :]
    wide = y.shape[-2] <= y.shape[-1]
    left, right = (weighted, vectors.mT @ y) if wide else (y @ vectors, weighted.mT)
    return array_namespace(y).matmul(left, right, out=out)


def _recomposed(wide: bool, vectors: Array, values: Array, others: Array, out: Array | None) -> Array:
    # ``U diag(η) Vᵀ``, or its transpose.
    scaled = vectors * values[:, None, :]
    left, right = (scaled, others) if wide else (others.mT, scaled.mT)
    return array_namespace(left).matmul(left, right, out=out)


def _frobenius_norm(y: Array) -> Array:
    xp = array_namespace(y)
    return xp.sqrt((to_float64(xp.linalg.norm(y, 2, -1)) ** 2).sum(-1))


def pick(stack: Array, positions: list[int]) -> Array:
    """The matrices at these positions, without a copy if that is all of them."""
    return stack if len(positions) == len(stack) else stack[positions]


def float64_like(values: Sequence[float] | NDArray[np.float64], like: Array) -> Array:
    """Numbers as an array of the library, and on the device, of another one."""
    array = np.asarray(values, dtype=np.float64)
    return to_float64(like.new_tensor(array)) if is_tensor(like) else array
