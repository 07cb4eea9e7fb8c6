"""The report's sections on measured gradients: spikes, overlaps, spectra, denoising, the bound for Adam, losses, norms.

A section is a function of what :mod:`dprmt.report.measurements` found, and says what its table and picture show. Its
first sentence is the finding: it is another one where theory fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from dprmt.report._page import Picture, Section, Table, along_steps
from dprmt.report._words import (
    by_columns,
    counted,
    effect,
    interval_of_mean,
    matrices,
    no_sign,
    number,
    per_cent,
    relative,
    size,
    with_interval,
)
from dprmt.spectra import TopSingularValue, bulk_edge

if TYPE_CHECKING:
    from dprmt.report.measurements import (
        AdamBoundStep,
        Agreement,
        AlignmentStep,
        KappaPoint,
        LayerSpectra,
        NormRatios,
        Spike,
    )

NOISY = "clipping and noise"
TOLERANCE = 0.05  # on singular values, relative, for 95 % of the matrices
OVERLAP_TOLERANCE = 0.1  # on squared overlaps, absolute, for 95 %
_RANGES = ((0.0, 0.5), (0.5, 0.9), (0.9, 1.1), (1.1, 1.5), (1.5, 3.0), (3.0, np.inf))  # of λ/λ*
_NEAR = 0.5  # thresholds from which small matrices show something of a signal
_GATE = 1.02
_LEVELS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4)  # of n̂/n in the table
_ADAPTER = ".default"  # peft's name of the only adapter, in the middle of names
_CURVES = {"corrected": "κ gate, norm correction", "uncorrected": "κ gate, without"}
_POINT = (
    *("layer", "step", "shape", "noise_scale", "signal_over_threshold", "gap", "predicted", "single", "mean"),
    *("deviation", "predicted_overlaps", "overlaps"),
)


def _over(spikes: Sequence[Spike]) -> list[Spike]:
    return [spike for spike in spikes if spike.signal_over_threshold > 1]


def _under(spikes: Sequence[Spike], most: float = 1.0) -> list[Spike]:
    return [spike for spike in spikes if spike.signal_over_threshold <= most]


def _by_shape(spikes: Sequence[Spike], *columns: Any) -> dict[tuple[int, int], Any]:
    groups: dict[tuple[int, int], Any] = {}
    for spike in sorted(spikes, key=lambda spike: spike.shape):
        found = groups.setdefault(spike.shape, tuple([] for _ in range(len(columns) + 1)))
        for column, value in zip(found, (spike.signal_over_threshold, *(read(spike) for read in columns)), strict=True):
            column.append(value)
    return groups


def _ranges(spikes: Sequence[Spike]) -> dict[str, Agreement]:
    from dprmt.report.measurements import agreement

    found = {}
    for low, high in _RANGES:
        inside = [spike for spike in spikes if low <= spike.signal_over_threshold < high]
        if inside:
            found[f"{low:g} to {high:g}" if np.isfinite(high) else f"{low:g} and more"] = agreement(inside)
    return found


def spike_section(spikes: list[Spike]) -> Section:
    """Compare singular values with F(clean) and the edge (Eq. 3)."""
    from dprmt.plots import plot_measured_spikes, plot_prediction_errors
    from dprmt.report.measurements import agreement

    def draw(axes: Any) -> None:
        plot_measured_spikes(_by_shape(spikes, lambda s: s.mean), ax=axes[0])
        plot_prediction_errors(_by_shape(spikes, lambda s: s.error), tolerance=TOLERANCE, ax=axes[1])

    ranges, above, below = _ranges(spikes), _over(spikes), _under(spikes)
    found = [agreement(group) if group else None for group in (above, below)]
    table = Table.of(
        "Measured over predicted top singular value, minus 1: noise averaged over repeated draws, and in one draw.",
        ranges.items(),
        {
            "clean λ over threshold λ*": lambda row: row[0],
            "matrices": lambda row: str(row[1].count),
            "mean error": lambda row: per_cent(row[1].bias, sign=True),
            "median |error|": lambda row: per_cent(row[1].median_error),
            "95 % of |error|": lambda row: per_cent(row[1].large_error),
            "largest": lambda row: per_cent(row[1].largest_error),
            "median |error|, one draw": lambda row: per_cent(row[1].single_error),
            "called": lambda row: per_cent(row[1].passing),
        },
    )
    alt = (
        "Left: measured noisy top singular values against clean ones on logarithmic axes, with the predicted curve that"
        " is flat below the detection threshold and rises above it. Right: their relative differences."
    )
    return Section(
        title="Noisy singular values against theory",
        sentences=[_spike_sentence(found[0], len(spikes)), _below_sentence(found[1], below), _scales_sentence(spikes)],
        tables=[table],
        pictures=[Picture(draw, alt, panels=2)],
        numbers={
            "tolerance": TOLERANCE,
            "ranges": {name: vars(a) for name, a in ranges.items()},
            "above_threshold": found[0] and vars(found[0]),
            "below_threshold": found[1] and vars(found[1]),
            "private_points": by_columns(spikes, _POINT),
        },
    )


def _spike_sentence(above: Agreement | None, among: int) -> str:
    if above is None:
        return f"No statement about F: of {matrices(among)} none has a clean singular value above the threshold."
    verdict = "agree" if above.large_error <= TOLERANCE else "differ"
    return (
        f"Theory and measurement {verdict} above the detection threshold: the noisy top singular value is F(λ) of Eq. 3"
        f" with a median error of {relative(above.median_error)}, and for 95 % of the matrices within"
        f" {relative(above.large_error)} (tolerance {per_cent(TOLERANCE, 0)}). Above the detection threshold:"
        f" {above.count} of {matrices(among)} (layer, step and noise level)."
    )


def _below_sentence(found: Agreement | None, below: Sequence[Spike]) -> str:
    if found is None:
        return "No measured matrix is below the detection threshold."
    expected = float(np.mean([_pure_noise(spike.shape) for spike in below]))
    verdict = "agrees" if found.large_error <= TOLERANCE else f"differs by more than {per_cent(TOLERANCE, 0)} in places"
    return (
        f"Below the threshold ({matrices(found.count)}) the prediction, the bulk edge, {verdict}: mean error"
        f" {relative(found.bias, sign=True)}, 95 % within {relative(found.large_error)}. Pure noise of these sizes has"
        f" its exact median {relative(expected, sign=True)} from the edge, which is a limit for large matrices."
    )


def _scales_sentence(spikes: Sequence[Spike]) -> str:
    scales = sorted({spike.noise_scale for spike in spikes} - {1}, reverse=True)
    own = [spike for spike in spikes if spike.noise_scale == 1]
    return (
        f"With the noise of the run itself {len(_over(own))} of {matrices(len(own))} are above the threshold. The same"
        f" clean gradients are also measured with {', '.join(f'{scale:g}' for scale in scales)} times the noise, as"
        " larger batches would have, which moves them along the curve. A matrix counts as called if noise alone gives a"
        " value as large as its largest in 1 % of draws."
    )


@cache
def _pure_noise(shape: tuple[int, int]) -> float:
    # Median of the top singular value of noise over the edge, minus 1.
    return TopSingularValue(shape, 1.0).isf(0.5) / bulk_edge(shape, 1.0) - 1


def overlap_section(spikes: list[Spike]) -> Section:
    """Compare squared overlaps with Eqs. 4 and 5."""
    from dprmt.plots import plot_measured_overlaps

    def draw(ax: Any) -> None:
        sides = [lambda s, side=side: min(1.0, s.overlaps[side]) for side in (0, 1)]
        plot_measured_overlaps(_by_shape(spikes, *sides), ax=ax)

    table = Table.of(
        "Measured minus predicted squared overlap of the top singular vectors, both sides together.",
        _ranges(spikes).items(),
        {
            "clean λ over threshold λ*": lambda row: row[0],
            "matrices": lambda row: str(row[1].count),
            "mean difference": lambda row: number(row[1].overlap_bias, 3, sign=True),
            "median |difference|": lambda row: f"{row[1].overlap_error:.3f}",
            "95 % of |difference|": lambda row: f"{row[1].overlap_large_error:.3f}",
        },
    )
    alt = (
        "Measured squared overlaps of noisy and clean singular vectors against the clean singular value, with curves of"
        " Eqs. 4 and 5, which leave zero at the detection threshold."
    )
    return Section(
        title="Noisy singular vectors against theory",
        sentences=_overlap_sentences(spikes),
        tables=[table],
        pictures=[Picture(draw, alt)],
        numbers={"tolerance": OVERLAP_TOLERANCE},
    )


def _overlap_sentences(spikes: Sequence[Spike]) -> list[str]:
    from dprmt.report.measurements import agreement

    above, far = _over(spikes), _under(spikes, _NEAR)
    said = ["No statement about the overlaps: no clean singular value is above the detection threshold."]
    if above:
        a = agreement(above)
        holds = a.overlap_large_error <= OVERLAP_TOLERANCE
        verdict = "hold on these gradients" if holds else "do not hold everywhere"
        limit = (
            "" if holds else " The theory is a limit in which values are far from the threshold and from each other."
        )
        said = [
            f"The squared overlaps of Eqs. 4 and 5 {verdict}: median difference {size(a.overlap_error, 3)}, 95 % within"
            f" {size(a.overlap_large_error, 3)} (tolerance {OVERLAP_TOLERANCE:g}), over {matrices(a.count)}.{limit}"
        ]
    if far:
        short = [spike.overlaps[0 if spike.shape[0] <= spike.shape[1] else 1] for spike in far]
        chance = float(np.mean([1 / min(spike.shape) for spike in far]))
        said.append(
            f"Far below the threshold the prediction is 0; a random direction in the shorter space has"
            f" {size(chance, 3)} on average, and {size(float(np.mean(short)), 3)} was measured there."
        )
    return said


def spectra_section(
    strongest: list[LayerSpectra], typical: list[LayerSpectra], alarms: list[LayerSpectra], spikes: list[Spike]
) -> Section:
    """Show sorted singular values: strongest signals of a run, layers along the depth, and the largest false alarm."""
    everything = [*strongest, *typical, *alarms]
    prefix = _common_prefix([entry.layer for entry in everything])
    table = Table.of(
        "The layers with the strongest signals, each at its best step of the run, then some along the depth,"
        " then the largest false alarm, if there was one"
        f"{f'; all names begin with {prefix[:-1]}' if prefix else ''}.",
        everything,
        {
            "layer": lambda entry: entry.layer.removeprefix(prefix).replace(_ADAPTER, ""),
            "step": lambda entry: str(entry.step),
            "clean λ over threshold λ*": lambda entry: f"{entry.signal_over_threshold:.2f}",
            "noisy top value over bulk edge": lambda entry: f"{entry.top_over_edge:.3f}",
            "seen": lambda entry: entry.verdict,
            "entropy of clean / noisy / denoised": lambda entry: " / ".join(f"{x:.2f}" for x in entry.entropies),
        },
    )
    said = [_called_sentence(spikes), _shown_sentence(strongest, alarms)]
    if everything:
        ends = [(min(values), max(values)) for values in zip(*(e.entropies for e in everything), strict=True)]
        clean, noisy, denoised = (" to ".join("0" if x < 5e-7 else f"{x:.2f}" for x in pair) for pair in ends)
        said.append(
            "Spectral entropy, in nats, of the squared singular values as shares of their sum (a flat spectrum has the"
            f" logarithm of their number), over the {matrices(len(everything))} shown: clean {clean}, noisy {noisy},"
            f" denoised {denoised}."
        )
    return Section(
        title="Spectra of real gradients",
        sentences=said,
        tables=[table],
        pictures=[_spectra_picture(entries) for entries in (strongest, typical, alarms) if entries],
        numbers={"private_spectra": [_spectra_numbers(entry) for entry in everything]},
    )


def _common_prefix(names: list[str]) -> str:
    # Whole parts of dotted names, the last part never among them.
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*(name.split(".")[:-1] for name in names), strict=False))
    return "".join(f"{parts[0]}." for parts in shared) if len(set(names)) > 1 else ""


def _called_sentence(spikes: list[Spike]) -> str:
    own = [spike for spike in spikes if spike.noise_scale == 1]
    above, below = _over(own), _under(own)
    seen, alarms = (sum(spike.called for spike in group) for group in (above, below))
    first = (
        f"Of the {matrices(len(own))} of this run (layer and step), with a clean singular value above the detection"
        f" threshold: {len(above)}; called of these, at a false alarm rate of 1 %: {seen}."
    )
    if not above:
        first = f"Nothing to be seen at the noise of this run: no clean singular value of its {matrices(len(own))} is"
        first += " above the detection threshold."
    return (
        f"{first} Of the other {len(below)}, whose signal is too weak to be seen, called by a false alarm: {alarms};"
        f" noise alone would give {0.01 * len(below):.2g}."
    )


def _shown_sentence(strongest: Sequence[LayerSpectra], alarms: Sequence[LayerSpectra]) -> str:
    above = sum(entry.signal_over_threshold > 1 for entry in strongest)
    shown = f"Spectra shown whose clean top value is above the detection threshold: {above}."
    if not alarms:
        return f"{shown} No matrix of this run was called by a false alarm."
    (alarm,) = alarms
    near = alarm.signal_over_threshold > _NEAR
    verdict = "so near it, a part of what is called may be signal" if near else "what looks like a signal is noise"
    return (
        f"{shown} The largest false alarm is shown, too: {_short(alarm.layer)} at step {alarm.step} is at"
        f" {alarm.top_over_edge:.3f} bulk edges, its clean top value at {alarm.signal_over_threshold:.2f} of the"
        f" threshold: {verdict}."
    )


def _spectra_picture(spectra: list[LayerSpectra]) -> Picture:
    from dprmt.plots import plot_singular_values

    def draw(axes: Any) -> None:
        for entry, ax in zip(spectra, np.atleast_1d(axes), strict=True):
            noisy, shape, sigma = entry.noisy, entry.shape, entry.sigma
            plot_singular_values(noisy, shape, sigma, clean=entry.clean, denoised=entry.denoised, ax=ax)
            said = (
                f"{_short(entry.layer)}\nstep {entry.step}: {entry.verdict}; {shape[0]} × {shape[1]}, σ = {sigma:.4g}"
            )
            ax.set_title("", loc="right")  # the plot's, which a long name would cover
            ax.set_title(said, loc="left", fontsize="small")

    alt = (
        f"Sorted singular values of {', '.join(f'{entry.layer} at step {entry.step}' for entry in spectra)}: clean,"
        " noisy and denoised, with the bulk edge, the gate and the detection threshold."
    )
    return Picture(draw, alt, panels=len(spectra))


def _short(layer: str) -> str:
    # What tells a layer from others: adapters' names are long. Whole parts, unless the last one is too long.
    end = layer[-47:]
    return layer if len(layer) <= 48 else f"…{end[end.find('.') + 1 :]}"


def _spectra_numbers(entry: LayerSpectra) -> dict[str, Any]:
    edge, over = bulk_edge(entry.shape, entry.sigma), entry.signal_over_threshold
    more = {"edge": edge, "over_threshold": over, "entropies": entry.entropies, "seen": entry.verdict}
    return vars(entry) | more


def improvement_section(runs: list[list[AlignmentStep]]) -> Section:
    """Show Improvement(t) of the denoiser of Eq. 10 with and without norm correction."""
    from dprmt.plots import plot_improvement_over_steps

    steps = [step for run in runs for step in run]

    def draw(ax: Any) -> None:
        curves = {label: [[getattr(step, name) for step in run] for run in runs] for name, label in _CURVES.items()}
        plot_improvement_over_steps([step.number for step in runs[0]], curves, ax=ax)

    over = f", mean over {len(runs)} seeds" if len(runs) > 1 else ""
    table = Table.of(
        f"Cosine of the whole noisy gradient with the clean one, and what Eq. 10 (κ = {_GATE}) adds to it{over}.",
        zip(*runs, strict=True),
        {
            "step": lambda at: str(at[0].number),
            "cosine, noisy": lambda at: f"{_mean(at, 'cosine'):.4f}",
            "Improvement(t), gate": lambda at: effect(_mean(at, "corrected")),
            "without norm correction": lambda at: effect(_mean(at, "uncorrected")),
        },
    )
    said, over_seeds = [_improvement_sentence(steps)], None
    if len(runs) > 1:
        # Noise and batches of the seeds are independent; steps of one run are not.
        means = {name: [_mean(run, name) for run in runs] for name in _CURVES}
        over_seeds = {
            name: dict(zip(("mean", "low", "high"), (float(np.mean(x)), *interval_of_mean(x)), strict=True))
            for name, x in means.items()
        }
        stated = "; ".join(f"{label}: {_stated(over_seeds[name])}" for name, label in _CURVES.items())
        said.append(f"Mean Improvement over {len(runs)} seeds, with 95 % confidence intervals (Student's t): {stated}.")
    return Section(
        title="Improvement over steps",
        sentences=said,
        tables=[table],
        pictures=[Picture(draw, "Improvement(t) along the run: κ gate with and without norm correction")],
        numbers={
            "private_steps": by_columns(steps, ("number", "cosine", *_CURVES)),
            "seeds": len(runs),
            "over_seeds": over_seeds,
        },
    )


def _stated(interval: dict[str, float]) -> str:
    low, high = interval["low"], interval["high"]
    sign = "positive" if low > 0 else "negative" if high < 0 else "no sign shown"
    return f"{effect(interval['mean'])} ({effect(low)} to {effect(high)}, {sign})"


def _mean(steps: Sequence[AlignmentStep], name: str) -> float:
    return float(np.mean([getattr(step, name) for step in steps]))


def _improvement_sentence(steps: Sequence[AlignmentStep]) -> str:
    corrected, uncorrected = ([getattr(step, name) for step in steps] for name in _CURVES)
    gain = float(np.mean(corrected))
    first = "Denoising with norm correction made no difference that these steps could show"
    if gain and not no_sign(corrected):
        first = f"Denoising with norm correction {'helped' if gain > 0 else 'did harm'} on average"
    difference = [one - other for one, other in zip(corrected, uncorrected, strict=True)]
    better = float(np.mean(difference))
    verdict = "these steps do not tell with and without norm correction apart"
    if better and not no_sign(difference):
        verdict = "norm correction is the better choice here, as in the paper"
        verdict = verdict if better > 0 else "unlike in the paper, norm correction is no gain here"
    many = counted(len(steps), "step")
    return (
        f"{first}; it brought the gradient closer at {sum(x > 0 for x in corrected)} of {many}: mean Improvement"
        f" {with_interval(corrected)} on a mean cosine of {size(_mean(steps, 'cosine'), 4)}. Without norm correction it"
        f" is {with_interval(uncorrected)}, better than nothing at {sum(x > 0 for x in uncorrected)} of {many}:"
        f" {verdict}. Intervals take the steps for independent."
    )


def kappa_section(steps: list[AlignmentStep]) -> Section:
    """Describe the gate κ: which layers pass, and which gain."""
    from dprmt.plots import plot_kappa_sweep, plot_layer_improvement
    from dprmt.report.measurements import kappa_sweep

    points = kappa_sweep(steps)
    by_shape: dict[tuple[int, ...], tuple[list[float], list[float]]] = {}
    for layer in sorted((layer for step in steps for layer in step.layers), key=lambda layer: layer.shape):
        if (layer.top_over_edge or 0.0) >= 1:
            ratios, gains = by_shape.setdefault(layer.shape, ([], []))
            ratios.append(layer.top_over_edge or 0.0)
            gains.append(layer.improvement)

    def draw(axes: Any) -> None:
        improved, passing = ({"all matrices": [getattr(p, name) for p in points]} for name in ("improved", "passing"))
        plot_kappa_sweep([point.kappa for point in points], improved, passed=passing, ax=axes[0])
        if by_shape:
            named = {" × ".join(map(str, shape)): found for shape, found in by_shape.items()}
            plot_layer_improvement(named, ax=axes[1])

    table = Table.of(
        "What every gate that any matrix passes would have done, with norm correction. Intervals take the steps for"
        " independent.",
        [point for point in points if point.passing > 0],
        {
            "κ": lambda p: f"{p.kappa:g}",
            "matrices that pass": lambda p: f"{p.passed} of {p.matrices}",
            "of these improved": lambda p: f"{p.gained} of {p.passed}",
            "mean Improvement of the gradient": lambda p: with_interval(p.by_step),
        },
    )
    alt = (
        "Left: share of the matrices that pass the gate, and of those that gain, against κ. Right: gain of each matrix"
        " above the bulk edge against its top singular value, by shape."
    )
    columns = ("kappa", "passing", "improved", "improvement", "by_step", "matrices")
    return Section(
        title="The gate κ",
        sentences=[_kappa_sentence(points)],
        tables=[table],
        pictures=[Picture(draw, alt, panels=2)],
        numbers={"private_sweep": by_columns(points, columns)},
    )


def _kappa_sentence(points: Sequence[KappaPoint]) -> str:
    paper = min(points, key=lambda point: abs(point.kappa - _GATE))
    best = max((point for point in points if point.passing > 0), key=lambda point: point.improvement, default=paper)
    if paper.passing == 0:
        return f"No matrix passes κ = {paper.kappa:g}: the gradient comes out as it went in."
    verdict = "no better than none" if no_sign(best.by_step) or best.improvement <= 0 else "the best gate tried"
    return (
        f"Matrices that pass κ = {paper.kappa:g}: {paper.passed} of {paper.matrices}; closer to the clean gradient of"
        f" these: {paper.gained}. For the whole gradient the largest mean Improvement is that of κ ="
        f" {best.kappa:g}, {with_interval(best.by_step)}: {verdict}; of κ = {paper.kappa:g} it is"
        f" {effect(paper.improvement)}."
    )


def adam_bound_section(steps: Sequence[AdamBoundStep]) -> Section:
    """Compare the cosine that the corrected Proposition I.1 needs with the measured one, with and without denoising."""
    title = "What the bound for Adam promises"
    if not steps:
        return Section(title, ["The recipe's optimizer has no second moments, so the bound is not of it."])
    curves = {
        "cosine, noisy": ("cosine", "-"),
        "weighted cosine, noisy": ("weighted_cosine", "--"),
        "weighted cosine, denoised": ("denoised_weighted_cosine", ":"),
    }

    def draw(ax: Any) -> None:
        for label, (name, style) in curves.items():
            values = [getattr(step, name) for step in steps]
            ax.plot([step.number for step in steps], values, style, color="black", label=label)
        ax.axhline(0, color="black", linewidth=0.5)
        along_steps(ax, "cosine with the clean gradient")

    table = Table.of(
        "Preconditioner P of each step taken, the cosine above which the corrected bound is positive at small enough"
        " rates, and cosines with the clean gradient; weighted: in the geometry of P.",
        steps,
        {
            "step": lambda step: str(step.number),
            "p_max/p_min": lambda step: f"{step.spread:.3g}",
            "cosine the bound asks for": lambda step: f"1 − {step.shortfall:.2g}",
            "cosine, noisy": lambda step: effect(step.cosine),
            "weighted cosine, noisy": lambda step: effect(step.weighted_cosine),
            "denoised": lambda step: effect(step.denoised_weighted_cosine),
            "decrease promised, noisy / denoised": lambda step: " / ".join("yes" if x else "no" for x in step.promised),
        },
    )
    columns = ("number", "spread", "cosine", "denoised_cosine", "weighted_cosine", "denoised_weighted_cosine")
    return Section(
        title,
        _adam_sentences(steps),
        tables=[table],
        pictures=[Picture(draw, "Cosines with the clean gradient along the run, plain and in the geometry of P")],
        numbers={"private_steps": by_columns(list(steps), (*columns, "shortfall"))},
    )


def _adam_sentences(steps: Sequence[AdamBoundStep]) -> list[str]:
    before, after = (sum(step.promised[i] for step in steps) for i in (0, 1))
    nearest = max(steps, key=lambda step: step.cosine - (1 - step.shortfall))
    weighted = [step.weighted_cosine for step in steps]
    gains = [step.denoised_weighted_cosine - step.weighted_cosine for step in steps]
    signless = ", which has no sign these steps could show" if no_sign(gains) else ""
    many = counted(len(steps), "step")
    return [
        "Proposition I.1 of arXiv:2510.01137v3, corrected, promises a decrease only if the cosine with the clean"
        " gradient is above (p_max − p_min)/(p_max + p_min) of the preconditioner's entries, however small the rate is:"
        f" at {before} of {many}, and at {after} with denoising. Where it comes nearest, at step {nearest.number}, it"
        f" asks for 1 − {nearest.shortfall:.2g}, and the cosine is {effect(nearest.cosine)}. Where two bounds promise"
        " nothing, their difference says nothing of the decrease.",
        "In the preconditioner's geometry the bound is positive at small enough rates wherever the weighted cosine is"
        f" above 0: at {sum(value > 0 for value in weighted)} of {many}, mean {with_interval(weighted)}. Denoising adds"
        f" {with_interval(gains)} to it{signless}. Steps are taken for independent; the momentum is left out, as in the"
        " proposition.",
    ]


def course_section(courses: Mapping[str, Sequence[float]]) -> Section:
    """Return the mean loss of the steps' batches: with noise, with clipping alone, with neither; the same batches in
    each.
    """

    def draw(ax: Any) -> None:
        for (name, losses), style in zip(courses.items(), ("-", "--", ":"), strict=True):
            ax.plot(range(len(losses)), losses, style, color="black", label=name)
        along_steps(ax, "mean loss of the step's batch, nats")

    def cells(losses: Sequence[float]) -> list[str]:
        return [f"{loss:.4f}" if math.isfinite(loss) else "nobody drawn" for loss in losses]

    rows = [[str(step), *cells(losses)] for step, losses in enumerate(zip(*courses.values(), strict=True))]
    noisy, clipped, plain = (np.array(losses)[1:] for losses in courses.values())
    sentence = "Too few steps to tell the cost of clipping from that of noise."
    if len(noisy) > 1:
        added, cost = (x[np.isfinite(x)].tolist() for x in (noisy - clipped, clipped - plain))
        sentence = (
            f"On the same batches, mean over the {len(noisy)} steps after the first: noise adds {with_interval(added)}"
            f" to the loss of a run that only clips, and clipping {with_interval(cost)} to that of a run that does"
            " neither. One seed, consecutive steps, so that the intervals are too narrow for another run's; the run"
            " with noise has the report's denoiser. Without noise there is no privacy."
        )
    return Section(
        title="What clipping costs, and what noise costs",
        sentences=[sentence],
        tables=[Table("Mean loss of each step's batch, in nats, before the step.", ["step", *courses], rows)],
        pictures=[Picture(draw, f"Loss along the run: {', '.join(courses)}")],
        numbers={"private_losses": {name: list(losses) for name, losses in courses.items()}},
    )


def norm_section(norms: NormRatios) -> Section:
    """Compare n̂/n with its law and the envelope."""
    from dprmt.plots import plot_norm_ratios

    def draw(ax: Any) -> None:
        laws = {"predicted": np.clip(norms.predicted, 0, 1), "envelope": np.clip(norms.envelope, 0, 1)}
        plot_norm_ratios(norms.points, norms.empirical, **laws, band=norms.band, ax=ax)

    nearest = sorted({int(np.argmin(np.abs(norms.points - level))) for level in _LEVELS})
    table = Table.of(
        f"Probability that n̂/n is at most x; band ±{norms.band:.4f} at {per_cent(1 - norms.error, 0)} confidence.",
        nearest,
        {
            "x": lambda i: f"{norms.points[i]:.3f}",
            "measured": lambda i: f"{norms.empirical[i]:.4f}",
            "exact law": lambda i: f"{norms.predicted[i]:.4f}",
            "envelope": lambda i: f"{norms.envelope[i]:.4f}",
        },
    )
    names = "probes", "rank", "samples", "draws", "leading_share", "band", "error", "over_envelope", "distance"
    curves = "points", "empirical", "predicted", "envelope"
    excess, band = size(max(norms.over_envelope, 0.0), 4), size(norms.band, 4)
    holds, fits = norms.over_envelope <= norms.band, norms.distance <= norms.band
    verdict = "The envelope holds" if holds else "The envelope is VIOLATED"
    claim = "" if holds else " The accountant's claim does not cover these gradients."
    said = [
        f"{verdict}: in {len(norms.ratios)} estimates with {norms.probes} probes ({norms.draws} draws for each of"
        f" {norms.samples} per-sample gradients) the measured distribution function exceeds it by {excess} at most; its"
        f" confidence band is {band} wide.{claim}",
        "The exact law, a mixture of χ² with each gradient's squared singular values as weights,"
        f" {'fits' if fits else 'does NOT fit'}: largest distance {size(norms.distance, 4)}, band {band}. In the median"
        f" gradient one singular value carries {relative(norms.leading_share, 0)} of the squared norm; the envelope for"
        " n̂/n <= 1 is that of 100 %.",
    ]
    return Section(
        title="Randomized norms against their envelope",
        sentences=said,
        tables=[table],
        pictures=[Picture(draw, "Measured distribution of estimated over true squared norm, exact law, and envelope")],
        numbers={name: getattr(norms, name) for name in names}
        | {f"private_{name}": getattr(norms, name) for name in curves},
    )
