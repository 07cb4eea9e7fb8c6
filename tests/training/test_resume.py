"""What a run that is continued takes over, and which it refuses: ε must be that of all starts together."""

from __future__ import annotations

import copy
import os
import resource
import signal
from typing import Any

import pytest
import torch

from dprmt import ParameterError
from dprmt.cli import main
from dprmt.training.harness import Run, load_trained, read_metrics, read_summary, train
from dprmt.training.harness import _train as harness
from dprmt.training.harness._recipe import RecipeTask
from dprmt.training.private_run import PrivateRun, _ledger
from dprmt.training.private_run._ledger import charged_steps
from tests.training.tiny_recipe import STEPS, killed_before_step, recipe_in

GRAPE = {"optimizer.name": "grape", "optimizer.rank": 3, "optimizer.refresh_every": 2}
GRAPE |= {"model.finetune": "full", "model.lora": None}


def stop_before(monkeypatch, last: int) -> list[dict[str, Any]]:
    """Make the first start die before a step; record the optimizer as it is at the beginning of this step."""
    seen: list[dict[str, Any]] = []
    real = Run._one_step

    def step(self, number, batch):
        if number == last:
            inner = self.private.optimizer
            subspaces = getattr(inner, "subspaces", None)
            seen.append(
                {
                    "state": copy.deepcopy(inner.state_dict()),
                    "projectors": [subspaces.projector(layer.weight) for layer in subspaces or ()],
                    "parameters": {name: value.detach().clone() for name, value in self.parameters.items()},
                }
            )
            if self.start.number == 1:
                raise RuntimeError("power cut")
        return real(self, number, batch)

    monkeypatch.setattr(Run, "_one_step", step)
    return seen


def power_cut(*_: Any) -> None:
    raise RuntimeError("power cut")


def flat(tree: Any, name: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {key: value for part, item in tree.items() for key, value in flat(item, f"{name}.{part}").items()}
    if isinstance(tree, list | tuple):
        return flat(dict(enumerate(tree)), name)
    return {name: tree}


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer.name": "adambc", "denoising.method": "paper"},
        {"optimizer.name": "gdm"},
        GRAPE,
        {**GRAPE, "optimizer.rank": 2, "optimizer.projector": "svd", "denoising.method": "paper"},
    ],
    ids=["adambc", "gdm", "grape", "grape-svd"],
)
def test_a_resumed_run_goes_on_with_the_very_state(folder, tmp_path, monkeypatch, changes):
    """Moments, step and period counters, seeds and projectors, bit by bit; the schedule goes on."""
    recipe = recipe_in(folder, **changes)
    seen = stop_before(monkeypatch, 4)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe, tmp_path / "run")
    result = train(recipe, tmp_path / "run", resume=True)
    assert (result.steps, result.charged) == (STEPS, STEPS)
    before, after = (flat(one) for one in seen)
    # The learning rate of a group is set at every step; what stands there before is the last step's.
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert torch.equal(value, after[key]) if isinstance(value, torch.Tensor) else value == after[key], key
    if "optimizer.rank" in changes:
        assert len(seen[0]["projectors"]) > 4
        assert seen[1]["state"]["subspaces"]["step"] == 3
    rates = [entry["learning_rate"] for entry in read_metrics(tmp_path / "run")]
    assert rates == pytest.approx([1e-2 * (6 - k) / 6 for k in range(6)])


def test_a_kill_while_resuming_neither_charges_nor_repeats_randomness(folder, tmp_path, monkeypatch):
    """Noise, batches and probes of the next start are those of no start before."""
    killed_before_step(4, recipe_in(folder), tmp_path / "run")
    secrets, real = [], harness.fresh_randomness

    def kept(randomness: Any) -> Any:
        secrets.append(randomness.secret)
        return randomness

    monkeypatch.setattr(harness, "fresh_randomness", lambda *a: kept(real(*a)))
    with monkeypatch.context() as patch:
        patch.setattr(PrivateRun, "_batches", power_cut)
        with pytest.raises(RuntimeError, match="power cut"):
            train(recipe_in(folder), tmp_path / "run", resume=True)
    assert charged_steps(tmp_path / "run") == 3
    result = train(recipe_in(folder), tmp_path / "run", resume=True)
    assert (result.charged, result.steps) == (STEPS, STEPS)
    assert [entry["attempt"] for entry in read_metrics(tmp_path / "run")] == [1, 1, 1, 3, 3, 3]
    assert secrets[0] != secrets[1]
    assert read_summary(tmp_path / "run")["noise_is_secret"]


