"""The command ``train``: run a recipe, continue it, or say what it would do."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dprmt._files import strict_json
from dprmt._validation import ParameterError
from dprmt.cli._changes import add_changes, recipe_changes
from dprmt.cli._options import Commands, UsageError, add_command_with, name_of
from dprmt.cli._rounding import round_up

if TYPE_CHECKING:
    from dprmt.training.harness import DryRun, TrainingResult
    from dprmt.training.recipes import Recipe

_COMMAND = "dprmt train"
_OPTIONS = ("out", "resume", "noise_seed", "set", "device", "recipe", "secure", "tensorboard")
_MIB = 2.0**20
NO_PRIVACY = "clip only, no privacy: no noise was or would be added, and no ε is stated"
_LAYERS_SHOWN = 8
_EXAMPLES = """\
examples:
  dprmt train minilm-docstrings --dry-run
  dprmt train minilm-docstrings --out runs/first
  dprmt train minilm-docstrings --out runs/first --resume
  dprmt train recipe.toml --set training.steps=100 --set privacy.target_epsilon=2
"""


def add_command(commands: Commands) -> None:
    """Declare it."""
    summary = "train a model as a recipe says, with differential privacy, and write down what it cost"
    parser = add_command_with(commands, "train", summary, (), run_train, _EXAMPLES)
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        type=name_of("a recipe"),
        help="a .toml file, or the name of one that comes with dprmt",
    )
    parser.add_argument("--out", metavar="DIR", type=name_of("a folder"), help="the run folder; runs/NAME by default")
    parser.add_argument("--resume", action="store_true", help="continue the run in the folder, with fresh noise")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done: shapes, noise, ε, memory")
    add_changes(parser)
    parser.add_argument("--noise-seed", metavar="N", help="repeatable noise, for studies: known noise protects nobody")
    parser.add_argument("--secure", action="store_true", help="noise and coins from a cipher (privacy.secure)")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, …; a GPU if there is one by default")
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard events too")


def run_train(namespace: argparse.Namespace) -> None:
    """``dprmt train``."""
    try:
        from dprmt.training.harness import SilentParameterError, dry_run, train
        from dprmt.training.recipes import load_recipe
    except ModuleNotFoundError as error:
        raise UsageError(f"{_COMMAND}: needs {error.name}; install dprmt[train]") from None
    try:
        changes = recipe_changes(namespace.set) | ({"privacy.secure": True} if namespace.secure else {})
        recipe = load_recipe(namespace.recipe).with_changes(changes)
        seed = _noise_seed(namespace.noise_seed)
        out = str(Path("runs") / recipe.name) if namespace.out is None else namespace.out
        if namespace.dry_run:
            # Without --out or --resume no folder is meant: a plan can be asked for beside a run.
            looked_at = out if namespace.out is not None or namespace.resume else None
            options = {"resume": namespace.resume, "noise_seed": seed, "device": namespace.device}
            _print_dry_run(dry_run(recipe, out=looked_at, **options), recipe, as_json=namespace.json)
            return
        result = train(
            recipe,
            out,
            resume=namespace.resume,
            noise_seed=seed,
            device=namespace.device,
            show_progress=not namespace.json,
            tensorboard=namespace.tensorboard,
        )
    except ParameterError as error:
        name = "--" + error.name.replace("_", "-") if error.name in _OPTIONS else error.name
        raise UsageError(f"{_COMMAND}: {name} must be {error.allowed}, got {error.value!r}") from None
    except SilentParameterError as error:
        raise UsageError(f"{_COMMAND}: {error}") from None
    if os.environ.get("RANK", "0") == "0":  # one of the processes of torchrun speaks for all
        _print_result(result, recipe, as_json=namespace.json)
    if not result.finished:
        raise KeyboardInterrupt


def _noise_seed(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        raise ParameterError("noise_seed", text, "an integer in [0, 2**63)") from None


def _print_result(result: TrainingResult, recipe: Recipe, *, as_json: bool) -> None:
    if as_json:
        document = dataclasses.asdict(result) | {"folder": str(result.folder)}
        sys.stdout.write(strict_json(document) + "\n")
        return
    state = "finished" if result.finished else "stopped; continue with --resume"
    lines = [
        f"{result.folder}: {state} after {result.steps} of {recipe.training.steps} steps",
        NO_PRIVACY
        if recipe.privacy.clip_only
        else f"ε ≤ {round_up(result.epsilon)} at δ = {recipe.privacy.delta:g}, {result.charged} steps charged",
    ]
    lines += [f"{name}: {value}" for name, value in result.evaluation.items()]
    sys.stdout.write("\n".join(lines) + "\n")


def _print_dry_run(plan: DryRun, recipe: Recipe, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(strict_json(dataclasses.asdict(plan)) + "\n")
        return
    numbers = sum(_size(shape) for shape in plan.trainable.values())
    mechanism = ", ".join(f"{name}={value}" for name, value in plan.mechanism.items())
    lines = [
        f"{recipe.name}: {plan.samples} training samples, expected batch {recipe.training.batch_size}"
        f" in micro-batches of {recipe.training.micro_batch_size}, {recipe.training.steps} steps",
        f"one step: {mechanism}",
        f"noise: {plan.noise_std:.4g} per entry of the gradient",
        *(
            [NO_PRIVACY]
            if recipe.privacy.clip_only
            else [f"ε ≤ {round_up(epsilon)} after step {step}" for step, epsilon in plan.epsilon_after.items()]
        ),
        f"trainable: {numbers} numbers in {len(plan.trainable)} parameters",
        *(f"  {name} {' × '.join(map(str, shape))}" for name, shape in list(plan.trainable.items())[:_LAYERS_SHOWN]),
    ]
    if len(plan.trainable) > _LAYERS_SHOWN:
        lines.append(f"  … {len(plan.trainable) - _LAYERS_SHOWN} more (--json lists all)")
    lines.append(
        "memory, estimated: " + ", ".join(f"{name} {size / _MIB:.1f} MiB" for name, size in plan.memory.items())
    )
    sys.stdout.write("\n".join(lines) + "\n")


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
