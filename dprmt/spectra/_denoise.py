"""The denoiser: singular values are shrunk above a gate, for one matrix, a batch, or the layers of many gradients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.spectra._arrays import (
    Array,
    MatrixT,
    array_namespace,
    as_array,
    cast_like,
    check_finite,
    check_matrices,
    check_nonempty,
    detached,
    float64_like,
    keeps_labels,
    to_float64,
)
from dprmt.spectra._backends import GRAM_LIMIT, Backend, leading_spectrum
from dprmt.spectra._formulas import Loss, shrunk
from dprmt.spectra._tracy_widom import kappa_for

Method = Literal["shrink", "paper"]
BelowGate = Literal["zero", "unchanged"]
Gate: TypeAlias = float | Callable[[tuple[int, int]], float] | None
_BATCH_ENTRIES = 2**24  # entries of a stack, whose copies take 64 MiB in float32


@dataclass(frozen=True)
class LayerReport:
    """Effect of the denoiser on one layer.

    Attributes
    ----------
    name : str
        Name of the layer.
    shape : tuple of int
        Shape of the layer.
    top_over_edge : float or None
        Top singular value in units of the bulk edge; infinite if sigma is 0, None if the layer is not a matrix. For a
        large matrix with nothing above the edge it is a lower bound, usually within 1e-5.
    spikes : int
        Number of singular values above the bulk edge; the denoiser keeps these.
    denoised : bool
        Whether the layer passed the gate and was replaced by its estimate.
    """

    name: str
    shape: tuple[int, ...]
    top_over_edge: float | None
    spikes: int
    denoised: bool

    @property
    def noisy_share(self) -> float:
        """Share of the noise that is still in it: 0 of a denoised layer, 1 of others."""
        return float(not self.denoised)


class Way(NamedTuple):
    """How matrices are denoised."""

    keeps_norm: bool
    zeroes: bool
    """Whether a matrix below the gate becomes 0."""
    loss: Loss
    backend: Backend


def checked_way(method: str, below_gate: str | None, loss: str, backend: str) -> Way:
    """Return the choices of `denoise`, checked."""
    check_choice("method", method, get_args(Method))
    below = ("unchanged" if method == "paper" else "zero") if below_gate is None else below_gate
    check_choice("below_gate", below, get_args(BelowGate))
    check_choice("loss", loss, get_args(Loss))
    check_choice("backend", backend, get_args(Backend))
    return Way(method == "paper", below == "zero", loss, backend)  # type: ignore[arg-type]


def gate_of(shape: tuple[int, int], kappa: Gate) -> float:
    """Return κ for matrices of a shape."""
    if kappa is None:
        return kappa_for(shape, 0.01)
    if callable(kappa):
        return check_real(f"kappa({shape})", kappa(shape), low=1.0)
    return check_real("kappa", kappa, low=1.0)


def sigma_by_name(names: list[str], sigma: float | Mapping[str, float]) -> dict[str, float]:
    """Return the noise level of every matrix."""
    if not isinstance(sigma, Mapping):
        return dict.fromkeys(names, check_real("sigma", sigma, low=0.0))
    for name in names:
        if name not in sigma:
            raise ParameterError("sigma", sorted(sigma), f"given for every matrix, also for {name!r}")
    return {name: check_real(f"sigma[{name!r}]", sigma[name], low=0.0) for name in names}


class DenoisedStack(NamedTuple):
    """Result of denoising a stack of matrices."""

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
    kappa: float,
    how: Way,
    names: Sequence[str],
    scratch: bool = False,
) -> DenoisedStack:
    """Denoise matrices of one shape, each with its own noise level; into ``stack`` if it is scratch."""
    shape = m, n = tuple(stack.shape[-2:])
    y, unit, rows = _in_safe_range(stack, names)
    xp, σ = array_namespace(y), float64_like(sigmas, y)
    with np.errstate(over="ignore"):
        σ = xp.clip(σ / to_float64(unit), 1e-100, 1e100)  # beyond, squares would leave the range of floats
    b = σ * (math.sqrt(m) + math.sqrt(n))
    s, vectors, others = leading_spectrum(y if m <= n else y.mT, b, how.backend)
    η = shrunk(s / σ[:, None], shape, 1.0, how.loss) * σ[:, None]
    norm = xp.sqrt((η * η).sum(-1))
    passed = s[:, 0] >= kappa * b
    if how.keeps_norm:
        passed = passed & (norm > 0)
    changed = [i for i, passes in enumerate(passed.tolist()) if passes]
    top_over_edge, spikes = (s[:, 0] / b).tolist(), (s > b[:, None]).sum(-1).tolist()
    if len(changed) < len(y):
        y, unit, rows, s, η, norm, vectors = (part[changed] for part in (y, unit, rows, s, η, norm, vectors))
        others, scratch = others if others is None else others[changed], True
    scale = xp.ones_like(norm)
    if how.keeps_norm:
        scale = xp.sqrt((rows**2).sum(-1)) / norm
    weights = η / xp.where(s > 0, s, 1.0) * scale[:, None]
    if others is None:
        weighted = vectors * cast_like(weights, y)[:, None, :]
        left, right = (weighted, vectors.mT @ y) if m <= n else (y @ vectors, weighted.mT)
    else:
        weighted = vectors * cast_like(weights * s, y)[:, None, :]
        left, right = (weighted, others) if m <= n else (others.mT, weighted.mT)
    matrices = xp.matmul(left, right, out=y if scratch else None)
    matrices = _representable(matrices, unit, 1 / scale, stack.dtype, [names[i] for i in changed])
    return DenoisedStack(changed, matrices, top_over_edge, spikes)


def _in_safe_range(stack: Array, names: Sequence[str]) -> tuple[Array, Array, Array]:
    """Return the matrices in float32 or float64, each in units of a power of two, the units, and the rows' lengths.

    The units are near the top entry for all if the rows of one matrix are so long or short that squares might leave the
    range, else 1.
    """
    xp = array_namespace(stack)
    y = detached(stack)
    if not 4 <= y.dtype.itemsize <= 8:
        y = xp.asarray(y, dtype=xp.float32 if y.dtype.itemsize < 4 else xp.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rows = xp.linalg.norm(y, 2, -1)
    longest = xp.amax(rows, -1)
    low, high = 2.0**-40, 2.0**40  # whose squares, and sums of them, are normal in float32
    if bool(((longest > low) & (longest < high)).all()):
        return y, xp.ones_like(longest), to_float64(rows)
    peaks = _peaks(y)
    for name, peak in zip(names, peaks.tolist(), strict=True):
        if not math.isfinite(peak):
            raise ParameterError(name, peak, "finite in every entry")
    unit = xp.ldexp(xp.ones_like(peaks), xp.frexp(peaks)[1] - 1)
    y = y / unit[:, None, None]
    return y, unit, to_float64(xp.linalg.norm(y, 2, -1))


def _peaks(stack: Array) -> Array:
    # The largest absolute value of each matrix.
    xp = array_namespace(stack)
    return xp.maximum(xp.amax(stack, (-2, -1)), -xp.amin(stack, (-2, -1)))


def _representable(matrices: Array, unit: Array, fallback: Array, dtype: Any, names: Sequence[str]) -> Array:
    """Undo the units of the matrices; use the fallback factor of a matrix that would otherwise leave the range.

    ``matrices`` is changed in place, and its entries are finite in ``dtype``.
    """
    xp, unit = array_namespace(matrices), to_float64(unit)
    limit = float(xp.finfo(dtype).max)
    if len(matrices) == 0 or (bool((unit == 1).all()) and limit >= xp.finfo(matrices.dtype).max):
        return matrices
    peaks = to_float64(_peaks(matrices))
    with np.errstate(over="ignore"):
        factors = xp.where(peaks * unit <= limit, unit, unit * to_float64(fallback))
        reached = (peaks * factors).tolist()
    for name, peak in zip(names, reached, strict=True):
        if peak > limit:
            allowed = f"a matrix whose denoised version fits {dtype}, entries up to {limit:g}; its largest entry"
            raise ParameterError(name, peak, allowed)
    if not bool((factors == 1).all()):
        matrices *= cast_like(factors, matrices)[:, None, None]
    return matrices


@keeps_labels
def denoise(
    matrix: MatrixT,
    sigma: float | ArrayLike,
    kappa: float | None = None,
    *,
    method: Method = "shrink",
    below_gate: BelowGate | None = None,
    loss: Loss = "frobenius",
    backend: Backend = "auto",
) -> MatrixT:
    """Estimate the clean matrix X from a noisy one, ``Y = X + σW``.

    Let s₁ be the top singular value of Y, b the bulk edge, and X̂ the matrix Y with its singular values shrunk by
    `shrink`. Values at and below the edge become 0. If ``s₁ >= κ·b``, Y passes the gate: ``method="shrink"`` returns
    X̂, and ``method="paper"`` returns ``X̂·‖Y‖/‖X̂‖``, which is no estimate of X.

    Parameters
    ----------
    matrix : array, shape (..., m, n)
        Noisy matrix Y, NumPy or torch, real; leading axes are a batch. Do not use it under autocast,
        which would round its products.
    sigma : float or array of shape (...)
        Standard deviation σ_DP·C/|B| >= 0 of one entry of the noise, not the noise multiplier: one number for all
        matrices, or one for each.
    kappa : float, optional
        The gate κ >= 1 in units of the bulk edge; Eq. 10 uses 1.02. By default `kappa_for` of the shape, which noise
        alone passes in 1 % of draws.
    method : {"shrink", "paper"}
        "shrink" estimates the clean matrix. "paper" is Eq. 10, the estimate scaled to the Frobenius norm of Y, so that
        improvements of layers add up (`block_cosine`). A matrix whose rescaled version leaves the range of its dtype
        is not rescaled.
    below_gate : {"zero", "unchanged"}, optional
        Result for a matrix that does not pass the gate. "zero", the default of "shrink", is the estimate if nothing is
        detected. "unchanged", the default of "paper", is Y.
    loss : {"frobenius", "operator", "nuclear"}
        The loss that the shrinker minimizes. Eq. 10 uses "frobenius". Only "nuclear" shrinks values next to the edge to
        0; a matrix of which nothing is left counts as below the gate.
    backend : {"auto", "gram", "lanczos", "products", "svd"}
        Method for the singular values; "auto" chooses by shape.

    Returns
    -------
    array, shape (..., m, n)
        In the form, dtype (of integers: float64) and device of ``matrix``; the same object if nothing changes.

    Raises
    ------
    ParameterError
        If ``matrix`` has fewer than two axes, is a convolution's kernel (out, in, h, w), or is empty or not finite. If
        another argument is out of its range, or the result does not fit the dtype.

    Formal guarantees
    -----------------
    The result is a function of the arguments alone. So a differentially private ``matrix`` gives a result with the
    same (ε, δ), if the other arguments do not depend on the private data.

    References
    ----------
    Eq. 9 of arXiv:2510.01137v3 and Eq. 10 for ``method="paper"``; Gavish & Donoho (2017), arXiv:1405.7511v2.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> clean = 60 * np.outer(np.eye(16)[0], np.ones(256) / 16)
    >>> noisy = clean + rng.standard_normal((16, 256))  # bulk edge: 20
    >>> error = lambda estimate: round(float(np.linalg.norm(estimate - clean) / np.linalg.norm(clean)), 2)
    >>> error(noisy), error(denoise(noisy, sigma=1.0)), error(denoise(noisy, sigma=1.0, method="paper"))
    (1.06, 0.27, 0.56)
    >>> noise = noisy - clean
    >>> bool(denoise(noise, sigma=1.0).any()), denoise(noise, sigma=1.0, method="paper") is noise
    (False, True)
    """
    array = check_matrices("matrix", matrix, finite=False)  # what is denoised is checked with its norms
    how = checked_way(method, below_gate, loss, backend)
    κ = gate_of((int(array.shape[-2]), int(array.shape[-1])), kappa)
    sigmas = _sigmas(sigma, tuple(array.shape[:-2]))
    noisy = [i for i, σ in enumerate(sigmas) if σ > 0]
    stack = array.reshape(-1, *array.shape[-2:])
    if len(noisy) < len(stack):
        check_finite("matrix", array)
    if not noisy:
        return array
    some = stack if len(noisy) == len(stack) else stack[noisy]
    names = ["matrix"] * len(noisy)
    result = denoise_stack(some, [sigmas[i] for i in noisy], κ, how, names)
    if not result.changed and not how.zeroes:
        return array
    if len(result.changed) == len(stack):
        return cast_like(result.matrices, array).reshape(array.shape)
    whole = detached(stack) * 1.0
    if how.zeroes:
        whole[noisy] = 0.0
    whole[[noisy[i] for i in result.changed]] = cast_like(result.matrices, array)
    return whole.reshape(array.shape)


def _sigmas(sigma: Any, batch: tuple[int, ...]) -> list[float]:
    # One for each matrix of a batch.
    if getattr(sigma, "ndim", 0) == 0 and not isinstance(sigma, (list, tuple)):
        return [check_real("sigma", float(sigma) if hasattr(sigma, "ndim") else sigma, low=0.0)] * math.prod(batch)
    values = detached(as_array("sigma", sigma))
    if tuple(values.shape) != batch:
        raise ParameterError("sigma", tuple(values.shape), f"a number, or one for each matrix: of shape {batch}")
    return [check_real("sigma", value, low=0.0) for value in values.reshape(-1).tolist()]


def denoise_layers(
    layers: Mapping[str, MatrixT],
    sigma: float | Mapping[str, float],
    kappa: Gate = None,
    *,
    method: Method = "shrink",
    below_gate: BelowGate | None = None,
    loss: Loss = "frobenius",
    backend: Backend = "auto",
) -> tuple[dict[str, MatrixT], dict[str, LayerReport]]:
    """Denoise every matrix of a noisy gradient, as `denoise` does.

    Only arrays with two axes are denoised; all others pass through. To denoise a convolution kernel, reshape it to the
    matrix view that is of low rank.

    Parameters
    ----------
    layers : mapping of str to array
        The noisy gradient by layer, NumPy or torch, any mixture of shapes, dtypes and devices. Not modified.
    sigma : float or mapping of str to float
        Standard deviation of one entry of the noise, >= 0, in the units of the gradient: σ_DP·C/|B|, not the noise
        multiplier. A mapping has a value for every matrix by name.
    kappa : float or callable, optional
        The gate in units of the bulk edge, >= 1, or a function of the shape (m, n), such as `kappa_for` with a fixed
        false-alarm rate. By default a false-alarm rate of 1 % for every shape, as in `denoise`.
    method : {"shrink", "paper"}
        As in `denoise`.
    below_gate : {"zero", "unchanged"}, optional
        As in `denoise`. For a gradient that an optimizer uses, choose "unchanged": zeros would freeze the layer.
    loss : {"frobenius", "operator", "nuclear"}
        As in `denoise`.
    backend : {"auto", "gram", "lanczos", "products", "svd"}
        As in `denoise`.

    Returns
    -------
    layers : dict
        The same names in the same order. A layer that did not change is the same object, not a copy.
    report : dict of LayerReport
        By name, in the same order.

    Raises
    ------
    ParameterError
        If ``layers`` is not a mapping of names to arrays, a matrix is empty, not finite or not of a real
        dtype, its sigma is missing or negative, or as in `denoise`.

    Formal guarantees
    -----------------
    As in `denoise`; layers and report are functions of the arguments alone, so the (ε, δ) of a private gradient
    carries over.

    References
    ----------
    Appendix E.1 and Eq. 10 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noise = {"lora_A": rng.standard_normal((16, 256)), "bias": rng.standard_normal(16)}
    >>> noisy = noise | {"lora_B": 4 * np.ones((256, 16)) + rng.standard_normal((256, 16))}
    >>> denoised, report = denoise_layers(noisy, sigma=1.0, below_gate="unchanged")
    >>> [name for name in noisy if denoised[name] is noisy[name]]
    ['lora_A', 'bias']
    >>> report["lora_B"].denoised, round(report["lora_B"].top_over_edge, 1)
    (True, 12.9)
    """
    if not isinstance(layers, Mapping):
        raise ParameterError("layers", type(layers), "a mapping of names to arrays")
    how = checked_way(method, below_gate, loss, backend)
    result: dict[str, Any] = dict(layers)
    report, groups = {}, defaultdict[Any, dict[str, Any]](dict)
    for name, layer in result.items():
        label = f"layers[{name!r}]"
        if not isinstance(getattr(layer, "ndim", None), int):
            raise ParameterError(label, layer, "an array")
        shape = tuple(layer.shape)
        top, spikes = (math.inf, min(shape)) if len(shape) == 2 else (None, 0)
        report[name] = LayerReport(name, shape, top, spikes, denoised=False)
        if len(shape) == 2:
            matrix = as_array(label, layer)
            check_nonempty(label, matrix)
            groups[array_namespace(matrix), matrix.dtype, matrix.device, shape][name] = matrix
    sigmas = sigma_by_name([name for matrices in groups.values() for name in matrices], sigma)
    for (*_, shape), matrices in groups.items():
        gate, names = gate_of(shape, kappa), [name for name in matrices if sigmas[name] > 0]
        for name, matrix in matrices.items():
            if sigmas[name] == 0:
                check_finite(f"layers[{name!r}]", matrix)
        stacked = backend in ("gram", "svd") or (backend == "auto" and min(shape) <= GRAM_LIMIT)
        size = max(1, _BATCH_ENTRIES // math.prod(shape)) if stacked else 1
        for start in range(0, len(names), size):
            chosen = names[start : start + size]
            batch = [matrices[name] for name in chosen]
            stack = batch[0][None] if len(batch) == 1 else array_namespace(batch[0]).stack(batch)
            labels = [f"layers[{name!r}]" for name in chosen]
            levels = [sigmas[name] for name in chosen]
            outcome = denoise_stack(stack, levels, gate, how, labels, scratch=len(batch) > 1)
            if how.zeroes:
                result.update((name, 0 * detached(matrices[name])) for name in chosen)
            for i, matrix in zip(outcome.changed, cast_like(outcome.matrices, batch[0]), strict=True):
                result[chosen[i]] = matrix
            for i, name in enumerate(chosen):
                denoised = i in outcome.changed
                report[name] = LayerReport(name, shape, outcome.top_over_edge[i], outcome.spikes[i], denoised)
    return result, report
