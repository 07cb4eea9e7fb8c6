"""One step as a neighbouring relation sees it: the pairs that the engine composes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from dprmt.accounting.laws import RankOneLaw, bins_of_equal_shifts
from dprmt.accounting.pairs._cells import StepPair
from dprmt.accounting.pairs._clipping_step import ClippingStep
from dprmt.accounting.pairs._coin_mixtures import CoinMixture
from dprmt.accounting.pairs._equal_group import changed_loss_by_loss, equals_below
from dprmt.accounting.pairs._neighbours import Neighbours
from dprmt.accounting.pairs._opposite_replacement import opposites_below, replaced_by_opposites
from dprmt.accounting.pairs._public_group import EqualGroup, changed_together
from dprmt.accounting.pairs._public_replacement import AtomicPair, replaced_by_potentials
from dprmt.accounting.pairs._secret_group import secret_group_above, secret_group_below
from dprmt.accounting.pairs._secret_lower_pair import SecretLowerPair
from dprmt.accounting.pairs._secret_replacement import SecretReplacement, SecretReplacementBelow
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair

_FEW_BINS, _MANY_BINS, _BINS_OF_THE_LAW = 64, 160, 0.75  # of what grows with their third power
_SHARE_OF_THE_LAST, _SHARE_OF_SMALL_SUMS = 8, 64
_FEWEST_OF_GROUPS = 8  # probes: with fewer, ratios are so small at times that (N9) and (N10) have no end
_BINS_OF_RATIOS, _FEWEST_OF_MERGED = 1.2, 12
_TIMES_AS_MANY, _MOST_BINS_BELOW = 8, 1280  # errors of ratios by their right ends are of first order
_FEWEST_OF_OPPOSITES, _SHARE_OF_SMALL_RATIOS = 12, 256
_LOSSES, _LOSSES_BELOW, _MOST_LOSSES = 2.5, 3.75, 4000  # times the number of bins
_TIMES_AS_MANY_SUMS, _MOST_BINS_OF_SUMS = 3, 320  # bins of a sum are as wide as those of all that are added


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
        if not self.is_replacement:
            return self._group_pairs(bins, below)
        if step.secret:
            law = step.norm_ratio(bins, below)
            x, mass = law.spread(0.0)
            shift = 1.0 / (step.noise_multiplier * np.sqrt(x))
            one = SecretUpperPair(shift, mass, step.sample_rate, law.below)
            under = SecretLowerPair(law, step.noise_multiplier, step.sample_rate)
            return SecretReplacement(one), SecretReplacementBelow(under)
        return self._replaced(bins, below), _equal_ratios(step, bins, below)

    def _group_pairs(self, bins: int, below: float) -> tuple[StepPair, StepPair]:
        step = self.step
        if step.secret:
            return _summed(step, self.size, min(_TIMES_AS_MANY_SUMS * bins, _MOST_BINS_OF_SUMS), below)
        return _together(step, self.size, min(bins, _MOST_BINS_OF_SUMS), below), _equal_group(
            step, self.size, bins, below
        )

    def _replaced(self, bins: int, below: float) -> StepPair:
        if isinstance(self.step.law, RankOneLaw) and self.step.law.probes >= _FEWEST_OF_OPPOSITES:
            return _by_opposites(self.step, bins, below)
        return _potentials(self.step, bins, below)

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
    if step.law.convex_mixture is None or neighbours.group_size == 1:
        return step.law.convex_mixture is not None
    if neighbours.is_replacement or step.law.fewest < _FEWEST_OF_GROUPS:
        return False
    return step.secret or step.sample_rate < 1.0


def related(step: ClippingStep, neighbours: Neighbours) -> AnyStep:
    """The step as the relation sees it."""
    size, replaced = neighbours.group_size, neighbours.is_replacement
    return step if size == 1 and not replaced else RelatedStep(step, size, replaced)


def _equal_group(step: ClippingStep, size: int, bins: int, below: float) -> StepPair:
    if step.law.fewest < _FEWEST_OF_MERGED:
        return _equal_group_by_ratio(step, size, bins, below)
    return _equal_group_by_loss(step, size, min(bins, _MOST_BINS_OF_SUMS), below)


@lru_cache(maxsize=64)
def _equal_group_by_loss(step: ClippingStep, size: int, bins: int, below: float) -> AtomicPair:
    law = step.norm_ratio(round(_BINS_OF_RATIOS * bins), below)
    return equals_below(law, step.noise_multiplier, step.sample_rate, size, bins, below * step.sample_rate)


@lru_cache(maxsize=8)
def _equal_group_by_ratio(step: ClippingStep, size: int, bins: int, below: float) -> EqualGroup:
    law = step.norm_ratio(min(_TIMES_AS_MANY * bins, _MOST_BINS_BELOW), below)
    x, mass = np.append(law.left[:1], law.right), np.append(law.below, law.mass)
    return EqualGroup(1.0 / (step.noise_multiplier * np.sqrt(x)), mass, step.sample_rate, size)


def _potentials(step: ClippingStep, bins: int, below: float) -> AtomicPair:
    return _by_potentials(step, _FEW_BINS if bins <= _FEW_BINS else _MANY_BINS, below)


@lru_cache(maxsize=64)
def _by_potentials(step: ClippingStep, bins: int, below: float) -> AtomicPair:
    law = step.norm_ratio(round(_BINS_OF_THE_LAW * bins), below)
    x, mass = law.spread(0.0)
    return replaced_by_potentials(
        x, mass, law.below, step.noise_multiplier, step.sample_rate, bins, below * step.sample_rate
    )


@lru_cache(maxsize=64)
def _by_opposites(step: ClippingStep, bins: int, below: float) -> AtomicPair:
    pair, smaller_of_it_and = replaced_by_opposites(
        step.norm_ratio(round(_BINS_OF_RATIOS * bins), below / _SHARE_OF_SMALL_RATIOS),
        step.law.fewest,
        step.noise_multiplier,
        step.sample_rate,
        below * step.sample_rate,
        min(round(_LOSSES * bins), _MOST_LOSSES),
        bins <= _MANY_BINS,
    )
    return pair if smaller_of_it_and is None else smaller_of_it_and(_potentials(step, bins, below))


@lru_cache(maxsize=64)
def _equal_ratios(step: ClippingStep, bins: int, below: float) -> AtomicPair:
    law, number = step.norm_ratio(round(_BINS_OF_RATIOS * bins), below), min(round(_LOSSES_BELOW * bins), _MOST_LOSSES)
    return opposites_below(law, step.noise_multiplier, step.sample_rate, below * step.sample_rate, number)


@lru_cache(maxsize=64)
def _together(step: ClippingStep, size: int, bins: int, below: float) -> AtomicPair:
    """By losses; where that is loose, the smaller of it and of what all thresholds give."""
    pair, smaller_of_it_and = changed_loss_by_loss(
        step.norm_ratio(round(_BINS_OF_RATIOS * bins), below / (_SHARE_OF_SMALL_SUMS * size)),
        step.noise_multiplier,
        step.sample_rate,
        size,
        bins,
        below * step.sample_rate / _SHARE_OF_THE_LAST,
        bins <= _MANY_BINS,
    )
    return pair if smaller_of_it_and is None else smaller_of_it_and(_at_thresholds(step, size, bins, below))


@lru_cache(maxsize=64)
def _at_thresholds(step: ClippingStep, size: int, bins: int, below: float) -> AtomicPair:
    bins = _FEW_BINS if bins <= _FEW_BINS else _MANY_BINS
    law = step.norm_ratio(round(_BINS_OF_THE_LAW * bins), below / (_SHARE_OF_SMALL_SUMS * size))
    x, mass = law.spread(0.0)
    tail = below * step.sample_rate / _SHARE_OF_THE_LAST
    return changed_together(x, mass, law.below, step.noise_multiplier, step.sample_rate, size, bins, tail)


@lru_cache(maxsize=16)
def _summed(step: ClippingStep, size: int, bins: int, below: float) -> tuple[StepPair, StepPair]:
    mixture = step.law.convex_mixture
    assert mixture is not None  # else curves are composed
    law = bins_of_equal_shifts(mixture, bins, min(below / size, 1e-3))
    known = step.noise_multiplier, step.sample_rate, size
    return secret_group_above(law, *known), secret_group_below(law, *known)
