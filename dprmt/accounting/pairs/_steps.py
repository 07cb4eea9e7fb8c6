"""One step of DP-SGD for every sampling and way of computing norms, as each neighbouring relation sees it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, SupportsFloat, TypeAlias, TypeVar, cast

import numpy as np

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.accounting.basics._numbers import LARGEST_LOSS
from dprmt.accounting.basics._value import Value, value_from_dict
from dprmt.accounting.laws._laws import ExactLaw, NormLaw, RankOneLaw
from dprmt.accounting.laws._norms import ExactNorms, Norms
from dprmt.accounting.pairs._allocation import AllocationEpoch
from dprmt.accounting.pairs._exact_replacement import SubsampledMixture
from dprmt.accounting.pairs._fixed_size import FixedSizeStep, TruncatedStep
from dprmt.accounting.pairs._pairs import AtomicPair, PublicPair, Schedule, Step, StepPair
from dprmt.accounting.pairs._public_replacement import opposites_below, replaced_by_opposites
from dprmt.accounting.pairs._secret_pair import SecretLowerPair, SecretUpperPair
from dprmt.accounting.pairs._secret_replacement import SecretReplacement, SecretReplacementBelow
from dprmt.accounting.pairs._tight_pair import TightPair, largest_excess, slack_of_excess


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
    """Neighbours in which all ``size`` samples of one person change together, each sampled independently (N1).

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
        self._keep(size=check_count("size", self.size, high=1000))
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
_NEIGHBOURS = (ZeroOut, AddRemove, ReplaceOne, Group)


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
    value: Neighbours = value_from_dict("neighbours", _NEIGHBOURS, parts)
    return value


@dataclass(frozen=True)
class ClippingStep:
    """One step for one law of the squared-norm ratio; the unit that the engine composes."""

    steps = 1

    noise_multiplier: float
    sample_rate: float
    law: NormLaw = field(default=ExactLaw())
    secret: bool = False

    @property
    def is_exact(self) -> bool:
        """See :class:`dprmt.accounting.pairs._pairs.Step`."""
        return self.law.is_exact

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """Return the dominating pairs; see :class:`dprmt.accounting.pairs._pairs.Step`."""
        sigma, q = self.noise_multiplier, self.sample_rate
        if self.is_exact:
            pair = PublicPair(np.array([1.0 / sigma]), np.ones(1), q)
            return pair, pair
        law = self.law.bins(bins, min(tail / q, 1e-3))
        if self.secret:
            x, mass = law.spread(0.0)
            return SecretUpperPair(1.0 / (sigma * np.sqrt(x)), mass, q, law.below), SecretLowerPair(law, sigma, q)
        convex_from = 1.0 / (12.0 * sigma**2)  # right of it h_ε is convex in the squared-norm ratio for every ε (T2)
        x, mass = law.concentrate(convex_from)
        lower = PublicPair(1.0 / (sigma * np.sqrt(x)), mass, q)
        x, mass = law.spread(convex_from)
        spread = PublicPair(1.0 / (sigma * np.sqrt(x)), mass, q, law.below)
        if self.law.convex_mixture is None:
            return spread, lower
        # (M1), or (T5) with a crude η where that is negligible.
        eta = TightPair(spread).crude_excess(min(spread.loss_range(tail)[1], LARGEST_LOSS))
        slack = slack_of_excess(eta, q, spread.total_variation())
        return replace(spread, slack=slack) if slack <= tail else TightPair(spread), lower

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


def gaussians_as_one(schedule: Schedule) -> Schedule:
    """Combine all steps of exact norms without sampling into one step, whose σ⁻² is the sum.

    Nothing is lost: N(0, I) and N(μ, I) differ along μ alone, where they are N(0, 1) and N(|μ|, 1).
    """
    found = [(s, n) for s, n in schedule if isinstance(s, ClippingStep) and s.is_exact and s.sample_rate == 1.0]
    precision = math.fsum(count * step.noise_multiplier**-2.0 for step, count in found)
    if sum(count for _, count in found) < 2 or precision > 1e6:  # beyond, roundings of σ would show in ε
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
            law = step.law.bins(bins, min(below, 1e-3))
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


