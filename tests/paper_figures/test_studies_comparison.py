"""Tuning on one seed and averaging over all, and the figures that do so, on tiny runs."""

from __future__ import annotations

import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD
from heavy_tail import load_results, read_trial
from paper_figures._pieces import Pieces, raw_file
from paper_figures.items import ITEMS
from paper_figures.items._tuned_runs import tuned
from paper_figures.items.barcode import EXTENTS
from studies import GroupRecord, compare_optimizers

FIGURES = Path(__file__).parents[2] / "paper_figures"


def record(loss: float, accuracy: float = 0.0) -> list[GroupRecord]:
    start = GroupRecord(0, 0.0, 5.0, 0.0, (5.0, 5.0), (0.0, 0.0))
    return [start, GroupRecord(3, 2.0, loss, accuracy, (loss, loss + 1), (accuracy, accuracy / 2))]


def test_the_rate_is_chosen_on_the_first_seed_by_the_lowest_loss(tmp_path: Path) -> None:
    losses = {("gd", 1.0, 7): 2.0, ("gd", 5.0, 7): 1.5, ("gd", 10.0, 7): math.nan, ("gd", 5.0, 8): 2.5}
    asked = []

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> list[GroupRecord]:
        asked.append((optimizer, rate, seed))
        assert folder.parent == tmp_path
        return record(losses[optimizer, rate, seed], accuracy=seed / 10)

    tried = compare_optimizers(train, {"gd": [1.0, 5.0, 10.0]}, [7, 8], tmp_path)["gd"]
    assert asked == [("gd", 1.0, 7), ("gd", 5.0, 7), ("gd", 10.0, 7), ("gd", 5.0, 8)]
    assert (tried.learning_rate, tried.at_edge) == (5.0, False)
    assert math.isnan(tried.final_losses[10.0])
    mean, spread = tried.final("group_loss")
    np.testing.assert_allclose(mean, [2.0, 3.0])
    np.testing.assert_allclose(spread, math.sqrt(0.5))
    assert tried.curve("group_accuracy", 1) == ([0.0, 2.0], [0.0, pytest.approx(0.375)])
    assert tried.curve("loss") == ([0.0, 2.0], [5.0, 2.0])


def test_every_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folders = []

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> list[GroupRecord]:
        folders.append(folder)
        return record(rate)

    compare_optimizers(train, {"gd": [1.0, 5.0], "adam": [1.0]}, [0, 1], tmp_path)
    assert len(folders) == len(set(folders)) == 5


def test_one_seed_has_no_spread_and_one_rate_no_edge() -> None:
    tried = compare_optimizers(lambda *_: record(1.0), {"gd": [0.5]}, [0], "unused")["gd"]
    assert math.isnan(tried.final("loss")[1])
    assert not tried.at_edge


@pytest.mark.parametrize(
    ("name", "rates", "seeds"),
    [("seeds", {"gd": [1.0]}, []), ("seeds", {"gd": [1.0]}, [-1]), (r"rates\['gd'\]", {"gd": [1.0, 5.0]}, [0])],
)
def test_bad_input(name: str, rates: dict[str, list[float]], seeds: list[int]) -> None:
    with pytest.raises(ParameterError, match=f"^{name}"):
        compare_optimizers(lambda *_: record(math.inf), rates, seeds, "unused")


@pytest.mark.parametrize("rates", [[1.0, 5.0], [5.0, 1.0]])
def test_a_run_that_diverged_is_not_the_best(rates: list[float], tmp_path: Path) -> None:
    def train(optimizer: str, rate: float, seed: int, folder: Path) -> list[GroupRecord]:
        return record(math.nan if rate == 1.0 else 2.0)

    found = tuned(Pieces(tmp_path, "toy", "small"), train, {"gd": rates}, [0, 1])["gd"]
    assert (found.rate, found.last("loss"), len(found.runs)) == (5.0, 2.0, 2)


def test_the_barcode_item_is_tuned_at_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"gd": (0.5, 1.0), "gdm": (0.1, 0.1), "adam": (1e-3, 1e-3), "adambc": (1e-3, 1e-3)}
    tiny = replace(EXTENTS["long"], plan=[(10, 2), (20, 1)], steps=1, sample_rate=0.5, rates=rates, seeds=(0, 1))
    monkeypatch.setitem(EXTENTS, "long", tiny)
    found = ITEMS["barcode"].measure("long", tmp_path)
    assert found.seeds == 2
    assert (tmp_path / "barcode.png").read_bytes().startswith(b"\x89PNG")
    assert len(raw_file(tmp_path, "barcode", "long").read_text().splitlines()) == 5 + 4  # rates, then the second seed
    assert len(found.rows) == 2 * 4 + 1


