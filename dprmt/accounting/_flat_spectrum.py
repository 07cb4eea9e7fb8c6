"""What one gradient attains under Hutch++: 2s equal singular values, of which every sketch leaves s."""

from __future__ import annotations

from dataclasses import dataclass

from dprmt._validation import check_count
from dprmt.accounting._clipping_step import ClippingStep
from dprmt.accounting._gamma_mixture import LARGEST_DOF
from dprmt.accounting._mechanism import Mechanism
from dprmt.accounting._mechanisms import (
    ProbeSharing,
    check_clipping,
    check_noise_and_rate,
    check_sketch,
)


@dataclass(frozen=True, repr=False)
class FlatSpectrum(Mechanism):
    """Hutch++ on a gradient of one layer with 2s equal singular values: a real case, to hold an upper bound against.

    Parameters
    ----------
    noise_multiplier, sample_rate, probes, sketch, probe_sharing
        As in :class:`dprmt.accounting.RandomizedClipping`; the sketch may be of either kind.

    Formal guarantees
    -----------------
    ``lower`` bounds what this gradient attains from below, so that no analysis that holds for every spectrum can answer
    less. ``upper`` is *no* privacy guarantee: it bounds the same gradient, and others may attain more. Whatever the
    sketch, the head holds half of the norm and s equal shares are estimated: X = ½ + ½ χ²(sk)/(sk) (theory §9).

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Examples
    --------
    >>> from dprmt.accounting import RandomizedClipping
    >>> attained = FlatSpectrum(2.0, 0.03, probes=16, sketch=16).epsilon(400, 1e-5)
    >>> charged = RandomizedClipping(2.0, 0.03, probes=16, sketch=16).epsilon(400, 1e-5)
    >>> 0.97 * charged.upper < attained.lower < charged.upper
    True
    """

    noise_multiplier: float
    sample_rate: float
    probes: int
    sketch: int
    probe_sharing: ProbeSharing = "batch"

    def __post_init__(self) -> None:
        check_noise_and_rate(self.noise_multiplier, self.sample_rate)
        check_clipping(self.probes, None, "tight", self.probe_sharing)
        check_sketch(self.sketch, False, self.probes, None, "tight")
        check_count("sketch", self.sketch, high=LARGEST_DOF // int(self.probes))

    def step(self) -> ClippingStep:
        """One step on that gradient.

        Returns
        -------
        ClippingStep
            The step.
        """
        return ClippingStep(
            noise_multiplier=float(self.noise_multiplier),
            sample_rate=float(self.sample_rate),
            probes=int(self.probes),
            analysis="flat",
            secret=self.probe_sharing == "sample",
            sketch=int(self.sketch),
        )
