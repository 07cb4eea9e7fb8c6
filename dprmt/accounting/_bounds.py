"""The answer to a privacy question: an interval and a best guess inside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal, localcontext
from typing import Literal

from dprmt._validation import ParameterError, check_real

Direction = Literal["remove", "add"]


@dataclass(frozen=True)
class PrivacyBounds:
    """A certified interval around a privacy quantity (ε or δ). Unpacks as ``lower, estimate, upper``.

    ``float(bounds)`` is ``upper``, and ``f"{bounds:.2f}"`` is ``upper`` rounded *up*, so that what is printed holds.

    Attributes
    ----------
    lower : float
        The quantity is at least this.
    estimate : float
        A guess between the bounds; carries no guarantee.
    upper : float
        The quantity is at most this. Report this one.
    direction : {"remove", "add"} or None
        The adjacency direction that decides, where that is known.
    is_narrow : bool
        Whether the interval is as narrow as was asked. Where it is not, the bounds hold all the same, and
        ``estimate`` is kept near ``upper``.
    at_delta, at_epsilon : float or None
        The δ at which ε was asked for, or the ε at which δ was. None in bounds that were made by hand.

    Examples
    --------
    >>> bounds = PrivacyBounds(lower=0.99, estimate=1.0, upper=1.0101)
    >>> lower, estimate, upper = bounds
    >>> lower <= estimate <= upper
    True
    >>> float(bounds), f"ε ≤ {bounds:.2f}"
    (1.0101, 'ε ≤ 1.02')
    """

    lower: float
    estimate: float
    upper: float
    direction: Direction | None = field(default=None, compare=False)
    is_narrow: bool = field(default=True, compare=False)
    at_delta: float | None = field(default=None, compare=False, repr=False)
    at_epsilon: float | None = field(default=None, compare=False, repr=False)

    def __float__(self) -> float:
        return self.upper

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        if not math.isfinite(self.upper):
            return format(self.upper, spec)
        with localcontext(rounding=ROUND_CEILING):
            return format(Decimal(repr(float(self.upper))), spec)

    def __iter__(self) -> Iterator[float]:
        return iter((self.lower, self.estimate, self.upper))

    def as_dict(self) -> dict[str, float | bool]:
        """The three numbers by name, and whether the interval is as narrow as asked.

        Returns
        -------
        dict
            For JSON.
        """
        return {"lower": self.lower, "estimate": self.estimate, "upper": self.upper, "is_narrow": self.is_narrow}

    def advantage(self) -> float:
        """The most by which an attacker's true positive rate can exceed its false positive rate.

        Of everybody who tells a run with a sample from one without it, knowing no more than that ``upper`` holds. From
        the whole curve instead of one point of it the answer is sharper: ``mechanism.delta(steps, 0.0).upper``.

        Returns
        -------
        float
            (e^ε - 1 + 2δ)/(e^ε + 1), in [0, 1].

        Raises
        ------
        ParameterError
            If the bounds do not know at which δ (or ε) they hold.

        Notes
        -----
        The definition of (ε, δ), for the event that the attacker says "in" and for its complement, is
        e^ε·α + β ≥ 1 - δ and α + e^ε·β ≥ 1 - δ; some pair of distributions leaves just that.

        Examples
        --------
        >>> from dprmt.accounting import DPSGD
        >>> DPSGD(1.0, 0.01).epsilon(1000, 1e-5).advantage() < 0.73
        True
        """
        # Both inequalities, added: α + β ≥ 2(1 - δ)/(1 + e^ε).
        return min(1.0, 1.0 - 2.0 * self._least_error())

    def bayes_risk(self, prior: float = 0.5) -> float:
        """The least probability of error of an attacker who believes the sample in with probability ``prior``.

        Parameters
        ----------
        prior : float
            In [0, 1].

        Returns
        -------
        float
            A lower bound, in [0, min(prior, 1 - prior)]; guessing without looking errs with min(prior, 1 - prior).

        Raises
        ------
        ParameterError
            If ``prior`` lies outside [0, 1], or the bounds do not know at which δ (or ε) they hold.

        Notes
        -----
        prior·β + (1 - prior)·α is least at a corner of what the inequalities of :meth:`advantage` leave.

        Examples
        --------
        >>> bounds = PrivacyBounds(0.0, 0.0, 0.0, at_delta=0.0)
        >>> bounds.bayes_risk(), bounds.bayes_risk(prior=0.1)
        (0.5, 0.1)
        """
        prior = check_real("prior", prior, low=0.0, high=1.0)
        _, delta = self._epsilon_and_delta()
        blind = (1.0 - delta) * min(prior, 1.0 - prior)
        return max(0.0, min(blind, self._least_error()))

    def _least_error(self) -> float:
        """Where α = β on the boundary of what (ε, δ) leaves: (1 - δ)/(1 + e^ε)."""
        epsilon, delta = self._epsilon_and_delta()
        return (1.0 - delta) * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))

    def _epsilon_and_delta(self) -> tuple[float, float]:
        if self.at_delta is not None:
            return self.upper, self.at_delta
        if self.at_epsilon is not None:
            return self.at_epsilon, self.upper
        raise ParameterError("at_delta", None, "known, as it is in what a mechanism answers")


def worst_of(by_direction: dict[Direction, PrivacyBounds]) -> PrivacyBounds:
    """The larger of both directions, named after the one whose upper bound is larger."""
    name = max(by_direction, key=lambda direction: by_direction[direction].upper)
    lower = max(bounds.lower for bounds in by_direction.values())
    return PrivacyBounds(
        lower=lower,
        estimate=max(bounds.estimate for bounds in by_direction.values()),
        upper=by_direction[name].upper,
        direction=name,
        is_narrow=by_direction[name].is_narrow or all(b.is_narrow or b.upper <= lower for b in by_direction.values()),
        at_delta=by_direction[name].at_delta,
        at_epsilon=by_direction[name].at_epsilon,
    )