def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    picture, text = tmp_path / "figure.png", tmp_path / "text.txt"
    text.write_text("one two three one two one four " * 40)
    script = "next_token_curves.py"
    arguments = [str(text), "--rows", "8", "--length", "8", "--vocabulary", "6"]
    rates = ["--rates", "gd=0.5:1", "gdm=0.1", "adam=1e-3", "adambc=1e-3"]
    command = [script, str(picture), *arguments, "--steps", "1", "--seeds", "2", "--sigma", "50"]
    command += ["--sample-rate", "0.5", *rates]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.syspath_prepend(str(FIGURES))
    runpy.run_path(str(FIGURES / script), run_name="__main__")
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = [line for line in capsys.readouterr().out.splitlines() if "DP-" in line]
    assert [line.split()[0] for line in lines] == ["DP-GD", "DP-GDM", "DP-Adam", "DP-AdamBC"]
    assert all("2 seeds, step 1" in line and " ± " in line for line in lines)
    epsilon = DPSGD(50.0, 0.5).epsilon(1, 1e-5).upper
    assert all(f"ε {epsilon:.3g}," in line for line in lines)
    assert "(edge of the grid)" in lines[0]
    assert "edge" not in lines[1]


def test_heavy_tail_runs_are_tuned_on_the_first_seed_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    rates = ["--rates", "gd=0.5:1", "gdm=0.1", "adam=1e-3", "adambc=1e-3", "--stability", "adambc=0.1,0.5"]
    options = ["--small", "--steps", "2", "--seeds", "2", "--export", str(results), *rates]
    monkeypatch.setattr(sys, "argv", ["heavy_tail_train.py", str(tmp_path / "runs"), *options])
    monkeypatch.syspath_prepend(str(FIGURES))
    runpy.run_path(str(FIGURES / "heavy_tail_train.py"), run_name="__main__")
    assert len(capsys.readouterr().out.strip().splitlines()) == 8
    curves = load_results(results)
    assert [(curve.trial.optimizer, curve.trial.seed) for curve in curves] == [
        (optimizer, seed) for optimizer in ("gd", "gdm", "adam", "adambc") for seed in (0, 1)
    ]
    best = {curve.trial.optimizer: curve for curve in curves if curve.trial.seed == 0}
    tried = [read_trial(tmp_path / "runs", replace(best["gd"].trial, learning_rate=rate)) for rate in (0.5, 1.0)]
    assert abs(tried[0].loss[-1] - tried[1].loss[-1]) > 1e-3  # else either would do
    assert best["gd"].loss[-1] == pytest.approx(min(curve.loss[-1] for curve in tried), abs=1e-4)
    monkeypatch.setattr(sys, "argv", ["heavy_tail_train.py", "unused", "--rates", "sgd=1"])
    with pytest.raises(SystemExit, match="--rates sgd=1: the optimizer must be one of gd, gdm, adam, adambc"):
        runpy.run_path(str(FIGURES / "heavy_tail_train.py"), run_name="__main__")


def test_effective_steps_are_the_same_for_every_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "figure.png"
    options = ["--steps", "2", "--seeds", "2", "--exponents", "0", "1"]
    monkeypatch.setattr(sys, "argv", ["heavy_tail_effective_step.py", str(tmp_path / "runs"), str(picture), *options])
    monkeypatch.syspath_prepend(str(FIGURES))
    script = runpy.run_path(str(FIGURES / "heavy_tail_effective_step.py"))
    for optimizer in ("gd", "gdm", "adam", "adambc"):
        trials = script["trials"](optimizer, [1.0, 2**0.5], 2)
        assert [trial.effective_step for trial in trials] == pytest.approx([1.0, 2**0.5] * 2)
        assert [trial.seed for trial in trials] == [0, 0, 1, 1]
    script["main"]()
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["DP-GD", "DP-GDM", "DP-Adam", "DP-AdamBC"]
    adam = [
        script["run_trials"](script["trials"](name, [1.0, 2**0.5], 2), tmp_path / "runs", 2) for name in ("adam", "gdm")
    ]
    losses = np.array([[run.loss[-1] for run in runs] for runs in adam]).reshape(2, 2, 2)  # optimizer, seed, step
    best = losses.mean(1).argmin(1)
    paired = losses[0, :, best[0]] - losses[1, :, best[1]]
    assert f"DP-Adam less DP-GDM, paired by seed: {paired.mean():+.3f}" in lines[5]
