"""One step as a neighbouring relation sees it: the pairs that the engine composes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from dprmt.accounting.laws import RankOneLaw
from dprmt.accounting.pairs._atomic_pair import AtomicPair
from dprmt.accounting.pairs._cells import StepPair
from dprmt.accounting.pairs._clipping_step import ClippingStep
from dprmt.accounting.pairs._coin_mixtures import CoinMixture
from dprmt.accounting.pairs._neighbours import Neighbours
from dprmt.accounting.pairs._opposite_replacement import opposites_below, replaced_by_opposites
from dprmt.accounting.pairs._secret_lower_pair import SecretLowerPair
from dprmt.accounting.pairs._secret_replacement import SecretReplacement, SecretReplacementBelow
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair

_BINS_OF_RATIOS = 1.2
_FEWEST_OF_OPPOSITES, _SHARE_OF_SMALL_RATIOS = 12, 256
_LOSSES, _LOSSES_BELOW, _MOST_LOSSES = 2.5, 3.75, 4000  # times the number of bins


@dataclass(frozen=True)
class RelatedStep:
    """One step for several samples that change at once, or for one that is replaced."""

    steps = 1

    step: ClippingStep
    size: int
    is_replacement: bool

    @property
    def tail_share(self) -> float:
        """See :class:`dprmt.accounting.pairs._schedule.Step`."""
        return self.step.tail_share

    @property
    def is_exact(self) -> bool:
        """See :class:`dprmt.accounting.pairs._schedule.Step`."""
        return self.step.is_exact

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """See :class:`dprmt.accounting.pairs._schedule.Step`."""
        step = self.step
        if step.is_exact:
            above = CoinMixture(step.noise_multiplier, step.sample_rate, self.size, self.is_replacement)
            return above, replace(above, is_charged=False)
        below = tail / step.sample_rate
        if step.secret:
            law = step.norm_ratio(bins, below)
            x, mass = law.spread(0.0)
            shift = 1.0 / (step.noise_multiplier * np.sqrt(x))
            one = SecretUpperPair(shift, mass, step.sample_rate, law.below)
            under = SecretLowerPair(law, step.noise_multiplier, step.sample_rate)
            return SecretReplacement(one), SecretReplacementBelow(under)
        return _by_opposites(step, bins, below), _equal_ratios(step, bins, below)

    def upper_with_slack(self, bins: int, tail: float) -> StepPair:
        """A pair that is never more private than the step, whatever losses are asked for."""
        return self.pairs(bins, tail)[0]


AnyStep: TypeAlias = ClippingStep | RelatedStep


def has_pairs(step: ClippingStep, neighbours: Neighbours, is_poisson: bool) -> bool:
    """Whether the pairs of a step are known where several samples change, or one is replaced; else curves are (N6)."""
    if not is_poisson:
        return False
    if step.is_exact:
        return True
    if neighbours.group_size > 1 or step.law.convex_mixture is None:
        return False
    return step.secret or (isinstance(step.law, RankOneLaw) and step.law.probes >= _FEWEST_OF_OPPOSITES)


def related(step: ClippingStep, neighbours: Neighbours) -> AnyStep:
    """The step as the relation sees it."""
    size, replaced = neighbours.group_size, neighbours.is_replacement
    return step if size == 1 and not replaced else RelatedStep(step, size, replaced)


@lru_cache(maxsize=64)
def _by_opposites(step: ClippingStep, bins: int, below: float) -> AtomicPair:
    law = step.norm_ratio(round(_BINS_OF_RATIOS * bins), below / _SHARE_OF_SMALL_RATIOS)
    number = min(round(_LOSSES * bins), _MOST_LOSSES)
    tail = below * step.sample_rate
    return replaced_by_opposites(law, step.law.fewest, step.noise_multiplier, step.sample_rate, tail, number)


@lru_cache(maxsize=64)
def _equal_ratios(step: ClippingStep, bins: int, below: float) -> AtomicPair:
    law, number = step.norm_ratio(round(_BINS_OF_RATIOS * bins), below), min(round(_LOSSES_BELOW * bins), _MOST_LOSSES)
    return opposites_below(law, step.noise_multiplier, step.sample_rate, below * step.sample_rate, number)
