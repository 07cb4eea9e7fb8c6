"""Exact against randomized clipping at ε = 0.7, 2 and 9, public probes, with the published charge and the tight one.

At paper scale the recipes of Llama-3.2-1B on BBC, BillSum and HotpotQA, which need weights, files and a GPU; at small
scale a perceptron on scikit-learn's digits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dprmt.accounting import DPSGD, Hutchinson, calibrate
from dprmt.training.recipes import Recipe, load_recipe
from paper_figures._measured import mean_row
from paper_figures._needs import all_missing, data_file, missing_files, missing_gpu, missing_weights
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason
from paper_figures.items._recipe_runs import run_variants, scores

PAPER = published("accuracy-llama")
PROBES = int(PAPER.setting["probes"])
EPSILONS, SEEDS = (0.7, 2.0, 9.0), (0, 1)
STEPS, BATCH, TRAIN, RATE = 60, 140, 1400, 1e-2
METHODS = ("exact", "published charge", "tight")
TASKS = {
    "BBC": ("llama-3.2-1b-bbc-4096", "accuracy", ()),
    "BillSum": ("llama-3.2-1b-billsum-4096", "rouge_1", ("billsum/train.jsonl", "billsum/test.jsonl")),
    "HotpotQA": ("llama-3.2-1b-hotpotqa-4096", "exact_match", ("hotpotqa/train.jsonl", "hotpotqa/test.jsonl")),
}


def measure(scale: Scale, folder: Path) -> Found:
    return _digits(folder) if scale == "small" else _llama(folder)


def privacy(method: str, epsilon: float, delta: float, rate: float, steps: int) -> dict[str, Any]:
    """The section of a recipe: each method has the noise that its analysis asks for."""
    shared: dict[str, Any] = {"norms": {"kind": "hutchinson", "probes": PROBES, "secret": False}}
    if method == "published charge":
        published = DPSGD(1.0, rate, Hutchinson(PROBES, secret=False, analysis="envelope"))
        found = calibrate(published, steps=steps, target_epsilon=epsilon, delta=delta)
        return shared | {"noise_multiplier": found.noise_multiplier}
    return ({"norms": "ghost"} if method == "exact" else shared) | {"target_epsilon": epsilon}


def _digits(folder: Path) -> Found:
    pieces = Pieces(folder, "accuracy-llama", "small")
    found = pieces.measure({_name(m, e, s): _run(m, e, s) for e in EPSILONS for s in SEEDS for m in METHODS})
    rows = []
    for epsilon in EPSILONS:
        exact, *others = (np.array([found[_name(m, epsilon, s)] for s in SEEDS]) for m in METHODS)
        rows.append(mean_row(f"ε = {epsilon:g}, exact: accuracy", exact, unit="%"))
        for method, values in zip(METHODS[1:], others, strict=True):
            label = f"ε = {epsilon:g}, {method}: points against exact, paired"
            rows.append(mean_row(label, values - exact, unit="points"))
    return Found(
        rows,
        differs=f"{PROBES} public probes as in the paper, on a small network and images; the paper's own"
        f" {len(PAPER.rows)} numbers need its weights (`--scale paper` says what is missing).",
        model="perceptron of three layers, two of them estimated",
        data="scikit-learn's digits",
        seeds=len(SEEDS),
        earlier_seconds=pieces.earlier_seconds,
    )


def _name(method: str, epsilon: float, seed: int) -> str:
    return f"{method}, ε = {epsilon:g}, seed {seed}"


def _run(method: str, epsilon: float, seed: int) -> Callable[[], float]:
    from paper_figures.items._projected_runs import DELTA, digits, perceptron, train_once

    def run() -> float:
        return train_once(
            perceptron(64, 10, seed),
            digits(),
            optimizer={"name": "adam", "learning_rate": RATE},
            privacy=privacy(method, epsilon, DELTA, BATCH / TRAIN, STEPS),
            steps=STEPS,
            batch=BATCH,
            seed=seed,
        )

    return run


def _llama(folder: Path) -> Found:
    recipes = {task: load_recipe(name) for task, (name, _, _) in TASKS.items()}
    files = [file for *_, needed in TASKS.values() for file in needed]
    source = str(recipes["BBC"].model.source)
    missing = all_missing(missing_weights(source), missing_files(*files), missing_gpu())
    if missing:
        return Found([], "", missing=missing)
    pieces = Pieces(folder, "accuracy-llama", "paper")
    return Found(
        [row for task in TASKS for row in _rows_of(task, recipes[task], pieces)],
        differs="Clipping norm, learning rate, batch size and steps are not known.",
        reasons=[Reason("open", "any of the settings that are not known.")],
        model=source,
        data=", ".join(TASKS),
        seeds=len(SEEDS),
        earlier_seconds=pieces.earlier_seconds,
    )


def _rows_of(task: str, recipe: Recipe, pieces: Pieces) -> list[Row]:
    _, metric, needed = TASKS[task]
    files = {
        f"data.{split}": [str(data_file(name))] for split, name in zip(("train", "validation"), needed, strict=False)
    }
    settings = [
        (epsilon, method, norms)
        for epsilon in (9.0, 2.0)
        for method, norms in (("exact", "ghost"), ("hutchinson", recipe.to_dict()["privacy"]["norms"]))
    ]
    variants = {
        f"{task}, {method}, ε = {epsilon:g}": {"privacy.norms": norms, "privacy.target_epsilon": epsilon}
        for epsilon, method, norms in settings
    }
    runs = run_variants(pieces, recipe.with_changes(files), variants, SEEDS)
    rows, factor = [], 1.0 if metric == "rouge_1" else 100.0
    for (label, found), (epsilon, method, _) in zip(runs.items(), settings, strict=True):
        printed = PAPER.number("value", task=task, method=method, epsilon=epsilon)
        ours = factor * scores(found, metric)[:, -1]
        rows.append(mean_row(label, ours, published=printed, margin=0.02 * printed))
    return rows


ITEM = Item("accuracy-llama", "Randomized clipping at ε = 0.7, 2 and 9", measure, ("small", "paper"), form_only=True)
