"""Report section on randomized per-sample norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import per_cent, relative, size

if TYPE_CHECKING:
    from dprmt.report.measurements import NormRatios

_LEVELS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4)


def norm_section(norms: NormRatios) -> Section:
    """Compare n̂/n with its law and the envelope."""
    from dprmt.plots import plot_norm_ratios

    def draw(ax: Any) -> None:
        plot_norm_ratios(
            norms.points,
            norms.empirical,
            predicted=np.clip(norms.predicted, 0, 1),
            envelope=np.clip(norms.envelope, 0, 1),
            band=norms.band,
            ax=ax,
        )

    nearest = {int(np.argmin(np.abs(norms.points - level))) for level in _LEVELS}
    rows = [
        [f"{norms.points[i]:.3f}", f"{norms.empirical[i]:.4f}", f"{norms.predicted[i]:.4f}", f"{norms.envelope[i]:.4f}"]
        for i in sorted(nearest)
    ]
    table = Table(
        f"Probability that n̂/n is at most x; band ±{norms.band:.4f} at {per_cent(1 - norms.error, 0)} confidence.",
        ["x", "measured", "exact law", "envelope"],
        rows,
    )
    names = "probes", "rank", "samples", "draws", "leading_share", "band", "error", "over_envelope", "distance"
    return Section(
        title="Randomized norms against their envelope",
        sentences=[norm_sentence(norms), law_sentence(norms)],
        tables=[table],
        pictures=[Picture(draw, "Measured distribution of estimated over true squared norm, exact law, and envelope")],
        numbers={name: getattr(norms, name) for name in names}
        | {f"private_{name}": getattr(norms, name) for name in ("points", "empirical", "predicted", "envelope")},
    )


def norm_sentence(norms: NormRatios) -> str:
    """Return whether the envelope, on which the accountant rests, held."""
    looked = (
        f"{len(norms.ratios)} estimates with {norms.probes} probes ({norms.draws} draws for each of {norms.samples}"
        " per-sample gradients)"
    )
    if norms.over_envelope <= 0:
        return f"The envelope holds: in {looked} the measured distribution function never exceeds it."
    excess, band = size(norms.over_envelope, 4), size(norms.band, 4)
    if norms.over_envelope <= norms.band:
        return (
            f"The envelope holds: in {looked} the measured distribution function exceeds it by {excess} at most, less"
            f" than its confidence band of {band}."
        )
    return (
        f"The envelope is VIOLATED: in {looked} the measured distribution function exceeds it by {excess}, more than"
        f" its confidence band of {band}. The accountant's claim does not cover these gradients."
    )


def law_sentence(norms: NormRatios) -> str:
    """Return whether the exact law fits, and how close these gradients are to the worst case."""
    fits = "fits" if norms.distance <= norms.band else "does NOT fit"
    return (
        f"The exact law, a mixture of χ² with each gradient's squared singular values as weights, {fits}: largest"
        f" distance {size(norms.distance, 4)}, band {size(norms.band, 4)}. In the median gradient one singular value"
        f" carries {relative(norms.leading_share, 0)} of the squared norm; the envelope for n̂/n <= 1 is that of 100 %."
    )
