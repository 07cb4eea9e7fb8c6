"""The words of before, for rooms that still use them; deleted with their last user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from dprmt._validation import ParameterError, check_choice, check_count, check_real
from dprmt.accounting.basics import NoRenyiDivergenceError
from dprmt.accounting.laws import Analysis, ExactNorms, Hutchinson, HutchPlusPlus, Norms
from dprmt.accounting.mechanisms._calibrate import calibrate
from dprmt.accounting.mechanisms._dpsgd import DPSGD, check_noise
from dprmt.accounting.mechanisms._mechanism import Mechanism
from dprmt.accounting.mechanisms._sampling import Poisson, RandomAllocation, Sampling
from dprmt.accounting.pairs import AnyStep

ProbeSharing = Literal["batch", "sample"]


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
    sampling: Literal["poisson", "allocation"] = field(default="poisson", kw_only=True)
    steps_per_epoch: int | None = field(default=None, kw_only=True)
    participations: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)
        object.__setattr__(self, "sample_rate", self.batches().rate)
        check_clipping(self.probes, self.rank, self.analysis, self.probe_sharing)
        check_sketch(self.sketch, self.power_iteration, self.probes, self.rank, self.analysis)

    def batches(self) -> Sampling:
        """How samples come into batches."""
        return batches_of(self.sampling, self.sample_rate, self.steps_per_epoch, self.participations)

    def as_dpsgd(self) -> DPSGD:
        """The same mechanism in today's words."""
        norms = norms_of(self.probes, self.rank, self.analysis, self.probe_sharing, self.sketch, self.power_iteration)
        return DPSGD(self.noise_multiplier, self.batches(), norms)

    def step(self) -> AnyStep:
        """One step under the chosen analysis."""
        return self.as_dpsgd().step()

    def fallback_steps(self) -> tuple[AnyStep, ...]:
        """One step under each of the analyses that are valid too."""
        return self.as_dpsgd().fallback_steps()

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


def norms_of(
    probes: int | None,
    rank: int | None = None,
    analysis: Analysis = "tight",
    probe_sharing: str = "batch",
    sketch: int | None = None,
    power_iteration: bool = False,
) -> Norms:
    """The value for the words of before."""
    if probes is None:
        return ExactNorms()
    if sketch is not None:
        return HutchPlusPlus(probes, sketch, power_iteration=power_iteration, secret=probe_sharing == "sample")
    return Hutchinson(probes, secret=probe_sharing == "sample", rank=rank, analysis=analysis)


def batches_of(sampling: str, sample_rate: float, steps_per_epoch: int | None, participations: int) -> Sampling:
    """The value for the words of before."""
    check_choice("sampling", sampling, ("poisson", "allocation"))
    if sampling == "poisson":
        check_real("sample_rate", sample_rate, low=1e-9, high=1.0)
        if steps_per_epoch is not None:
            raise ParameterError("steps_per_epoch", steps_per_epoch, "left out unless sampling is 'allocation'")
        if participations != 1:
            raise ParameterError("participations", participations, "left out unless sampling is 'allocation'")
        return Poisson(sample_rate)
    if steps_per_epoch is None:
        raise ParameterError("steps_per_epoch", None, "given where sampling is 'allocation'")
    found = RandomAllocation(steps_per_epoch, participations)
    if sample_rate not in (0.0, found.rate):
        allowed = f"left out where sampling is 'allocation': it is participations / steps_per_epoch = {found.rate:.6g}"
        raise ParameterError("sample_rate", sample_rate, allowed)
    return found


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


def calibrate_noise_multiplier(
    target_epsilon: float,
    delta: float,
    sample_rate: float = 0.0,
    steps: int | None = None,
    probes: int | None = None,
    *,
    sampling: str = "poisson",
    steps_per_epoch: int | None = None,
    participations: int = 1,
    epochs: int | None = None,
    tolerance: float = 2e-4,
    **clipping: Any,
) -> float:
    """The noise multiplier for a target (ε, δ).

    Returns
    -------
    float
        σ.

    Formal guarantees
    -----------------
    Those of :func:`calibrate`.

    Examples
    --------
    >>> calibrate_noise_multiplier(2.0, 1e-5, sample_rate=0.01, steps=1000) < 1.0
    True
    """
    batches = batches_of(sampling, sample_rate, steps_per_epoch, participations)
    mechanism = DPSGD(1.0, batches, norms_of(probes, **clipping))
    length: Any = {"steps": steps, "epochs": epochs, "tolerance": tolerance}
    return calibrate(mechanism, target_epsilon=target_epsilon, delta=delta, **length).noise_multiplier
