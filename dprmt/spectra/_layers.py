"""Denoising a whole gradient: a named set of layers, those of equal shape in one batch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dprmt._validation import ParameterError, check_real
from dprmt.spectra._arrays import (
    Array,
    MatrixT,
    array_namespace,
    as_array,
    cast_like,
    check_finite,
    check_nonempty,
)
from dprmt.spectra._backends import GRAM_LIMIT, Backend
from dprmt.spectra._denoiser import check_method, denoise_stack
from dprmt.spectra._formulas import Loss

_BATCH_ENTRIES = 2**24  # of a stack, whose copies then take 64 MiB in float32


@dataclass(frozen=True)
class LayerReport:
    """What the denoiser did to one layer.

    Attributes
    ----------
    name : str
        The name of the layer.
    shape : tuple of int
        Its shape.
    top_over_edge : float or None
        Its top singular value in units of the bulk edge; infinite if sigma is 0, None if it is not a matrix. Of
        a large matrix with nothing above the edge it is a lower bound, as a rule within 1e-5.
    spikes : int
        How many of its singular values lie above the bulk edge; these are what the denoiser keeps.
    denoised : bool
        Whether it passed the gate and was replaced.
    """

    name: str
    shape: tuple[int, ...]
    top_over_edge: float | None
    spikes: int
    denoised: bool


def denoise_layers(
    layers: Mapping[str, MatrixT],
    sigma: float | Mapping[str, float],
    kappa: float | Callable[[tuple[int, int]], float] = 1.02,
    norm_correction: bool = True,
    *,
    loss: Loss = "frobenius",
    backend: Backend = "auto",
) -> tuple[dict[str, MatrixT], dict[str, LayerReport]]:
    """Denoise every matrix of a noisy gradient, as `denoise` does, and leave everything else alone.

    Only two-dimensional arrays count as matrices. Biases and norms pass through, and so do convolution
    kernels with four axes: which of their matrix views is of low rank is for the caller to say, by reshaping
    them.

    Parameters
    ----------
    layers : mapping of str to array
        The noisy gradient by layer, NumPy or torch, any mixture of shapes, dtypes and devices. Not modified.
    sigma : float or mapping of str to float
        Standard deviation of one entry of the noise, >= 0, in the units of the gradient: σ_DP·C/|B|, not the
        noise multiplier. A mapping gives it for every matrix by name.
    kappa : float or callable
        The gate in units of the bulk edge, >= 1, or a function of the shape (m, n) that gives it, such as
        `kappa_for` with a fixed false-alarm rate.
    norm_correction : bool
        As in `denoise`.
    loss : {"frobenius", "operator", "nuclear"}
        As in `denoise`.
    backend : {"auto", "gram", "lanczos", "products", "svd"}
        As in `denoise`.

    Returns
    -------
    layers : dict
        The same names in the same order. A layer that was not denoised is the same object, not a copy.
    report : dict of LayerReport
        By name, in the same order.

    Raises
    ------
    ParameterError
        If ``layers`` is not a mapping of names to arrays, a matrix is empty, not finite or not of a real
        floating dtype, its sigma is missing or negative, or as in `denoise`. Nothing is returned then.

    Formal guarantees
    -----------------
    As in `denoise`: a function of the layers and the other arguments alone, so the (ε, δ) of a private
    gradient carries over. So does the report: it depends on the noisy gradient only.

    References
    ----------
    Appendix E.1 and Eq. 10 of arXiv:2510.01137v3.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> noise = {"lora_A": rng.standard_normal((16, 256)), "bias": rng.standard_normal(16)}
    >>> noisy = noise | {"lora_B": 4 * np.ones((256, 16)) + rng.standard_normal((256, 16))}
    >>> denoised, report = denoise_layers(noisy, sigma=1.0)
    >>> [name for name in noisy if denoised[name] is noisy[name]]
    ['lora_A', 'bias']
    >>> report["lora_B"].denoised, round(report["lora_B"].top_over_edge, 1)
    (True, 12.9)
    """
    return LayerDenoiser(kappa, norm_correction, loss=loss, backend=backend)(layers, sigma)


class _Batch(NamedTuple):
    """Matrices that one call handles."""

    labels: dict[str, str]
    """By name, how error messages call it."""
    shape: tuple[int, int]
    kappa: float


class _Plan(NamedTuple):
    """What of a gradient does not change from step to step."""

    looks: list[tuple[Any, ...]]
    """Name, shape, dtype and device of every layer."""
    matrices: list[str]
    batches: list[_Batch]
    untouched: dict[str, LayerReport]
    """Of every layer, as if none were denoised."""


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
    As in `denoise_layers`: nothing of one gradient but names, shapes, dtypes and devices is kept for the next.

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
        kappa: float | Callable[[tuple[int, int]], float] = 1.02,
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
        looks = [(n, *(getattr(x, key, None) for key in ("shape", "dtype", "device"))) for n, x in layers.items()]
        plan = self._plan if self._plan is not None and self._plan.looks == looks else self._planned(layers, looks)
        sigmas = sigma_by_name(plan.matrices, sigma)
        result, report = dict(layers), dict(plan.untouched)
        for batch in plan.batches:
            noisy = [name for name in batch.labels if sigmas[name] > 0]
            for name in batch.labels.keys() - noisy:
                check_finite(batch.labels[name], as_array(batch.labels[name], layers[name]))
            if noisy:
                self._denoise(noisy, batch, sigmas, result, report)
        return result, report

    def _denoise(
        self,
        names: list[str],
        batch: _Batch,
        sigmas: Mapping[str, float],
        result: dict[str, Any],
        report: dict[str, Any],
    ) -> None:
        # Of one batch, those that have noise.
        matrices = [as_array(batch.labels[name], result[name]) for name in names]
        outcome = denoise_stack(
            stack_of(matrices),
            [sigmas[name] for name in names],
            [batch.kappa] * len(names),
            self._norm_correction,
            self._loss,
            self._backend,
            [batch.labels[name] for name in names],
            scratch=len(names) > 1,
        )
        denoised = cast_like(outcome.matrices, matrices[0])
        changed = dict(zip((names[i] for i in outcome.changed), denoised, strict=True))
        for i, name in enumerate(names):
            top, spikes = outcome.top_over_edge[i], outcome.spikes[i]
            report[name] = LayerReport(name, batch.shape, top, spikes, name in changed)
        result.update(changed)

    def _planned(self, layers: Mapping[str, Any], looks: list[tuple[Any, ...]]) -> _Plan:
        found = {name: checked_matrix(name, layer) for name, layer in layers.items() if axes_of(name, layer) == 2}
        kappas = {shape: _kappa_of(shape, self._kappa) for shape in {shape_of(matrix) for matrix in found.values()}}
        shapes = {name: shape_of(matrix) for name, matrix in found.items()}
        together = [
            _Batch({name: label(name) for name in names}, shapes[names[0]], kappas[shapes[names[0]]])
            for names in batches(found, self._backend)
        ]
        untouched = {name: _untouched(name, layer) for name, layer in layers.items()}
        plan = _Plan(looks, list(found), together, untouched)
        if all(found[name] is layers[name] for name in found):  # else there is more to a layer than its looks
            self._plan = plan
        return plan


def axes_of(name: str, layer: Any) -> int:
    """The number of axes of a layer."""
    axes = getattr(layer, "ndim", None)
    if not isinstance(axes, int):
        raise ParameterError(label(name), layer, "an array")
    return axes


def checked_matrix(name: str, layer: Array) -> Array:
    """A layer as a matrix that can be denoised, if its entries are finite."""
    matrix = as_array(label(name), layer)
    check_nonempty(label(name), matrix)
    return matrix


def sigma_by_name(names: list[str], sigma: float | Mapping[str, float]) -> dict[str, float]:
    """The noise level of every matrix."""
    if not isinstance(sigma, Mapping):
        return dict.fromkeys(names, check_real("sigma", sigma, low=0.0))
    for name in names:
        if name not in sigma:
            raise ParameterError("sigma", sorted(sigma), f"given for every matrix, also for {name!r}")
    return {name: check_real(f"sigma[{name!r}]", sigma[name], low=0.0) for name in names}


def _kappa_of(shape: tuple[int, int], kappa: float | Callable[[tuple[int, int]], float]) -> float:
    if callable(kappa):
        return check_real(f"kappa({shape})", kappa(shape), low=1.0)
    return check_real("kappa", kappa, low=1.0)


def _untouched(name: str, layer: Array) -> LayerReport:
    # Of a layer that is no matrix, or a matrix without noise.
    shape = tuple(layer.shape)
    is_matrix = len(shape) == 2
    spikes = min(shape) if is_matrix else 0
    return LayerReport(name, shape, math.inf if is_matrix else None, spikes, denoised=False)


def batches(matrices: Mapping[str, Array], backend: Backend) -> Iterator[list[str]]:
    """Names of layers that one call handles: one shape, dtype and device, and not too many entries."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for name, matrix in matrices.items():
        groups[array_namespace(matrix), matrix.dtype, matrix.device, shape_of(matrix)].append(name)
    for (_, _, _, (m, n)), names in groups.items():
        one_by_one = backend in ("lanczos", "products") or (backend == "auto" and min(m, n) > GRAM_LIMIT)
        size = 1 if one_by_one else max(1, _BATCH_ENTRIES // (m * n))
        for start in range(0, len(names), size):
            yield names[start : start + size]


def stack_of(matrices: list[Array]) -> Array:
    """Matrices of one shape in one array."""
    return matrices[0][None] if len(matrices) == 1 else array_namespace(matrices[0]).stack(matrices)


def shape_of(matrix: Array) -> tuple[int, int]:
    """Rows and columns."""
    rows, columns = matrix.shape
    return rows, columns


def label(name: str) -> str:
    """How error messages call a layer."""
    return f"layers[{name!r}]"
