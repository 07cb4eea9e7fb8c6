"""Validation loss with noise and with clipping only (Figures 1 and 5): what the noise costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dprmt.training.recipes import load_recipe
from paper_figures._needs import all_missing, missing_gpu, missing_weights
from paper_figures._picture import STYLES, picture
from paper_figures._pieces import Pieces
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._recipe_runs import draw_band, paired, run_variants, scores

VARIANTS = {
    "with noise": {},
    "clip only, no privacy": {"privacy.target_epsilon": None, "privacy.clip_only": True},
}
LOOKS = {"with noise": STYLES["noisy"], "clip only, no privacy": STYLES["clipped"]}
SHORTER = {"training.steps": 40, "training.batch_size": 256, "evaluation.every": 5, "evaluation.limit": 400}
RECIPES = {"small": "roberta-tiny-docstrings", "paper": "roberta-base-sst2"}
SEEDS = {"small": (0, 1), "paper": (0, 1, 2)}


def measure(scale: Scale, folder: Path) -> Found:
    changes = {"denoising.method": "none", **(SHORTER if scale == "small" else {})}
    recipe = load_recipe(RECIPES[scale]).with_changes(changes)
    missing = all_missing(missing_weights(str(recipe.model.source)), missing_gpu()) if scale == "paper" else ""
    if missing:
        return Found([], "", missing=missing)
    pieces = Pieces(folder, "clip-only", scale)
    runs = run_variants(pieces, recipe, VARIANTS, SEEDS[scale])
    losses = {name: scores(found, "loss") for name, found in runs.items()}
    steps = runs["with noise"][0]["steps"]

    def draw(ax: object) -> None:
        for name, values in losses.items():
            draw_band(ax, steps, values, name, LOOKS[name])
        ax.set(xlabel="step", ylabel="validation loss in nats")  # type: ignore[attr-defined]
        ax.legend(frameon=False)  # type: ignore[attr-defined]

    noisy, clean = losses.values()
    cost, error = paired(noisy, clean)
    at_least_after = float(np.mean((noisy.mean(0) - clean.mean(0))[1:] > 0))
    label = f"last loss with noise less that of clipping only, paired, ± {error:.2g}"
    return Found(
        [
            Row("last validation loss, with noise", float(noisy[:, -1].mean()), unit="nats"),
            Row("last validation loss, clipping only", float(clean[:, -1].mean()), unit="nats"),
            Row(label, cost, unit="nats", claim="> 0: the noise, not the clipping, is what costs", holds=cost > 0),
            Row("share of the later evaluations at which noise is behind", at_least_after),
        ],
        differs=f"{recipe.name} with ε ≤ {recipe.privacy.target_epsilon:g}; the paper trains RoBERTa on GLUE. Clipping"
        " only is no private run and has no ε.",
        model=f"{recipe.model.architecture or recipe.model.source}, {recipe.model.finetune}",
        data=f"{recipe.data.source}, {recipe.training.steps} steps of {recipe.training.batch_size}",
        seeds=len(SEEDS[scale]),
        pictures=[picture(folder / "clip-only.png", draw)],
        earlier_seconds=pieces.earlier_seconds,
    )


ITEM = Item("clip-only", "Validation loss, noise against clipping only", measure, ("small", "paper"), form_only=True)
