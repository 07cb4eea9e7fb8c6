"""Bytes at the peak of a step, from the lives of tensors in one without privacy and from what norms keep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from dprmt.training.clipping._layer_cost import LayerCost
from dprmt.training.clipping._lives import Life, peak, unique
from dprmt.training.clipping._plain_pass import PlainPass, Use
from dprmt.training.clipping._policy import Layer

FLOAT = 4  # bytes
_FACTORS = ("Gram", "blocks", "Hutchinson", "Hutch++")  # of which inputs and output gradients are kept for the sum


def plain_peak(shown: PlainPass) -> int:
    """Of a step without privacy."""
    return peak(((life.size, life.born, life.died) for life in shown.lives), shown.end)


@dataclass(frozen=True)
class _Kept:
    """What one way keeps: tensors of the plain pass beyond their time, and of each layer what it forms."""

    costs: Mapping[str, LayerCost]
    uses: Mapping[str, Sequence[Use]]

    def until(self) -> dict[Life, float]:
        """Factors are kept for the sum, others up to the layer's last use."""
        found: dict[Life, float] = {}
        for name in self.uses:
            end = math.inf if self.costs[name].how in _FACTORS else self.measured(name) + 1
            for life in self.held(name):
                found[life] = max(end, found.get(life, 0))
        return found

    def held(self, name: str) -> Sequence[Life]:
        """Inputs and output gradients of a layer."""
        return unique(life for use in self.uses[name] for life in (*use.inputs, use.gradient))

    def measured(self, name: str) -> int:
        """After which operation a layer's norms are taken."""
        return max(use.at for use in self.uses[name])

    def formed(self) -> Iterator[tuple[int, int, float]]:
        """Bytes, and from when up to when."""
        for name, uses in self.uses.items():
            cost, at = self.costs[name], self.measured(name)
            yield cost.at_once + max(use.returned for use in uses), at, at + 1
            if cost.how not in _FACTORS:
                yield cost.kept, at, math.inf


def private_peak(
    costs: Sequence[LayerCost], layers: Sequence[Layer], drawn: int, shown: PlainPass, *, formed: bool
) -> int:
    """In the backward pass, as sums take the place of what is kept, or as they are noised."""
    by_name = {cost.layer: cost for cost in costs}
    uses: dict[str, list[Use]] = {}
    for use in shown.uses:
        uses.setdefault(use.layer, []).append(use)
    kept = _Kept(by_name, uses)
    captured = {life for name in uses for life in kept.held(name)}
    # Hooks that form every sample's gradient at once let autograd form the plain ones, too.
    spared = set() if formed else {*shown.gradients} - captured
    until = kept.until()
    lives = [(one.size, one.born, max(one.died, until.get(one, 0))) for one in shown.lives if one not in spared]
    return max(peak([*lives, *kept.formed()], shown.end), _summing(kept, layers, drawn, shown, formed=formed))


def _summing(kept: _Kept, layers: Sequence[Layer], drawn: int, shown: PlainPass, *, formed: bool) -> int:
    """At the most, while sums take the place of what is kept, from small ones to large ones."""
    modules = {layer.name: layer.module for layer in layers}
    sums = {name: FLOAT * trained(modules[name]) for name in kept.uses}
    spared = set() if formed else {*shown.gradients}
    held = Counter(life for name in kept.uses if kept.costs[name].how in _FACTORS for life in kept.held(name))
    left = sum(life.size for life in shown.lives if life.died > shown.end and life not in spared and life not in held)
    present = left + sum(life.size for life in held)
    present += sum(kept.costs[name].kept for name in kept.uses if kept.costs[name].how not in _FACTORS)
    most = 0
    # Of equal ones the layer that was measured last comes first.
    for name in sorted(kept.uses, key=lambda name: (sums[name], -kept.measured(name))):
        cost = kept.costs[name]
        weighted = 0 if cost.how in ("formed", "apart") else shown.layers[name].outputs
        present += sums[name]
        most = max(most, present + weighted)
        if cost.how in _FACTORS:
            held.subtract(kept.held(name))
            present -= sum(life.size for life in kept.held(name) if not held[life])
        elif not formed:
            present -= cost.kept
    return max(most, left + sum(sums.values()) + drawn)


def trained(module: nn.Module) -> int:
    """How many numbers of a module are trained."""
    return sum(value.numel() for value in module.parameters() if value.requires_grad)
