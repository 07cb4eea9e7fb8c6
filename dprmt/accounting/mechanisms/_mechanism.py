"""Questions that every mechanism answers; see :class:`Composition` for sequences of mechanisms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError, check_real, needing
from dprmt.accounting.basics import Array, Direction, PrivacyBounds
from dprmt.accounting.composition import EpsilonAtDelta
from dprmt.accounting.mechanisms._composition import BOTH, Composition, compose, run_length
from dprmt.accounting.mechanisms._sampling import Sampling
from dprmt.accounting.pairs import AllocationEpoch, AnyStep, Neighbours, ZeroOut
from dprmt.accounting.questions import Brackets, Counts, Numbers, PrivacyCurve, by_blocks, checked_counts, joined

if TYPE_CHECKING:
    from dprmt.accounting.interop.pld import PrivacyLossDistribution
    from dprmt.accounting.interop.prv import UpperLoss
    from dprmt.accounting.questions import TradeOff


class Mechanism:
    """The questions every mechanism answers; see :class:`Composition` for sequences of mechanisms."""

    sampling: Sampling
    """Sampling scheme."""
    neighbours: Neighbours = ZeroOut()
    """Neighbouring relation."""

    @property
    def has_pairs(self) -> bool:
        """True if a pair of one step is known for ``neighbours``."""
        return True

    def step(self) -> AnyStep:
        """Return one step under the chosen analysis."""
        raise NotImplementedError

    def of_one_sample(self) -> Mechanism:
        """Return the same for one sample that is present, or without a gradient."""
        return self

    def run(self, *, steps: int | None = None, epochs: int | None = None) -> Composition:
        """Run it for a number of steps, which may be 0, or of epochs where the sampling has epochs.

        Returns
        -------
        Composition
            Answers the same questions.
        """
        return compose([(self, run_length(self.sampling, steps, epochs))])

    @overload
    def epsilon(
        self, *, delta: float | None = ..., steps: int | None = ..., epochs: int | None = ..., tolerance: float = ...
    ) -> PrivacyBounds: ...

    @overload
    def epsilon(
        self, *, delta: float | None = ..., steps: Counts, epochs: None = ..., tolerance: float = ...
    ) -> PrivacyCurve: ...

    @overload
    def epsilon(
        self, *, delta: float | None = ..., steps: None = ..., epochs: Counts, tolerance: float = ...
    ) -> PrivacyCurve: ...

    def epsilon(
        self,
        *,
        delta: float | None = None,
        steps: int | Counts | None = None,
        epochs: int | Counts | None = None,
        tolerance: float = 1e-3,
    ) -> PrivacyBounds | PrivacyCurve:
        """Bound ε of ``steps`` steps at ``delta``, the larger of both adjacency directions.

        Parameters
        ----------
        delta : float
            The δ of the guarantee, in [1e-290, 1).
        steps : int, sequence of int or None
            Number of steps, in [0, 1e9]; for random allocation a multiple of ``steps_per_epoch``. A sequence of
            numbers costs little more than one.
        epochs : int, sequence of int or None
            Number of epochs instead of ``steps``, if the sampling has epochs.
        tolerance : float
            Wanted width of the interval, absolute for ε ≤ 1 and relative beyond.

        Returns
        -------
        PrivacyBounds or PrivacyCurve
            Bounds that name the deciding direction; ``upper`` is ∞ if no finite ε could be certified. A sequence gives
            a curve, in the order of the arguments.

        Raises
        ------
        ParameterError
            If an argument lies outside its range.
        """
        delta = check_real("delta", delta, low=1e-290, high=1.0, high_open=True)
        if np.ndim(cast("Any", steps if epochs is None else epochs)):
            return self._epsilon_curve(steps, epochs, delta, tolerance)
        run = self.run(steps=cast("int | None", steps), epochs=cast("int | None", epochs))
        return run.epsilon(delta, tolerance=tolerance)

    def epsilon_by_direction(
        self, *, delta: float, steps: int | None = None, epochs: int | None = None, tolerance: float = 1e-3
    ) -> dict[Direction, PrivacyBounds]:
        """Bound ε in each direction; see :meth:`Composition.epsilon_by_direction`."""
        delta = check_real("delta", delta, low=1e-290, high=1.0, high_open=True)
        return self.run(steps=steps, epochs=epochs).epsilon_by_direction(delta, tolerance=tolerance)

    @overload
    def delta(
        self, *, epsilon: float, steps: int | None = ..., epochs: int | None = ..., tolerance: float = ...
    ) -> PrivacyBounds: ...

    @overload
    def delta(
        self, *, epsilon: Numbers, steps: int | None = ..., epochs: int | None = ..., tolerance: float = ...
    ) -> PrivacyCurve: ...

    def delta(
        self,
        *,
        epsilon: float | Numbers,
        steps: int | None = None,
        epochs: int | None = None,
        tolerance: float = 1e-2,
    ) -> PrivacyBounds | PrivacyCurve:
        """Bound δ at an ε; see :meth:`Composition.delta`."""
        return self.run(steps=steps, epochs=epochs).delta(cast("float", epsilon), tolerance=tolerance)

    def trade_off(self, *, alpha: ArrayLike, steps: int | None = None, epochs: int | None = None) -> TradeOff:
        """Bound the trade-off curve; see :meth:`Composition.trade_off`."""
        return self.run(steps=steps, epochs=epochs).trade_off(alpha)

    def advantage(self, *, steps: int | None = None, epochs: int | None = None) -> PrivacyBounds:
        """Bound an attacker's advantage; see :meth:`Composition.advantage`."""
        return self.run(steps=steps, epochs=epochs).advantage()

    def true_positive_rate(
        self, *, false_positive_rate: float = 0.01, steps: int | None = None, epochs: int | None = None
    ) -> PrivacyBounds:
        """Bound an attacker's true-positive rate; see :meth:`Composition.true_positive_rate`."""
        return self.run(steps=steps, epochs=epochs).true_positive_rate(false_positive_rate)

    def bayes_risk(self, *, prior: float = 0.5, steps: int | None = None, epochs: int | None = None) -> PrivacyBounds:
        """Bound an attacker's error; see :meth:`Composition.bayes_risk`. The safe end is the lower one."""
        return self.run(steps=steps, epochs=epochs).bayes_risk(prior)

    def gdp_mu(
        self, *, least_delta: float = 1e-10, steps: int | None = None, epochs: int | None = None
    ) -> PrivacyBounds:
        """Bound the Gaussian DP parameter; see :meth:`Composition.gdp_mu`."""
        return self.run(steps=steps, epochs=epochs).gdp_mu(least_delta=least_delta)

    def _epsilon_curve(self, steps: Any, epochs: Any, delta: float, tolerance: float) -> PrivacyCurve:
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        length = self.sampling.steps_per_epoch or 1
        if epochs is None:
            at = checked_counts("steps", steps, self.sampling.steps_per_epoch or 1)
        else:
            self.sampling.run_length(steps, 1)  # refuses both, or epochs of Poisson sampling
            at = checked_counts("epochs", epochs, high=10**9 // length)
        bands = getattr(self.sampling, "bands", 1)  # steps in which each group has its turn once
        drawn = -(-at // bands) * bands if epochs is None else at * length
        counts, place = np.unique(drawn, return_inverse=True)
        units = self.sampling.schedule(self.step(), int(counts[0])) if self.has_pairs else []
        question, enough = EpsilonAtDelta(delta), np.zeros(counts.size)
        ends: dict[Direction, tuple[Array, Array]] = {}
        for direction in BOTH[:1] if self.neighbours.is_replacement else BOTH:
            brackets = Brackets(counts, tolerance, enough)
            if len(units) == 1:
                ((unit, times),) = units
                brackets.counts = counts * times // int(counts[0])
                by_blocks(unit, brackets, delta, direction)
            while (here := brackets.next_place()) is not None:
                run = compose([(self, int(counts[here]))])
                brackets.add_one(here, run._solve(question, direction, tolerance))
            ends[direction] = brackets.lower, brackets.upper
            enough = np.where(brackets.width() <= 1.0, brackets.upper, brackets.lower)
        return joined(ends, question, tolerance, at.astype(np.float64), place)

    def _unit(self) -> AnyStep | AllocationEpoch:
        """Return one step, or one epoch of random allocation: what other packages' accountants compose."""
        if not self.has_pairs:
            raise ParameterError("neighbours", self.neighbours, "a relation for which one step has a pair")
        return self.sampling.unit(self.step())

    def to_prv(
        self,
        direction: Direction = "remove",
        *,
        largest_loss: float | None = None,
        tail: float = 1e-12,
        bins: int = 128,
    ) -> UpperLoss:
        """Return one step, or epoch of random allocation, as a privacy random variable of prv-accountant (extra
        ``interop``).

        Parameters
        ----------
        direction : {"remove", "add"}
            Adjacency direction: compose each and take the larger ε.
        largest_loss : float or None
            Losses above it are charged to ``pm_inf``; choose prv-accountant's ``eps_max`` larger. ``None`` takes the
            smallest that charges about ``tail``.
        tail : float
            Mass that may be cut off, per step, where the laws of sensitivity and loss end.
        bins : int
            Number of bins for the law of the sensitivity.

        Returns
        -------
        prv_accountant.PrivacyRandomVariable
            One step.

        Formal guarantees
        -----------------
        It dominates the step in its direction; see ``dprmt.accounting.interop.prv`` for prv-accountant's limits.

        Examples
        --------
        >>> from dprmt.accounting import DPSGD
        >>> prv = DPSGD(1.0, 0.03).to_prv()
        >>> bool(0 < prv.pm_inf < 2e-12)
        True
        """
        unit = self._unit()  # refused before a package is missed
        with needing("interop"):
            from dprmt.accounting.interop.prv import to_prv

        return to_prv(unit, direction, largest_loss=largest_loss, tail=tail, bins=bins)

    def to_pld(
        self,
        discretization: float = 1e-4,
        *,
        largest_loss: float | None = None,
        tail: float = 1e-12,
        bins: int = 128,
    ) -> PrivacyLossDistribution:
        """Convert one step, or one epoch of random allocation, to a distribution of dp-accounting (extra ``interop``).

        Parameters
        ----------
        discretization : float
            Spacing of the losses; use one spacing for everything that you compose.
        largest_loss : float or None
            Losses above it move to the infinite mass. ``None`` picks the smallest that moves about ``tail``.
        tail : float
            Mass per step that may be cut off at the ends of the sensitivity and loss laws.
        bins : int
            Number of bins for the law of the sensitivity.

        Returns
        -------
        dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution
            One step, both directions, pessimistic.

        Formal guarantees
        -----------------
        Both directions dominate the step, up to rounding; see ``dprmt.accounting.interop.pld.to_pld``.

        Examples
        --------
        >>> from dprmt.accounting import DPSGD
        >>> DPSGD(1.0, 0.03).to_pld(1e-3).self_compose(400).get_epsilon_for_delta(1e-5) < 3.86
        True
        """
        unit = self._unit()  # refused before a package is missed
        with needing("interop"):
            from dprmt.accounting.interop.pld import to_pld

        return to_pld(unit, discretization, largest_loss=largest_loss, tail=tail, bins=bins)
