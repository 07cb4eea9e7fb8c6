"""The layers of a gradient: which are matrices, and which of them one call handles together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dprmt._validation import ParameterError
from dprmt.spectra._arrays import Array, array_namespace, as_array, check_nonempty
from dprmt.spectra._backends import GRAM_LIMIT, Backend

_BATCH_ENTRIES = 2**24  # of a stack, whose copies then take 64 MiB in float32


@dataclass(frozen=True)
class LayerReport:
    """Effect of the denoiser on one layer.

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


def untouched(name: str, layer: Array) -> LayerReport:
    """Of a layer that is no matrix, or a matrix without noise."""
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


def shape_of(matrix: Array) -> tuple[int, int]:
    """Rows and columns."""
    rows, columns = matrix.shape
    return rows, columns


def label(name: str) -> str:
    """How error messages call a layer."""
    return f"layers[{name!r}]"
