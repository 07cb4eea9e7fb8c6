"""The report's sections on singular values and vectors of real noisy gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import by_columns, matrices, number, per_cent, relative, size
from dprmt.spectra import TopSingularValue, bulk_edge

if TYPE_CHECKING:
    from dprmt.report.measurements import Agreement, Spike

TOLERANCE = 0.05  # on singular values, relative, for 95 % of the matrices
OVERLAP_TOLERANCE = 0.1  # on squared overlaps, absolute, for 95 %
_RANGES = ((0.0, 0.5), (0.5, 0.9), (0.9, 1.1), (1.1, 1.5), (1.5, 3.0), (3.0, np.inf))
_COLUMNS = (
    *("layer", "step", "shape", "noise_scale", "signal_over_threshold", "gap", "predicted", "single", "mean"),
    *("deviation", "predicted_overlaps", "overlaps"),
)


def spike_section(spikes: list[Spike]) -> Section:
    """Plot singular values against F(clean) and the edge (Eq. 3)."""
    from dprmt.plots import plot_measured_spikes, plot_prediction_errors

    groups = _by_shape(spikes)

    def draw(axes: Any) -> None:
        points = {shape: ([s.signal_over_threshold for s in group], [s.mean for s in group]) for shape, group in groups}
        errors = {
            shape: ([s.signal_over_threshold for s in group], [s.error for s in group]) for shape, group in groups
        }
        plot_measured_spikes(points, ax=axes[0])
        plot_prediction_errors(errors, tolerance=TOLERANCE, ax=axes[1])

    alt = (
        "Left: measured noisy top singular values against clean ones on logarithmic axes, with the predicted curve that"
        " is flat below the detection threshold and rises above it. Right: their relative differences."
    )
    rows = [
        [name, str(a.count), per_cent(a.bias, sign=True)]
        + [per_cent(x) for x in (a.median_error, a.large_error, a.largest_error, a.single_error, a.passing)]
        for name, a in _ranges(spikes)
    ]
    header = ["clean λ over threshold λ*", "matrices", "mean error", "median |error|", "95 % of |error|", "largest"]
    table = Table(
        "Measured over predicted top singular value, minus 1: noise averaged over repeated draws, and in one draw.",
        [*header, "median |error|, one draw", "called"],
        rows,
    )
    return Section(
        title="Noisy singular values against theory",
        sentences=[spike_sentence(spikes), below_sentence(spikes), _scales_sentence(spikes)],
        tables=[table],
        pictures=[Picture(draw, alt, panels=2)],
        numbers={
            "tolerance": TOLERANCE,
            "ranges": {name: vars(a) for name, a in _ranges(spikes)},
            "above_threshold": _summary([s for s in spikes if s.signal_over_threshold > 1]),
            "below_threshold": _summary([s for s in spikes if s.signal_over_threshold <= 1]),
            "private_points": by_columns(spikes, _COLUMNS),
        },
    )


def spike_sentence(spikes: Sequence[Spike]) -> str:
    """Describe the singular values above the threshold."""
    from dprmt.report.measurements import agreement

    above = [spike for spike in spikes if spike.signal_over_threshold > 1]
    if not above:
        return (
            f"No statement about F: none of {matrices(len(spikes))} measured has a clean singular value above the"
            " detection threshold."
        )
    a = agreement(above)
    counted = f"Above the detection threshold: {a.count} of {matrices(len(spikes))} (layer, step and noise level)."
    if a.large_error <= TOLERANCE:
        return (
            "Theory and measurement agree above the detection threshold: the noisy top singular value is F(λ) of Eq. 3"
            f" with a median error of {relative(a.median_error)}, and for 95 % of the matrices within"
            f" {relative(a.large_error)} (tolerance {per_cent(TOLERANCE, 0)}). {counted}"
        )
    worst = max(above, key=lambda spike: abs(spike.error))
    return (
        f"Theory and measurement differ above the detection threshold by more than {per_cent(TOLERANCE, 0)}: the median"
        f" error of F(λ) is {relative(a.median_error)}, but 5 % of the matrices are off by more than"
        f" {relative(a.large_error)}, most of all {worst.layer} at step {worst.step} (measured {worst.mean:.3f},"
        f" predicted {worst.predicted:.3f}, in units of the bulk edge). {counted}"
    )


def below_sentence(spikes: Sequence[Spike]) -> str:
    """Describe the singular values below the threshold, and how far matrix size explains them."""
    from dprmt.report.measurements import agreement

    below = [spike for spike in spikes if spike.signal_over_threshold <= 1]
    if not below:
        return "No measured matrix is below the detection threshold."
    a = agreement(below)
    expected = float(np.mean([_pure_noise(spike.shape) for spike in below]))
    verdict = "agrees" if a.large_error <= TOLERANCE else f"differs by more than {per_cent(TOLERANCE, 0)} in places"
    return (
        f"Below the threshold ({matrices(a.count)}) the prediction, the bulk edge, {verdict}: mean error"
        f" {relative(a.bias, sign=True)}, 95 % within {relative(a.large_error)}. Pure noise of these sizes has its"
        f" exact median {relative(expected, sign=True)} from the edge, which is a limit for large matrices."
    )


def overlap_section(spikes: list[Spike]) -> Section:
    """Plot squared overlaps against Eqs. 4-5."""
    from dprmt.plots import plot_measured_overlaps

    groups = _by_shape(spikes)

    def draw(ax: Any) -> None:
        points = {
            shape: (
                [s.signal_over_threshold for s in group],
                [min(1.0, s.overlaps[0]) for s in group],
                [min(1.0, s.overlaps[1]) for s in group],
            )
            for shape, group in groups
        }
        plot_measured_overlaps(points, ax=ax)

    rows = [
        [
            name,
            str(a.count),
            number(a.overlap_bias, 3, sign=True),
            f"{a.overlap_error:.3f}",
            f"{a.overlap_large_error:.3f}",
        ]
        for name, a in _ranges(spikes)
    ]
    table = Table(
        "Measured minus predicted squared overlap of the top singular vectors, both sides together.",
        ["clean λ over threshold λ*", "matrices", "mean difference", "median |difference|", "95 % of |difference|"],
        rows,
    )
    alt = "Measured squared overlaps of noisy and clean singular vectors against the clean singular value, with curves"
    return Section(
        title="Noisy singular vectors against theory",
        sentences=[overlap_sentence(spikes), _random_overlap_sentence(spikes)],
        tables=[table],
        pictures=[Picture(draw, f"{alt} of Eqs. 4 and 5, which leave zero at the detection threshold.")],
        numbers={"tolerance": OVERLAP_TOLERANCE},
    )


def overlap_sentence(spikes: Sequence[Spike]) -> str:
    """Describe the overlaps above the threshold."""
    from dprmt.report.measurements import agreement

    above = [spike for spike in spikes if spike.signal_over_threshold > 1]
    if not above:
        return "No statement about the overlaps: no clean singular value is above the detection threshold."
    a = agreement(above)
    median, most = size(a.overlap_error, 3), size(a.overlap_large_error, 3)
    if a.overlap_large_error <= OVERLAP_TOLERANCE:
        return (
            f"The squared overlaps of Eqs. 4 and 5 hold on these gradients: median difference {median},"
            f" 95 % within {most} (tolerance {OVERLAP_TOLERANCE:g}), over {matrices(a.count)}."
        )
    near = [spike for spike in above if _largest_difference(spike) > OVERLAP_TOLERANCE]
    low = float(np.median([spike.signal_over_threshold for spike in near]))
    gap = float(np.median([spike.gap for spike in near]))
    return (
        f"The squared overlaps of Eqs. 4 and 5 do not hold everywhere: median difference {median}, but 5 %"
        f" differ by more than {most} (tolerance {OVERLAP_TOLERANCE:g}). Where they"
        f" exceed it ({matrices(len(near))}) the median λ is {low:.2f} thresholds, the second clean singular value"
        f" {size(gap, 2)} of the first: the theory is a limit in which values are far from the threshold and from each"
        " other."
    )


def _random_overlap_sentence(spikes: Sequence[Spike]) -> str:
    below = [spike for spike in spikes if spike.signal_over_threshold <= 0.5]
    if not below:
        return ""
    short = [spike.overlaps[0 if spike.shape[0] <= spike.shape[1] else 1] for spike in below]
    chance = float(np.mean([1 / min(spike.shape) for spike in below]))
    return (
        f"Far below the threshold the prediction is 0; a random direction in the shorter space has {size(chance, 3)} on"
        f" average, and {size(float(np.mean(short)), 3)} was measured there."
    )


def _scales_sentence(spikes: Sequence[Spike]) -> str:
    scales = sorted({spike.noise_scale for spike in spikes}, reverse=True)
    own = [spike for spike in spikes if spike.noise_scale == 1]
    detected = sum(spike.signal_over_threshold > 1 for spike in own)
    return (
        f"With the noise of the run itself {detected} of {matrices(len(own))} stand above the threshold; the same clean"
        " gradients are also looked at with"
        f" {', '.join(f'{scale:g}' for scale in scales if scale != 1)} times the noise,"
        " as larger batches would have, which moves them along the curve. A matrix counts as called if noise alone"
        " gives a value as large as its largest in 1 % of draws."
    )


def _ranges(spikes: Sequence[Spike]) -> list[tuple[str, Agreement]]:
    from dprmt.report.measurements import agreement

    result = []
    for low, high in _RANGES:
        inside = [spike for spike in spikes if low <= spike.signal_over_threshold < high]
        if inside:
            name = f"{low:g} to {high:g}" if np.isfinite(high) else f"{low:g} and more"
            result.append((name, agreement(inside)))
    return result


def _summary(spikes: Sequence[Spike]) -> dict[str, Any] | None:
    from dprmt.report.measurements import agreement

    return vars(agreement(spikes)) if spikes else None


def _largest_difference(spike: Spike) -> float:
    return float(np.abs(np.subtract(spike.overlaps, spike.predicted_overlaps)).max())


def _by_shape(spikes: Sequence[Spike]) -> list[tuple[tuple[int, int], list[Spike]]]:
    shapes = sorted({spike.shape for spike in spikes})
    return [(shape, [spike for spike in spikes if spike.shape == shape]) for shape in shapes]


@cache
def _pure_noise(shape: tuple[int, int]) -> float:
    # Median of the top singular value of noise over the edge, minus 1.
    return TopSingularValue(shape, 1.0).isf(0.5) / bulk_edge(shape, 1.0) - 1
