"""A recipe that trains in a second: names of colours, told apart by a one-layer encoder."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from dprmt.training.harness import Observer, Run, train
from dprmt.training.private_run import PrivateBatch
from dprmt.training.recipes import Recipe, recipe_from_dict

STEPS = 6
WORDS = {"red": ("crimson", "scarlet", "ruby", "cherry"), "blue": ("azure", "navy", "cobalt", "sky")}


def write_rows(path: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    rows = ["text,colour"]
    for _ in range(count):
        colour = rng.choice(list(WORDS))
        rows.append(f"{' '.join(rng.choices(WORDS[colour], k=3))},{colour}")
    path.write_text("\n".join(rows) + "\n")


def write_data(path: Path) -> None:
    write_rows(path / "train.csv", 60, 1)
    write_rows(path / "validation.csv", 30, 2)


def recipe_in(folder: Path, **changes: Any) -> Recipe:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    base = {
        "name": "colours",
        "model": {
            "task": "classification",
            "architecture": "bert",
            "tokenizer": "bytes",
            "pooling": "mean",
            "config": sizes | {"max_position_embeddings": 64},
            "finetune": "lora",
            "lora": {"rank": 4, "alpha": 8, "targets": ["query", "value"]},
        },
        "data": {
            "source": "files",
            "train": [str(folder / "train.csv")],
            "validation": [str(folder / "validation.csv")],
            "inputs": ["text"],
            "target": "colour",
            "max_tokens": 24,
        },
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-4, "norms": "exact"},
        "optimizer": {"name": "adam", "learning_rate": 1e-2, "schedule": "linear"},
        "training": {"batch_size": 12, "micro_batch_size": 8, "steps": STEPS},
    }
    return recipe_from_dict(base).with_changes(changes)


class StopAfter(Observer):
    """Ends a start after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def after_step(self, run: Any, record: Any) -> None:
        if record.step == self._step:
            run.stop()


def positions(batch: PrivateBatch) -> list[int]:
    """Rows of a batch of which no part was loaded."""
    return [place for part in batch._parts for place in part.positions]


def killed_before_step(number: int, recipe: Recipe, path: Path) -> None:
    """A run in ``path`` that ends as a power cut ends it."""
    real = Run._one_step

    def step(run: Run, at: int, batch: Any) -> Any:
        if at == number:
            raise RuntimeError("power cut")
        return real(run, at, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_one_step", step)
        with pytest.raises(RuntimeError, match="power cut"):
            train(recipe, path)
