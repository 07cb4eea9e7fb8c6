"""What a private step costs by each way of taking norms, counted before the first one: FLOPs, bytes, ε.

Counted are products of matrices, normal numbers, bytes that are read and written entry by entry, and tensors that are
alive at once. A plain pass over made-up samples, there and back, shows shapes and when tensors come and go; nothing
private is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import SupportsFloat

from torch import nn

from dprmt import _html
from dprmt._rounding import round_up
from dprmt.accounting import Poisson, RandomAllocation, ZeroOut
from dprmt.training.clipping._layer_cost import LayerCost
from dprmt.training.clipping._matrix_layers import FactoredLayer
from dprmt.training.clipping._peaks import FLOAT, private_peak, trained
from dprmt.training.clipping._plain_pass import PlainPass, Seen
from dprmt.training.clipping._policy import Layer
from dprmt.training.clipping._rates import Rates
from dprmt.training.norms import NormRecord, gram_entries

_OF_THE_SUM = 5 * FLOAT  # an entry's of the sum: written, and read and written as noise is added and it is divided
_SLOWER, _MORE_EPSILON = 0.10, 0.05
FORMED = "formed"
"""Every sample's gradient at once, as hooks do that keep them: not offered, to compare with."""


@dataclass(frozen=True)
class WayCost:
    """Cost of steps by one way of taking norms.

    Attributes
    ----------
    way : str
        "formed", or what `plan_private` takes as ``norms``.
    layers : sequence of LayerCost
        In the model's order.
    flops : int
        Of the norms of a micro-batch.
    time : float
        Of a step, over that without privacy.
    peak : int
        Bytes beyond parameters and optimizer.
    epsilon : float or None
        An upper bound; None if nothing was said of the noise.
    """

    way: str
    layers: Sequence[LayerCost]
    flops: int
    time: float
    peak: int
    epsilon: float | None


@dataclass(frozen=True)
class StepCosts:
    """Cost of a step by all ways of taking norms, and the way to take; from :meth:`ClippingPlan.costs`.

    Attributes
    ----------
    ways : sequence of WayCost
        "formed" first.
    plain_flops, plain_peak : int
        Of a step without privacy.
    neighbours : str
        Against which every ε is.
    """

    ways: Sequence[WayCost]
    plain_flops: int
    plain_peak: int
    neighbours: str = ZeroOut.kind

    @property
    def recommended(self) -> WayCost:
        """The fastest exact one, unless an estimate that costs at most 5 % more ε takes 10 % less time of a step."""
        exact, estimated = self._exact(), self._estimated()
        slower = exact.time > (1 + _SLOWER) * estimated.time
        return estimated if slower and _costs_little(estimated, exact) else exact

    @property
    def sentence(self) -> str:
        """A sentence: the way to take, and what the other would give and cost."""
        taken = self.recommended
        other = self._estimated() if taken is self._exact() else self._exact()
        share = round(100 * (taken.time / other.time - 1))
        pace = f"{abs(share)} % {'slower' if share > 0 else 'faster'} than" if share else "as fast as"
        pace = f"{pace} {other.way}"
        if taken.epsilon is None or other.epsilon is None:
            return f"{taken.way}: {pace}"
        return f"{taken.way}: {pace}, ε {round_up(taken.epsilon, 3)} against {round_up(other.epsilon, 3)}"

    def _exact(self) -> WayCost:
        return min((one for one in self.ways if one.way in ("exact", "ghost")), key=lambda one: one.time)

    def _estimated(self) -> WayCost:
        found = [one for one in self.ways if one.way in ("hutchinson", "hutch++")]
        cheap = [one for one in found if _costs_little(one, self._exact())]
        return min(cheap or found, key=lambda one: one.time)

    def rows(self) -> list[list[str]]:
        """A table: way, time over a plain step, GFLOP of norms, MiB at the peak, ε."""
        return [
            [
                one.way,
                f"{one.time:.2f}",
                f"{one.flops / 1e9:.3g}",
                f"{one.peak / 2**20:.0f}",
                "–" if one.epsilon is None else round_up(one.epsilon, 3),
            ]
            for one in self.ways
        ]

    def __str__(self) -> str:
        return f"{self.sentence.replace('ε', 'epsilon')} ({self.neighbours})"

    def _repr_html_(self) -> str:
        return _html.block(
            _html.table(["way", "time ×", "GFLOP", "MiB", "ε"], self.rows()),
            _html.sentence(f"{self.sentence} ({self.neighbours})"),
        )


def _costs_little(one: WayCost, exact: WayCost) -> bool:
    return one.epsilon is not None and exact.epsilon is not None and one.epsilon <= (1 + _MORE_EPSILON) * exact.epsilon


