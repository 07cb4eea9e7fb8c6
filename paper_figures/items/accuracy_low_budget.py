"""Exact against randomized clipping at equal ε: each method has the σ that its analysis asks for.

Shared probes, the paper's own setting. "published charge" is Hutchinson with the noise that the published analysis asks
for; the others use this package's. All estimate the same layers with 16 probes; Hutch++ has a sketch of 16 besides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dprmt.accounting import calibrate_noise_multiplier
from dprmt.training.recipes import Recipe, load_recipe
from paper_figures._picture import picture
from paper_figures._pieces import Pieces
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._paired_runs import SHORTER, Changes, trained

RECIPE = load_recipe("roberta-tiny-docstrings").with_changes({"evaluation.every": 5, "denoising.method": "none"})
SEEDS = {"small": 2, "long": 5}
PROBES = 16
SHARED: Changes = {"privacy.clipping": "hutchinson", "privacy.probes": PROBES, "privacy.probe_sharing": "batch"}
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
        "exact": {"privacy.clipping": "ghost"},
        "Hutchinson, published charge": SHARED | own_noise,
        "Hutchinson, tight": SHARED,
        "Hutch++": SHARED | {"privacy.clipping": "hutch++", "privacy.sketch": PROBES},
    }


def published_noise(recipe: Recipe) -> float:
    """The noise multiplier that the published analysis asks for, in the recipe's sampling."""
    from dprmt.training.harness import dry_run

    privacy: Any = recipe.privacy
    rate = dry_run(recipe.with_changes(SHARED)).sample_rate
    steps = recipe.training.steps
    return calibrate_noise_multiplier(
        privacy.target_epsilon, privacy.delta, rate, steps, probes=PROBES, analysis="envelope"
    )


def measure(scale: Scale, folder: Path) -> Found:
    recipe = RECIPE.with_changes(SHORTER) if scale == "small" else RECIPE
    runs = trained(Pieces(folder, "accuracy-low-budget", scale), recipe, variants(recipe), SEEDS[scale])
    exact, *methods = runs.variants
    rows = [Row(f"{exact}: accuracy", float(runs.last(exact).mean()), unit="%")]
    for method in methods:
        gain, error = runs.difference(method, exact)
        label = f"{method} against {exact}, paired, ± {error:.2g}"
        rows.append(Row(label, gain, unit="points", claim="within two errors of 0", holds=abs(gain) <= 2 * error))
    return Found(
        rows,
        differs="A small network on docstrings at ε = 6.7 with 16 shared probes (and a sketch of 16); the paper trains"
        " Llama-3.2-1B on BBC at ε = 0.7 with 32.",
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
