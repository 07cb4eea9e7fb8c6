"""The mechanisms whose privacy cost is computed: DP-SGD with exact norms and with randomized clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, SupportsFloat

from dprmt._validation import ParameterError, check_real
from dprmt.accounting.basics import Value
from dprmt.accounting.laws import ExactNorms, Norms, checked_norms
from dprmt.accounting.mechanisms._mechanism import Mechanism
from dprmt.accounting.mechanisms._sampling import FixedOrder, FixedSize, Poisson, Sampling, checked_sampling
from dprmt.accounting.pairs import (
    AddRemove,
    AnyStep,
    ClippingStep,
    FixedSizeStep,
    Group,
    Neighbours,
    ReplaceOne,
    ZeroOut,
    checked_neighbours,
    has_pairs,
    related,
)


@dataclass(frozen=True, repr=False, init=False)
class DPSGD(Value, Mechanism):
    """DP-SGD: clipped per-sample gradients, summed over randomly drawn batches, with Gaussian noise.

    Three values that know nothing of each other describe a step. With exact norms and Poisson sampling it is the
    Poisson-subsampled Gaussian mechanism; with estimated norms it is *randomized clipping*.

    Parameters
    ----------
    noise_multiplier : float
        σ, standard deviation of the noise in units of the clipping norm; in [1e-3, 1e6].
    sampling : Poisson, FixedSize, RandomAllocation, FixedOrder or float
        How samples come into batches; a number q stands for ``Poisson(q)``.
    norms : ExactNorms, Hutchinson or HutchPlusPlus
        How per-sample norms are computed.
    neighbours : ZeroOut, AddRemove, ReplaceOne or Group
        Whose privacy: which data sets are told apart. Rate, divisor and number of steps are the same for both.

    Formal guarantees
    -----------------
    Every ``upper`` bounds the privacy of adaptive composition for ``neighbours`` (``docs/theory/neighbours.md``; the
    larger of both directions), provided batches are drawn as ``sampling`` says (a shuffle that is cut into batches of a
    fixed size is :class:`FixedOrder`, and nothing better), each sample's contribution is clipped to norm C by its norm,
    taken as ``norms`` says and under what that value asks of the training code, Gaussian noise of standard deviation σC
    is added to the sum, and anything else, the normalisation by the *expected* batch size included, is post-processing.
    Discretization, truncation and rounding are charged to it (``docs/theory/randomized_clipping.md``, §6; for random
    allocation ``docs/theory/random_allocation.md``).

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
    """

    kind: ClassVar[str] = "dpsgd"

    noise_multiplier: float
    sampling: Sampling
    norms: Norms = field(default=ExactNorms())
    neighbours: Neighbours = field(default=ZeroOut())

    def __init__(
        self,
        noise_multiplier: float,
        sampling: Sampling | SupportsFloat,
        norms: Norms = ExactNorms(),
        neighbours: Neighbours = ZeroOut(),
    ) -> None:
        self._keep(
            noise_multiplier=check_noise(noise_multiplier),
            sampling=checked_sampling(sampling),
            norms=checked_norms(norms),
            neighbours=checked_neighbours(neighbours),
        )
        related_to = self.neighbours.of if isinstance(self.neighbours, Group) else self.neighbours
        if isinstance(self.sampling, FixedOrder) and isinstance(related_to, AddRemove):
            allowed = (
                "ZeroOut() or ReplaceOne() in a fixed order: where a sample is removed others change their batches"
            )
            raise ParameterError("neighbours", self.neighbours, allowed)
        if isinstance(self.sampling, FixedSize):
            if not isinstance(self.norms, ExactNorms):
                allowed = "ExactNorms() for batches of a fixed size; estimated norms have no analysis there"
                raise ParameterError("norms", self.norms, allowed)
            if not isinstance(self.neighbours, ZeroOut | ReplaceOne):
                allowed = "ZeroOut() or ReplaceOne() for batches of a fixed size, whose number of samples is public"
                raise ParameterError("neighbours", self.neighbours, allowed)

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
        return self._step(self.norms)[1]

    def step(self) -> AnyStep:
        """One step under the chosen analysis.

        Returns
        -------
        ClippingStep or RelatedStep
            The step as ``neighbours`` see it; where it has no pair for them, of a sample that is present or without a
            gradient.
        """
        return self._step(self.norms)[0]

    def of_one_sample(self) -> DPSGD:
        """The same mechanism for :class:`ZeroOut`.

        Returns
        -------
        DPSGD
            With the other values as they are.
        """
        return replace(self, neighbours=ZeroOut())

    def _step(self, norms: Norms) -> tuple[AnyStep, bool]:
        """One step with these norms, and whether it is one for ``neighbours``; else for one sample's presence."""
        relation = self.neighbours
        if isinstance(self.sampling, FixedSize):
            return FixedSizeStep(self.noise_multiplier, self.sampling.rate, relation.is_replacement), True
        step = ClippingStep(self.noise_multiplier, self.sampling.step_rate, norms.law(), norms.secret)
        if relation.group_size == 1 and not relation.is_replacement:
            return step, True
        is_poisson = isinstance(self.sampling, Poisson)
        if isinstance(self.sampling, FixedOrder):
            if step.is_exact:
                # Batches with a_1 + a_2 + … = m of a person's samples are Gaussian mechanisms of these shifts, so all
                # in one batch is the worst; what replaces a sample may point the other way: twice the shift.
                shift = relation.group_size * (2 if relation.is_replacement else 1)
                return ClippingStep(math.nextafter(self.noise_multiplier / shift, 0.0), 1.0), True
            # Several may be in one batch, or in several; and what (N11) charges grows without sampling.
            is_poisson = relation.group_size == 1 and step.secret
        has_pair = has_pairs(step, relation, is_poisson)
        return (related(step, relation) if has_pair else step), has_pair


def check_noise(noise_multiplier: float) -> float:
    """The noise multiplier, checked."""
    return check_real("noise_multiplier", noise_multiplier, low=1e-3, high=1e6)
