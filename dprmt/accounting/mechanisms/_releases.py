"""Releases in addition to training: a noisy number, or the answer of another private mechanism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dprmt._validation import check_real
from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.basics._value import Value
from dprmt.accounting.pairs._pairs import LARGE_LOSS, AtomicPair, LossCells, Step, StepPair, log_shift_ratio
from dprmt.accounting.pairs._steps import ClippingStep, Poisson

if TYPE_CHECKING:
    from dprmt.accounting.questions._trade_off import TradeOff

_ROUNDING = 1e-13  # relative error of a sum of logarithms beyond


class Release(Value):
    """A value released in addition to training, under the same neighbours; see :func:`compose`.

    Examples
    --------
    >>> isinstance(LaplaceRelease(2.0), Release)
    True
    """

    neighbours: ClassVar[None] = None
    """None, because its numbers are in units of the change between any neighbours."""
    sampling: ClassVar[Poisson] = Poisson(1.0)
    """Every sample is in it, as in a step without sampling."""
    has_pairs: ClassVar[bool] = True

    @property
    def largest_loss(self) -> Fraction | None:
        """The largest privacy loss but for what is disclosed outright; None where there is none.

        Returns
        -------
        Fraction or None
            Exactly.
        """
        return None

    def step(self) -> Step:
        """Return one release, but for what is disclosed outright, as the engine composes it.

        Returns
        -------
        Step
            Its pair.
        """
        raise NotImplementedError

    def of_one_sample(self) -> Release:
        """Return the release itself, which has no neighbouring relation.

        Returns
        -------
        Release
            Itself.
        """
        return self


@dataclass(frozen=True, repr=False)
class GaussianRelease(Release):
    """A number, or a vector, with Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the most that neighbours can change the vector by, in Euclidean norm; in
        [1e-3, 1e6].

    Formal guarantees
    -----------------
    A step of DP-SGD at rate 1 with exact norms: tight for every ε.

    Raises
    ------
    ParameterError
        If the noise multiplier lies outside its range.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD, compose
    >>> bounds = compose([(DPSGD(1.0, 0.01), 1000), GaussianRelease(4.0)]).epsilon(1e-5)
    >>> 2.08 < bounds.lower < bounds.upper < 2.09
    True
    """

    kind: ClassVar[str] = "gaussian"

    noise_multiplier: float

    def __post_init__(self) -> None:
        self._keep(noise_multiplier=check_real("noise_multiplier", self.noise_multiplier, low=1e-3, high=1e6))

    def step(self) -> Step:
        """Return one step; see :meth:`Release.step`."""
        return ClippingStep(self.noise_multiplier, 1.0)


@dataclass(frozen=True, repr=False)
class LaplaceRelease(Release):
    """A number with Laplace noise.

    Parameters
    ----------
    scale : float
        Scale b of the noise, divided by the largest change between neighbours; in [1/300, 1e6]. Alone it is
        (1/b)-private.
    rate : float
        q, the probability with which each sample enters the sum, independently, as in Poisson sampling; in [1e-9, 1].
        Below 1, neighbours are one sample that is zeroed out, added or removed.

    Formal guarantees
    -----------------
    Tight for every ε: the densities e^{-|x|/b} and e^{-|x-1|/b} are composed, not (1/b, 0). This covers one number.
    For a vector, each coordinate with independent noise is a release.

    Raises
    ------
    ParameterError
        If the scale lies outside its range.

    Examples
    --------
    >>> from dprmt.accounting import compose
    >>> compose([LaplaceRelease(2.0)]).delta(0.5).upper < 1e-9
    True
    >>> round(compose([LaplaceRelease(2.0)]).delta(0.25).estimate, 3)  # 1 - e^{(0.25 - 0.5)/2}
    0.118
    >>> f"{compose([(LaplaceRelease(1.0, rate=0.01), 1000)]).epsilon(1e-5):.2f}"
    '1.13'
    """

    kind: ClassVar[str] = "laplace"

    scale: float
    rate: float = 1.0

    def __post_init__(self) -> None:
        self._keep(
            scale=check_real("scale", self.scale, low=1.0 / LARGE_LOSS, high=1e6),
            rate=check_real("rate", self.rate, low=1e-9, high=1.0),
        )

    @property
    def largest_loss(self) -> Fraction | None:
        """See :meth:`Release.largest_loss`: 1/b; irrational where there is sampling."""
        return 1 / Fraction(self.scale) if self.rate == 1.0 else None

    def step(self) -> Step:
        """Return one step; see :meth:`Release.step`."""
        pair = LaplacePair(self.scale, self.rate)
        return ReleaseStep(pair, pair)


@dataclass(frozen=True, repr=False)
class ApproximateRelease(Release):
    """The answer of any mechanism of which only its (ε, δ) is known.

    Parameters
    ----------
    epsilon, delta : float
        In [0, 300] and [0, 1).

    Formal guarantees
    -----------------
    Randomized response that discloses everything with probability δ dominates every (ε, δ)-private mechanism (Kairouz,
    Oh & Viswanath 2015, arXiv:1311.0776v4, Theorem 3.3). ``lower`` bounds this one from below.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Examples
    --------
    >>> from dprmt.accounting import compose
    >>> bounds = compose([(ApproximateRelease(0.1, 1e-8), 30)]).epsilon(1e-5)
    >>> 2.1 < bounds.lower < bounds.upper < 2.2  # 3.0 if they were added
    True
    """

    kind: ClassVar[str] = "approximate"

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        self._keep(
            epsilon=check_real("epsilon", self.epsilon, low=0.0, high=LARGE_LOSS),
            delta=check_real("delta", self.delta, low=0.0, high=1.0, high_open=True),
        )

    @property
    def largest_loss(self) -> Fraction:
        """See :meth:`Release.largest_loss`: ε."""
        return Fraction(self.epsilon)

    def step(self) -> Step:
        """Return one step, randomized response; see :meth:`Release.step`."""
        more = 1.0 / (1.0 + math.exp(-self.epsilon))
        losses, p = np.array([-self.epsilon, self.epsilon]), np.array([math.exp(-self.epsilon) * more, more])
        if self.epsilon == 0.0:
            losses, p = np.zeros(1), np.ones(1)
        pair = AtomicPair(losses, p, 0.0, reach=1e-3)
        return ReleaseStep(pair, pair)


@dataclass(frozen=True)
class Disclosure:
    """Probability d with which approximate releases disclose everything.

    Otherwise the rest decides: d = 1 - Π(1 - δ_i) and δ(ε) = d + (1-d)·δ'(ε).

    Attributes
    ----------
    low, high : Fraction
        Bounds on d; equal unless releases are very many.
    loss : Fraction or None
        The sum of the largest losses of all other parts; None where one of them has no largest.
    """

    low: Fraction
    high: Fraction
    loss: Fraction | None

    @classmethod
    def of(cls, phases: Sequence[tuple[Any, int]]) -> Disclosure | None:
        """Combine all phases of a composition; None where nothing is disclosed and some loss has no largest."""
        parts, loss = [], Fraction(0)
        for one, times in phases:
            largest = one.largest_loss if isinstance(one, Release) else None
            loss = None if largest is None or loss is None else loss + times * largest  # type: ignore[assignment]
            if isinstance(one, ApproximateRelease) and one.delta:
                parts.append((one.delta, times))
        if not parts:
            return None if loss is None else cls(Fraction(0), Fraction(0), loss)
        if sum(times for _, times in parts) <= 1000:  # so many probabilities are multiplied as fractions
            d = 1 - math.prod(((1 - Fraction(delta)) ** times for delta, times in parts), start=Fraction(1))
            return cls(d, d, loss)
        rounded = Fraction(-math.expm1(sum(times * math.log1p(-delta) for delta, times in parts)))
        low, high = (min(rounded * Fraction(1 + sign * _ROUNDING), Fraction(1)) for sign in (-1, 1))
        return cls(low, high, loss)

    def left(self, delta: float) -> tuple[float, float]:
        """Return numbers not below and not above the δ that is left for the rest, (δ - d)/(1 - d)."""
        most, least = ((Fraction(delta) - d) / (1 - d) if d < 1 else Fraction(-1) for d in (self.low, self.high))
        return round_up_exact(most), round_down_exact(least)

    def ends_by(self, epsilon: float) -> bool:
        """Return whether no loss of the rest lies beyond."""
        return self.loss is not None and Fraction(epsilon) >= self.loss

    def joined_ends(self, low: float, high: float) -> tuple[float, float]:
        """Return bounds on δ(ε), from those for the rest."""
        below = round_down_exact(self.low + (1 - self.low) * Fraction(low))
        return below, min(round_up_exact(self.high + (1 - self.high) * Fraction(high)), 1.0)

    def joined_curve(self, epsilons: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
        """Return bounds on δ at each ε, from those for the rest."""
        rest = zip(epsilons.tolist(), lower.tolist(), upper.tolist(), strict=True)
        both = np.array([self.joined_ends(*((0.0, 0.0) if self.ends_by(at) else ends)) for at, *ends in rest])
        return both[:, 0], both[:, 1]

    def rates_of_rest(self, alpha: Array) -> Array:
        """Return α/(1 - d): disclosed parts are distinguished for certain, so that β(α) = (1 - d) β'(α/(1 - d))."""
        kept = round_down_exact(1 - self.high)
        return np.minimum(alpha / kept, 1.0) if kept else np.ones(alpha.shape)

    def of_trade_off(self, band: TradeOff, alpha: Array) -> TradeOff:
        """Return the whole's trade-off at ``alpha`` from that of the rest at :meth:`rates_of_rest`."""
        if not self.high:
            return band
        kept = round_down_exact(1 - self.high)
        lower, estimate, upper = (
            np.where(alpha < kept, kept * end, 0.0) for end in (band.lower, band.estimate, band.upper)
        )
        return replace(band, alpha=alpha, lower=lower, estimate=estimate, upper=upper + _ROUNDING)