def related(step: ClippingStep, neighbours: Neighbours) -> tuple[AnyStep, bool]:
    """Return an independently sampled step as the relation sees it, and True.

    Where its pairs are not known for several samples that change, or for one that is replaced, return the step of one
    sample that is present, and False: curves are composed (N6).
    """
    size, replaced = neighbours.group_size, neighbours.is_replacement
    if size == 1 and not replaced:
        return step, True
    is_bounded = size == 1 and step.law.convex_mixture is not None
    if step.is_exact or (is_bounded and (step.secret or isinstance(step.law, RankOneLaw))):
        return RelatedStep(step, size, replaced), True
    return step, False


@lru_cache(maxsize=64)
def _by_opposites(step: ClippingStep, bins: int, below: float) -> tuple[AtomicPair, AtomicPair]:
    law, tail = step.law.bins(bins, min(below, 1e-3)), below * step.sample_rate
    above = replaced_by_opposites(law, step.law.probes, step.noise_multiplier, step.sample_rate, tail, bins)
    return above, opposites_below(law, step.noise_multiplier, step.sample_rate, tail, bins)


OneStep = TypeVar("OneStep", bound=Step)
_MOST_STEPS = 10**9


class _Scheme(Value):
    """Base of all samplings: which norms and neighbours a scheme covers, and the steps that it makes of them."""

    steps_per_epoch: int | None
    """Length of an epoch; None where every step's batch is drawn anew."""
    rate: float

    @property
    def step_rate(self) -> float:
        """The sample rate of the step that the engine sees."""
        return self.rate

    def check(self, norms: Norms, neighbours: Neighbours) -> None:
        """Refuse norms and neighbours for which this scheme has no proof."""

    def step(self, noise_multiplier: float, norms: Norms, neighbours: Neighbours) -> tuple[AnyStep, bool]:
        """Return one step, and whether it is for ``neighbours``; else it is for one sample's presence."""
        return related(ClippingStep(noise_multiplier, self.step_rate, norms.law(), norms.secret), neighbours)

    def schedule(self, step: Step, steps: int) -> Schedule:
        """Schedule a number of steps for the engine.

        Returns
        -------
        list of (step, count)
            The step, or what a sample sees of an epoch, and how often it is repeated.
        """
        return [(step, steps)]

    def unit(self, step: AnyStep) -> AnyStep | AllocationEpoch:
        """Return the unit that another package's accountant composes.

        Returns
        -------
        ClippingStep, RelatedStep or AllocationEpoch
            One step, or one epoch.
        """
        return step

    def run_length(self, steps: int | None, epochs: int | None, least: int = 0) -> int:
        """Return the number of steps of a run.

        Returns
        -------
        int
            A multiple of ``steps_per_epoch`` where there are epochs; 0 where nothing is released yet.

        Raises
        ------
        ParameterError
            If not exactly one of both is given, it is below ``least`` or above 1e9 steps, there are no epochs, or steps
            are not whole epochs.
        """
        length = self.steps_per_epoch
        if epochs is not None:
            if length is None:
                raise ParameterError(
                    "epochs", epochs, f"left out of {self.kind} sampling, which has none", "pass steps"
                )
            if steps is not None:
                raise ParameterError("epochs", epochs, "left out if steps are given", "pass steps or epochs, not both")
            return check_count("epochs", epochs, low=least, high=_MOST_STEPS // length) * length
        if steps is None and length is not None:
            raise ParameterError("steps", steps, "given, or epochs")
        steps = check_count("steps", cast("int", steps), low=least, high=_MOST_STEPS)
        if steps % (length or 1):
            allowed = f"whole epochs of random allocation, a multiple of steps_per_epoch = {length}"
            raise ParameterError("steps", steps, allowed)
        return steps


@dataclass(frozen=True, repr=False)
class Poisson(_Scheme):
    """Poisson sampling: every sample enters every batch independently with probability q.

    Parameters
    ----------
    rate : float
        q, the probability of entering a batch; in [1e-9, 1].
    at_most : int, optional
        B, the largest batch: of a larger one a uniform random subset of B is kept. In [1, samples].
    samples : int, optional
        n, the number of samples, which is public; needed with ``at_most`` only. In [2, 1e12].

    Raises
    ------
    ParameterError
        If an argument lies outside its range, or only one of ``at_most`` and ``samples`` is given.

    Privacy
    -------
    Covers with ``at_most``: exact norms, and neighbours ``ZeroOut``, ``AddRemove`` (n counts the sample) and
    ``ReplaceOne``. Proof: ``docs/theory/batches.md``, "Batches of a largest size". The upper end is far above the
    lower one where B is within a few deviations √(qn) of the mean batch qn: for σ = 1, q = 0.01, n = 10,000, 1,000
    steps and δ = 1e-5, ε lies in [1.74, 7.90] for B = 100, in [1.82, 3.00] for B = 130, and in [1.82, 1.83] for
    B = 160.

    Examples
    --------
    >>> Poisson(0.01)
    Poisson(0.01)
    >>> from dprmt.accounting import DPSGD
    >>> f"{DPSGD(1.0, Poisson(0.01, at_most=160, samples=10_000)).epsilon(steps=1000, delta=1e-5):.2f}"
    '1.83'
    """

    kind: ClassVar[str] = "poisson"
    steps_per_epoch: ClassVar[None] = None  # type: ignore[misc]
    """There are no epochs."""
    bands: ClassVar[int] = 1
    """Every step draws from the same group, of all samples."""

    rate: float
    at_most: int | None = None
    samples: int | None = None

    def __post_init__(self) -> None:
        self._keep(rate=check_real("rate", self.rate, low=1e-9, high=1.0))
        if (self.at_most is None) != (self.samples is None):
            raise ParameterError("at_most, samples", (self.at_most, self.samples), "given together, or not at all")
        if self.at_most is not None and self.samples is not None:
            samples = check_count("samples", self.samples, low=2, high=10**12)
            self._keep(samples=samples, at_most=check_count("at_most", self.at_most, high=samples))

    def check(self, norms: Norms, neighbours: Neighbours) -> None:
        """Refuse what has no proof where batches have a largest size."""
        if self.at_most is not None:
            _refuse_estimates(norms)
            _refuse_groups(neighbours)

    def step(self, noise_multiplier: float, norms: Norms, neighbours: Neighbours) -> tuple[AnyStep, bool]:
        """Return one step, with what a full batch displaces where batches have a largest size."""
        if self.at_most is None or self.samples is None:
            return related(ClippingStep(noise_multiplier, self.rate, norms.law(), norms.secret), neighbours)
        batches = (self.rate, self.at_most, self.samples)
        is_removal = isinstance(neighbours, AddRemove)
        return TruncatedStep(noise_multiplier, *batches, neighbours.is_replacement, is_removal), True

    def as_dict(self) -> dict[str, Any]:
        """See :meth:`Value.as_dict`; the rate alone where batches may have any size."""
        return {name: part for name, part in super().as_dict().items() if part is not None}


@dataclass(frozen=True, repr=False)
class CyclicPoisson(_Scheme):
    """Poisson sampling from one of several groups of samples, each of which has its turn.

    For noise that is correlated over at most ``bands`` steps: C⁻¹z with a lower-triangular matrix C of so many
    bands, whose columns have norm at most 1. Independent noise (C = I) is allowed.

    Parameters
    ----------
    rate : float
        q, expected batch size over the number of all samples; in [1e-9, 1/bands].
    bands : int
        b: samples are divided into b groups without looking at them, and step t draws from group t mod b alone,
        each sample with probability b·q; in [1, 1e6].

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Privacy
    -------
    Holds if: a sample's group does not depend on samples. T steps cost what ⌈T/b⌉ steps at rate b·q cost.
    Covers: all norms; one sample that is zeroed out, added, removed or replaced.
    Does not cover: groups of several samples. Proof: ``docs/theory/batches.md``, "Cyclic Poisson sampling".

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> for sampling in (Poisson(0.01), CyclicPoisson(0.01, bands=4)):
    ...     print(f"{DPSGD(2.0, sampling).epsilon(steps=1000, delta=1e-5):.2f}")
    0.63
    1.38
    """

    kind: ClassVar[str] = "cyclic-poisson"
    steps_per_epoch: ClassVar[None] = None  # type: ignore[misc]
    """There are no epochs."""

    rate: float
    bands: int

    def __post_init__(self) -> None:
        bands = check_count("bands", self.bands, high=10**6)
        self._keep(bands=bands, rate=check_real("rate", self.rate, low=1e-9, high=1.0 / bands))

    def check(self, norms: Norms, neighbours: Neighbours) -> None:
        """Refuse groups of several samples, for which there is no proof."""
        _refuse_groups(neighbours)

    @property
    def step_rate(self) -> float:
        """The probability with which a sample of the group is drawn, b·q, rounded up."""
        return min(math.nextafter(self.bands * self.rate, 1.0), 1.0)

    def schedule(self, step: Step, steps: int) -> Schedule:
        """Schedule a step for each turn of a sample's group, rounded up.

        Returns
        -------
        list of (step, count)
            One step for every ``bands``.
        """
        return [(step, -(-steps // self.bands))]


@dataclass(frozen=True, repr=False)
class FixedSize(_Scheme):
    """Draw every batch anew as a uniform subset of a fixed size, without replacement.

    Use it for loaders that take ``batch_size`` of ``samples`` at random in every step. It costs a multiple of Poisson
    sampling at the same rate, because each sample in a batch displaces another.

    Parameters
    ----------
    batch_size : int
        B, the number of different samples in every batch; in [1, samples].
    samples : int
        n, the number of samples in the data set, which is public; in [2, 1e12].

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Privacy
    -------
    Holds if: every step draws its batch uniformly and independently of all other steps, and norms are exact.
    Covers: ``ZeroOut`` and ``ReplaceOne`` neighbours, both directions, adaptive composition.
    Does not cover: ``AddRemove`` (a removed sample changes n) and estimated norms. A loader that goes through a
    shuffled order is :class:`FixedOrder`. Proof: ``docs/theory/fixed_size.md``.

    See Also
    --------
    Poisson : for batches whose size varies, at a fraction of the cost.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> for sampling in (Poisson(0.01), FixedSize(batch_size=100, samples=10_000)):
    ...     print(f"{DPSGD(2.0, sampling).epsilon(steps=1000, delta=1e-5):.2f}")
    0.63
    1.28
    """

    kind: ClassVar[str] = "fixed-size"
    steps_per_epoch: ClassVar[None] = None  # type: ignore[misc]
    """There are no epochs."""

    batch_size: int
    samples: int

    def __post_init__(self) -> None:
        samples = check_count("samples", self.samples, low=2, high=10**12)
        self._keep(samples=samples, batch_size=check_count("batch_size", self.batch_size, high=samples))

    @property
    def rate(self) -> float:  # type: ignore[override]  # computed here, a field of Poisson
        """The probability of entering a given batch, B/n, rounded up."""
        return min(math.nextafter(self.batch_size / self.samples, 1.0), 1.0)

    def check(self, norms: Norms, neighbours: Neighbours) -> None:
        """Refuse estimated norms, and neighbours between which the number of samples differs."""
        _refuse_estimates(norms)
        if not isinstance(neighbours, ZeroOut | ReplaceOne):
            allowed = "ZeroOut() or ReplaceOne() for batches of a fixed size, whose number of samples is public"
            raise ParameterError("neighbours", neighbours, allowed)

    def step(self, noise_multiplier: float, norms: Norms, neighbours: Neighbours) -> tuple[AnyStep, bool]:
        """Return one step, in which each sample displaces another."""
        del norms
        return FixedSizeStep(noise_multiplier, self.rate, neighbours.is_replacement), True


@dataclass(frozen=True, repr=False)
class RandomAllocation(_Scheme):
    """Random allocation: in every epoch each sample takes part in exactly one step, chosen uniformly.

    Independently of the other samples and of other epochs.

    Parameters
    ----------
    steps_per_epoch : int
        t, number of steps of an epoch; in [1, 1e7].
    participations : int
        r in [1, t]: the epoch is cut into r blocks of steps, as equal as can be, and each sample takes part once in
        each block.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Examples
    --------
    >>> RandomAllocation(100), RandomAllocation(100, participations=2).rate
    (RandomAllocation(100), 0.02)
    """

    kind: ClassVar[str] = "allocation"

    step_rate: ClassVar[float] = 1.0
    """The epoch does the sampling, not the step."""

    steps_per_epoch: int
    participations: int = 1

    def __post_init__(self) -> None:
        steps = check_count("steps_per_epoch", self.steps_per_epoch, high=10**7)
        self._keep(steps_per_epoch=steps, participations=check_count("participations", self.participations, high=steps))

    @property
    def rate(self) -> float:  # type: ignore[override]  # computed here, a field of Poisson
        """The probability of entering a given batch, r/t."""
        return self.participations / self.steps_per_epoch

    def step(self, noise_multiplier: float, norms: Norms, neighbours: Neighbours) -> tuple[AnyStep, bool]:
        """Return one step of a sample that is present; for other relations curves are composed."""
        step = ClippingStep(noise_multiplier, self.step_rate, norms.law(), norms.secret)
        return step, neighbours.group_size == 1 and not neighbours.is_replacement

    def schedule(self, step: Step, steps: int) -> Schedule:
        """Schedule a number of steps for the engine, in blocks of ⌊t/r⌋ or ⌈t/r⌉ (R1').

        Returns
        -------
        list of (epoch, count)
            A sample has a separate step in every block.
        """
        epochs = steps // self.steps_per_epoch
        short, longer = divmod(self.steps_per_epoch, self.participations)
        blocks = {short: self.participations - longer, short + 1: longer}
        return [(_block(step, length), epochs * count) for length, count in blocks.items() if count]

    def unit(self, step: AnyStep) -> AnyStep | AllocationEpoch:
        """Return the unit that another package's accountant composes.

        Returns
        -------
        AllocationEpoch or ClippingStep
            One epoch.

        Raises
        ------
        ParameterError
            Unless there is one participation: else the epoch is several different blocks.
        """
        check_count("participations", self.participations, high=1)
        return _block(step, self.steps_per_epoch)


@dataclass(frozen=True, repr=False)
class FixedOrder(_Scheme):
    """No sampling: each sample is in at most one batch per epoch, in an order chosen without looking at the data.

    Use it for loaders that shuffle and cut, for sorted files, and for streams. The accountant treats an epoch as one
    step without sampling, and ``steps`` count epochs.

    Formal guarantees
    -----------------
    Holds if: the assignment to batches depends neither on the data nor on which samples exist. Does not cover:
    `AddRemove`, because all samples after a removed one move up. Proof: N5 in ``docs/theory/neighbours.md``. No better
    bound is proved for a shuffle.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD
    >>> bounds = DPSGD(4.0, FixedOrder()).epsilon(epochs=3, delta=1e-5)
    >>> f"{bounds:.3f}"
    '1.699'
    """

    kind: ClassVar[str] = "fixed-order"
    steps_per_epoch: ClassVar[int] = 1  # type: ignore[misc]
    """One step of the accountant is an epoch."""
    rate: ClassVar[float] = 1.0  # type: ignore[misc]
    """No sample is drawn at random."""

    def check(self, norms: Norms, neighbours: Neighbours) -> None:
        """Refuse the removal of a sample, after which all others move up."""
        if isinstance(neighbours.of if isinstance(neighbours, Group) else neighbours, AddRemove):
            allowed = (
                "ZeroOut() or ReplaceOne() in a fixed order, because a removed sample moves others to other batches"
            )
            raise ParameterError("neighbours", neighbours, allowed)

    def step(self, noise_multiplier: float, norms: Norms, neighbours: Neighbours) -> tuple[AnyStep, bool]:
        """Return one epoch, by pairs with exact norms, and for one replaced sample with secret probes."""
        presence = ClippingStep(noise_multiplier, 1.0, norms.law(), norms.secret)
        seen, is_known = related(presence, neighbours)
        if presence.is_exact and seen is not presence:
            # Batches with a_1 + a_2 + … = m of a person's samples are Gaussian mechanisms of these shifts, so all
            # in one batch is the worst; what replaces a sample may point the other way: twice the shift.
            shift = neighbours.group_size * (2 if neighbours.is_replacement else 1)
            return ClippingStep(math.nextafter(noise_multiplier / shift, 0.0), 1.0), True
        # Several may be in one batch, or in several; and what (N11) charges grows without sampling.
        if seen is not presence and not presence.secret:
            return presence, False
        return seen, is_known


Sampling: TypeAlias = Poisson | CyclicPoisson | FixedSize | RandomAllocation | FixedOrder
_SAMPLINGS = (Poisson, CyclicPoisson, FixedSize, RandomAllocation, FixedOrder)


def checked_sampling(sampling: Sampling | SupportsFloat) -> Sampling:
    """Return the value; a plain number stands for Poisson sampling at this rate."""
    if isinstance(sampling, _SAMPLINGS):
        return sampling
    try:
        return Poisson(sampling)  # type: ignore[arg-type]  # checked there
    except ParameterError:
        allowed = (
            "Poisson(rate) with a rate in [1e-9, 1], that rate alone, RandomAllocation(steps_per_epoch), or "
            "FixedSize(batch_size, samples), CyclicPoisson(rate, bands), or FixedOrder() for a loader that shuffles "
            "and cuts"
        )
        raise ParameterError("sampling", sampling, allowed) from None


def sampling_from_dict(record: Mapping[str, Any]) -> Sampling:
    """Return the value that :meth:`Value.as_dict` described.

    Parameters
    ----------
    record : mapping
        ``kind``, "poisson", "cyclic-poisson", "fixed-size", "allocation" or "fixed-order", and the value's fields.

    Returns
    -------
    Poisson, CyclicPoisson, FixedSize, RandomAllocation or FixedOrder
        The value, checked.

    Raises
    ------
    ParameterError
        If the kind is none of these, a field is not one of the value's, or a field lies outside its range.

    Examples
    --------
    >>> sampling_from_dict({"kind": "allocation", "steps_per_epoch": 100})
    RandomAllocation(100)
    """
    value: Sampling = value_from_dict("sampling", _SAMPLINGS, record)
    return value


def _refuse_estimates(norms: Norms) -> None:
    if not isinstance(norms, ExactNorms):
        allowed = "ExactNorms() where batches have a fixed or largest size: shifts of estimates are differences"
        raise ParameterError("norms", norms, allowed)


def _refuse_groups(neighbours: Neighbours) -> None:
    if isinstance(neighbours, Group):
        allowed = "of one sample for batches of a largest size and for cyclic sampling"
        raise ParameterError("neighbours", neighbours, allowed)


def _block(step: OneStep, length: int) -> OneStep | AllocationEpoch:
    if length == 1:
        return step
    assert isinstance(step, ClippingStep)  # for other relations curves are composed
    return AllocationEpoch(step, length)
