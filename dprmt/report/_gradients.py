"""The report's sections on measured gradients: spikes, overlaps, spectra, denoising, losses, norms.

A section is a function of what :mod:`dprmt.report.measurements` found. Its first sentence is the finding; its table has
the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dprmt import plots
from dprmt.report._page import Picture, Section, Table, along_steps
from dprmt.report._words import by_columns, counted, effect, layer_name, matrices, number, per_cent, with_interval
from dprmt.report.measurements._alignment import AlignmentStep, kappa_sweep
from dprmt.report.measurements._norm_ratio import ERROR, NormRatios
from dprmt.report.measurements._spikes import LayerSpectra, Spike, agreement

_GATE = 1.02  # κ of arXiv:2510.01137
_CURVES = {"corrected": "κ gate, norm correction", "uncorrected": "κ gate, without"}
_POINT = (
    *("layer", "step", "shape", "noise_scale", "signal_over_threshold", "predicted", "single", "mean"),
    *("predicted_overlaps", "overlaps"),
)


def _by_shape(spikes: Sequence[Spike], *columns: Any) -> dict[tuple[int, int], Any]:
    groups: dict[tuple[int, int], list[tuple[float, ...]]] = {}
    for spike in sorted(spikes, key=lambda spike: spike.shape):
        row = spike.signal_over_threshold, *(read(spike) for read in columns)
        groups.setdefault(spike.shape, []).append(row)
    return {shape: tuple(zip(*rows, strict=True)) for shape, rows in groups.items()}


def theory_sections(spikes: list[Spike]) -> list[Section]:
    """Compare singular values with F(clean) and the edge (Eq. 3), and squared overlaps with Eqs. 4 and 5."""
    ranges = {}
    for low, high in pairwise((0.0, 0.5, 0.9, 1.1, 1.5, 3.0, math.inf)):
        inside = [spike for spike in spikes if low <= spike.signal_over_threshold < high]
        if inside:
            ranges[f"{low:g} to {high:g}" if high < math.inf else f"{low:g} and more"] = agreement(inside)
    above = [spike for spike in spikes if spike.signal_over_threshold > 1]
    found = agreement(above) if above else None
    # Tolerances for 95 % of the matrices: on singular values relative, on squared overlaps absolute.
    tolerance, overlap_tolerance = 0.05, 0.1
    values = f"No statement about F: of {matrices(len(spikes))} none has a clean singular value above the threshold."
    vectors = "No statement about the overlaps: no clean singular value is above the detection threshold."
    if found is not None:
        values = (
            f"Theory and measurement {'agree' if found.large_error <= tolerance else 'differ'}: above the detection"
            " threshold the noisy top singular value is F(λ) of"
            f" Eq. 3 within {per_cent(found.large_error)} for 95 % of {matrices(found.count)}, with a median error of"
            f" {per_cent(found.median_error)} (tolerance {per_cent(tolerance, 0)})."
        )
        holds = "hold" if found.overlap_large_error <= overlap_tolerance else "do not hold everywhere"
        vectors = (
            f"The squared overlaps of Eqs. 4 and 5 {holds} on these gradients:"
            f" 95 % of {matrices(found.count)} above the threshold are within {found.overlap_large_error:.3f}, with a"
            f" median difference of {found.overlap_error:.3f} (tolerance {overlap_tolerance:g})."
        )
    first = {"clean λ over threshold λ*": lambda row: row[0], "matrices": lambda row: str(row[1].count)}
    of_values = Table.of(
        "Measured over predicted top singular value, minus 1: noise averaged over repeated draws."
        " Each layer and step is measured with the noise of the run and with less, as larger batches would have.",
        ranges.items(),
        first
        | {
            "mean error": lambda row: per_cent(row[1].bias, sign=True),
            "median |error|": lambda row: per_cent(row[1].median_error),
            "95 % of |error|": lambda row: per_cent(row[1].large_error),
            "called": lambda row: per_cent(row[1].passing),
        },
    )
    of_vectors = Table.of(
        "Measured minus predicted squared overlap of the top singular vectors, both sides together.",
        ranges.items(),
        first
        | {
            "mean difference": lambda row: number(row[1].overlap_bias, 3, sign=True),
            "median |difference|": lambda row: f"{row[1].overlap_error:.3f}",
            "95 % of |difference|": lambda row: f"{row[1].overlap_large_error:.3f}",
        },
    )
    tops = Picture(
        lambda ax: plots.plot_measured_spikes(_by_shape(spikes, lambda spike: spike.mean), ax=ax),
        "Measured noisy top singular values against clean ones, with the predicted curve that rises at the threshold",
    )
    sides = [lambda spike, side=side: min(1.0, spike.overlaps[side]) for side in (0, 1)]
    overlaps = Picture(
        lambda ax: plots.plot_measured_overlaps(_by_shape(spikes, *sides), ax=ax),
        "Measured squared overlaps of noisy and clean singular vectors against the clean value, with Eqs. 4 and 5",
    )
    numbers = {
        "tolerance": tolerance,
        "ranges": {name: vars(a) for name, a in ranges.items()},
        "above_threshold": found and vars(found),
        "private_points": by_columns(spikes, _POINT),
    }
    return [
        Section("Noisy singular values against theory", [values], [of_values], [tops], numbers),
        Section(
            "Noisy singular vectors against theory",
            [vectors],
            [of_vectors],
            [overlaps],
            {"tolerance": overlap_tolerance},
        ),
    ]


def spectra_section(strongest: list[LayerSpectra], alarms: list[LayerSpectra], spikes: list[Spike]) -> Section:
    """Show sorted singular values: strongest signals of a run, and the largest false alarm."""
    own = [spike for spike in spikes if spike.noise_scale == 1]
    called = [spike for spike in own if spike.called]
    above, seen = (sum(spike.signal_over_threshold > 1 for spike in group) for group in (own, called))
    said = (
        f"Of the {matrices(len(own))} of this run (layer and step), {above} have a clean singular value above the"
        f" detection threshold, and {seen} of these are called. Of the others {len(called) - seen} are called; noise"
        f" alone would give {0.01 * (len(own) - above):.2g}."
    )
    everything = [*strongest, *alarms]
    table = Table.of(
        "The layers with the strongest signals, each at its best step of the run, then the largest false alarm, if"
        " there was one.",
        everything,
        {
            "layer": lambda entry: layer_name(entry.layer),
            "step": lambda entry: str(entry.step),
            "clean λ over threshold λ*": lambda entry: f"{entry.signal_over_threshold:.2f}",
            "noisy top value over bulk edge": lambda entry: f"{entry.top_over_edge:.3f}",
            "seen": lambda entry: entry.verdict,
        },
    )
    pictures = [_spectra_picture(entries) for entries in (strongest, alarms) if entries]
    numbers = {"private_spectra": [vars(entry) | {"seen": entry.verdict} for entry in everything]}
    return Section("Spectra of real gradients", [said], [table], pictures, numbers)


def _spectra_picture(spectra: list[LayerSpectra]) -> Picture:
    def draw(axes: Any) -> None:
        for entry, ax in zip(spectra, np.atleast_1d(axes), strict=True):
            noisy, shape, sigma = entry.noisy, entry.shape, entry.sigma
            plots.plot_singular_values(noisy, shape, sigma, clean=entry.clean, denoised=entry.denoised, ax=ax)
            said = f"step {entry.step}: {entry.verdict}; {shape[0]} × {shape[1]}, σ = {sigma:.4g}"
            ax.set_title("", loc="right")  # the plot's, which a long name would cover
            ax.set_title(f"{layer_name(entry.layer)}\n{said}", loc="left", fontsize="small")

    alt = (
        f"Sorted singular values of {', '.join(f'{entry.layer} at step {entry.step}' for entry in spectra)}: clean,"
        " noisy and denoised, with the bulk edge, the gate and the detection threshold."
    )
    return Picture(draw, alt, panels=len(spectra))


def improvement_section(runs: list[list[AlignmentStep]]) -> Section:
    """Show Improvement(t) of the denoiser of Eq. 10 with and without norm correction."""
    steps = [step for run in runs for step in run]

    def draw(ax: Any) -> None:
        curves = {label: [[getattr(step, name) for step in run] for run in runs] for name, label in _CURVES.items()}
        plots.plot_improvement_over_steps([step.number for step in runs[0]], curves, ax=ax)

    # Noise and batches of the seeds are independent; steps of one run are taken for independent.
    groups = [[step] for step in steps] if len(runs) == 1 else runs
    many = counted(len(groups), "step" if len(runs) == 1 else "run")
    corrected, uncorrected = ([_mean(group, name) for group in groups] for name in _CURVES)
    said = (
        f"Denoising with norm correction changes the cosine with the clean gradient, {_mean(steps, 'cosine'):.4f} on"
        f" average, by {with_interval(corrected)}; without norm correction by {with_interval(uncorrected)}. It helps in"
        f" {sum(x > 0 for x in corrected)} and {sum(x > 0 for x in uncorrected)} of {many}."
    )
    table = Table.of(
        f"Cosine of the whole noisy gradient with the clean one, and what Eq. 10 (κ = {_GATE}) adds to it"
        f"{f', mean over {len(runs)} seeds' if len(runs) > 1 else ''}.",
        zip(*runs, strict=True),
        {
            "step": lambda at: str(at[0].number),
            "cosine, noisy": lambda at: f"{_mean(at, 'cosine'):.4f}",
            "Improvement(t), gate": lambda at: effect(_mean(at, "corrected")),
            "without norm correction": lambda at: effect(_mean(at, "uncorrected")),
        },
    )
    picture = Picture(draw, "Improvement(t) along the run: κ gate with and without norm correction")
    numbers = {"private_steps": by_columns(steps, ("number", "cosine", *_CURVES)), "seeds": len(runs)}
    return Section("Improvement over steps", [said], [table], [picture], numbers)


def _mean(steps: Sequence[AlignmentStep], name: str) -> float:
    return float(np.mean([getattr(step, name) for step in steps]))


def kappa_section(steps: list[AlignmentStep]) -> Section:
    """Describe the gate κ: which layers pass, and which gain."""
    points = kappa_sweep(steps)
    by_shape: dict[str, tuple[list[float], list[float]]] = {}
    for layer in sorted((layer for step in steps for layer in step.layers), key=lambda layer: layer.shape):
        if layer.passes(1.0):
            ratios, gains = by_shape.setdefault(" × ".join(map(str, layer.shape)), ([], []))
            ratios.append(layer.top_over_edge or 0.0)
            gains.append(layer.improvement)

    def draw(axes: Any) -> None:
        improved, passing = ({"all matrices": [getattr(p, name) for p in points]} for name in ("improved", "passing"))
        plots.plot_kappa_sweep([point.kappa for point in points], improved, passed=passing, ax=axes[0])
        plots.plot_layer_improvement(by_shape, ax=axes[1])

    paper = min(points, key=lambda point: abs(point.kappa - _GATE))
    said = (
        f"Of {matrices(paper.matrices)} {paper.passed} pass κ = {paper.kappa:g}, and {paper.gained} of these come"
        " closer to the clean gradient."
    )
    table = Table.of(
        "What every gate that any matrix passes would have done, with norm correction.",
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
    numbers = by_columns(points, ("kappa", "passing", "improved", "improvement", "by_step", "matrices"))
    return Section("The gate κ", [said], [table], [Picture(draw, alt, panels=2)], {"private_sweep": numbers})


def course_section(courses: Mapping[str, Sequence[float]]) -> Section:
    """Return the mean loss of the steps' batches: with noise, with clipping alone, with neither; the same batches in
    each.
    """

    def draw(ax: Any) -> None:
        for (name, losses), style in zip(courses.items(), ("-", "--", ":"), strict=True):
            ax.plot(range(len(losses)), losses, style, color="black", label=name)
        along_steps(ax, "mean loss of the step's batch, nats")

    rows = [
        [str(step), *(f"{x:.4f}" for x in losses)] for step, losses in enumerate(zip(*courses.values(), strict=True))
    ]
    noisy, clipped, plain = (np.array(losses) for losses in courses.values())
    added, cost = (x[1:][np.isfinite(x[1:])].tolist() for x in (noisy - clipped, clipped - plain))
    said = "Too few steps to separate the cost of clipping from the cost of noise."
    if added and cost:
        said = (
            f"On the same batches noise adds {with_interval(added)} to the loss of a run that only clips, and clipping"
            f" {with_interval(cost)} to the loss of a run that does neither: means over the steps after the first."
        )
    table = Table("Mean loss of each step's batch, in nats, before the step.", ["step", *courses], rows)
    picture = Picture(draw, f"Loss along the run: {', '.join(courses)}")
    numbers = {"private_losses": {name: list(losses) for name, losses in courses.items()}}
    return Section("What clipping costs, and what noise costs", [said], [table], [picture], numbers)


def norm_section(norms: NormRatios) -> Section:
    """Compare n̂/n with its law and the envelope."""

    def draw(ax: Any) -> None:
        laws = {"predicted": np.clip(norms.predicted, 0, 1), "envelope": np.clip(norms.envelope, 0, 1)}
        plots.plot_norm_ratios(norms.points, norms.empirical, **laws, band=norms.band, ax=ax)

    levels = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4)
    nearest = sorted({int(np.argmin(np.abs(norms.points - level))) for level in levels})
    table = Table.of(
        f"Probability that n̂/n is at most x; band ±{norms.band:.4f} at {per_cent(1 - ERROR, 0)} confidence.",
        nearest,
        {
            "x": lambda i: f"{norms.points[i]:.3f}",
            "measured": lambda i: f"{norms.empirical[i]:.4f}",
            "exact law": lambda i: f"{norms.predicted[i]:.4f}",
            "envelope": lambda i: f"{norms.envelope[i]:.4f}",
        },
    )
    holds, fits = norms.over_envelope <= norms.band, norms.distance <= norms.band
    said = (
        f"The envelope {'holds' if holds else 'is VIOLATED'} and the exact law {'fits' if fits else 'does NOT fit'}:"
        f" the measured distribution of {len(norms.ratios)} estimates with {norms.probes} probes exceeds the envelope"
        f" by {max(norms.over_envelope, 0.0):.4f} at most and differs from the law by {norms.distance:.4f} at most; the"
        f" confidence band is {norms.band:.4f} wide."
    )
    names = ("probes", "rank", "samples", "draws", "band", "over_envelope", "distance")
    curves = ("points", "empirical", "predicted", "envelope")
    numbers = {name: getattr(norms, name) for name in names}
    numbers |= {f"private_{name}": getattr(norms, name) for name in curves}
    picture = Picture(draw, "Measured distribution of estimated over true squared norm, exact law, and envelope")
    return Section("Randomized norms against their envelope", [said], [table], [picture], numbers)