def round_down_exact(exact: Fraction) -> float:
    """Return the largest float that is not above."""
    value = float(exact)
    return value if Fraction(value) <= exact else math.nextafter(value, -math.inf)


def round_up_exact(exact: Fraction) -> float:
    """Return the smallest float that is not below."""
    return -round_down_exact(-exact)


@dataclass(frozen=True)
class LaplacePair:
    """e^{-|x|/b}/2b against e^{-|x-1|/b}/2b: the loss is 1/b left of 0, -1/b right of 1, linear between (§7 of
    ``docs/theory/neighbours.md``).

    ``rate``: q; with probability 1 - q the first law is the second one, too.
    """

    scale: float
    rate: float = 1.0
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return all losses."""
        del tail
        if self.rate == 1.0:
            return -1.0 / self.scale, 1.0 / self.scale
        low, high = (math.log1p(self.rate * math.expm1(sign / self.scale)) for sign in (-1.0, 1.0))
        return low - 1e-12, high + 1e-12  # at the ends lie atoms

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes."""
        if self.rate < 1.0:
            plain = vars(LaplacePair(self.scale).cells(log_shift_ratio(nodes, self.rate)))
            mixed = {
                name.replace("q", "p"): self.rate * plain[name.replace("q", "p")] + (1.0 - self.rate) * plain[name]
                for name in ("q", "q_below", "q_above")
            }
            return LossCells(**(plain | mixed))
        most = 1.0 / self.scale
        at = np.clip(nodes, -most, most)
        # P(L ≤ l) = e^{-(most - l)/2}/2 and Q(L ≤ l) = 1 - e^{-(most + l)/2}/2 for l inside, and 1 from ``most`` on.
        below = np.where(nodes >= most, 1.0, np.where(nodes < -most, 0.0, np.exp(-(most - at) / 2) / 2))
        above = np.where(nodes >= most, 0.0, np.where(nodes < -most, 1.0, np.exp(-(most + at) / 2) / 2))
        return LossCells(
            p=np.diff(below),
            q=-np.diff(above),
            p_below=float(below[0]),
            q_below=float(1.0 - above[0]),
            p_above=float(1.0 - below[-1]),
            q_above=float(above[-1]),
        )


@dataclass(frozen=True, eq=False)
class ReleaseStep:
    """One release as the engine composes it."""

    above: StepPair
    below: StepPair
    is_exact: bool = True
    steps: int = 1

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """Return the dominating pairs; see :class:`dprmt.accounting.pairs._pairs.Step`."""
        del bins, tail
        return self.above, self.below
