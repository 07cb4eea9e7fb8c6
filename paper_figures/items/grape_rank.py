"""Accuracy and memory of DP-GRAPE against the rank, 8 … 128."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from paper_figures._measured import mean_row
from paper_figures._picture import STYLES, picture
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale

PAPER = published("grape-rank")
RANKS = (8, 16, 32, 64, 128)
SEEDS = {"small": (0, 1, 2, 3, 4), "long": tuple(range(10))}
RATES = {"small": (6e-3, 2e-2, 6e-2), "long": (3e-3, 6e-3, 1e-2, 2e-2, 3e-2, 6e-2)}
TUNED_ON = {"small": (1000,), "long": (1000, 1001, 1002)}
"""Seeds that are not reported; of several the mean decides."""
EPSILON, BATCH, STEPS = 2.0, 140, 100
SHAPES = ((64, 256), (256, 128), (128, 10))  # of the perceptron's weights
METHODS: dict[str, dict[str, Any]] = {
    "DP-Adam": {"name": "adam"},
    **{f"r = {rank}": {"name": "grape", "rank": rank, "refresh_every": 25} for rank in RANKS},
}


def kept(rank: int | None) -> int:
    """Numbers per sample: Σ r·n with the longer side projected, Σ m·n without a projection."""
    sides = [(max(shape), min(shape)) for shape in SHAPES]
    return sum((m if rank is None else min(rank, m)) * n for m, n in sides)


def measure(scale: Scale, folder: Path) -> Found:
    pieces, seeds, rates = Pieces(folder, "grape-rank", scale), SEEDS[scale], RATES[scale]
    tried = pieces.measure({_name(m, r, s): _run(m, r, s) for m in METHODS for r in rates for s in TUNED_ON[scale]})
    rate = {m: max(rates, key=lambda r: sum(tried[_name(m, r, s)] for s in TUNED_ON[scale])) for m in METHODS}
    found = pieces.measure({_name(m, rate[m], seed): _run(m, rate[m], seed) for m in METHODS for seed in seeds})
    accuracy = {m: np.array([found[_name(m, rate[m], seed)] for seed in seeds]) for m in METHODS}

    def draw(axes: np.ndarray) -> None:
        by_rank = np.array([accuracy[f"r = {rank}"] for rank in RANKS])
        axes[0].errorbar(
            RANKS,
            by_rank.mean(1),
            by_rank.std(1, ddof=1),
            marker="o",
            markersize=4,
            label="DP-GRAPE",
            **STYLES["DP-GRAPE"],
        )
        axes[0].axhline(accuracy["DP-Adam"].mean(), label="DP-Adam", **STYLES["DP-Adam"])
        axes[0].set(ylabel=f"test accuracy at ε = {EPSILON:g}, %")
        axes[0].legend(frameon=False, loc="lower right")
        saved = [100 * (1 - kept(rank) / kept(None)) for rank in RANKS]
        axes[1].plot(RANKS, saved, marker="o", markersize=4, **STYLES["DP-GRAPE"])
        axes[1].set(ylabel="per-sample gradients saved, %")
        for ax in axes:
            ax.set_xscale("log", base=2)
            ax.set_xticks(RANKS, [str(rank) for rank in RANKS])
            ax.set_xlabel("rank r")

    return Found(
        [*[row for method in METHODS for row in _rows(method, rate[method], accuracy)], *_neighbours(accuracy)],
        differs="A perceptron on small images; the paper names the ranks"
        f" {PAPER.number('rank', quantity='rank, smallest'):g} to {PAPER.number('rank', quantity='rank, largest'):g}"
        " for its transformers. Memory is counted: the weights' per-sample gradients.",
        model="perceptron, 64 → 256 → 128 → 10",
        data="scikit-learn's digits",
        seeds=len(seeds),
        pictures=[picture(folder / "grape-rank.png", draw, panels=2)],
        earlier_seconds=pieces.earlier_seconds,
    )


def _rows(method: str, rate: float, accuracy: dict[str, np.ndarray]) -> list[Row]:
    where = f"{method} (η = {rate:g})"
    if method == "DP-Adam":
        return [mean_row(f"{where}: accuracy", accuracy[method], unit="%")]
    rows = [mean_row(f"{where}: points behind DP-Adam, paired", accuracy["DP-Adam"] - accuracy[method])]
    if method.startswith("r = "):
        saved = 100 * (1 - kept(METHODS[method]["rank"]) / kept(None))
        rows.append(Row(f"{method}: per-sample gradients saved", saved, unit="%"))
    return rows


def _neighbours(accuracy: dict[str, np.ndarray]) -> list[Row]:
    # Whether a rank that is ahead of a larger one is told from it; and the two furthest apart.
    return [
        mean_row(
            f"points by which r = {larger} is ahead of r = {rank}, paired",
            accuracy[f"r = {larger}"] - accuracy[f"r = {rank}"],
        )
        for rank, larger in (*pairwise(RANKS), (RANKS[0], RANKS[-1]))
    ]


def _name(method: str, rate: float, seed: int) -> str:
    return f"{method}, lr = {rate:g}, seed {seed}"


def _run(method: str, rate: float, seed: int) -> Callable[[], float]:
    from paper_figures.items._projected_runs import digits, perceptron, train_once

    return lambda: train_once(
        perceptron(64, 10, seed),
        digits(),
        optimizer={"learning_rate": rate, **METHODS[method]},
        privacy={"target_epsilon": EPSILON},
        steps=STEPS,
        batch=BATCH,
        seed=seed,
    )


ITEM = Item("grape-rank", "Accuracy and memory by rank", measure, ("small", "long"), form_only=True)