def way_cost(
    way: str,
    layers: Sequence[Layer],
    record: NormRecord,
    shown: PlainPass,
    rates: Rates,
    noise: tuple[float, Poisson | RandomAllocation | SupportsFloat, int, float] | None,
) -> WayCost:
    """Of one way; ``noise``: σ, sampling, steps and δ."""
    costs = [_layer_cost(layer, shown.layers[layer.name], way) for layer in layers if layer.name in shown.layers]
    values = [value for layer in layers for value in layer.module.parameters() if value.requires_grad]
    drawn = max((value.numel() for value in values if value.device.type != "cpu"), default=0)  # a CPU draws in pieces
    entries = sum(value.numel() for value in values)
    captured = sum(shown.layers[cost.layer].outputs for cost in costs)
    plain = _plain_seconds(layers, shown, rates)
    norms = sum(cost.flops / rates.flops + cost.normals / rates.normals + cost.moved / rates.bytes for cost in costs)
    adds = (_OF_THE_SUM * entries + 2 * captured) / rates.bytes + entries / rates.normals
    return WayCost(
        way,
        costs,
        sum(cost.flops for cost in costs),
        1 + (norms + adds) / plain,
        private_peak(costs, layers, FLOAT * drawn, shown, formed=way == FORMED),
        None if noise is None else _epsilon(record, *noise),
    )


def _epsilon(
    record: NormRecord,
    noise_multiplier: float,
    sampling: Poisson | RandomAllocation | SupportsFloat,
    steps: int,
    delta: float,
) -> float:
    return float(record.mechanism(noise_multiplier, sampling).epsilon(steps=steps, delta=delta).upper)


def plain_flops(layers: Sequence[Layer], shown: PlainPass) -> int:
    """Of a step without privacy: forward, gradients of inputs and of weights."""
    weights = sum(_product(layer, shown.layers[layer.name]) for layer in layers if layer.name in shown.layers)
    return 2 * shown.flops + weights


def _plain_seconds(layers: Sequence[Layer], shown: PlainPass, rates: Rates) -> float:
    entries = sum(trained(layer.module) for layer in layers)
    moved = 4 * shown.saved + 5 * FLOAT * entries  # kept, read, and their gradients; gradients written, and the step
    return plain_flops(layers, shown) / rates.flops + moved / rates.bytes


def _product(layer: Layer, seen: Seen) -> int:
    return 2 * seen.samples * seen.tokens * prod(layer.sizes) if isinstance(layer, FactoredLayer) else 0


def _layer_cost(layer: Layer, seen: Seen, way: str) -> LayerCost:
    held = seen.inputs + seen.outputs
    if not isinstance(layer, FactoredLayer):
        is_table = isinstance(layer.module, nn.Embedding)
        formed = FLOAT * sum(value.numel() for value in layer.module.parameters() if value.requires_grad)
        size = seen.outputs if is_table else seen.samples * formed
        whole = seen.samples * formed if way == FORMED else size
        return LayerCost(layer.name, "rows" if is_table else "apart", moved=4 * size + whole, kept=whole)
    d, p = layer.sizes
    b, t = seen.samples, seen.tokens
    if way == FORMED:
        size = FLOAT * b * d * p
        return LayerCost(layer.name, "formed", _product(layer, seen), moved=4 * size, kept=size)
    estimator = layer.estimator
    if estimator is not None:
        norms = estimator.norms
        probes, sketch = getattr(norms, "probes", 0), getattr(norms, "sketch", 0)
        columns = probes + sketch * (3 if getattr(norms, "power_iteration", False) else 2)
        short = min(d, p)
        drawn = (b if getattr(norms, "secret", False) else 1) * (probes + sketch) * short
        basis = 4 * b * short * sketch * (sketch + probes)
        size = FLOAT * b * ((probes + sketch) * (t + d + p) + probes * max(d, p) * layer.has_bias)  # rows, a row more
        word = "Hutch++" if sketch else "Hutchinson"
        flops = 2 * b * t * columns * (d + p) + basis
        return LayerCost(layer.name, word, flops, drawn, 2 * size, at_once=size + FLOAT * drawn, kept=held)
    if layer.takes_gram_matrices(t):
        entries = b * gram_entries(t)
        at_once = 3 * FLOAT * b * t * min(t, 128)
        return LayerCost(
            layer.name, "Gram", 2 * entries * (d + p), moved=6 * FLOAT * entries, at_once=at_once, kept=held
        )
    size, flops = FLOAT * b * d * p, _product(layer, seen)
    if layer.keeps_formed(t):  # in place of what a step without privacy forms
        return LayerCost(layer.name, "formed", 2 * b * d * p, moved=4 * size, kept=size)
    return LayerCost(layer.name, "blocks", flops, moved=2 * size, at_once=min(size, layer.block), kept=held)
