"""Runs of recipes that are cut and go on, and the command that stops after some minutes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dprmt.training.harness import Run, read_metrics
from dprmt.training.recipes import Recipe
from paper_figures.__main__ import main
from paper_figures._pieces import Pieces, raw_file
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._recipe_runs import run_variants
from tests.training.tiny_recipe import recipe_in, write_data

STEPS, PROBES = 4, 12


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """With a target, probes of each sample's own, and a state between steps in optimizer and denoiser."""
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return recipe_in(folder).with_changes(
        {
            "training.steps": STEPS,
            "evaluation.every": 2,
            "model.lora.rank": 16,
            "privacy.noise_multiplier": None,
            "privacy.target_epsilon": 8.0,
            "privacy.norms": {"kind": "hutchinson", "probes": PROBES, "secret": True},
            "denoising": {"method": "paper"},
        }
    )


def item(recipe: Recipe) -> Item:
    def measure(scale: Scale, folder: Path) -> Found:
        pieces = Pieces(folder, "toy", scale)
        runs = run_variants(pieces, recipe, {"Plain, a": {}}, (0, 1), by_steps=True)
        rows = [Row(str(seed), run["scores"]["loss"][-1]) for seed, run in enumerate(runs["Plain, a"])]
        return Found(rows, "Nothing.", earlier_seconds=pieces.earlier_seconds)

    return Item("toy", "Toy", measure)


def test_an_item_stops_between_steps_after_its_minutes(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clock strikes within a step of the first run: the step is done, and the same command goes on after it."""
    monkeypatch.setitem(__import__("paper_figures.items").items.ITEMS, "toy", item(recipe))
    real, struck = Run._one_step, []

    def one_step(run: Run, step: int, batch: Any) -> Any:
        if step == 3 and not struck:
            struck.append(step)
            os.kill(os.getpid(), signal.SIGALRM)
        return real(run, step, batch)

    monkeypatch.setattr(Run, "_one_step", one_step)
    arguments = ["run", "toy", "--results", str(tmp_path), "--minutes", "60"]
    assert main(arguments) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("paper_figures: the run was stopped after 3 of 4 steps")
    assert not (tmp_path / "toy.json").exists()
    folder = tmp_path / "raw" / "runs" / "toy-small" / "plain-a-seed-0"
    assert len(read_metrics(folder)) == 3
    assert main(arguments) == 0
    assert not folder.exists()
    lines = Pieces(tmp_path, "toy", "small").measure({"Plain, a, seed 0": lambda: 1 / 0})
    assert lines["Plain, a, seed 0"]["steps"] == [2, 4]
    kept = raw_file(tmp_path, "toy", "small").read_text().splitlines()
    assert len(kept) == 4  # one of the time alone, and one of the code
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
