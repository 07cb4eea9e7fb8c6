"""The mechanisms whose privacy cost is computed: DP-SGD with exact norms and with randomized clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, SupportsFloat

import numpy as np

from dprmt._validation import ParameterError, check_real, needing
from dprmt.accounting.basics._bounds import Direction
from dprmt.accounting.basics._numbers import LEAST_DELTA, Array
from dprmt.accounting.basics._value import Value
from dprmt.accounting.composition._compose import Question
from dprmt.accounting.laws._norms import ExactNorms, Norms, checked_norms
from dprmt.accounting.mechanisms._composition import BOTH, Composition, Questions
from dprmt.accounting.mechanisms._releases import GaussianRelease
from dprmt.accounting.pairs._allocation import AllocationEpoch
from dprmt.accounting.pairs._steps import AnyStep, Neighbours, Sampling, ZeroOut, checked_neighbours, checked_sampling
from dprmt.accounting.questions._curves import PrivacyCurve, joined
from dprmt.accounting.questions._step_counts import Brackets, by_blocks

if TYPE_CHECKING:
    from dprmt.accounting.interop.pld import PrivacyLossDistribution
    from dprmt.accounting.interop.prv import UpperLoss


@dataclass(frozen=True, repr=False, init=False)
class DPSGD(Value, Questions):
    """DP-SGD: clipped per-sample gradients, summed over randomly drawn batches, with Gaussian noise.

    Three independent values describe a step: sampling, norms and neighbours. With exact norms and Poisson sampling it
    is the Poisson-subsampled Gaussian mechanism; with estimated norms it is *randomized clipping*.

    Parameters
    ----------
    noise_multiplier : float
        σ, standard deviation of the noise in units of the clipping norm; in [1e-3, 1e6].
    sampling : Poisson, CyclicPoisson, FixedSize, RandomAllocation, FixedOrder or float
        Sampling scheme; a number q means ``Poisson(q)``.
    norms : ExactNorms, Hutchinson or HutchPlusPlus
        How per-sample norms are computed.
    neighbours : ZeroOut, AddRemove, ReplaceOne or Group
        Neighbouring relation: which data sets an attacker tries to distinguish. Sampling rate, divisor and number of
        steps must be the same for both.
    beside : sequence of GaussianRelease
        Releases of the *same* batch in addition to the clipped sum, such as a noisy count. Each is a sum over the
        batch, and its noise multiplier is relative to the largest change by one sample. Norms must be exact. Proof:
        ``docs/theory/batches.md``, "Several releases of one batch".

    Formal guarantees
    -----------------
    Holds if: batches are drawn as ``sampling`` specifies (a shuffle cut into batches is :class:`FixedOrder`), and each
    contribution is clipped to norm C by its norm, computed under the conditions of ``norms``. Gaussian noise of
    standard deviation σC must be added to the sum. Covers: every ``upper``, for adaptive composition and
    ``neighbours`` in both directions. All else, such as dividing by the *expected* batch size, is post-processing.
    Discretization, truncation and rounding are included (``docs/theory/randomized_clipping.md``, §6;
    ``docs/theory/random_allocation.md``).

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Examples
    --------
    >>> from dprmt.accounting import Hutchinson, RandomAllocation
    >>> bounds = DPSGD(noise_multiplier=1.0, sampling=0.01).epsilon(steps=1000, delta=1e-5)
    >>> 1.82 < bounds.lower < bounds.upper < 1.83
    True
    >>> shuffled = DPSGD(1.0, RandomAllocation(steps_per_epoch=100))
    >>> shuffled.epsilon(epochs=10, delta=1e-5).upper < 1.75
    True
    >>> DPSGD(2.0, 0.03, norms=Hutchinson(probes=32, secret=False))
    DPSGD(2.0, Poisson(0.03), norms=Hutchinson(32, secret=False))
    >>> with_count = DPSGD(1.0, 0.01, beside=[GaussianRelease(2.0)])
    >>> f"{with_count.epsilon(steps=1000, delta=1e-5):.3f}"  # 1.948 if two phases were composed
    '2.352'
    """

    kind: ClassVar[str] = "dpsgd"

    noise_multiplier: float
    sampling: Sampling
    norms: Norms = field(default=ExactNorms())
    neighbours: Neighbours = field(default=ZeroOut())
    beside: tuple[GaussianRelease, ...] = ()

    def __init__(
        self,
        noise_multiplier: float,
        sampling: Sampling | SupportsFloat,
        norms: Norms = ExactNorms(),
        neighbours: Neighbours = ZeroOut(),
        beside: Sequence[GaussianRelease] = (),
    ) -> None:
        if not isinstance(beside, Sequence) or not all(isinstance(one, GaussianRelease) for one in beside):
            raise ParameterError("beside", beside, "a sequence of GaussianRelease: only their shifts can be joined")
        self._keep(
            beside=tuple(beside),
            noise_multiplier=check_noise(noise_multiplier),
            sampling=checked_sampling(sampling),
            norms=checked_norms(norms),
            neighbours=checked_neighbours(neighbours),
        )
        self.sampling.check(self.norms, self.neighbours)
        if self.beside and not isinstance(self.norms, ExactNorms):
            allowed = "ExactNorms() with beside: the joint shift is no multiple of the estimated norm's error"
            raise ParameterError("norms", self.norms, allowed)

    @property
    def joint_noise_multiplier(self) -> float:
        """Noise multiplier of the sum and its ``beside`` as one vector: 1/√(1/σ² + Σ1/σᵢ²)."""
        if not self.beside:
            return self.noise_multiplier
        noises = [self.noise_multiplier, *(one.noise_multiplier for one in self.beside)]
        joint = 1.0 / math.hypot(*(1.0 / noise for noise in noises))
        return math.nextafter(joint, 0.0) * (1.0 - 2.0**-50)  # never more than the real number

    def as_dict(self) -> dict[str, Any]:
        """See :meth:`Value.as_dict`; ``beside`` only where something is."""
        described = {name: part for name, part in super().as_dict().items() if name != "beside"}
        return described | ({"beside": [one.as_dict() for one in self.beside]} if self.beside else {})

    @property
    def sample_rate(self) -> float:
        """q, the probability with which a sample enters a given batch."""
        return self.sampling.rate

    @property
    def steps_per_epoch(self) -> int | None:
        """Length of an epoch; None where there are no epochs."""
        return self.sampling.steps_per_epoch

    @property
    def has_pairs(self) -> bool:
        """True if a pair of one step is known for ``neighbours``; else bounds are composed of curves (N6)."""
        return self.sampling.step(self.noise_multiplier, self.norms, self.neighbours)[1]

    def step(self) -> AnyStep:
        """Return one step under the chosen analysis.

        Returns
        -------
        ClippingStep or RelatedStep
            The step as ``neighbours`` see it; where it has no pair for them, of a sample that is present or without a
            gradient.
        """
        noise_multiplier = self.joint_noise_multiplier if self.beside else self.noise_multiplier
        return self.sampling.step(noise_multiplier, self.norms, self.neighbours)[0]

    def of_one_sample(self) -> DPSGD:
        """Return the same mechanism for :class:`ZeroOut`.

        Returns
        -------
        DPSGD
            The mechanism with all other values unchanged.
        """
        return replace(self, neighbours=ZeroOut())

    def run(self, *, steps: int | None = None, epochs: int | None = None) -> Composition:
        """Run it for a number of steps, which may be 0, or of epochs where the sampling has epochs.

        Returns
        -------
        Composition
            Answers the same questions.
        """
        return Composition([(self, self.sampling.run_length(steps, epochs))])

    def _epsilon_curve(self, steps: Any, epochs: Any, delta: float | None, tolerance: float) -> PrivacyCurve:
        delta = check_real("delta", delta, low=LEAST_DELTA, high=1.0, high_open=True)
        tolerance = check_real("tolerance", tolerance, low=1e-8, high=1.0)
        name, given = ("steps", steps) if epochs is None else ("epochs", epochs)
        if np.ndim(given) != 1 or not len(given):
            raise ParameterError(name, given, "an integer, or a sequence of integers")
        length = {"steps": steps, "epochs": epochs}
        at = np.array([self.sampling.run_length(**(length | {name: one}), least=1) for one in given])
        bands = getattr(self.sampling, "bands", 1)  # steps in which each group has its turn once
        counts, place = np.unique(-(-at // bands) * bands, return_inverse=True)
        units = self.sampling.schedule(self.step(), int(counts[0])) if self.has_pairs else []
        question, enough = Question(delta), np.zeros(counts.size)
        ends: dict[Direction, tuple[Array, Array]] = {}
        for direction in BOTH[:1] if self.neighbours.is_replacement else BOTH:
            brackets = Brackets(counts, tolerance, enough)
            if len(units) == 1:
                ((unit, times),) = units
                brackets.counts = counts * times // int(counts[0])
                by_blocks(unit, brackets, delta, direction)
            while (here := brackets.next_place()) is not None:
                run = Composition([(self, int(counts[here]))])
                brackets.add_one(here, run._solve(question, direction, tolerance))
            ends[direction] = brackets.lower, brackets.upper
            enough = np.where(brackets.width() <= 1.0, brackets.upper, brackets.lower)
        return joined(ends, question, tolerance, np.array(given, dtype=np.float64), place)

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


def check_noise(noise_multiplier: float) -> float:
    """Return the noise multiplier, checked."""
    return check_real("noise_multiplier", noise_multiplier, low=1e-3, high=1e6)
