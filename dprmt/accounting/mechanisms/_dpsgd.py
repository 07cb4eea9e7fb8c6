"""The mechanisms whose privacy cost is computed: DP-SGD with exact norms and with randomized clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, SupportsFloat

from dprmt._validation import ParameterError, check_real
from dprmt.accounting.basics import Value
from dprmt.accounting.laws import ExactNorms, Norms, checked_norms
from dprmt.accounting.mechanisms._mechanism import Mechanism
from dprmt.accounting.mechanisms._releases import GaussianRelease
from dprmt.accounting.mechanisms._sampling import (
    Sampling,
    checked_sampling,
)
from dprmt.accounting.pairs import (
    AnyStep,
    Neighbours,
    ZeroOut,
    checked_neighbours,
)


@dataclass(frozen=True, repr=False, init=False)
class DPSGD(Value, Mechanism):
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
        ``docs/theory/batches.md``, (B1).

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
        joint = 1.0 / math.hypot(*(1.0 / noise for noise in self._noises()))
        return math.nextafter(joint, 0.0) * (1.0 - 2.0**-50)  # never more than the real number

    @property
    def _step(self) -> tuple[AnyStep, bool]:
        return self.sampling.step(self.joint_noise_multiplier, self.norms, self.neighbours)

    def _noises(self) -> list[float]:
        return [self.noise_multiplier, *(one.noise_multiplier for one in self.beside)]

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
        return self._step[1]

    def step(self) -> AnyStep:
        """Return one step under the chosen analysis.

        Returns
        -------
        ClippingStep or RelatedStep
            The step as ``neighbours`` see it; where it has no pair for them, of a sample that is present or without a
            gradient.
        """
        return self._step[0]

    def of_one_sample(self) -> DPSGD:
        """Return the same mechanism for :class:`ZeroOut`.

        Returns
        -------
        DPSGD
            The mechanism with all other values unchanged.
        """
        return replace(self, neighbours=ZeroOut())


def check_noise(noise_multiplier: float) -> float:
    """Return the noise multiplier, checked."""
    return check_real("noise_multiplier", noise_multiplier, low=1e-3, high=1e6)
