"""Validation loss with noise and with clipping only (Figures 1 and 5): what the noise costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dprmt.training.recipes import load_recipe
from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._needs import all_missing, missing_gpu, missing_weights
from paper_figures._picture import STYLES, draw_band, picture
from paper_figures._pieces import Pieces
from paper_figures._reproduction import Found, Item, Scale
from paper_figures.items._recipe_runs import run_variants, scores

PUBLIC = {"privacy.target_epsilon": None, "privacy.clip_only": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "with noise": {},
    "clip only, no privacy": PUBLIC,
    "neither, no privacy": PUBLIC | {"privacy.clipping_norm": 1e9},
}
LOOKS = dict(zip(VARIANTS, (STYLES["noisy"], STYLES["clipped"], STYLES["clean"]), strict=True))
SHORTER = {"training.steps": 40, "training.batch_size": 256, "evaluation.every": 5, "evaluation.limit": 400}
RECIPES = {"small": "roberta-tiny-docstrings", "paper": "roberta-base-sst2"}
SEEDS = {"small": (0, 1, 2), "paper": (0, 1, 2)}


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

    noisy, clipped, plain = (values[:, -1] for values in losses.values())
    noise, clipping = noisy - clipped, clipped - plain
    return Found(
        [
            *(mean_row(f"last validation loss, {name}", values[:, -1], unit="nats") for name, values in losses.items()),
            mean_row("what the noise costs, paired", noise, unit="nats", claim="> 0", within=ABOVE_ZERO),
            mean_row("what clipping costs without noise, paired", clipping, unit="nats"),
            mean_row(
                "the noise's cost less that of clipping, paired",
                noise - clipping,
                unit="nats",
                claim="> 0: the noise, not the clipping, is what costs",
                within=ABOVE_ZERO,
            ),
        ],
        differs=f"{recipe.name} with ε ≤ {recipe.privacy.target_epsilon:g}; the paper trains RoBERTa on GLUE. Clipping"
        " only is no private run and has no ε; nor is that without either, whose clipping norm is 1e9.",
        model=f"{recipe.model.architecture or recipe.model.source}, {recipe.model.finetune}",
        data=f"{recipe.data.source}, {recipe.training.steps} steps of {recipe.training.batch_size}",
        seeds=len(SEEDS[scale]),
        pictures=[picture(folder / "clip-only.png", draw)],
        earlier_seconds=pieces.earlier_seconds,
    )


ITEM = Item("clip-only", "Validation loss, noise against clipping only", measure, ("small", "paper"), form_only=True)
