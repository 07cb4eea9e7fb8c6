"""The command ``train``: run a recipe, continue it, or say what it would do."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprmt import __version__
from dprmt._files import parse_toml, strict_json
from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD
from dprmt.cli._changes import add_changes, recipe_changes
from dprmt.cli._options import Commands, UsageError, add_command_with, name_of
from dprmt.cli._recipe_records import CONFIG, FROM_RECORD, how_to_install_for, recipe_of, recipe_record
from dprmt.statements import round_up

if TYPE_CHECKING:
    from dprmt.training.harness import DryRun, TrainingResult
    from dprmt.training.recipes import Recipe

_COMMAND = "dprmt train"
_OPTIONS = ("out", "resume", "noise_seed", "set", "device", "secure", "tensorboard", "from_json")
NO_PRIVACY = "clip only, no privacy: no noise was or would be added, and no ε is stated"
_LAYERS_SHOWN = 8
_EXAMPLES = """\
examples:
  dprmt train minilm-docstrings --dry-run
  dprmt train minilm-docstrings --out runs/first
  dprmt train --resume runs/first
  dprmt train recipe.toml --set training.steps=100 --set privacy.target_epsilon=2
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    parser = add_command_with(commands, "train", (FROM_RECORD,), run_train, _EXAMPLES)
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        nargs="?",
        type=name_of("a recipe"),
        help="a .toml file, or the name of one that comes with dprmt",
    )
    parser.add_argument("--out", metavar="DIR", type=name_of("a folder"), help="the run folder; runs/NAME by default")
    parser.add_argument(
        "--resume",
        metavar="DIR",
        nargs="?",
        const=True,
        default=False,
        type=name_of("a folder"),
        help="continue the run in this folder, as its config.toml says, with fresh noise; or that of RECIPE and --out",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done: shapes, noise, ε")
    add_changes(parser)
    parser.add_argument("--noise-seed", metavar="N", help="repeatable noise, for studies: known noise protects nobody")
    parser.add_argument("--secure", action="store_true", help="noise and coins from a cipher (privacy.secure)")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, …; a GPU if there is one by default")
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard events too")


def run_train(namespace: argparse.Namespace) -> None:
    """A run of a recipe, its continuation, or what it would do."""
    try:
        from dprmt.training.harness import SilentParameterError, dry_run, train
        from dprmt.training.recipes import load_recipe
    except ModuleNotFoundError as error:
        raise UsageError(f"{_COMMAND}: needs {error.name}: {how_to_install_for(namespace.recipe)}") from None
    try:
        changes = recipe_changes(namespace.set) | ({"privacy.secure": True} if namespace.secure else {})
        record = recipe_record(namespace)
        name, out, resume = _which_run(namespace)
        if record is not None:
            recipe = recipe_of(record)
        else:
            recipe = _recipe_of_run(Path(out)) if name is None else load_recipe(name)
        recipe = recipe.with_changes(changes)
        seed = _noise_seed(namespace.noise_seed)
        named, out = out, out or str(Path("runs") / recipe.name)
        if namespace.dry_run:
            # Without --out or --resume no folder is meant: a plan can be asked for beside a run.
            looked_at = out if named or resume else None
            options = {"resume": resume, "noise_seed": seed, "device": namespace.device}
            _print_dry_run(dry_run(recipe, out=looked_at, **options), recipe, as_json=namespace.json)
            return
        result = train(
            recipe,
            out,
            resume=resume,
            noise_seed=seed,
            device=namespace.device,
            show_progress=not namespace.json,
            tensorboard=namespace.tensorboard,
        )
    except ParameterError as error:
        name = "--" + error.name.replace("_", "-") if error.name in _OPTIONS else error.name
        name = "RECIPE" if name == "recipe" else name
        raise UsageError(f"{_COMMAND}: {name} must be {error.allowed}, got {error.value!r}") from None
    except SilentParameterError as error:
        raise UsageError(f"{_COMMAND}: {error}") from None
    if os.environ.get("RANK", "0") == "0":  # one of the processes of torchrun speaks for all
        _print_result(result, recipe, as_json=namespace.json)
    if not result.finished:
        raise KeyboardInterrupt


def _which_run(namespace: argparse.Namespace) -> tuple[str | None, str, bool]:
    # Recipe, folder and whether it is resumed. ``--resume NAME --out DIR`` is a recipe after a bare ``--resume``.
    recipe, out, resume = namespace.recipe, namespace.out, namespace.resume
    if isinstance(resume, str) and recipe is None and out is not None:
        recipe, resume = resume, True
    if isinstance(resume, str):
        if recipe is not None or out is not None or namespace.from_json is not None:
            raise UsageError(f"{_COMMAND}: --resume must be given without a folder beside a recipe, got {resume!r}")
        return None, resume, True
    if recipe is None and namespace.from_json is None:
        raise UsageError(f"{_COMMAND}: a recipe must be named (dprmt recipes lists them), or a run: --resume DIR")
    return recipe, out or "", bool(resume)


def _recipe_of_run(folder: Path) -> Recipe:
    from dprmt.training.recipes import recipe_from_dict

    try:
        values = parse_toml((folder / "config.toml").read_bytes())
    except (OSError, ValueError):
        allowed = "the folder of a run that was started: one with a config.toml"
        raise ParameterError("resume", str(folder), allowed) from None
    if "model" not in values:
        raise ParameterError("resume", str(folder), "the folder of a recipe's run: this one's task is in a program")
    return recipe_from_dict(values)


def _noise_seed(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        raise ParameterError("noise_seed", text, "an integer in [0, 2**63)") from None


def _print_result(result: TrainingResult, recipe: Recipe, *, as_json: bool) -> None:
    if as_json:
        document = _setting(recipe) | _card(result, recipe) | dataclasses.asdict(result)
        document |= {"folder": str(result.folder)}
        sys.stdout.write(strict_json(document) + "\n")
        return
    lines = [
        f"{result.folder}: {'finished' if result.finished else 'stopped'} after {result.steps} of"
        f" {recipe.training.steps} steps",
        *([] if result.finished else [f"continue with: dprmt train --resume {result.folder}"]),
        NO_PRIVACY
        if recipe.privacy.clip_only
        else f"ε ≤ {round_up(result.epsilon)} at δ = {recipe.privacy.delta:g}, {result.charged} steps charged;"
        f" {result.neighbours}{_beside_exact(result.epsilon, result.epsilon_of_exact_norms)}",
        f"norms: {result.norms}",
    ]
    if recipe.evaluation.private_noise is not None and result.finished:
        said = "with noise, charged in ε" if result.evaluation else "charged in ε, and lost in a crash"
        lines.append(f"score: {said}")
    scores = result.evaluation.items()
    lines += [f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}" for name, value in scores]
    sys.stdout.write("\n".join(lines) + "\n")


def _print_dry_run(plan: DryRun, recipe: Recipe, *, as_json: bool) -> None:
    if as_json:
        document: dict[str, Any] = _setting(recipe) | dataclasses.asdict(plan) | {"steps": recipe.training.steps}
        kind = {"kind": DPSGD.kind} if document["mechanism"].pop("mechanism") == DPSGD.__name__ else {}
        document["mechanism"] = kind | document["mechanism"]
        document["neighbours"] = document["mechanism"].get("neighbours", {}).get("kind")
        sys.stdout.write(strict_json(document) + "\n")
        return
    numbers = sum(_size(shape) for shape in plan.trainable.values())
    mechanism = ", ".join(f"{name}={value}" for name, value in plan.mechanism.items())
    lines = [
        f"{recipe.name}: {plan.samples} training samples, expected batch {recipe.training.batch_size}"
        f" in micro-batches of {recipe.training.micro_batch_size}, {recipe.training.steps} steps",
        f"one step: {mechanism}",
        f"norms: {plan.norms}",
        f"noise: {plan.noise_std:.4g} per entry of the gradient",
        *(
            [NO_PRIVACY]
            if recipe.privacy.clip_only
            else [
                f"ε at δ = {recipe.privacy.delta:g}; {plan.neighbours}",
                *(
                    f"ε ≤ {round_up(epsilon)} after step {step}{_and_score(recipe, step)}"
                    for step, epsilon in plan.epsilon_after.items()
                ),
            ]
        ),
        *_exact_alone(plan),
        f"trainable: {numbers} numbers in {len(plan.trainable)} parameters",
        *(f"  {name} {' × '.join(map(str, shape))}" for name, shape in list(plan.trainable.items())[:_LAYERS_SHOWN]),
    ]
    if len(plan.trainable) > _LAYERS_SHOWN:
        lines.append(f"  … {len(plan.trainable) - _LAYERS_SHOWN} more (--json lists all)")
    sys.stdout.write("\n".join(lines) + "\n")


def _setting(recipe: Recipe) -> dict[str, Any]:
    said = {"version": __version__, "recipe": recipe.name, "delta": recipe.privacy.delta}
    return said | {CONFIG: recipe.to_dict()}


def _card(result: TrainingResult, recipe: Recipe) -> dict[str, object]:
    # What was charged, in the words of the accounting commands; a run without noise claims nothing.
    from dprmt.training.harness import read_card

    if recipe.privacy.clip_only or not result.charged:
        return {}
    card = read_card(result.folder).as_dict()
    return {name: card[name] for name in ("neighbours", "unit", "phases", "also") if name in card}


def _beside_exact(epsilon: float, exact: float | None) -> str:
    # Only where they differ: norms that were exact have no other price.
    return "" if exact is None or exact == epsilon else f" (with exact norms and the same noise: ε ≤ {round_up(exact)})"


def _and_score(recipe: Recipe, step: int) -> str:
    return " and the score" if recipe.evaluation.private_noise and step == recipe.training.steps else ""


def _exact_alone(plan: DryRun) -> list[str]:
    said = _beside_exact(max(plan.epsilon_after.values()), plan.epsilon_of_exact_norms)
    return [said.strip(" ()")] if said else []


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
