"""The tables of ``docs/theory/when_denoising_helps.md``, from stored results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paper_figures.denoising._results import ROLES, difference, reading
from paper_figures.denoising._studies import METHODS
from paper_figures.studies import MetricCurve, null_speedups, speedups

BEGIN, END = "<!-- from here on written by python -m paper_figures study denoising page -->", "<!-- up to here -->"
_NAMES = {
    "none": "Adam, no denoiser",
    "null": "Adam again, other noise and batches",
    "paper": "the paper's denoiser",
    "blend": "blend",
    "momentum gate": "the paper's, on the momentum",
    "momentum blend": "blend, on the momentum",
    "longer steps": "Adam at c times the paper's rate",
}
_SCORES = {
    "final_accuracy": ("final accuracy, %", 100, 1),
    "mean_accuracy": ("mean accuracy, %", 100, 1),
    "final_loss": ("final loss", 1, 4),
    "mean_loss": ("mean loss", 1, 4),
}
_CURVES = {"DP-LoRA": "Adam, no denoiser", "denoised": "the paper's denoiser", "blended": "blend"}


def with_tables(
    page: str,
    results: Mapping[str, Any],
    stored: Mapping[str, Any],
    published: Sequence[Any],
    bounds: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The page with its tables made anew.

    Parameters
    ----------
    page : str
        With the two marks, between which everything is replaced.
    results : mapping
        Of `results`.
    stored : mapping
        ``results/raw/denoising-speedup.json``.
    published : sequence of mapping
        Rows of the paper's Table 1.
    bounds : sequence of mapping
        ``results/raw/adam-bound-steps-paper.jsonl``.
    """
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    parts = [verdict(results), *(study_table(name, study) for name, study in results.items())]
    parts += [speedup_table(stored, published), bound_table(bounds)]
    return f"{before}{BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{END}{after}"


def verdict(results: Mapping[str, Any]) -> str:
    """What each study can say of denoisers beside tuned Adam, and what it cannot."""
    complete = {name: study for name, study in results.items() if _seeds(study)}
    if not complete:
        return "**Not done:** no setting of the study has two seeds of all methods yet, so nothing is known of any."
    lines = [_said(name, study) for name, study in complete.items()]
    return (
        "**What these runs can say**: mean validation loss beside tuned Adam at equal ε, by Student's 95 % intervals"
        " over paired seeds. *Not compared*: in the run that was watched the denoiser replaced no matrix, so that it"
        " was Adam. No margin within which two methods count as equal was set beforehand, so none is called equal."
        f" {_reach(complete)}\n\n" + "\n".join(lines)
    )


def _reach(studies: Mapping[str, Mapping[str, Any]]) -> str:
    # How little a verdict here is: read from what was run, so that a longer study would not say it.
    seeds = [_seeds(study) for study in studies.values()]
    read = [reading(study, role) for study in studies.values() for role in list(METHODS)[1:]]
    compared = len(read) - read.count("not compared")
    told = compared - read.count("cannot tell")
    few = f"{min(seeds)} seeds" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)} seeds"
    return (
        f"{few.capitalize()}, rates in steps of half a decade, chosen on one seed, intervals each by itself: such runs"
        f" cannot tell methods apart, and of {compared} comparisons {told or 'none'}"
        f" {'says' if told == 1 else 'say'} otherwise."
    )


def _said(name: str, study: Mapping[str, Any]) -> str:
    found: dict[str, list[str]] = {}
    for role in list(METHODS)[1:]:
        found.setdefault(reading(study, role), []).append(_NAMES[role])
    words = "; ".join(f"*{word}*: {', '.join(names)}" for word, names in found.items())
    null = f" Adam against itself: *{reading(study, 'null')}*." if "null" in study["rows"] else ""
    return f"- {name} ({_seeds(study)} seeds): {words}.{null}"


def study_table(name: str, study: Mapping[str, Any]) -> str:
    """One setting: what was run, and every method."""
    rows = [_row(study, role) for role in ROLES if role in study["rows"]]
    names = [cell for score in _scores(study) for cell in (_SCORES[score][0], "minus Adam")]
    header = ["method", "rate", "seeds", *names]
    parts = [f"### {name}", _facts(study), _tuning(study)]
    return "\n\n".join([*parts, _markdown(header, rows)] if rows else parts)


