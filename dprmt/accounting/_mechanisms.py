"""The mechanisms whose privacy cost is computed: DP-SGD with exact norms and with randomized clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from dprmt._validation import ParameterError, check_choice, check_count, check_real
from dprmt.accounting._clipping_step import ClippingStep
from dprmt.accounting._errors import NoRenyiDivergenceError
from dprmt.accounting._mechanism import Mechanism
from dprmt.accounting._sampling import Sampling

Analysis = Literal["tight", "envelope"]
ProbeSharing = Literal["batch", "sample"]


@dataclass(frozen=True, repr=False)
class DPSGD(Mechanism):
    """DP-SGD with exact per-sample norms: the Poisson-subsampled Gaussian mechanism.

    Parameters
    ----------
    noise_multiplier : float
        σ, standard deviation of the noise in units of the clipping norm; > 0.
    sample_rate : float
        q, probability with which each sample enters a batch, by a coin of its own; in [1e-9, 1]. Left out for random
        allocation, for which it becomes ``participations / steps_per_epoch``.
    sampling : {"poisson", "allocation"}
        "allocation": in every epoch each sample takes part in exactly one step, chosen uniformly, independently of the
        other samples and of other epochs.
    steps_per_epoch : int or None
        t, number of steps of an epoch of random allocation.
    participations : int
        r: the epoch is cut into r blocks of steps, as equal as can be, and each sample takes part once in each block.

    Formal guarantees
    -----------------
    Every ``upper`` bounds the privacy of adaptive composition under add/remove adjacency (the larger of both
    directions), provided batches are drawn as ``sampling`` says (a shuffle that is cut into batches of a fixed size is
    neither, and not covered), each sample's contribution is clipped to norm
    C by its exact norm, Gaussian noise of standard deviation σC is added to the sum, and anything else, the
    normalisation by the *expected* batch size included, is post-processing. Discretization, truncation and
    rounding are charged to it (``docs/theory/randomized_clipping.md``, §6; for random allocation
    ``docs/theory/random_allocation.md``).

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Examples
    --------
    >>> bounds = DPSGD(noise_multiplier=1.0, sample_rate=0.01).epsilon(steps=1000, delta=1e-5)
    >>> 1.82 < bounds.lower < bounds.upper < 1.83
    True
    >>> shuffled = DPSGD(1.0, sampling="allocation", steps_per_epoch=100)
    >>> shuffled.epsilon(epochs=10, delta=1e-5).upper < 1.75
    True
    """

    noise_multiplier: float
    sample_rate: float = 0.0
    sampling: Sampling = field(default="poisson", kw_only=True)
    steps_per_epoch: int | None = field(default=None, kw_only=True)
    participations: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        self.check_sampling()

    def step(self) -> ClippingStep:
        """One step with Z = 1.

        Returns
        -------
        ClippingStep
            The step.
        """
        return ClippingStep(float(self.noise_multiplier), self.step_rate())


@dataclass(frozen=True, repr=False)
class RandomizedClipping(Mechanism):
    """DP-SGD whose per-sample norms are Hutchinson or Hutch++ estimates with Gaussian probes.

    Parameters
    ----------
    noise_multiplier : float
        σ, standard deviation of the noise in units of the clipping norm; > 0.
    sample_rate : float
        q, probability with which each sample enters a batch, by a coin of its own; in [1e-9, 1]. Left out for random
        allocation, for which it becomes ``participations / steps_per_epoch``.
    probes : int
        k, number of Gaussian probe vectors per layer; ≥ 2.
    rank : int or None
        d, an upper bound on the number of nonzero singular values of all layers together; may be given only if
        *every* parameter's norm is estimated. Used by ``analysis="envelope"``; ``None`` claims nothing.
    analysis : {"tight", "envelope"}
        "tight": every spectrum is compared with a rank-one gradient (theory §4 and §5). "envelope": with the
        stochastic order's envelope of all spectra (theory §2), the published analysis.
    probe_sharing : {"batch", "sample"}
        "batch": probes may be shared by all samples of a step and become known. "sample": see below.
    sketch : int or None
        s, columns of the Gaussian sketch in Hutch++, ≥ 3; ``None`` for Hutchinson's estimator, and where one layer has
        no sketch. Of layers that differ, the smallest s and the smallest k count. For the tight analysis only.
    power_iteration : bool
        Whether each layer's head is a basis of MᵀMS (3s + k products) rather than of MᵀS' (2s + k); claimed by default
        of none. The ε without the claim holds for both.
    sampling, steps_per_epoch, participations
        As in :class:`DPSGD`.

    Formal guarantees
    -----------------
    As for :class:`DPSGD`, with the norm of layer l replaced by ‖A_lᵀ(G_l P_l)‖_F, or by Hutch++'s head and
    tail, and this much asked of the training code:

    * the entries of P_l are independent N(0, 1/k), fresh at each step and independent between layers; layers
      whose norm is exact are added as they are, and then ``rank`` stays ``None``;
    * with a sketch, it is Gaussian, independent of the probes, fresh at each step and independent between layers
      like them; the probes are applied to what the head leaves, M(I - QQᵀ). Layers that are exact count as such. The
      bound holds for every spectrum (theory §9), so nothing is asked of the gradients;
    * ``probe_sharing="batch"``: all micro-batches of one logical step use the same P_l. Nothing about the
      probes (and sketch) needs to be kept secret.
    * ``probe_sharing="sample"``: every sample has its own probes (and sketch, for Hutch++), independent of
      everything else, drawn afresh at each step from a cryptographically strong or secretly seeded generator
      keyed by the sample's identity and the step, never by its position in a batch; they are used for that
      sample's norm only, never logged, stored or released, and neither are the norms or clip factors.

    ``lower`` bounds the privacy of the worst case of the stated analysis from below: for "tight" that is the
    mechanism itself (a rank-one gradient attains it), for "envelope" the envelope, and with a sketch the law that is
    charged, which no gradient need attain: see
    :class:`FlatSpectrum`.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Examples
    --------
    >>> mechanism = RandomizedClipping(noise_multiplier=2.0, sample_rate=0.03, probes=32)
    >>> bounds = mechanism.epsilon(steps=400, delta=1e-5)
    >>> 1.34 < bounds.lower < bounds.upper < 1.36
    True
    >>> sketched = RandomizedClipping(noise_multiplier=2.0, sample_rate=0.03, probes=32, sketch=32)
    >>> sketched.epsilon(steps=400, delta=1e-5).upper < 1.29
    True
    """

    noise_multiplier: float
    sample_rate: float = 0.0
    probes: int = 0
    rank: int | None = None
    analysis: Analysis = "tight"
    probe_sharing: ProbeSharing = "batch"
    sketch: int | None = None
    power_iteration: bool = False
    sampling: Sampling = field(default="poisson", kw_only=True)
    steps_per_epoch: int | None = field(default=None, kw_only=True)
    participations: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        self.check_sampling()
        check_clipping(self.probes, self.rank, self.analysis, self.probe_sharing)
        check_sketch(self.sketch, self.power_iteration, self.probes, self.rank, self.analysis)

    def step(self) -> ClippingStep:
        """One step under the chosen analysis.

        Returns
        -------
        ClippingStep
            The step.
        """
        return self._step(self.analysis, self.probe_sharing)

    def fallback_steps(self) -> tuple[ClippingStep, ...]:
        """One step under the envelope, and as if the probes were known: valid too, and at times tighter.

        Returns
        -------
        tuple of ClippingStep
            The first is sometimes better for few probes and little noise, the second without subsampling. A sketch does
        not enter the first, which holds for every head.
        """
        envelope, known = self._step("envelope", self.probe_sharing), self._step(self.analysis, "batch")
        if self.analysis == "tight" and self.rank is None and self.sketch is None:  # (M2), (C9) know the envelope
            return () if self.probe_sharing == "batch" else (known,)
        others = (envelope, known)
        return tuple(step for step in others if step != self.step())

    def _step(self, analysis: str, probe_sharing: str) -> ClippingStep:
        return ClippingStep(
            noise_multiplier=float(self.noise_multiplier),
            sample_rate=self.step_rate(),
            probes=int(self.probes),
            rank=None if self.rank is None else int(self.rank),
            analysis=analysis,
            secret=probe_sharing == "sample",
            sketch=None if self.sketch is None or analysis == "envelope" else int(self.sketch),
            power_iteration=bool(self.power_iteration) and analysis != "envelope",
        )

    def rdp(self, orders: float | Sequence[float]) -> NoReturn:
        """Refuse: no Rényi divergence of this mechanism is finite.

        Raises
        ------
        NoRenyiDivergenceError
            Always. P(Z > z) falls like z^{-k}, so E exp(cZ²) is infinite for every c > 0.
        """
        del orders
        raise NoRenyiDivergenceError(
            "randomized clipping has no finite Rényi divergence of any order > 1: its sensitivity Z has a "
            f"polynomial tail, P(Z > z) ~ z^-{self.probes}, so E exp(c Z^2) is infinite; "
            "use epsilon(), delta() or to_pld() instead of RDP or moments accounting"
        )


def check_noise_and_rate(noise_multiplier: float, sample_rate: float) -> None:
    """Raise unless σ and q are in range."""
    check_noise(noise_multiplier)
    check_real("sample_rate", sample_rate, low=1e-9, high=1.0)


def check_noise(noise_multiplier: float) -> None:
    """Raise unless σ is in range."""
    check_real("noise_multiplier", noise_multiplier, low=1e-3, high=1e6)


def check_clipping(probes: int, rank: int | None, analysis: str, probe_sharing: str) -> None:
    """Raise unless the options of randomized clipping are in range."""
    check_count("probes", probes, low=2, high=10**5)
    if rank is not None:
        check_count("rank", rank, low=1)
    check_choice("analysis", analysis, ("tight", "envelope"))
    check_choice("probe_sharing", probe_sharing, ("batch", "sample"))


def check_sketch(
    sketch: int | None, power_iteration: bool, probes: int | None, rank: int | None, analysis: str
) -> None:
    """Raise unless a sketch's width is in range and nothing else contradicts a sketch."""
    if sketch is None:
        if power_iteration:
            raise ParameterError("power_iteration", power_iteration, "left out where there is no sketch")
        return
    check_count("sketch", sketch, low=3, high=10**4)
    if probes is None:
        raise ParameterError("sketch", sketch, "left out where no probes are given")
    if analysis == "envelope":
        raise ParameterError("analysis", analysis, "'tight' where there is a sketch, which the envelope cannot credit")
    if rank is not None:
        raise ParameterError("rank", rank, "left out where there is a sketch: part of the norm is exact then")
