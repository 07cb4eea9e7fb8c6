"""Exact against randomized clipping at equal ε: each method has the σ that its analysis asks for.

Public probes, the paper's own setting. "published charge" is Hutchinson with the noise that the published analysis asks
for; the others use this package's. All estimate the same layers with 16 probes; Hutch++ has a sketch of 16 besides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dprmt.accounting import DPSGD, Hutchinson, calibrate
from dprmt.training.recipes import Recipe, load_recipe
from paper_figures._measured import mean_row
from paper_figures._picture import picture
from paper_figures._pieces import Pieces
from paper_figures._reproduction import Found, Item, Scale
from paper_figures._verdict import Reason
from paper_figures.items._recipe_runs import SHORTER, Changes, trained

RECIPE = load_recipe("roberta-tiny-docstrings").with_changes({"evaluation.every": 5, "denoising.method": "none"})
SEEDS = {"small": 2, "long": 5}
PROBES, MARGIN = 16, 1.0
SHARED: Changes = {"privacy.norms": {"kind": "hutchinson", "probes": PROBES, "secret": False}}
STYLE = {
    "exact": "exact",
    "Hutchinson, published charge": "published",
    "Hutchinson, tight": "hutchinson",
    "Hutch++": "hutch++",
}


def variants(recipe: Recipe) -> dict[str, Changes]:
    """By what the noise is calibrated with."""
    own_noise = {"privacy.target_epsilon": None, "privacy.noise_multiplier": published_noise(recipe)}
    return {
        "exact": {"privacy.norms": "ghost"},
        "Hutchinson, published charge": SHARED | own_noise,
        "Hutchinson, tight": SHARED,
        "Hutch++": {"privacy.norms": {"kind": "hutch++", "probes": PROBES, "sketch": PROBES, "secret": False}},
    }


def published_noise(recipe: Recipe) -> float:
    """The noise multiplier that the published analysis asks for, in the recipe's sampling."""
    from dprmt.training.harness import dry_run

    privacy: Any = recipe.privacy
    rate = dry_run(recipe.with_changes(SHARED)).sample_rate
    steps = recipe.training.steps
    return calibrate(
        DPSGD(1.0, rate, Hutchinson(PROBES, secret=False, analysis="envelope")),
        steps=steps,
        target_epsilon=privacy.target_epsilon,
        delta=privacy.delta,
    ).noise_multiplier


def measure(scale: Scale, folder: Path) -> Found:
    recipe = RECIPE.with_changes(SHORTER) if scale == "small" else RECIPE
    runs = trained(Pieces(folder, "accuracy-low-budget", scale), recipe, variants(recipe), SEEDS[scale])
    exact, *methods = runs.variants
    rows = [mean_row(f"{exact}: accuracy", runs.last(exact), unit="%")]
    for method in methods:
        gaps = runs.difference(method, exact)
        claim = f"0, to {MARGIN:g} points"
        rows.append(
            mean_row(f"{method} against {exact}, paired", gaps, unit="points", claim=claim, within=(-MARGIN, MARGIN))
        )
    return Found(
        rows,
        differs="A small network on docstrings at ε = 6.7 with 16 public probes (and a sketch of 16); the paper trains"
        " Llama-3.2-1B on BBC at ε = 0.7 with 32.",
        reasons=[Reason("open", "more seeds would tell whether randomized norms cost accuracy at this ε and scale.")],
        model="RoBERTa-like, 64 wide",
        data=runs.length,
        seeds=runs.seeds,
        pictures=[picture(folder / "accuracy-low-budget.png", lambda ax: runs.draw(ax, STYLE))],
        earlier_seconds=runs.earlier_seconds,
    )


ITEM = Item(
    "accuracy-low-budget",
    "Exact against randomized clipping at equal ε",
    measure,
    ("small", "long"),
    form_only=True,
)
