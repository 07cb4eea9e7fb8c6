"""What denoising does to single steps of private training: Improvement(t), layers by κ and by shape, and its time.

Figures 2, 4, 6 to 11 and Table 3, in their form: MiniLM with LoRA, on the docstrings of Python and on SST-2's files.
All items read the same steps, which belong to the first of them. Steps of a run share its weights: intervals are over
seeds, except for shares of steps and for layers of one shape, whose noise is each its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np

from dprmt.training.recipes import Recipe, load_recipe
from paper_figures._measured import ABOVE_ZERO, exact_row, mean_row, share_row
from paper_figures._needs import data_file, missing_files
from paper_figures._picture import COLORS, MARKERS, STYLES, picture
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason

OWNER = "improvement"
SST2 = ("sst2/train.tsv", "sst2/dev.tsv")
MODEL = "all-MiniLM-L6-v2 with LoRA, r = 16"
SMALL_SEEDS, LONG_SEEDS, LONG_FIRST = (0, 1), (0, 1, 2, 3), 4
FEWEST_LAYERS = 10
"""For a verdict on the share of them that improve."""
DIFFERS = {
    "small": "A sentence encoder, smaller batches, a few steps; the paper trains RoBERTa and LLMs, batches of 2,000.",
    "long": f"A sentence encoder and the first {LONG_FIRST} steps, with the noise of all of them: of 400 on SST-2, in"
    " batches of 2,000 as in the paper, which trains RoBERTa and LLMs; of 30 on docstrings, in batches of 512.",
}
REASONS = (
    Reason(
        "tested",
        "there is next to nothing to denoise. At ε = 6.7 no adapter's clean top reaches the detection threshold on"
        " SST-2 in batches of 1,024, and on docstrings in batches of 512 none of 4 does at the start, 3 of 8 do after"
        " 30 steps. Nor would the paper's own length, batch and data open the gate for"
        " these gradients: with 2,000 of 67,349 sentences and 400 steps the median LoRA B is at 0.089 of the threshold,"
        " after 40 steps at 0.12, and all sentences in one batch at 0.17 and 0.22. What RoBERTa's own gradients are"
        " like was not measured.",
        "git worktree add closed da72f65; cd closed; python -m paper_figures study gate-map page",
    ),
)

Steps = list[dict[str, Any]]


Measure = Callable[[Scale, Path], Found]


def where_files_are(measure: Measure) -> Measure:
    """Says what is missing where the longer runs have no files; the small ones leave SST-2 out."""

    @wraps(measure)
    def measured(scale: Scale, folder: Path) -> Found:
        absent = missing_files(*SST2) if scale == "long" else ""
        return Found([], "", missing=absent) if absent else measure(scale, folder)

    return measured


def recipes(scale: Scale) -> dict[str, tuple[Recipe, Sequence[int]]]:
    """What is trained, by the name of the data."""
    if scale == "long":
        return {"SST-2": (_sst2({}), LONG_SEEDS), "docstrings": (load_recipe("minilm-docstrings"), LONG_SEEDS)}
    docstrings = load_recipe("minilm-docstrings").with_changes({"training.batch_size": 128, "training.steps": 6})
    found: dict[str, tuple[Recipe, Sequence[int]]] = {"docstrings": (docstrings, SMALL_SEEDS)}
    if not missing_files(*SST2):
        found["SST-2"] = _sst2({"training.batch_size": 64, "training.steps": 6, "data.max_tokens": 32}), SMALL_SEEDS
    return found


def _sst2(changes: dict[str, Any]) -> Recipe:
    train, validation = ([str(data_file(name))] for name in SST2)
    files = {"data.train": train, "data.validation": validation, "data.test": []}
    return load_recipe("minilm-sst2").with_changes(files | changes)


def probed(folder: Path, scale: Scale) -> tuple[dict[str, list[Steps]], Pieces]:
    """The steps of all runs by data, one list a seed."""
    from paper_figures.items._denoised_steps import probed_steps

    pieces, chosen = Pieces(folder, OWNER, scale), recipes(scale)
    first = LONG_FIRST if scale == "long" else None
    tasks: dict[str, Callable[[], Any]] = {
        f"{data}, seed {seed}": partial(probed_steps, recipe, seed, first)
        for data, (recipe, seeds) in chosen.items()
        for seed in seeds
    }
    found = pieces.measure(tasks)
    return {data: [found[f"{data}, seed {seed}"] for seed in seeds] for data, (_, seeds) in chosen.items()}, pieces


def improvements(runs: Sequence[Steps], kappa: float, *, norm_correction: bool = True) -> np.ndarray:
    """Improvement(t), shape (seeds, steps)."""
    at = 0 if norm_correction else 1
    return np.array([[step["improvement"][f"{kappa:g}"][at] for step in run] for run in runs])


def layers(runs: Sequence[Steps]) -> np.ndarray:
    """All layers above the bulk edge at all steps: columns m, n, λ₁ over the edge, improvement."""
    return np.array([layer for run in runs for step in run for layer in step["layers"]])


def _seen(scale: Scale, runs: Mapping[str, Sequence[Steps]]) -> Reason:
    """What there was to denoise in these runs themselves."""
    parts = []
    for data, of_data in runs.items():
        layers_seen = [layer for run in of_data for step in run for layer in step["spectra"] if layer["denoised"]]
        signals = np.array([layer["signal"] for layer in layers_seen])
        parts.append(f"on {data} {(signals >= 1).sum()} of {len(signals)}, the strongest at {signals.max():.2g}")
    text = f"clean gradients of adapters, one a layer and step, that reach the detection threshold: {'; '.join(parts)}"
    return Reason("tested", f"{text} of it.", f"python -m paper_figures run {OWNER} --scale {scale}")


def _found(
    scale: Scale,
    rows: Sequence[Row],
    runs: Mapping[str, Sequence[Steps]],
    picture_name: str,
    pieces: Pieces | None = None,
) -> Found:
    return Found(
        rows,
        DIFFERS[scale],
        reasons=(_seen(scale, runs), *REASONS),
        model=MODEL,
        data=", ".join(runs),
        seeds=max(map(len, runs.values())),
        pictures=[picture_name] if picture_name else [],
        earlier_seconds=pieces.earlier_seconds if pieces else 0.0,
    )


def _of_signs(label: str, values: np.ndarray) -> list[Row]:
    """Mean and least of Improvement over all steps of all runs; "positive throughout" is about the least."""
    against: dict[str, Any] = {"within": ABOVE_ZERO}
    return [
        mean_row(f"{label}: mean Improvement", values.mean(1), claim="> 0", **against),
        exact_row(
            f"{label}: least Improvement of {values.size} steps", values.min(), claim="positive throughout", **against
        ),
        share_row(f"{label}: share of steps with Improvement > 0", values.ravel() > 0),
    ]


@where_files_are
def over_steps(scale: Scale, folder: Path) -> Found:
    """Figures 2 and 11."""
    runs, pieces = probed(folder, scale)
    first = next(iter(runs))
    kappa = published("kappa-sweep").setting["chosen"]
    curves = {
        "denoised, norm kept": improvements(runs[first], kappa),
        "denoised": improvements(runs[first], kappa, norm_correction=False),
    }
    labels = {"denoised, norm kept": "with norm correction", "denoised": "without"}

    def draw(ax: Any) -> None:
        steps = np.arange(1, curves["denoised"].shape[1] + 1)
        for name, values in curves.items():
            mean, spread = values.mean(0), values.std(0, ddof=1)
            ax.plot(steps, mean, marker="o", markersize=3, label=labels[name], **STYLES[name])
            ax.fill_between(steps, mean - spread, mean + spread, alpha=0.15, color=STYLES[name]["color"], linewidth=0)
        ax.axhline(0, color="0.5", linewidth=0.8)
        ax.set(xlabel="step t", ylabel="Improvement(t), difference of cosines")
        ax.legend(frameon=False)

    rows = _of_signs(f"{first}, with norm correction", curves["denoised, norm kept"])
    without = curves["denoised"]
    rows.append(mean_row(f"{first}, without: mean Improvement", without.mean(1)))
    rows.append(share_row(f"{first}, without: share of steps with Improvement > 0", without.ravel() > 0))
    cosines = [np.mean([step["noisy"] for step in run]) for run in runs[first]]
    rows.append(mean_row(f"{first}: cosine of the noisy with the clean gradient", cosines))
    name = picture(folder / "improvement.png", draw)
    return _found(scale, rows, runs, name, pieces)


@where_files_are
def by_kappa(scale: Scale, folder: Path) -> Found:
    """Figures 4 and 6 to 8."""
    from dprmt.plots import plot_kappa_sweep

    runs, _ = probed(folder, scale)
    paper = published("kappa-sweep")
    kappas = [float(row["kappa"]) for row in paper.rows]
    improved, passed, rows = {}, {}, []
    for data, of_data in runs.items():
        all_layers = layers(of_data)
        gates = [all_layers[all_layers[:, 2] >= kappa] for kappa in kappas]
        improved[data] = [float((gate[:, 3] > 0).mean()) if len(gate) else np.nan for gate in gates]
        passed[data] = [len(gate) / len(all_layers) for gate in gates]
        for kappa, gate in zip(kappas, gates, strict=True):
            chosen = kappa == paper.setting["chosen"] and len(gate) >= FEWEST_LAYERS
            against: dict[str, Any] = {"claim": "more than half", "within": (0.5, 1.0)} if chosen else {}
            label = f"{data}, κ = {kappa:g}: share of the {len(gate)} denoised layers that improve"
            rows.append(share_row(label, gate[:, 3] > 0, **against))

    def draw(ax: Any) -> None:
        plot_kappa_sweep(kappas, improved, passed=passed, kappa=paper.setting["chosen"], ax=ax)

    return _found(scale, rows, runs, picture(folder / "kappa-sweep.png", draw))


@where_files_are
def by_shape(scale: Scale, folder: Path) -> Found:
    """Figure 9."""
    runs, _ = probed(folder, scale)
    all_layers = np.concatenate([layers(of_data) for of_data in runs.values()])
    shapes = sorted({(int(m), int(n)) for m, n in all_layers[:, :2]})
    chosen = {shape: all_layers[(all_layers[:, 0] == shape[0]) & (all_layers[:, 1] == shape[1])] for shape in shapes}

    def draw(ax: Any) -> None:
        for (shape, points), color, marker in zip(chosen.items(), COLORS, MARKERS, strict=False):
            label = f"{shape[0]} × {shape[1]}"
            ax.scatter(points[:, 2], points[:, 3], s=12, color=color, marker=marker, alpha=0.7, label=label)
        ax.axhline(0, color="0.5", linewidth=0.8)
        ax.set(xlabel="λ₁ over the bulk edge", ylabel="improvement of the layer, in cosine")
        ax.legend(frameon=False, fontsize=8, title="shape")

    rows = []
    for shape, points in chosen.items():
        label = f"{shape[0]} × {shape[1]}: mean improvement of {len(points)} layers above the edge"
        rows.append(mean_row(label, points[:, 3]))
    for data, of_data in runs.items():
        label = f"{data}: mean improvement of the half with the larger λ₁, less that of the other half"
        gaps = [_growth(layers([run])) for run in of_data]
        rows.append(mean_row(label, gaps, claim="> 0: it grows with λ₁", within=ABOVE_ZERO))
    return _found(scale, rows, runs, picture(folder / "improvement-by-shape.png", draw))


def _growth(of_layers: np.ndarray) -> float:
    """Mean improvement of the half of the layers with the larger λ₁, less that of the other half."""
    low, high = np.array_split(of_layers[np.argsort(of_layers[:, 2]), 3], 2)
    return float(high.mean() - low.mean())


@where_files_are
def by_data(scale: Scale, folder: Path) -> Found:
    """Figure 10."""
    runs, _ = probed(folder, scale)
    kappa = published("kappa-sweep").setting["chosen"]
    curves = {data: improvements(of_data, kappa) for data, of_data in runs.items()}

    def draw(ax: Any) -> None:
        for (data, values), color, marker in zip(curves.items(), COLORS, MARKERS, strict=False):
            steps = np.arange(1, values.shape[1] + 1)
            ax.plot(steps, values.mean(0), color=color, marker=marker, markersize=4, label=data)
        ax.axhline(0, color="0.5", linewidth=0.8)
        ax.set(xlabel="step t", ylabel="Improvement(t), difference of cosines")
        ax.legend(frameon=False)

    rows = [row for data, values in curves.items() for row in _of_signs(data, values)]
    return _found(scale, rows, runs, picture(folder / "improvement-by-data.png", draw))


@where_files_are
def overhead(scale: Scale, folder: Path) -> Found:
    """Table 3; a verdict only where batches have the paper's size."""
    runs, _ = probed(folder, scale)
    paper, rows = published("overhead"), []
    for data, (recipe, _) in recipes(scale).items():
        seconds = [[step["seconds"] for step in run[1:]] for run in runs[data]]  # the first one sets things up
        size = recipe.training.batch_size
        took = [np.mean([entry["step"] for entry in run]) for run in seconds]
        rows.append(mean_row(f"{data}: a training step, batches of {size}", took, unit="CPU s"))
        for method in ("one by one", "batched"):
            shares = [np.mean([100 * entry[method] / entry["step"] for entry in run]) for run in seconds]
            against: dict[str, Any] = {}
            if size == 2000:
                printed = paper.number("overhead", model="RoBERTa-base", method=method)
                claim = f"at most the printed {printed:g} %"
                against = {"claim": claim, "within": (0.0, float(printed)), "cells": (printed.key,)}
            rows.append(mean_row(f"{data}, {method}: share of a step of {size}", shares, unit="%", **against))
    return _found(scale, rows, runs, "")


SCALES: tuple[Scale, ...] = ("small", "long")
ITEM = Item(OWNER, "Improvement with and without norm correction", over_steps, SCALES, form_only=True)
ITEMS = (
    ITEM,
    Item("kappa-sweep", "Layers that improve, by κ", by_kappa, SCALES, True, ITEM),
    Item("improvement-by-shape", "Improvement of layers by shape", by_shape, SCALES, True, ITEM),
    Item("improvement-by-data", "Improvement on several data sets", by_data, SCALES, True, ITEM),
    Item("overhead", "Denoising as a share of a training step", overhead, SCALES, True, ITEM),
)