def test_a_run_that_was_killed_before_its_summary_is_scored_when_resumed(folder, tmp_path, monkeypatch):
    recipe = recipe_in(folder, **{"evaluation.every": 2, "training.steps": 2})
    with monkeypatch.context() as patch:
        patch.setattr(harness, "_write_summary", power_cut)
        with pytest.raises(RuntimeError, match="power cut"):
            train(recipe, tmp_path / "run")
    with pytest.raises(ParameterError, match="finished run"):
        load_trained(tmp_path / "run")
    result = train(recipe, tmp_path / "run", resume=True)
    assert result.charged == 2
    assert result.evaluation == read_summary(tmp_path / "run")["evaluation"]
    assert result.evaluation == read_metrics(tmp_path / "run")[-1]["evaluation"]


def test_a_run_of_which_every_charged_step_is_lost_still_ends(folder, tmp_path, monkeypatch):
    changes = {"privacy.noise_multiplier": None, "privacy.target_epsilon": 3.0, "training.steps": 1}
    recipe = recipe_in(folder, **changes)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_checkpoint", power_cut)
        with pytest.raises(RuntimeError, match="power cut"):
            train(recipe, tmp_path / "run")
    result = train(recipe, tmp_path / "run", resume=True)
    assert (result.finished, result.steps, result.charged) == (True, 0, 1)
    assert 2.9 < result.epsilon <= 3.0


def test_a_signal_during_an_evaluation_stops_after_it(folder, tmp_path, monkeypatch):
    recipe = recipe_in(folder, **{"evaluation.every": 2})
    real = RecipeTask.score

    def interrupted(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(RecipeTask, "score", interrupted)
        stopped = train(recipe, tmp_path / "run")
    assert (stopped.finished, stopped.steps, stopped.charged) == (False, 2, 2)
    assert "evaluation" in read_metrics(tmp_path / "run")[-1]
    assert train(recipe, tmp_path / "run", resume=True).charged == STEPS


def test_a_charge_that_does_not_reach_the_disk_stops_the_run_before_the_gradient_is_used(folder, tmp_path, monkeypatch):
    recipe = recipe_in(folder)
    real, moved = os.fsync, []
    charge = _ledger.PrivacyLedger.charge

    def full(self, attempt, step, epsilon, charged):
        if step == 3:
            monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "disk full")))
        try:
            charge(self, attempt, step, epsilon, charged)
        finally:
            monkeypatch.setattr(os, "fsync", real)
        moved.append(step)

    monkeypatch.setattr(_ledger.PrivacyLedger, "charge", full)
    with pytest.raises(OSError, match="disk full"):
        train(recipe, tmp_path / "run")
    assert moved == [1, 2]
    assert len(read_metrics(tmp_path / "run")) == 2
    assert charged_steps(tmp_path / "run") == 3  # it may have been written: it counts


def test_a_disk_that_is_full_ends_the_run_with_one_line_and_loses_nothing(folder, tmp_path, capsys):
    recipe = recipe_in(folder, **{"training.checkpoint_every": 2})
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    command = ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "run")]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))  # two lines of metrics fit, no checkpoint
    try:
        assert main(command) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("dprmt train: ")
    assert "checkpoint.new" in message
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert charged_steps(tmp_path / "run") == 2
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert read_summary(tmp_path / "run")["charged"] == STEPS + 2


def test_a_folder_alone_is_enough_to_go_on(folder, tmp_path, monkeypatch, capsys):
    """`--resume DIR` knows the recipe and every `--set` of the first start."""
    (tmp_path / "recipe.toml").write_text(recipe_in(folder).to_toml())
    run = tmp_path / "run"
    changed = ["--set", "training.checkpoint_every=1", "--set", "privacy.clipping_norm=0.5"]
    with monkeypatch.context() as patched:
        stop_before(patched, 2)
        with pytest.raises(RuntimeError, match="power cut"):
            main(["train", str(tmp_path / "recipe.toml"), "--out", str(run), *changed])
    assert main(["train", "--resume", str(run)]) == 0
    assert read_summary(run)["charged"] == STEPS
    assert "clipping_norm = 0.5" in (run / "config.toml").read_text()
    assert main(["train", "--resume", str(run), "--set", "privacy.clipping_norm=2.0"]) == 2
    said = "must be the recipe the run was started with (privacy.clipping_norm: 0.5 then, 2.0 now)"
    assert said in capsys.readouterr().err
