"""The harness end to end on tiny models: what it writes, what survives a kill, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus
from dprmt.training.denoising import Denoising
from dprmt.training.harness import Run, dry_run, load_trained, read_metrics, read_summary, train
from dprmt.training.harness._checkpoint import load_checkpoint
from dprmt.training.harness._recipe import RecipeTask
from dprmt.training.harness._run import Start
from dprmt.training.private_run._ledger import charged_steps
from dprmt.training.private_run._randomness import fresh_randomness
from dprmt.training.recipes import Recipe, load_recipe
from tests.training.tiny_recipe import STEPS, killed_before_step, recipe_in

FULL = {"model.finetune": "full", "model.lora": None}
# Some layers are wider than eight probes; with this noise the accountant answers quickly.
ESTIMATED = {"privacy.noise_multiplier": 2.0, **FULL}
HUTCHINSON = {"kind": "hutchinson", "probes": 8}
TARGET = {"privacy.noise_multiplier": None, "privacy.target_epsilon": 3.0}


def parameters(run: Path) -> dict[str, torch.Tensor]:
    state = load_checkpoint(run)
    assert state is not None
    return state["parameters"]


def test_run_folder_tells_the_whole_story(folder, tmp_path):
    recipe = recipe_in(folder, **{"evaluation.every": 3}, **TARGET)
    result = train(recipe, tmp_path / "run")
    assert result.finished
    assert result.steps == result.charged == STEPS
    assert load_recipe(str(tmp_path / "run" / "config.toml")) == recipe
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    mechanism = DPSGD(run["noise_multiplier"], run["sample_rate"])
    assert 12 / 60 <= run["sample_rate"] <= 12 / 60 + 2**-24
    expected = [mechanism.epsilon(steps=step, delta=1e-4).upper for step in range(1, STEPS + 1)]
    metrics = read_metrics(tmp_path / "run")
    assert [entry["epsilon"] for entry in metrics] == expected
    assert 2.9 < result.epsilon == expected[-1] <= 3.0
    assert [entry["learning_rate"] for entry in metrics] == pytest.approx([1e-2 * (6 - k) / 6 for k in range(6)])
    assert ["evaluation" in entry for entry in metrics] == [False, False, True] * 2
    assert all(set(entry["private"]) == {"loss", "batch_size", "seconds"} for entry in metrics)
    assert read_summary(tmp_path / "run")["evaluation"] == metrics[-1]["evaluation"] == result.evaluation
    trained_model = load_trained(tmp_path / "run").model
    for name, value in parameters(tmp_path / "run").items():
        assert torch.equal(dict(trained_model.named_parameters())[name], value)
    released = [load_file(path) for path in (tmp_path / "run" / "model").glob("*.safetensors")]  # adapter and head
    assert sum(map(len, released)) == len(parameters(tmp_path / "run"))
    pickled = {path.name for path in (tmp_path / "run").rglob("*") if path.suffix in (".pt", ".pkl", ".bin", ".new")}
    assert pickled == {"state.pt"}  # of the checkpoints


@pytest.mark.parametrize(
    ("changes", "norms"),
    [
        ({"privacy.norms": HUTCHINSON, **ESTIMATED}, Hutchinson(8, secret=True)),
        (
            {"privacy.norms": {"kind": "hutch++", "probes": 8, "secret": False}, **ESTIMATED},
            HutchPlusPlus(8, 3, power_iteration=True, secret=False),
        ),
        ({"optimizer.name": "grape", "optimizer.rank": 2, "optimizer.refresh_every": 2, **FULL}, ExactNorms()),
    ],
    ids=["hutchinson", "hutch++", "grape"],
)
def test_every_way_to_train_charges_what_it_does(folder, tmp_path, changes, norms):
    recipe = recipe_in(folder, **changes).with_changes({"training.steps": 2})
    result = train(recipe, tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    charged = DPSGD(1.0 if isinstance(norms, ExactNorms) else 2.0, run["sample_rate"], norms)
    assert run["step"] == {"mechanism": "DPSGD", **{k: v for k, v in charged.as_dict().items() if k != "kind"}}
    assert result.epsilon == charged.epsilon(steps=2, delta=1e-4).upper


def test_it_learns_where_the_noise_is_small(folder, tmp_path):
    changes = {"privacy.noise_multiplier": 0.05, "training.steps": 25, "optimizer.schedule": "constant", **FULL}
    result = train(recipe_in(folder, **changes), tmp_path / "run", noise_seed=3)
    assert result.evaluation["accuracy"] > 0.9
    trained = dict(load_trained(tmp_path / "run").model.named_parameters())
    assert all(torch.equal(trained[name], value) for name, value in parameters(tmp_path / "run").items())
    assert not read_summary(tmp_path / "run")["noise_is_secret"]


def test_equal_seeds_give_equal_runs_and_no_seed_does_not(folder, tmp_path):
    recipe = recipe_in(folder).with_changes({"training.steps": 2})
    for name, seed in (("a", 4), ("b", 4), ("c", 5), ("d", None), ("e", None)):
        train(recipe, tmp_path / name, noise_seed=seed)
    found = {name: torch.cat([value.flatten() for value in parameters(tmp_path / name).values()]) for name in "abcde"}
    assert torch.equal(found["a"], found["b"])
    for one, other in ("ac", "ad", "de"):
        assert not torch.isclose(found[one], found[other], rtol=1e-3).all()


KILLED = """
    import os, signal, sys
    from dprmt.training.harness import _train
    from dprmt.training.private_run import _ledger
    from dprmt.training.recipes import load_recipe
    charge = _ledger.PrivacyLedger.charge
    def dying(self, attempt, step, *rest):
        charge(self, attempt, step, *rest)
        if step == 4: os.kill(os.getpid(), signal.SIGKILL)
    _ledger.PrivacyLedger.charge = dying
    _train.train(load_recipe(sys.argv[1]), sys.argv[2], noise_seed=1)
