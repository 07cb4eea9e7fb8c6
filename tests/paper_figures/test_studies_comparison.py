"""Tuning on one seed and averaging over all, and the figures that do so, on tiny runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from paper_figures.__main__ import main
from paper_figures._pieces import Pieces
from paper_figures._rates import lowest
from paper_figures._tuner import LABELS, tuned
from paper_figures.heavy_tail import Trial, load_results, read_trial
from paper_figures.items.barcode import MOMENTUM, SIGMA, STABILITY, rate_of
from paper_figures.studies import GroupRecord, private_settings


def record(loss: float, accuracy: float = 0.0) -> list[GroupRecord]:
    start = GroupRecord(0, 0.0, 5.0, 0.0, (5.0, 5.0), (0.0, 0.0))
    return [start, GroupRecord(3, 2.0, loss, accuracy, (loss, loss + 1), (accuracy, accuracy / 2))]


def pieces(folder: Path) -> Pieces:
    return Pieces(folder, "toy", "small")


def test_the_rate_is_chosen_on_the_first_seed_by_the_lowest_loss(tmp_path: Path) -> None:
    losses = {("gd", 1.0, 7): 2.0, ("gd", 5.0, 7): 1.5, ("gd", 10.0, 7): math.nan, ("gd", 5.0, 8): 2.5}
    asked = []

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> list[GroupRecord]:
        asked.append((optimizer, rate, seed))
        return record(losses[optimizer, rate, seed], accuracy=seed / 10)

    found = tuned(pieces(tmp_path), train, {"gd": [1.0, 5.0, 10.0]}, [7, 8])["gd"]
    assert asked == [("gd", 1.0, 7), ("gd", 5.0, 7), ("gd", 10.0, 7), ("gd", 5.0, 8)]
    assert (found.rate, found.at_edge) == (5.0, False)
    assert found.tried == {1.0: 2.0, 5.0: 1.5, 10.0: math.inf}
    assert [found.last("group_loss", group) for group in (0, 1)] == [2.0, 3.0]
    assert found.spread("group_loss", 0) == pytest.approx(math.sqrt(0.5))
    steps, values = found.curve("group_accuracy", 1)
    assert (steps, values.tolist()) == ([0.0, 2.0], [0.0, pytest.approx(0.375)])
    assert found.curve("loss")[1].tolist() == [5.0, 2.0]


def test_a_seed_of_its_own_chooses_and_is_not_reported(tmp_path: Path) -> None:
    losses = {(1.0, 9): 1.0, (5.0, 9): 2.0, (1.0, 0): 4.0, (1.0, 1): 5.0}
    train = lambda optimizer, rate, seed, folder: record(losses[rate, seed])  # noqa: E731
    found = tuned(pieces(tmp_path), train, {"gd": [1.0, 5.0]}, [0, 1], tuning_seed=9)["gd"]
    assert (found.rate, found.last("loss"), len(found.runs)) == (1.0, 4.5, 2)


def test_every_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folders = []

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> list[GroupRecord]:
        folders.append(folder)
        return record(rate)

    tuned(pieces(tmp_path), train, {"gd": [1.0, 5.0], "adam": [1.0]}, [0, 1])
    assert len(folders) == len(set(folders)) == 5


@given(st.dictionaries(st.floats(0.1, 10), st.one_of(st.none(), st.floats()), min_size=1))
def test_no_loss_is_below_the_lowest(losses: dict[float, float | None]) -> None:
    """A loss that is not finite is chosen only where none is finite."""
    finite = [loss for loss in losses.values() if loss is not None and math.isfinite(loss)]
    chosen = losses[lowest(losses)]
    assert chosen == min(finite) if finite else chosen is None or not math.isfinite(chosen)


@pytest.mark.parametrize("rates", [[1.0, 5.0], [5.0, 1.0]])
def test_a_run_that_diverged_is_not_the_best(rates: list[float], tmp_path: Path) -> None:
    def train(optimizer: str, rate: float, seed: int, folder: Path) -> list[GroupRecord]:
        return record(math.nan if rate == 1.0 else 2.0)

    found = tuned(pieces(tmp_path), train, {"gd": rates}, [0, 1])["gd"]
    assert (found.rate, found.last("loss"), len(found.runs)) == (5.0, 2.0, 2)


@pytest.mark.parametrize("optimizer", list(LABELS))
def test_the_barcode_item_has_the_effective_step_of_the_linear_study(optimizer: str) -> None:
    """`Trial.effective_step` of the rate is the step that was asked for, with as many samples and the same noise."""
    unit = Trial(optimizer, 1.0, stability=STABILITY[optimizer], groups=5, samples=128, noise_multiplier=SIGMA)
    rate = rate_of(optimizer, 3.0, 5 * 128)
    assert replace(unit, learning_rate=rate).effective_step == pytest.approx(3.0, rel=1e-4)
    settings = private_settings(optimizer, rate, size=5 * 128, noise_multiplier=SIGMA)
    assert settings.optimizer.momentum == MOMENTUM or optimizer != "gdm"


def test_heavy_tail_runs_are_tuned_on_the_first_seed_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    rates = ["--rates", "gd=0.5:1", "gdm=0.1", "adam=1e-3", "adambc=1e-3", "--stability", "adambc=0.1,0.5"]
    options = ["--small", "--steps", "2", "--seeds", "2", "--export", str(results), *rates]
    assert main(["study", "heavy-tail", str(tmp_path / "runs"), *options]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) == 8
    curves = load_results(results)
    assert [(curve.trial.optimizer, curve.trial.seed) for curve in curves] == [
        (optimizer, seed) for optimizer in ("gd", "gdm", "adam", "adambc") for seed in (0, 1)
    ]
    best = {curve.trial.optimizer: curve for curve in curves if curve.trial.seed == 0}
    tried = [read_trial(tmp_path / "runs", replace(best["gd"].trial, learning_rate=rate)) for rate in (0.5, 1.0)]
    assert abs(tried[0].loss[-1] - tried[1].loss[-1]) > 1e-3  # else either would do
    assert best["gd"].loss[-1] == pytest.approx(min(curve.loss[-1] for curve in tried), abs=1e-4)
    with pytest.raises(SystemExit, match="--rates sgd=1: the optimizer must be one of gd, gdm, adam, adambc"):
        main(["study", "heavy-tail", "unused", "--rates", "sgd=1"])
