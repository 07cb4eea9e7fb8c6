"""Report sections on the effect of denoising on real gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dprmt.report._page import Picture, Section, Table
from dprmt.report._words import (
    by_columns,
    counted,
    effect,
    interval_of_mean,
    matrices,
    no_sign,
    relative,
    size,
    with_interval,
)

if TYPE_CHECKING:
    from dprmt.report.measurements import AlignmentStep, KappaPoint, LayerAlignment

_GATE = 1.02
_CURVES = {"corrected": "κ gate, norm correction", "uncorrected": "κ gate, without"}


def improvement_section(runs: list[list[AlignmentStep]]) -> Section:
    """Show Improvement(t) of the denoiser of Eq. 10 with and without norm correction."""
    from dprmt.plots import plot_improvement_over_steps

    steps = [step for run in runs for step in run]

    def draw(ax: Any) -> None:
        curves = {label: [[getattr(step, name) for step in run] for run in runs] for name, label in _CURVES.items()}
        plot_improvement_over_steps([step.number for step in runs[0]], curves, ax=ax)

    rows = [
        [str(at[0].number), f"{_mean(at, 'cosine'):.4f}", *(_signed(_mean(at, name)) for name in _CURVES)]
        for at in zip(*runs, strict=True)
    ]
    over = f", mean over {len(runs)} seeds" if len(runs) > 1 else ""
    table = Table(
        f"Cosine of the whole noisy gradient with the clean one, and what Eq. 10 (κ = 1.02) adds to it{over}.",
        ["step", "cosine, noisy", "Improvement(t), gate", "without norm correction"],
        rows,
    )
    return Section(
        title="Improvement over steps",
        sentences=[improvement_sentence(steps), *sign_sentences(runs)],
        tables=[table],
        pictures=[Picture(draw, "Improvement(t) along the run: κ gate with and without norm correction")],
        numbers={
            "private_steps": by_columns(steps, ("number", "cosine", *_CURVES)),
            "seeds": len(runs),
            "over_seeds": {name: _over_seeds(runs, name) for name in _CURVES} if len(runs) > 1 else None,
        },
    )


def sign_sentences(runs: Sequence[Sequence[AlignmentStep]]) -> list[str]:
    """Describe the sign of the mean Improvement, as far as several seeds show it."""
    if len(runs) < 2:
        return []
    stated = "; ".join(f"{label}: {_stated(_over_seeds(runs, name))}" for name, label in _CURVES.items())
    return [f"Mean Improvement over {len(runs)} seeds, with 95 % confidence intervals (Student's t): {stated}."]


def _over_seeds(runs: Sequence[Sequence[AlignmentStep]], name: str) -> dict[str, float]:
    # Noise and batches of the seeds are independent; steps of one run are not.
    means = [_mean(run, name) for run in runs]
    low, high = interval_of_mean(means)
    return {"mean": float(np.mean(means)), "low": low, "high": high}


def _stated(interval: dict[str, float]) -> str:
    low, high = interval["low"], interval["high"]
    sign = "positive" if low > 0 else "negative" if high < 0 else "no sign shown"
    return f"{_signed(interval['mean'])} ({_signed(low)} to {_signed(high)}, {sign})"


def _mean(steps: Sequence[AlignmentStep], name: str) -> float:
    return float(np.mean([getattr(step, name) for step in steps]))


def improvement_sentence(steps: Sequence[AlignmentStep]) -> str:
    """Describe the effect of denoising along the run."""
    corrected, uncorrected = ([getattr(s, name) for s in steps] for name in ("corrected", "uncorrected"))
    before, gain = _mean(steps, "cosine"), float(np.mean(corrected))
    if not any(corrected) and not any(uncorrected):
        return (
            f"Denoising made no difference at any of {counted(len(steps), 'step')}, with or without norm correction, so"
            f" that these steps say nothing of either: the mean cosine is {size(before, 4)} before and after."
        )
    at = f"at {sum(value > 0 for value in corrected)} of {counted(len(steps), 'step')}"
    if no_sign(corrected):
        first = f"Nothing to be seen of denoising with norm correction; it brought the gradient closer {at}"
    elif gain > 0:
        first = f"Denoising with norm correction brought the gradient closer to the clean one {at}"
    elif gain < 0:
        first = f"Denoising with norm correction did harm on average; it brought the gradient closer {at}"
    else:
        first = f"Denoising with norm correction made no difference on average; it helped {at}"
    difference = [one - other for one, other in zip(corrected, uncorrected, strict=True)]
    if no_sign(difference):
        verdict = "these steps do not tell with and without norm correction apart"
    elif float(np.mean(difference)) > 0:
        verdict = "norm correction is the better choice here, as in the paper"
    else:
        verdict = "unlike in the paper, norm correction is no gain here"
    return (
        f"{first}: mean Improvement {with_interval(corrected)} on a mean cosine of {size(before, 4)}. Without norm"
        f" correction it is {with_interval(uncorrected)}, better than nothing at"
        f" {counted(sum(value > 0 for value in uncorrected), 'step')}: {verdict}. Intervals take the steps"
        " for independent."
    )


def kappa_section(steps: list[AlignmentStep]) -> Section:
    """Describe the gate κ: which layers pass, and which gain."""
    from dprmt.plots import plot_kappa_sweep, plot_layer_improvement
    from dprmt.report.measurements import kappa_sweep

    points = kappa_sweep(steps)
    layers = [layer for step in steps for layer in step.layers]
    above = [layer for layer in layers if (layer.top_over_edge or 0.0) >= 1]

    def draw(axes: Any) -> None:
        kappas = [point.kappa for point in points]
        improved, passing = ({"all matrices": [getattr(p, name) for p in points]} for name in ("improved", "passing"))
        plot_kappa_sweep(kappas, improved, passed=passing, ax=axes[0])
        if above:
            plot_layer_improvement(_by_shape(above), ax=axes[1])

    table = Table(
        "What every gate would have done, with norm correction. Intervals take the steps for independent.",
        ["κ", "matrices that pass", "of these improved", "mean Improvement of the gradient"],
        kappa_rows(points),
    )
    alt = (
        "Left: share of the matrices that pass the gate, and of those that gain, against κ. Right: gain of each matrix"
        " above the bulk edge against its top singular value, by shape."
    )
    return Section(
        title="The gate κ",
        sentences=[kappa_sentence(points)],
        tables=[table],
        pictures=[Picture(draw, alt, panels=2)],
        numbers={
            "private_sweep": by_columns(points, ("kappa", "passing", "improved", "improvement", "by_step", "matrices"))
        },
    )


def _by_shape(layers: Sequence[LayerAlignment]) -> dict[str, tuple[list[float], list[float]]]:
    groups: dict[tuple[int, ...], tuple[list[float], list[float]]] = {}
    for layer in sorted(layers, key=lambda layer: layer.shape):
        assert layer.top_over_edge is not None  # it is above the edge
        ratios, gains = groups.setdefault(layer.shape, ([], []))
        ratios.append(layer.top_over_edge)
        gains.append(layer.improvement)
    return {" × ".join(map(str, shape)): points for shape, points in groups.items()}


def kappa_rows(points: Sequence[KappaPoint]) -> list[list[str]]:
    """List one row for every gate that any matrix passes, and one for all other gates."""
    rows = [
        [
            f"{p.kappa:g}",
            f"{p.passed} of {p.matrices}",
            f"{p.gained} of {p.passed}",
            with_interval(p.by_step or [p.improvement]),
        ]
        for p in points
        if p.passing > 0
    ]
    closed = [p.kappa for p in points if p.passing == 0]
    return [*rows, [f"{min(closed):g} and more", "none", "–", "none"]] if closed else rows


def _closer(point: KappaPoint) -> str:
    """Count the passing matrices that gain; for a single one no share is computed."""
    if point.passed == 1:
        return f"it comes {'closer' if point.gained else 'no closer'} to the clean gradient"
    gained = {0: "none", point.passed: "all"}.get(point.gained, str(point.gained))
    return f"{gained} of these {'comes' if point.gained == 1 else 'come'} closer to the clean gradient"


def kappa_sentence(points: Sequence[KappaPoint]) -> str:
    """Describe the result of the sweep for the gate κ = 1.02."""
    paper = min(points, key=lambda point: abs(point.kappa - _GATE))
    best = max((point for point in points if point.passing > 0), key=lambda point: point.improvement, default=paper)
    if paper.passing == 0:
        return f"No matrix passes κ = {paper.kappa:g}: the gradient comes out as it went in."
    share = f"κ = {paper.kappa:g} lets {paper.passed} of {matrices(paper.matrices)} pass; {_closer(paper)}."
    if no_sign(best.by_step):
        low, high = interval_of_mean(best.by_step)
        return (
            f"{share} For the whole gradient there is nothing to be seen: even of the gate with the largest mean,"
            f" κ = {best.kappa:g}, the Improvement of {_signed(best.improvement)} has the 95 % interval {_signed(low)}"
            f" to {_signed(high)}."
        )
    if best.improvement <= 0:
        return f"{share} No gate improves the whole gradient on average (best: {_signed(best.improvement)})."
    if best.kappa == paper.kappa:
        return f"{share} Of the gates tried it is the best for the whole gradient ({_signed(best.improvement)})."
    chosen = (
        f"{share} The best gate tried for the whole gradient is κ = {best.kappa:g} ({_signed(best.improvement)}); the"
    )
    if paper.improvement < 0:
        return f"{chosen} paper's does harm ({_signed(paper.improvement)})."
    return f"{chosen} paper's gives up {relative(1 - paper.improvement / best.improvement)} of that."


def _signed(value: float) -> str:
    return effect(value)
