"""DP-GRAPE against DP-Adam at equal ε, full fine-tuning of the offline recipe from random weights.

The network is 64 wide, so ranks of 16 and 32 keep a quarter and a half of its square layers. With F = 100 the subspace
stays the same over the run.
"""

from __future__ import annotations

import math
from pathlib import Path

from dprmt.training.recipes import load_recipe
from paper_figures._measured import mean_row
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Scale
from paper_figures._verdict import Reason
from paper_figures.items._recipe_runs import SHORTER, Changes, trained

PAPER = published("grape-accuracy")
RECIPE = load_recipe("roberta-tiny-docstrings").with_changes({"evaluation.every": 5, "denoising.method": "none"})
SEEDS = {"small": 2, "long": 15}
RANKS = (16, 32)
PLAIN: Changes = {"optimizer.name": "adam", "optimizer.weight_decay": 0.0}


def variants(scale: Scale) -> dict[str, Changes]:
    """DP-Adam, DP-GRAPE of every rank, and at small scale with a new subspace every ten steps too."""
    chosen = [(rank, 100) for rank in RANKS] + ([(RANKS[0], 10)] if scale == "small" else [])
    grape = PLAIN | {"optimizer.name": "grape"}
    return {"DP-Adam": PLAIN} | {
        f"DP-GRAPE, r = {rank}, F = {every}": grape | {"optimizer.rank": rank, "optimizer.refresh_every": every}
        for rank, every in chosen
    }


def measure(scale: Scale, folder: Path) -> Found:
    recipe = RECIPE.with_changes(SHORTER) if scale == "small" else RECIPE
    runs = trained(Pieces(folder, "grape-accuracy", scale), recipe, variants(scale), SEEDS[scale])
    baseline, *methods = runs.variants
    allowed = PAPER.number("value", quantity="points")
    rows = [mean_row(f"{baseline}: accuracy", runs.last(baseline), unit="%")]
    for method in methods:
        behind = -runs.difference(method, baseline)
        label = f"{method}: points behind {baseline}, paired"
        against = {"claim": f"at most {allowed:g}", "within": (-math.inf, float(allowed)), "cells": (allowed.key,)}
        rows.append(mean_row(label, behind, unit="points", **against))
    return Found(
        rows,
        differs="A network 64 wide, trained from random weights on docstrings; the paper fine-tunes networks ten times"
        " as wide.",
        reasons=[Reason("open", "rank over width, training from random weights, and one learning rate for all.")],
        model="RoBERTa-like, 64 wide",
        data=runs.length,
        seeds=runs.seeds,
        earlier_seconds=runs.earlier_seconds,
    )


ITEM = Item("grape-accuracy", "DP-GRAPE against DP-Adam", measure, ("small", "long"), form_only=True)
