"""The gradient denoiser of Eq. 10: singular values are shrunk above the gate, nothing happens below it.

Of matrices of one shape in one call, and of the layers of many gradients, which are planned once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.spectra._arrays import Array, MatrixT, array_namespace, as_array, cast_like, check_finite, to_float64
from dprmt.spectra._backends import Backend, leading_spectrum
from dprmt.spectra._formulas import Loss, shrunk
from dprmt.spectra._layers import LayerReport, axes_of, batches, checked_matrix, label, shape_of, untouched
from dprmt.spectra._tracy_widom import kappa_for

_SAFE = 2.0**-40, 2.0**40  # range of largest entries whose squares, and sums of them, are normal in float32
FALSE_ALARM = 0.01  # of the gate that nobody chose
NEGLIGIBLE = 1e-100  # noise so far below the data, or above, that squares would leave the range of floats


class _Batch(NamedTuple):
    """Matrices that one call handles."""

    labels: dict[str, str]
    """By name, how error messages call it."""
    shape: tuple[int, int]
    kappa: float


class _Plan(NamedTuple):
    """What of a gradient does not change from step to step."""

    looks: list[tuple[Any, ...]]
    """Name, type, shape, dtype and device of every layer."""
    matrices: list[str]
    batches: list[_Batch]
    untouched: dict[str, LayerReport]
    """Of every layer, as if none were denoised."""
    lasts: bool
    """Whether there is no more to a layer than its looks, which the next gradient's may have again."""


class LayerDenoiser:
    """`denoise_layers` for many gradients: of layers that look as they did before, only the numbers are looked at.

    Parameters
    ----------
    kappa, norm_correction, loss, backend
        As in `denoise_layers`.

    Raises
    ------
    ParameterError
        If a choice is unknown.

    Formal guarantees
    -----------------
    As in `denoise_layers`: nothing of one gradient but names, types, shapes, dtypes and devices is kept for the next.

    Examples
    --------
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).standard_normal((2, 16, 256))
    >>> denoiser = LayerDenoiser(kappa=1.1)
    >>> [denoiser({"weight": step}, sigma=1.0)[1]["weight"].denoised for step in noise]
    [False, False]
    """

    def __init__(
        self,
        kappa: float | Callable[[tuple[int, int]], float] | None = None,
        norm_correction: bool = True,
        *,
        loss: Loss = "frobenius",
        backend: Backend = "auto",
    ) -> None:
        check_method(loss, backend)
        self._kappa, self._norm_correction, self._loss, self._backend = kappa, norm_correction, loss, backend
        self._plan: _Plan | None = None

    def __call__(
        self, layers: Mapping[str, MatrixT], sigma: float | Mapping[str, float]
    ) -> tuple[dict[str, MatrixT], dict[str, LayerReport]]:
        """Denoise one gradient.

        Parameters
        ----------
        layers, sigma
            As in `denoise_layers`.

        Returns
        -------
        layers, report : dict
            As from `denoise_layers`.

        Raises
        ------
        ParameterError
            As `denoise_layers` does.
        """
        if not isinstance(layers, Mapping):
            raise ParameterError("layers", type(layers), "a mapping of names to arrays")
        looks = [
            (n, type(x), *(getattr(x, key, None) for key in ("shape", "dtype", "device"))) for n, x in layers.items()
        ]
        plan = self._plan if self._plan is not None and self._plan.looks == looks else self._planned(layers, looks)
        sigmas = sigma_by_name(plan.matrices, sigma)
        result, report = dict(layers), dict(plan.untouched)
        matrices = layers if plan.lasts else {name: as_array(label(name), layers[name]) for name in plan.matrices}
        for batch in plan.batches:
            noisy = [name for name in batch.labels if sigmas[name] > 0]
            for name in batch.labels.keys() - noisy:
                check_finite(batch.labels[name], matrices[name])
            if not noisy:
                continue
            outcome = denoise_stack(
                stack_of([matrices[name] for name in noisy]),
                [sigmas[name] for name in noisy],
                [batch.kappa] * len(noisy),
                self._norm_correction,
                self._loss,
                self._backend,
                [batch.labels[name] for name in noisy],
                scratch=len(noisy) > 1,
            )
            denoised = cast_like(outcome.matrices, matrices[noisy[0]])
            result.update(zip((noisy[i] for i in outcome.changed), denoised, strict=True))
            for i, name in enumerate(noisy):
                top, spikes = outcome.top_over_edge[i], outcome.spikes[i]
                report[name] = LayerReport(name, batch.shape, top, spikes, i in outcome.changed)
        return result, report

    def _planned(self, layers: Mapping[str, Any], looks: list[tuple[Any, ...]]) -> _Plan:
        found = {name: checked_matrix(name, layer) for name, layer in layers.items() if axes_of(name, layer) == 2}
        kappas = {shape: gate_of(shape, self._kappa) for shape in {shape_of(matrix) for matrix in found.values()}}
        shapes = {name: shape_of(matrix) for name, matrix in found.items()}
        together = [
            _Batch({name: label(name) for name in names}, shapes[names[0]], kappas[shapes[names[0]]])
            for names in batches(found, self._backend)
        ]
        reports = {name: untouched(name, layer) for name, layer in layers.items()}
        plan = _Plan(looks, list(found), together, reports, all(found[name] is layers[name] for name in found))
        if plan.lasts:
            self._plan = plan
        return plan


