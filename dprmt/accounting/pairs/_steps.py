"""One step of DP-SGD for every way of computing norms, as each neighbouring relation sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np

from dprmt._validation import ParameterError, check_count
from dprmt.accounting.basics._numbers import LARGEST_LOSS
from dprmt.accounting.basics._value import Value, value_from_dict
from dprmt.accounting.laws._gamma_mixture import NormRatioBins
from dprmt.accounting.laws._laws import ExactLaw, NormLaw, RankOneLaw
from dprmt.accounting.pairs._exact_replacement import SubsampledMixture
from dprmt.accounting.pairs._fixed_size import FixedSizeStep, TruncatedStep
from dprmt.accounting.pairs._pairs import AtomicPair, Schedule, StepPair
from dprmt.accounting.pairs._public_pair import PublicPair, TightPair, largest_excess, slack_of_excess
from dprmt.accounting.pairs._public_replacement import opposites_below, replaced_by_opposites
from dprmt.accounting.pairs._secret_pair import SecretLowerPair, SecretUpperPair
from dprmt.accounting.pairs._secret_replacement import SecretReplacement, SecretReplacementBelow

LARGEST_GROUP = 1000
"""Rows of one person that are accounted together."""


@dataclass(frozen=True, repr=False)
class ZeroOut(Value):
    """A sample is present, or replaced by one without a gradient (N0).

    The number of samples n, the sample rate, the divisor of the released sum and the number of steps are public
    constants, the same for both neighbours. The relation that a training run can claim whose rate is B/n.

    Examples
    --------
    >>> ZeroOut()
    ZeroOut()
    """

    kind: ClassVar[str] = "zero-out"
    group_size: ClassVar[int] = 1
    """Number of samples that change together."""
    is_replacement: ClassVar[bool] = False
    """True if other samples come in their place."""

    def __str__(self) -> str:
        return "zero-out: one sample present, or without a gradient"


@dataclass(frozen=True, repr=False)
class AddRemove(Value):
    """Neighbours in which a sample is present or absent (N0).

    Formal guarantees
    -----------------
    The numbers of :class:`ZeroOut` hold *only if* the sample rate and the divisor of the released sum are constants
    chosen without the data set's size. A rate B/n, or a sum divided by q·n, reveals a private n by the scale of the
    noise, so there is no claim.

    Examples
    --------
    >>> str(AddRemove())
    'add-remove: one sample present, or absent; rate and divisor chosen without the number of samples'
    """

    kind: ClassVar[str] = "add-remove"
    group_size: ClassVar[int] = 1
    """Number of samples that change together."""
    is_replacement: ClassVar[bool] = False
    """True if other samples come in their place."""

    def __str__(self) -> str:
        return "add-remove: one sample present, or absent; rate and divisor chosen without the number of samples"


@dataclass(frozen=True, repr=False)
class ReplaceOne(Value):
    """Neighbours in which a sample is replaced by any other, with the same sampling (N1), (N2), (N11).

    Examples
    --------
    >>> str(ReplaceOne())
    'replace-one: one sample, or any other in its place'
    """

    kind: ClassVar[str] = "replace-one"
    group_size: ClassVar[int] = 1
    """Number of samples that change together."""
    is_replacement: ClassVar[bool] = True
    """True if other samples come in their place."""

    def __str__(self) -> str:
        return "replace-one: one sample, or any other in its place"


@dataclass(frozen=True, repr=False)
class Group(Value):
    """Neighbours in which all ``size`` samples of one person change together, each sampled independently (N4).

    If a person's samples are drawn together and clipped together, they form one sample instead of a group.

    Parameters
    ----------
    size : int
        Largest number m of samples of one person, in [1, 1000].
    of : ZeroOut, AddRemove or ReplaceOne
        Change of each of these samples.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Examples
    --------
    >>> Group(4)
    Group(4)
    >>> str(Group(4))
    'zero-out: up to 4 samples of one person present, or without a gradient'
    """

    kind: ClassVar[str] = "group"

    size: int
    of: ZeroOut | AddRemove | ReplaceOne = ZeroOut()

    def __post_init__(self) -> None:
        self._keep(size=check_count("size", self.size, high=LARGEST_GROUP))
        of: object = self.of
        if not isinstance(of, ZeroOut | AddRemove | ReplaceOne):
            raise ParameterError("of", self.of, "ZeroOut(), AddRemove() or ReplaceOne()")

    @property
    def group_size(self) -> int:
        """Number of samples that change together."""
        return self.size

    @property
    def is_replacement(self) -> bool:
        """True if other samples come in their place."""
        return self.of.is_replacement

    def __str__(self) -> str:
        return str(self.of).replace("one sample", f"up to {self.size} samples of one person").replace("its", "their")


Neighbours: TypeAlias = ZeroOut | AddRemove | ReplaceOne | Group
_KINDS = (ZeroOut, AddRemove, ReplaceOne, Group)


def checked_neighbours(neighbours: object) -> Neighbours:
    """Return the relation, checked; the error names the classes there are."""
    if not isinstance(neighbours, ZeroOut | AddRemove | ReplaceOne | Group):
        allowed = "ZeroOut(), AddRemove(), ReplaceOne() or Group(size)"
        raise ParameterError("neighbours", neighbours, allowed)
    return neighbours


def neighbours_from_dict(record: Mapping[str, Any]) -> Neighbours:
    """Return the value that ``as_dict`` described.

    Parameters
    ----------
    record : mapping
        ``kind``, one of "zero-out", "add-remove", "replace-one" and "group", and the value's fields.

    Returns
    -------
    ZeroOut, AddRemove, ReplaceOne or Group
        The value, checked.

    Raises
    ------
    ParameterError
        If the kind is none of these, a field is not one of the value's, or a field lies outside its range.

    Examples
    --------
    >>> neighbours_from_dict(Group(4, ReplaceOne()).as_dict())
    Group(4, of=ReplaceOne())
    """
    parts = dict(record) if isinstance(record, Mapping) else record
    if isinstance(parts, dict) and isinstance(parts.get("of"), Mapping):
        parts["of"] = neighbours_from_dict(parts["of"])
    value: Neighbours = value_from_dict("neighbours", _KINDS, parts)
    return value


_LARGEST_PRECISION = 1e6  # σ^-2: beyond, roundings of σ would show in ε


@dataclass(frozen=True)
class ClippingStep:
    """One step for one law of the squared-norm ratio; the unit that the engine composes."""

    steps = 1

    noise_multiplier: float
    sample_rate: float
    law: NormLaw = field(default=ExactLaw())
    secret: bool = False

    @property
    def convex_from(self) -> float:
        """1/(12σ²): right of it h_ε is convex in the squared-norm ratio for every ε (T2)."""
        return 1.0 / (12.0 * self.noise_multiplier**2)

    @property
    def tail_share(self) -> float:
        """See :class:`Step`: larger where the tail of Z is so heavy that it decides."""
        return 1e-3 if not self.is_exact and self.law.probes <= 6 else 1e-4

    @property
    def is_exact(self) -> bool:
        """See :class:`dprmt.accounting.pairs._pairs.Step`."""
        return self.law.is_exact

    def norm_ratio(self, bins: int, tail: float) -> NormRatioBins:
        """Return the law of X under which the step is analysed."""
        return self.law.bins(bins, tail if self.is_exact else min(tail, 1e-3))

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """Return the dominating pairs; see :class:`dprmt.accounting.pairs._pairs.Step`."""
        if self.is_exact:
            one = np.ones(1)
            pair = PublicPair(self._shift(one), one, self.sample_rate)
            return pair, pair
        below = tail / self.sample_rate
        law = self.norm_ratio(bins, below)
        if self.secret:
            x, mass = law.spread(0.0)
            upper = SecretUpperPair(self._shift(x), mass, self.sample_rate, law.below)
            return upper, SecretLowerPair(law, self.noise_multiplier, self.sample_rate)
        x, mass = law.concentrate(self.convex_from)
        lower = PublicPair(self._shift(x), mass, self.sample_rate)
        spread = self._spread(law)
        return spread if self.law.convex_mixture is None else self.dominating(spread, tail), lower

    def upper_with_slack(self, bins: int, tail: float) -> StepPair:
        """Return a pair that is never more private than the step, and the same whatever losses are asked for.

        Returns: for packages that discretize themselves; with public probes wider than the one of :meth:`pairs`
        (T5).
        """
        pair = self.pairs(bins, tail)[0]
        if not isinstance(pair, TightPair):
            return pair
        one, high = pair.rank_one, pair.loss_range(tail)[1]
        slack = slack_of_excess(largest_excess(one, high), self.sample_rate, one.total_variation())
        return replace(one, slack=min(slack + tail, 1.0))  # beyond ``high`` δ is at most ``tail``, and what is charged

    def _spread(self, law: NormRatioBins) -> PublicPair:
        x, mass = law.spread(self.convex_from)
        return PublicPair(self._shift(x), mass, self.sample_rate, law.below)

    def dominating(self, pair: PublicPair, tail: float) -> StepPair:
        """Compute the spread rank-one law: (M1), or (T5) with a crude η where that is negligible."""
        eta = TightPair(pair).crude_excess(min(pair.loss_range(tail)[1], LARGEST_LOSS))
        slack = slack_of_excess(eta, self.sample_rate, pair.total_variation())
        if slack <= tail:
            return replace(pair, slack=slack)
        return TightPair(pair)

    def _shift(self, x: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return 1.0 / (self.noise_multiplier * np.sqrt(x))


def gaussians_as_one(schedule: Schedule) -> Schedule:
    """Combine all steps of exact norms without sampling into one step, whose σ⁻² is the sum.

    Nothing is lost: N(0, I) and N(μ, I) differ along μ alone, where they are N(0, 1) and N(|μ|, 1).
    """
    found = [(s, n) for s, n in schedule if isinstance(s, ClippingStep) and s.is_exact and s.sample_rate == 1.0]
    precision = math.fsum(count * step.noise_multiplier**-2.0 for step, count in found)
    if sum(count for _, count in found) < 2 or precision > _LARGEST_PRECISION:
        return schedule
    rest = [(step, count) for step, count in schedule if (step, count) not in found]
    return [*rest, (ClippingStep(precision**-0.5, 1.0), 1)]


@dataclass(frozen=True)
class RelatedStep:
    """One step for several samples that change together, or for a sample that is replaced."""

    steps = 1

    step: ClippingStep
    size: int
    is_replacement: bool

    @property
    def tail_share(self) -> float:
        """See :class:`dprmt.accounting.pairs._pairs.Step`."""
        return self.step.tail_share

    @property
    def is_exact(self) -> bool:
        """See :class:`dprmt.accounting.pairs._pairs.Step`."""
        return self.step.is_exact

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """Return the dominating pairs; see :class:`dprmt.accounting.pairs._pairs.Step`."""
        step = self.step
        if step.is_exact:
            above = SubsampledMixture(step.noise_multiplier, step.sample_rate, self.size, self.is_replacement)
            return above, replace(above, is_charged=False)
        below = tail / step.sample_rate
        if step.secret:
            law = step.norm_ratio(bins, below)
            x, mass = law.spread(0.0)
            shift = 1.0 / (step.noise_multiplier * np.sqrt(x))
            one = SecretUpperPair(shift, mass, step.sample_rate, law.below)
            under = SecretLowerPair(law, step.noise_multiplier, step.sample_rate)
            return SecretReplacement(one), SecretReplacementBelow(under)
        return _by_opposites(step, bins, below)

    def upper_with_slack(self, bins: int, tail: float) -> StepPair:
        """Return a pair that is never more private than the step, whatever losses are asked for."""
        return self.pairs(bins, tail)[0]


AnyStep: TypeAlias = ClippingStep | RelatedStep | FixedSizeStep | TruncatedStep


def has_pairs(step: ClippingStep, neighbours: Neighbours) -> bool:
    """Return whether the pairs of a step are known where several samples change, or one is replaced; else curves are
    (N6).
    """
    if step.is_exact:
        return True
    if neighbours.group_size > 1 or step.law.convex_mixture is None:
        return False
    return step.secret or isinstance(step.law, RankOneLaw)


def related(step: ClippingStep, neighbours: Neighbours) -> AnyStep:
    """Return the step as the relation sees it."""
    size, replaced = neighbours.group_size, neighbours.is_replacement
    return step if size == 1 and not replaced else RelatedStep(step, size, replaced)


@lru_cache(maxsize=64)
def _by_opposites(step: ClippingStep, bins: int, below: float) -> tuple[AtomicPair, AtomicPair]:
    law, tail = step.norm_ratio(bins, below), below * step.sample_rate
    above = replaced_by_opposites(law, step.law.probes, step.noise_multiplier, step.sample_rate, tail, 3 * bins)
    return above, opposites_below(law, step.noise_multiplier, step.sample_rate, tail, 3 * bins)
