"""Sweeps: every combination once, whatever engine runs them, and nothing twice."""

from __future__ import annotations

import json
from pathlib import Path

import joblib
import pytest

from dprmt import ParameterError
from dprmt.training.harness import Run, _train, read_summary, sweep
from tests.training.tiny_recipe import recipe_in, write_data

GRID = {"denoising.kappa": [1.01, 1.1], "training.seed": [0, 1]}


@pytest.fixture
def recipe(tmp_path):
    write_data(tmp_path)
    return recipe_in(tmp_path, **{"training.steps": 2, "denoising.method": "paper"})


def test_every_combination_is_run_once(recipe, tmp_path, monkeypatch):
    trained = []
    real = _train.train
    monkeypatch.setattr(_train, "train", lambda *a, **k: trained.append(a) or real(*a, **k))
    runs = sweep(recipe, GRID, tmp_path / "sweep", jobs=1, noise_seed=1)
    assert [tuple(run.changes.values()) for run in runs] == [(1.01, 0), (1.01, 1), (1.1, 0), (1.1, 1)]
    assert len({run.folder for run in runs}) == len(trained) == 4
    for run in runs:
        assert json.loads((run.folder / "changes.json").read_text()) == run.changes
        assert run.summary == read_summary(run.folder)
    again = sweep(recipe, GRID | {"training.seed": [0, 1, 2]}, tmp_path / "sweep", jobs=1, noise_seed=1)
    assert len(trained) == 6
    assert [run.summary for run in again if run.changes["training.seed"] < 2] == [run.summary for run in runs]


def test_an_interrupted_run_is_continued(recipe, tmp_path, monkeypatch):
    grid = {"training.seed": [0]}
    real = Run._one_step

    def failing(self, step, batch):
        if step == 2:
            raise RuntimeError("power cut")
        return real(self, step, batch)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "_one_step", failing)
        with pytest.raises(RuntimeError, match="power cut"):
            sweep(recipe, grid, tmp_path / "sweep", jobs=1)
    (run,) = sweep(recipe, grid, tmp_path / "sweep", jobs=1)
    assert run.summary["steps"] == run.summary["charged"] == 2
    assert json.loads((run.folder / "run.json").read_text())["starts"] == 2


@pytest.mark.slow
def test_a_local_dask_cluster_gives_the_same(recipe, tmp_path):
    distributed = pytest.importorskip("distributed")
    alone = sweep(recipe, {"training.seed": [0, 1]}, tmp_path / "alone", jobs=1, noise_seed=1)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        together = sweep(recipe, {"training.seed": [0, 1]}, tmp_path / "together", noise_seed=1)
    assert [run.summary for run in together] == [run.summary for run in alone]


def test_nothing_runs_if_a_combination_is_wrong(recipe, tmp_path):
    with pytest.raises(ParameterError, match=r"training\.steps"):
        sweep(recipe, {"training.steps": [1, 0]}, tmp_path / "sweep")
    with pytest.raises(ParameterError, match="grid"):
        sweep(recipe, {"training.seed": []}, tmp_path / "sweep")
    assert not Path(tmp_path / "sweep").exists()


def test_a_sweep_of_another_recipe_does_not_take_over_old_runs(recipe, tmp_path):
    """The folders are named after the changes alone: what else changed would go unnoticed."""
    grid = {"training.seed": [0]}
    (run,) = sweep(recipe, grid, tmp_path / "sweep", jobs=1)
    (run.folder / "changes.json").unlink()  # as after a kill between the summary and this file
    (again,) = sweep(recipe, grid, tmp_path / "sweep", jobs=1)
    assert again.summary == run.summary
    assert json.loads((run.folder / "changes.json").read_text()) == {"training.seed": 0}
    with pytest.raises(ParameterError, match="same recipe"):
        sweep(recipe.with_changes({"privacy.noise_multiplier": 2.0}), grid, tmp_path / "sweep", jobs=1)