"""


def test_a_step_is_on_the_disk_before_its_noisy_gradient_is_used(folder, tmp_path, monkeypatch):
    """When noise is about to be added, the ledger's file names this step already."""
    from dprmt.training.clipping import NoisySumOptimizer

    real, on_disk = NoisySumOptimizer.add_noise, []

    def looking(self):
        on_disk.append(charged_steps(tmp_path / "run"))
        real(self)

    monkeypatch.setattr(NoisySumOptimizer, "add_noise", looking)
    train(recipe_in(folder), tmp_path / "run")
    assert on_disk == list(range(1, STEPS + 1))


def test_killed_and_resumed_after_charging_it_tells_the_true_epsilon(folder, tmp_path):
    """Step 4 is charged, then the process is killed; it is repeated with fresh noise, and charged again."""
    recipe = recipe_in(folder)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    arguments = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "recipe.toml"), str(tmp_path / "run")]
    assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
    assert charged_steps(tmp_path / "run") == 4
    before = load_checkpoint(tmp_path / "run")
    assert before is not None
    assert before["steps_taken"] == 3
    result = train(recipe, tmp_path / "run", resume=True, noise_seed=1)
    assert (result.finished, result.steps, result.charged) == (True, STEPS, STEPS + 1)
    rate = json.loads((tmp_path / "run" / "run.json").read_text())["sample_rate"]
    assert result.epsilon == DPSGD(1.0, rate).epsilon(steps=STEPS + 1, delta=1e-4).upper
    metrics = read_metrics(tmp_path / "run")
    assert [entry["attempt"] for entry in metrics] == [1, 1, 1, 2, 2, 2]
    assert [entry["learning_rate"] for entry in metrics] == pytest.approx([1e-2 * (6 - k) / 6 for k in range(6)])
    lines = [json.loads(line) for line in (tmp_path / "run" / "privacy.jsonl").read_text().splitlines()]
    assert [line["charged"] for line in lines] == list(range(1, STEPS + 2))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 4, 5, 6]


def test_with_a_target_lost_steps_are_not_made_up_for(folder, tmp_path):
    recipe = recipe_in(folder, **TARGET, **{"training.checkpoint_every": 2})
    killed_before_step(4, recipe, tmp_path / "run")
    result = train(recipe, tmp_path / "run", resume=True)  # step 3 was charged, and is lost
    assert (result.steps, result.charged) == (STEPS - 1, STEPS)
    assert result.epsilon <= 3.0


