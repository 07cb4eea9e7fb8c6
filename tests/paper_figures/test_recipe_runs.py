"""Runs of recipes that are cut and go on, and the command that stops after some minutes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dprmt.training.harness import Run, dry_run, read_metrics, train
from dprmt.training.private_run import PrivateRun
from dprmt.training.recipes import Recipe, load_recipe
from paper_figures.__main__ import _ending_after, main
from paper_figures._pieces import Pieces, forget, raw_file
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._reproduction import load as load_result
from paper_figures._reproduction import run as run_item
from paper_figures.items import accuracy_low_budget, generation, grape_accuracy
from paper_figures.items._recipe_runs import run_variants, train_on, train_once, with_noise
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


def test_the_numbers_are_those_of_a_run_with_the_target(recipe: Recipe, whole: dict[str, Any]) -> None:
    once = train_once(recipe, 3)
    assert once["scores"] == whole["scores"]
    assert once["epsilon"] == whole["epsilon"]
    assert once["epsilon"][-1] == pytest.approx(8.0, rel=2e-3)
    assert train_once(recipe, 4)["scores"] != whole["scores"]


def test_noise_is_given_where_a_target_was(recipe: Recipe) -> None:
    given = with_noise(recipe)
    assert given.privacy.target_epsilon is None
    assert with_noise(given) == given


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


def test_the_first_steps_have_the_noise_of_them_all(recipe: Recipe, tmp_path: Path) -> None:
    found = train_on(recipe, 3, tmp_path / "run", first=2)
    assert found["steps"] == [2]
    kept = load_recipe(tmp_path / "run" / "config.toml")
    assert kept.privacy.noise_multiplier == with_noise(recipe).privacy.noise_multiplier
    shorter = with_noise(recipe.with_changes({"training.steps": 2}))
    assert kept.privacy.noise_multiplier > 1.1 * shorter.privacy.noise_multiplier


@pytest.mark.parametrize("whole", [0, 1, 6])
def test_what_is_whole_of_generation_is_stored_when_it_is_stopped(
    whole: int, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three seeds of exact norms, or of all and of the next data set's: rows, intervals, and what they are of."""
    asked: list[list[str]] = []

    def runs(pieces: Pieces, recipe: Recipe, variants: Any, seeds: Any, **_: Any) -> dict[str, list[dict[str, Any]]]:
        if len(asked) == whole:
            raise KeyboardInterrupt("the run was stopped after 3 of 50 steps")
        asked.append(list(variants))
        return {
            name: [
                {"scores": {metric: [len(name) + 0.1 * seed**2] for metric in ("loss", *generation.METRICS)}}
                for seed in seeds
            ]
            for name in variants
        }

    monkeypatch.setattr(generation, "_recipes", lambda scale: ({("E2E", "toy"): recipe, ("DART", "toy"): recipe}, ""))
    monkeypatch.setattr(generation, "run_variants", runs)
    early = next(item for item in generation.ITEMS if item.name == "generation-50")
    with pytest.raises(KeyboardInterrupt, match="after 3 of 50 steps" + "; what is whole is stored" * bool(whole)):
        run_item(early, "long", tmp_path)
    stored = load_result("generation-50", tmp_path)
    if not whole:
        assert stored is None
        return
    assert stored is not None
    known = ["baseline", "Hutchinson", "Hutch++", "denoised", "baseline at twice the rate"]
    known = [*(f"E2E, toy, {variant}" for variant in known), "DART, toy, baseline"]
    assert f"So far {'; '.join(known[:whole])}: the same command goes on." in stored.found.differs
    assert len(stored.found.rows) == 6 * {1: 1, 6: 10}[whole]
    assert sum(row.verdict() is not None for row in stored.found.rows) == 5 * {1: 0, 6: 1}[whole]
    assert ("DART's" in stored.found.differs) == (stored.found.data == "E2E and DART") == (whole == 6)
    assert {row.label.split(",")[0] for row in stored.found.rows} == ({"E2E", "DART"} if whole == 6 else {"E2E"})
    assert all(row.interval is not None for row in stored.found.rows)


