"""Operations and memory of one sample's gradient norm in a linear layer, by how it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dprmt._validation import ParameterError, check_count
from dprmt.accounting.laws import ExactNorms, Norms

_WORD = 4  # bytes of a float32


class LayerShape(NamedTuple):
    """A linear layer and what passes through it.

    Attributes
    ----------
    tokens, in_features, out_features : int
        T, d and p: the gradient is AᵀG with A of shape (T, d) and G of shape (T, p).
    """

    tokens: int
    in_features: int
    out_features: int


class NormCost(NamedTuple):
    """Cost of one sample's norms, over all layers.

    Attributes
    ----------
    flops : int
        Multiplications and additions, summed over layers.
    bytes : int
        Memory in addition to the float32 activations, for the largest layer.
    """

    flops: int
    bytes: int


def norm_cost(layers: Sequence[LayerShape], norms: Norms, products: int) -> NormCost:
    """Estimate the cost of a norm method with this number of products per layer.

    Exact norms use the gradient or two T x T matrices, whichever takes fewer operations. Layers whose smaller side is
    at most s + k are exact. Hutch++ includes the orthonormal basis and the projection of the probes.
    """
    if isinstance(norms, ExactNorms):
        return _total([_exact(layer) for layer in layers])
    probes, sketch = getattr(norms, "probes", 0), getattr(norms, "sketch", 0)
    return _total([_estimate(layer, probes, sketch, products) for layer in layers])


def check_layers(layers: Sequence[Sequence[int]]) -> tuple[LayerShape, ...]:
    """Return shapes of layers, checked."""
    if len(layers) == 0 or any(len(layer) != 3 for layer in layers):
        raise ParameterError("layers", layers, "a non-empty list of (tokens, in_features, out_features)")
    return tuple(LayerShape(*(check_count("layers", side) for side in layer)) for layer in layers)


def _exact(layer: LayerShape) -> NormCost:
    tokens, rows, columns = layer
    whole = NormCost(2 * tokens * rows * columns, _WORD * rows * columns)
    ghost = NormCost(2 * tokens**2 * (rows + columns), 2 * _WORD * tokens**2)
    return min(whole, ghost)


def _estimate(layer: LayerShape, probes: int, sketch: int, products: int) -> NormCost:
    tokens, rows, columns = layer
    side = min(rows, columns)
    if side <= probes + sketch:
        return _exact(layer)
    flops = products * 2 * tokens * (rows + columns) + 2 * side * sketch**2 + 4 * side * sketch * probes
    memory = _WORD * ((tokens + max(rows, columns)) * max(probes, sketch) + side * (probes + sketch))
    return NormCost(flops, memory)


def _total(costs: list[NormCost]) -> NormCost:
    return NormCost(sum(cost.flops for cost in costs), max(cost.bytes for cost in costs))