def test_two_processes_do_what_one_does(folder, tmp_path):
    """Equal seeds, equal effective batch: noise added once, one ledger, the same parameters up to rounding."""
    recipe = recipe_in(folder, **{"privacy.norms": HUTCHINSON, "training.steps": 3, **ESTIMATED})
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "dprmt"]
    command += ["train", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "two"), "--noise-seed", "6", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["charged"] == 3  # one object for both processes
    one = train(recipe, tmp_path / "one", noise_seed=6)
    assert charged_steps(tmp_path / "two") == one.charged == 3
    assert read_summary(tmp_path / "two")["epsilon"] == one.epsilon
    alone, together = parameters(tmp_path / "one"), parameters(tmp_path / "two")
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=2e-5)
    losses = [[entry["private"]["loss"] for entry in read_metrics(tmp_path / name)] for name in ("one", "two")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_dry_run_says_what_the_run_would_say(folder, tmp_path):
    recipe = recipe_in(folder, **TARGET)
    plan = dry_run(recipe)
    result = train(recipe, tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert plan.mechanism == run["step"]
    assert plan.epsilon_after[STEPS] == result.epsilon
    assert plan.noise_std == pytest.approx(run["noise_multiplier"] / 12)
    assert sum(int(np.prod(shape)) for shape in plan.trainable.values()) == run["trainable_parameters"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "RECIPE must be one of"),
        (["RECIPE", "--set", "training.steps"], "--set must be of the form KEY=VALUE"),
        (["RECIPE", "--set", "training.steps=0"], "training.steps must be an integer in [1, 4294967295], got 0"),
        (
            ["RECIPE", "--set", "training.batch_size=61"],
            "training.batch_size must be at most the size of the training set, 60",
        ),
        (["RECIPE", "--set", "data.max_tokens=65"], "data.max_tokens must be at most 64"),
        (["RECIPE", "--device", "meta"], "--device must be a device that computes here"),
        (["FOLDER"], "RECIPE must be a readable TOML file"),
        (
            ["RECIPE", "--set", "data.train=['nowhere.csv']"],
            "data.train must be a file that is there (--set \"data.train=['FILE']\" names one), got ",
        ),
        (["RECIPE", "--set", "model.config.hidden_size=15"], "model"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, tmp_path, refusal, arguments, message):
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_in(folder).to_toml())
    (tmp_path / "folder.toml").mkdir()
    out = tmp_path / "runs" / "first"
    words = [{"RECIPE": str(path), "FOLDER": str(tmp_path / "folder.toml")}.get(word, word) for word in arguments]
    line = refusal(["train", *words, "--out", str(out)])
    assert line.startswith("dprmt train: ")
    assert message in line
    assert not out.parent.exists()


IN_SUBSPACES = {**FULL, "optimizer.name": "grape", "optimizer.rank": 3}


def built(recipe: Recipe) -> Run:
    run = RecipeTask(recipe, torch.device("cpu")).run(Start(fresh_randomness(1, 1)))
    run.private.close()
    return run


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gd", {"lr": 0.3, "momentum": 0.0, "weight_decay": 0.2}),
        ("gdm", {"lr": 0.3, "momentum": 0.7, "weight_decay": 0.2}),
        ("adam", {"lr": 0.3, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}),
        ("adamw", {"lr": 0.3, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}),
        (
            "adambc",
            {"lr": 0.3, "betas": (0.8, 0.95), "floor": 1e-2, "weight_decay": 0.2, "noise_variance": (1.0 / 12) ** 2},
        ),
        ("grape", {"lr": 0.3, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.2}),
    ],
)
def test_the_optimizer_gets_its_options(folder, name, expected):
    options = {"learning_rate": 0.3, "momentum": 0.7, "betas": [0.8, 0.95], "eps": 1e-3, "floor": 1e-2}
    options |= {"weight_decay": 0.2, "rank": 3, "refresh_every": 7, "projector": "stiefel", "name": name}
    recipe = recipe_in(folder, **{f"optimizer.{key}": value for key, value in options.items()})
    optimizer = built(recipe).private.optimizer
    (group,) = optimizer.param_groups
    assert {key: group[key] for key in expected} == expected
    if name == "grape":
        subspaces = optimizer.subspaces
        assert (subspaces.refresh_every, subspaces.kind, {layer.rank for layer in subspaces}) == (7, "stiefel", {3})


def test_grape_with_singular_vectors_takes_as_many_as_a_layer_has(folder):
    optimizer = built(recipe_in(folder, **IN_SUBSPACES, **{"optimizer.projector": "svd"})).private.optimizer
    ranks = {layer.name: layer.rank for layer in optimizer.subspaces}
    assert ranks.pop("classifier.weight") == 2  # two labels
    assert set(ranks.values()) == {3}


def test_a_plan_counts_the_layers_whose_norms_are_estimated(folder):
    wide = {"model.lora.also_train": ["value"], "model.lora.targets": ["query"], "model.config.hidden_size": 32}
    norms = {"privacy.norms": {"kind": "hutch++", "probes": 4, "sketch": 3}}
    planned = dry_run(recipe_in(folder).with_changes(wide | norms)).norms
    assert planned.startswith("hutch++ (4 secret probes, a sketch of 3")
    assert planned.endswith(" in 1 of 4 layers, exact in 3 of 4 layers")
    planned = dry_run(recipe_in(folder).with_changes(norms)).norms
    assert planned == "exact in 5 of 5 layers"


def test_grape_is_denoised_and_looked_at_in_the_subspace(folder, tmp_path, monkeypatch):
    """With nobody in the batch, the norm is that of the noise: in r x n numbers per weight, not in m x n."""
    real = Denoising.apply

    def halved(self, gradients, sigma):
        return {name: value / 2 for name, value in gradients.items()}, real(self, gradients, sigma)[1]

    monkeypatch.setattr(Denoising, "apply", halved)
    changes = {"training.batch_size": 1, "training.steps": 8, "denoising.method": "paper"}
    recipe = recipe_in(folder, **IN_SUBSPACES, **changes)
    train(recipe, tmp_path / "run", noise_seed=1)
    run, entries = built(recipe), read_metrics(tmp_path / "run")
    subspaces = run.private.optimizer.subspaces
    released = sum(layer.rank * layer.n for layer in subspaces)
    released += sum(value.numel() for value in run.parameters.values() if value not in subspaces)
    empty = [entry for entry in entries if entry["private"]["batch_size"] == 0]
    assert empty
    assert all(entry["private"]["loss"] is None for entry in empty)
    assert all(entry["noisy_gradient_norm"] == pytest.approx(released**0.5, rel=0.1) for entry in empty)
    denoised = {layer.name for layer in subspaces if "classifier" not in layer.name}  # the head is left alone
    assert 0 < len(denoised) < len(list(subspaces))
    assert [entry["matrices"] for entry in entries] == [len(denoised)] * 8