@pytest.mark.parametrize("seeds", [1, 2])
def test_two_whole_seeds_of_generation_are_enough_to_be_stored(
    seeds: int, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the baseline three, of the other variant fewer: they are paired seed by seed."""
    pieces = Pieces(tmp_path, "generation-50", "long")
    known = {f"{name}, seed {seed}": 10.0 + seed for name in ("baseline", "Hutchinson", "Hutch++") for seed in range(3)}
    known |= {f"denoised, seed {seed}": 11.0 + 1.5 * seed for seed in range(seeds)}
    runs = {
        f"E2E, toy, {name}": {"scores": {metric: [value] for metric in ("loss", *generation.METRICS)}, "steps": [50]}
        for name, value in known.items()
    }
    pieces.measure({name: partial(dict, run) for name, run in runs.items()})

    def stored_runs(pieces: Pieces, recipe: Recipe, variants: Any, seeds: Any, **_: Any) -> dict[str, Any]:
        if any(f"{name}, seed {seed}" not in runs for name in variants for seed in seeds):
            raise KeyboardInterrupt("the run was stopped after 3 of 50 steps")
        return {name: [runs[f"{name}, seed {seed}"] for seed in seeds] for name in variants}

    monkeypatch.setattr(generation, "_recipes", lambda scale: ({("E2E", "toy"): recipe}, ""))
    monkeypatch.setattr(generation, "run_variants", stored_runs)
    early = next(item for item in generation.ITEMS if item.name == "generation-50")
    with pytest.raises(KeyboardInterrupt):
        run_item(early, "long", tmp_path)
    stored = load_result("generation-50", tmp_path)
    assert stored is not None
    assert stored.found.seeds == 3
    whole = "So far E2E, toy, baseline; E2E, toy, Hutchinson; E2E, toy, Hutch++"
    rows = {row.label: row for row in stored.found.rows}
    assert rows["E2E, toy, baseline: BLEU"].ours == 11
    if seeds == 1:
        assert f"{whole}: the same command" in stored.found.differs
        assert not any("denoised" in label for label in rows)
        return
    assert f"{whole}; E2E, toy, denoised (2 of 3 seeds): the same command" in stored.found.differs
    more = rows["E2E, toy, denoised: BLEU more than the baseline, paired"]
    assert more.ours == 1.25
    assert more.interval == pytest.approx((1.25 - 12.706 * 0.25, 1.25 + 12.706 * 0.25), rel=1e-3)


def test_what_was_begun_is_thrown_away_with_the_pieces(recipe: Recipe, tmp_path: Path) -> None:
    pieces = Pieces(tmp_path, "toy", "small")
    cut("_charge", 2, lambda: run_variants(pieces, recipe, {"a": {}}, (0,), by_steps=True))
    assert pieces.folder("a, seed 0").exists()
    assert Pieces(tmp_path, "toy", "small").earlier_seconds > 0
    forget(tmp_path, "toy", "small")
    assert not pieces.folder("a, seed 0").exists()
    assert Pieces(tmp_path, "toy", "small").earlier_seconds == 0


def test_minutes_end_a_run_in_the_background_too() -> None:
    """There a shell has interrupts ignored."""
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), _ending_after(1e-3):
            time.sleep(10)
    finally:
        signal.signal(signal.SIGINT, former)


@pytest.mark.parametrize("minutes", ["0", "-1", "1e300", "inf", "nan", "soon"])
def test_minutes_are_positive(minutes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--minutes", minutes])
    assert "--minutes" in capsys.readouterr().err


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("plain")
    write_data(folder)
    return recipe_in(folder, **{"training.steps": 4, "evaluation.every": 2})


@pytest.mark.parametrize("item", [grape_accuracy, accuracy_low_budget])
def test_an_item_trains_its_variants_once(
    plain: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: Any
) -> None:
    full = {"model.finetune": "full", "model.lora": None, "training.steps": 4}
    private = {"privacy.noise_multiplier": None, "privacy.target_epsilon": 30.0}
    monkeypatch.setattr(item, "RECIPE", plain.with_changes(full | private))
    monkeypatch.setattr(item, "SHORTER", {})
    monkeypatch.setattr(item, "RANKS", (3, 8), raising=False)
    found = item.measure("small", tmp_path)
    assert found.seeds == 2
    assert len(found.rows) == 4
    monkeypatch.setattr("dprmt.training.harness.train", None)  # training would fail
    assert item.measure("small", tmp_path).rows == found.rows


def test_a_run_that_was_stopped_is_no_piece(plain: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = plain.with_changes({"training.steps": 2})
    monkeypatch.setattr("dprmt.training.harness.train", lambda _, folder, **more: train(shorter, folder, **more))
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        train_once(plain, 0)
    assert train_once(shorter, 0)["steps"] == [2]


def test_the_published_charge_asks_for_more_noise(plain: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy_low_budget, "PROBES", 4)  # fewer than the tiny layers are wide
    monkeypatch.setitem(accuracy_low_budget.SHARED["privacy.norms"], "probes", 4)
    full = {"model.finetune": "full", "model.lora": None}
    private = plain.with_changes(full | {"privacy.noise_multiplier": None, "privacy.target_epsilon": 3.0})
    changes = accuracy_low_budget.variants(private)
    del changes["Hutch++"]
    plans = {name: dry_run(private.with_changes(change)) for name, change in changes.items()}
    noise = {name: plan.mechanism["noise_multiplier"] for name, plan in plans.items()}
    assert noise["Hutchinson, published charge"] > noise["Hutchinson, tight"] > noise["exact"]