def speedup_table(stored: Mapping[str, Any], published: Sequence[Any]) -> str:
    """First crossings: the paper's, ours, and ours of a method against itself."""
    curves = {
        name: MetricCurve(curve["steps"], curve["epsilon"], curve["values"]) for name, curve in stored["curves"].items()
    }
    baseline, *others = curves
    last = len(curves[baseline].steps) - 1
    steps = [int(curves[baseline].steps[last // 2]), int(curves[baseline].steps[last])]
    rows = [
        [f"the paper: {row['task']}, {row['model']}", str(row["step"]), _published(row, "baseline"), *_theirs(row)]
        for row in published
    ]
    for null in null_speedups(curves[baseline], steps):
        half = f"speed-up {100 * null.mean:.1f} ± {100 * null.spread:.1f} %, {100 * null.never:.0f} % never"
        rows.append([f"ours: {_CURVES[baseline]}, half of its runs against the others", str(null.step), "", "", half])
    for other in others:
        for found in speedups(curves[baseline], curves[other], steps):
            crossing = "never" if found.speedup is None else f"speed-up {100 * found.speedup:.1f} %"
            accuracies = (f"{100 * mean:.1f} ± {100 * spread:.1f}" for mean, spread in (found.baseline, found.method))
            rows.append([f"ours: {_CURVES[other]}", str(found.step), *accuracies, crossing])
    header = ["setting", "step", "DP-LoRA, accuracy in %", "denoised", "first crossing of DP-LoRA's accuracy"]
    text = (
        "### First crossings: the paper's Table 1 and ours\n\n"
        "Ours is the offline recipe at one learning rate for all methods, every matrix denoised, five seeds"
        " (`results/raw/denoising-speedup.json`). A curve that is compared with itself crosses early or never:"
        " that is the scale on which to read the others."
    )
    return f"{text}\n\n{_markdown(header, rows)}"


def bound_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bounds on the decrease in one step beside the decrease."""
    text = (
        "### One step of Adam on a quadratic: three bounds and the real decrease\n\n"
        "The curvature of a real layer, means over draws, in units of what a clean SGD step guarantees"
        " (`results/raw/adam-bound-steps-paper.jsonl`). Signal: the gradient's top singular value over the threshold."
    )
    header = ["signal", "method", "cosine", "cosine_P", "decrease", "(4)", "Proposition I.1, corrected", "as printed"]
    names = ("cosine", "weighted_cosine", "improvement", "weighted_bound", "bound", "printed_bound")
    cells = [[f"{row['signal']:g}", row["method"], *(f"{row[name]:.3f}" for name in names)] for row in rows]
    return f"{text}\n\n{_markdown(header, cells)}"


def _facts(study: Mapping[str, Any]) -> str:
    changes = study["changes"]
    tried = ", ".join(f"{_NAMES[m]} {len(rates)}" for m, rates in study["tried"].items() if rates)
    length = "not measured yet" if study["step_length"] is None else f"{study['step_length']:.3f}"
    replaced = study["replaced"] or {}
    targets = changes.get("model.lora.targets", ())
    matrices = study.get("matrices") or 2 * len(targets)
    where = ", ".join(f"`{target}`" for target in targets) or "all layers"
    gate = f"; the paper's gate replaced {replaced['paper']:.2f} of {matrices} matrices per step" if replaced else ""
    return (
        f"`{study['recipe']}` at ε = {study['target_epsilon']:g}: adapters in {where},"
        f" {changes['data.limit']} training items, expected batch {changes['training.batch_size']},"
        f" {changes['training.steps']} steps, σ = {study['noise_multiplier']:.3f},"
        f" {changes['evaluation.limit']} validation items. Rates tried: {tried}. c = {length}{gate}."
    )


def _tuning(study: Mapping[str, Any]) -> str:
    # The one seed that chooses the rates; no comparison of methods by itself.
    tried = {method: losses for method, losses in study["tried"].items() if losses}
    rates = sorted({rate for losses in tried.values() for rate in losses}, key=float)
    rows = [[_NAMES[m], *(f"{x[rate]:.4f}" if rate in x else "" for rate in rates)] for m, x in tried.items()]
    return "Mean validation loss by rate, the one seed of the tuning:\n\n" + _markdown(["method", *rates], rows)


def _row(study: Mapping[str, Any], role: str) -> list[str]:
    row = study["rows"][role]
    cells = [_NAMES[role], f"{row['rate']:.3g}", str(len(row["seeds"]))]
    for score in _scores(study):
        (_, scale, digits), values = _SCORES[score], row[score]
        cells.append(f"{scale * math.fsum(values) / len(values):.{digits}f}")
        found = difference(study, role, score)
        cells.append("" if role == "none" else f"{scale * found.mean:+.{digits}f} ± {scale * found.error:.{digits}f}")
    return cells


def _scores(study: Mapping[str, Any]) -> tuple[str, ...]:
    # Of a language model there is the loss alone.
    classified = any("mean_accuracy" in row for row in study["rows"].values())
    return ("final_accuracy", "mean_accuracy", "mean_loss") if classified else ("final_loss", "mean_loss")


def _seeds(study: Mapping[str, Any]) -> int:
    # That every method has, two at least.
    counts = [len(study["rows"][role]["seeds"]) if role in study["rows"] else 0 for role in ("none", *study["tried"])]
    return min(counts) if min(counts) > 1 else 0


def _published(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name]:g} ± {row[f'{name}_spread']:g}"


def _theirs(row: Mapping[str, Any]) -> tuple[str, str]:
    speedup = f"speed-up {row['speedup']:g} %" if "speedup" in row else "none given"
    return _published(row, "denoised"), speedup


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
