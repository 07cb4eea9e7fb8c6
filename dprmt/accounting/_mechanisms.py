"""The mechanisms whose privacy cost is computed: DP-SGD with exact norms and with randomized clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from numpy.typing import ArrayLike

from dprmt._validation import ParameterError, check_choice, check_count, check_real
from dprmt.accounting._bounds import Direction, PrivacyBounds
from dprmt.accounting._clipping_step import ClippingStep
from dprmt.accounting._compose import compose
from dprmt.accounting._errors import NoRenyiDivergenceError

if TYPE_CHECKING:
    from dprmt.accounting._trade_off import TradeOff

Analysis = Literal["tight", "envelope"]
ProbeSharing = Literal["batch", "sample"]


class Mechanism:
    """The questions every mechanism answers; see :class:`Composition` for sequences of mechanisms."""

    def step(self) -> ClippingStep:
        """One step under the chosen analysis."""
        raise NotImplementedError

    def fallback_steps(self) -> tuple[ClippingStep, ...]:
        """One step under analyses that are valid as well and may be tighter where the first one is not."""
        return ()

    def epsilon(self, steps: int, delta: float, *, tolerance: float = 1e-3) -> PrivacyBounds:
        """ε of ``steps`` steps at ``delta``, the larger of both adjacency directions.

        Parameters
        ----------
        steps : int
            Number of steps, in [1, 1e9].
        delta : float
            In [1e-290, 1).
        tolerance : float
            Wanted width of the interval, absolute for ε ≤ 1 and relative beyond.

        Returns
        -------
        PrivacyBounds
            With the deciding direction's name; ``upper`` may be ∞ where no finite ε could be certified.
        """
        return compose([(self, steps)]).epsilon(delta, tolerance=tolerance)

    def epsilon_by_direction(
        self, steps: int, delta: float, *, tolerance: float = 1e-3
    ) -> dict[Direction, PrivacyBounds]:
        """ε for removing and for adding one sample. Arguments as in :meth:`epsilon`.

        Returns
        -------
        dict
            Keys ``"remove"`` and ``"add"``.
        """
        return compose([(self, steps)]).epsilon_by_direction(delta, tolerance=tolerance)

    def delta(self, steps: int, epsilon: float, *, tolerance: float = 1e-2) -> PrivacyBounds:
        """δ of ``steps`` steps at ``epsilon``, the larger of both adjacency directions.

        Parameters
        ----------
        steps : int
            Number of steps, in [1, 1e9].
        epsilon : float
            In [0, 1e13].
        tolerance : float
            Wanted relative width of the interval.

        Returns
        -------
        PrivacyBounds
            With the deciding direction's name.
        """
        return compose([(self, steps)]).delta(epsilon, tolerance=tolerance)

    def trade_off(self, steps: int, alpha: ArrayLike) -> TradeOff:
        """The trade-off function α ↦ β of ``steps`` steps: the smaller of both adjacency directions.

        Parameters
        ----------
        steps : int
            Number of steps, in [1, 1e9].
        alpha : array_like
            False positive rates in [0, 1].

        Returns
        -------
        TradeOff
            Bounds on the smallest false negative rate; the safe side is the lower one.
        """
        return compose([(self, steps)]).trade_off(alpha)

    def to_prv(
        self,
        direction: Direction = "remove",
        *,
        largest_loss: float | None = None,
        tail: float = 1e-12,
        bins: int = 128,
    ) -> Any:
        """One step as a privacy random variable of the prv-accountant package (``pip install 'dprmt[interop]'``).

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
        It dominates the step in its direction; see ``dprmt.accounting._prv.to_prv``, also for prv-accountant's limits.

        Examples
        --------
        >>> prv = DPSGD(1.0, 0.03).to_prv()
        >>> bool(0 < prv.pm_inf < 2e-12)
        True
        """
        from dprmt.accounting._prv import to_prv

        return to_prv(self.step(), direction, largest_loss=largest_loss, tail=tail, bins=bins)

    def to_pld(
        self,
        discretization: float = 1e-4,
        *,
        largest_loss: float | None = None,
        tail: float = 1e-12,
        bins: int = 128,
    ) -> Any:
        """One step as a privacy loss distribution of the dp-accounting package (``pip install 'dprmt[interop]'``).

        Parameters
        ----------
        discretization : float
            Spacing of the losses; equal to that of whatever the result is composed with.
        largest_loss : float or None
            Losses above it are charged to the infinite mass. ``None`` takes the smallest that charges about ``tail``.
        tail : float
            Mass that may be cut off, per step, where the laws of sensitivity and loss end.
        bins : int
            Number of bins for the law of the sensitivity.

        Returns
        -------
        dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution
            One step, both directions, pessimistic.

        Formal guarantees
        -----------------
        Both directions dominate the step, up to rounding; see ``dprmt.accounting._pld.to_pld``.

        Examples
        --------
        >>> DPSGD(1.0, 0.03).to_pld(1e-3).self_compose(400).get_epsilon_for_delta(1e-5) < 3.86
        True
        """
        from dprmt.accounting._pld import to_pld

        return to_pld(self.step(), discretization, largest_loss=largest_loss, tail=tail, bins=bins)


@dataclass(frozen=True)
class DPSGD(Mechanism):
    """DP-SGD with exact per-sample norms: the Poisson-subsampled Gaussian mechanism.

    Parameters
    ----------
    noise_multiplier : float
        σ, standard deviation of the noise in units of the clipping norm; > 0.
    sample_rate : float
        q, probability with which each sample enters a batch; in [1e-9, 1].

    Formal guarantees
    -----------------
    Every ``upper`` bounds the privacy of adaptive composition under add/remove adjacency (the larger of both
    directions), provided batches are drawn by Poisson sampling, each sample's contribution is clipped to norm
    C by its exact norm, Gaussian noise of standard deviation σC is added to the sum, and anything else, the
    normalisation by the *expected* batch size included, is post-processing. Discretization, truncation and
    rounding are charged to it (``docs/theory/randomized_clipping.md``, §6).

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Examples
    --------
    >>> bounds = DPSGD(noise_multiplier=1.0, sample_rate=0.01).epsilon(steps=1000, delta=1e-5)
    >>> 1.82 < bounds.lower < bounds.upper < 1.83
    True
    """

    noise_multiplier: float
    sample_rate: float

    def __post_init__(self) -> None:
        check_noise_and_rate(self.noise_multiplier, self.sample_rate)

    def step(self) -> ClippingStep:
        """One step with Z = 1.

        Returns
        -------
        ClippingStep
            The step.
        """
        return ClippingStep(float(self.noise_multiplier), float(self.sample_rate))


@dataclass(frozen=True)
class RandomizedClipping(Mechanism):
    """DP-SGD whose per-sample norms are Hutchinson or Hutch++ estimates with Gaussian probes.

    Parameters
    ----------
    noise_multiplier : float
        σ, standard deviation of the noise in units of the clipping norm; > 0.
    sample_rate : float
        q, probability with which each sample enters a batch; in [1e-9, 1].
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
    sample_rate: float
    probes: int
    rank: int | None = None
    analysis: Analysis = "tight"
    probe_sharing: ProbeSharing = "batch"
    sketch: int | None = None
    power_iteration: bool = False

    def __post_init__(self) -> None:
        check_noise_and_rate(self.noise_multiplier, self.sample_rate)
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
        others = (self._step("envelope", self.probe_sharing), self._step(self.analysis, "batch"))
        return tuple(step for step in others if step != self.step())

    def _step(self, analysis: str, probe_sharing: str) -> ClippingStep:
        return ClippingStep(
            noise_multiplier=float(self.noise_multiplier),
            sample_rate=float(self.sample_rate),
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
    """Raise unless σ and q are in range.

    Raises
    ------
    ParameterError
        Naming the argument.
    """
    check_real("noise_multiplier", noise_multiplier, low=1e-3, high=1e6)
    check_real("sample_rate", sample_rate, low=1e-9, high=1.0)


def check_clipping(probes: int, rank: int | None, analysis: str, probe_sharing: str) -> None:
    """Raise unless the options of randomized clipping are in range.

    Raises
    ------
    ParameterError
        Naming the argument.
    """
    check_count("probes", probes, low=2, high=10**5)
    if rank is not None:
        check_count("rank", rank, low=1)
    check_choice("analysis", analysis, ("tight", "envelope"))
    check_choice("probe_sharing", probe_sharing, ("batch", "sample"))


def check_sketch(
    sketch: int | None, power_iteration: bool, probes: int | None, rank: int | None, analysis: str
) -> None:
    """Raise unless a sketch's width is in range and nothing else contradicts a sketch.

    Raises
    ------
    ParameterError
        Naming the argument.
    """
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
