"""Runs of recipes that are cut and go on, and the command that stops after some minutes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprmt.training.harness import Run, read_metrics
from dprmt.training.private_run import PrivateRun
from dprmt.training.recipes import Recipe
from paper_figures.__main__ import main
from paper_figures._pieces import Pieces, raw_file
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._recipe_runs import run_variants, train_on
from tests.training.tiny_recipe import recipe_in, write_data

STEPS, PROBES = 4, 12
CUTS = ("_accumulate", "_charge", "_checkpoint")
"""Methods of a run before whose work it is cut: before the batch, before and after the step is charged and used."""


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
            "denoising": {"method": "paper", "on": "momentum"},
        }
    )


@pytest.fixture(scope="module")
def whole(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("whole") / "run"
    found = train_on(recipe, 3, run)
    norms = json.loads((run / "run.json").read_text())["step"]["norms"]
    assert (norms["kind"], norms["probes"]) == ("hutchinson", PROBES)  # not exact ones, as smaller matrices would get
    return found


def cut(method: str, step: int, call: Callable[[], Any]) -> None:
    """The call, killed at a place of a step: nothing after it is done or written."""
    owner: Any = PrivateRun if method == "_charge" else Run
    real = getattr(owner, method)

    def killed(run: Any, *given: Any) -> Any:
        done = run.steps_taken if method == "_charge" else run.done
        if done + (method != "_checkpoint") == step:
            raise OSError("power cut")
        return real(run, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, killed)
        with pytest.raises(OSError, match="power cut"):
            call()


@pytest.mark.parametrize("step", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, STEPS)), STEPS])
@pytest.mark.parametrize("method", CUTS)
def test_a_run_that_is_cut_anywhere_gives_the_numbers_of_the_run_in_one(
    recipe: Recipe, whole: dict[str, Any], tmp_path: Path, method: str, step: int
) -> None:
    cut(method, step, lambda: train_on(recipe, 3, tmp_path / "run"))
    assert train_on(recipe, 3, tmp_path / "run") == whole


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
    real, struck = Run._accumulate, []

    def accumulate(run: Run, batch: Any) -> Any:
        if batch.step == 2 and not struck:
            struck.append(batch.step)
            os.kill(os.getpid(), signal.SIGALRM)
        return real(run, batch)

    monkeypatch.setattr(Run, "_accumulate", accumulate)
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
    assert (
        len(raw_file(tmp_path, "toy", "small").read_text().splitlines()) == 4
    )  # one of the time alone, and one of the code
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("plain")
    write_data(folder)
    return recipe_in(folder, **{"training.steps": 4, "evaluation.every": 2})