def gate_of(shape: tuple[int, int], kappa: float | Callable[[tuple[int, int]], float] | None) -> float:
    """κ for matrices of a shape."""
    if kappa is None:
        return kappa_for(shape, FALSE_ALARM)
    if callable(kappa):
        return check_real(f"kappa({shape})", kappa(shape), low=1.0)
    return check_real("kappa", kappa, low=1.0)


def sigma_by_name(names: list[str], sigma: float | Mapping[str, float]) -> dict[str, float]:
    """The noise level of every matrix."""
    if not isinstance(sigma, Mapping):
        return dict.fromkeys(names, check_real("sigma", sigma, low=0.0))
    for name in names:
        if name not in sigma:
            raise ParameterError("sigma", sorted(sigma), f"given for every matrix, also for {name!r}")
    return {name: check_real(f"sigma[{name!r}]", sigma[name], low=0.0) for name in names}


def stack_of(matrices: list[Array]) -> Array:
    """Matrices of one shape in one array."""
    return matrices[0][None] if len(matrices) == 1 else array_namespace(matrices[0]).stack(matrices)


def check_method(loss: str, backend: str) -> None:
    """Raise unless both choices are known."""
    check_choice("loss", loss, get_args(Loss))
    check_choice("backend", backend, get_args(Backend))


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
    σ, κ = (xp.asarray(numbers, dtype=xp.float64, device=y.device) for numbers in (sigmas, kappas))
    with np.errstate(over="ignore"):
        σ = xp.clip(σ / to_float64(unit), NEGLIGIBLE, 1 / NEGLIGIBLE)
    b = σ * (math.sqrt(m) + math.sqrt(n))
    s, vectors, others = leading_spectrum(y if m <= n else y.mT, b, backend)
    η = shrunk(s / σ[:, None], shape, 1.0, loss) * σ[:, None]
    norm = xp.sqrt((η * η).sum(-1))
    passed = s[:, 0] >= κ * b
    if norm_correction:
        passed = passed & (norm > 0)
    changed = [i for i, passes in enumerate(passed.tolist()) if passes]
    top_over_edge, spikes = (s[:, 0] / b).tolist(), (s > b[:, None]).sum(-1).tolist()
    if len(changed) < len(y):
        y, unit, s, η, norm, vectors = (part[changed] for part in (y, unit, s, η, norm, vectors))
        others, scratch = others if others is None else others[changed], True
    scale = xp.ones_like(norm)
    if norm_correction:
        rows = to_float64(xp.linalg.norm(y, 2, -1))
        scale = xp.sqrt((rows**2).sum(-1)) / norm
    weights = η / xp.where(s > 0, s, 1.0) * scale[:, None]
    out = y if scratch else None
    if others is None:
        matrices = reweight(y, vectors, cast_like(weights, y), out)
    else:
        matrices = _recomposed(m <= n, vectors, cast_like(weights * s, y), others, out)
    if xp.finfo(stack.dtype).max < xp.finfo(y.dtype).max or bool((unit != 1).any()):
        matrices = representable(matrices, unit, 1 / scale, stack.dtype, [names[i] for i in changed])
    return DenoisedStack(changed, matrices, top_over_edge, spikes)


def in_safe_range(stack: Array, names: Sequence[str]) -> tuple[Array, Array]:
    """The matrices in float32 or float64, each in units of a power of two, and the units.

    These are near the top entry for all if one of them is so large or small that its squares might leave the
    range, else 1.
    """
    xp = array_namespace(stack)
    y = stack if xp is np else stack.detach()
    if not 4 <= y.dtype.itemsize <= 8:
        y = xp.asarray(y, dtype=xp.float32 if y.dtype.itemsize < 4 else xp.float64)
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


def representable(matrices: Array, unit: Array, fallback: Array, dtype: Any, names: Sequence[str]) -> Array:
    """Matrices back from their units, each times its fallback factor if it would otherwise leave the range.

    Returns: ``matrices`` itself, with entries that are finite in ``dtype``.
    """
    xp = array_namespace(matrices)
    unit = to_float64(unit)
    as_they_are = bool((unit == 1).all())
    if len(matrices) == 0 or (as_they_are and xp.finfo(dtype).max >= xp.finfo(matrices.dtype).max):
        return matrices
    peaks = to_float64(xp.maximum(xp.amax(matrices, (-2, -1)), -xp.amin(matrices, (-2, -1))))
    limit = float(xp.finfo(dtype).max)
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
