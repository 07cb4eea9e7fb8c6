"""Time, memory and ε of every norm method, measured on synthetic rows, and the method that is recommended."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from audits.steps import private_sgd
from dprmt.cli import main
from dprmt.training.clipping import StepCosts, TensorMemory, plan_private
from dprmt.training.clipping._plan import WayCost
from dprmt.training.harness import dry_run, recipe_costs, train
from dprmt.training.harness._recipe import RecipeTask
from dprmt.training.recipes import Recipe
from tests.training.tiny_recipe import recipe_in

RUN: dict[str, Any] = {"noise_multiplier": 1.0, "sampling": 2000 / 67349, "steps": 400, "delta": 1e-5}
OPTIONS: dict[str, Any] = {"clipping_norm": 1.0, "expected_batch_size": 4.0}
WAYS = ["exact", "ghost", "hutchinson", "hutch++"]
CPU = torch.device("cpu")


def losses(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().flatten(1).mean(1)


def costs_of(model: nn.Module, x: torch.Tensor, **options: Any) -> StepCosts:
    return plan_private(model, norms="ghost", **OPTIONS).costs(lambda: losses(model, x), **options)


def of(costs: StepCosts, way: str) -> WayCost:
    return next(one for one in costs.ways if one.way == way)


def test_epsilon_is_the_accountants() -> None:
    model = nn.Sequential(nn.Linear(96, 128), nn.Linear(128, 96))
    costs = costs_of(model, torch.randn(2, 3, 96, requires_grad=True), **RUN)
    for way in WAYS:
        mechanism = plan_private(model, norms=way, **OPTIONS).record.mechanism(1.0, RUN["sampling"])
        assert of(costs, way).epsilon == mechanism.epsilon(steps=RUN["steps"], delta=RUN["delta"]).upper
    assert of(costs, "exact").epsilon < of(costs, "hutch++").epsilon < of(costs, "hutchinson").epsilon


def test_nothing_is_trained_and_all_states_are_as_before() -> None:
    """Parameters, gradients, hooks, and generators, although dropout and noise are drawn."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(40, 40), nn.Dropout(), nn.Linear(40, 40)).train(), torch.randn(4, 3, 40)
    model[0].weight.grad = torch.full_like(model[0].weight, 2.0)
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    costs_of(model, x, **RUN)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.full_like(model[0].weight, 2.0))
    assert all(value.grad is None for name, value in model.named_parameters() if name != "0.weight")
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())


def ways(times: list[float], epsilons: list[float]) -> StepCosts:
    made = [WayCost(way, time, time, 0, epsilon) for way, time, epsilon in zip(WAYS, times, epsilons, strict=True)]
    return StepCosts(made, 1.0, 1)


@given(
    st.lists(st.floats(1.0, 4.0), min_size=4, max_size=4),
    st.floats(0.1, 10.0),
    st.lists(st.floats(1.0, 2.0), min_size=2, max_size=2),
)
def test_an_estimate_is_recommended_only_where_it_pays(times: list[float], exact: float, over: list[float]) -> None:
    """Never at more than 5 % more ε or less than 10 % less time; always if one is at less than both."""
    costs = ways(times, [exact, exact, exact * over[0], exact * over[1]])
    taken, fastest = costs.recommended, min(times[:2])
    if taken.way in ("exact", "ghost"):
        assert taken.time == fastest
        assert not any(t < fastest / 1.11 and o < 1.049 for t, o in zip(times[2:], over, strict=True))
    else:
        assert taken.time < fastest / 1.0999
        assert taken.epsilon is not None
        assert taken.epsilon <= 1.0501 * exact
    assert costs.sentence.startswith(taken.way)


@pytest.fixture
def recipe(folder: Path) -> Recipe:
    return recipe_in(folder, **{"privacy.norms": "auto"})


def fixed(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """Every method takes as long as it is said here, ε aside."""
    costs = ways([*seconds], [1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(RecipeTask, "costs", lambda _: costs)


def test_auto_is_what_is_recommended_and_a_resumed_run_stays_with_it(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a machine that is busy otherwise than before would change the mechanism in the middle of a run."""
    short, out = recipe.with_changes({"training.steps": 2}), tmp_path / "run"
    fixed(monkeypatch, 2.0, 1.0, 3.0, 3.0)
    assert "ghost" not in dry_run(short).norms  # exact in all
    train(short, out)
    assert json.loads((out / "run.json").read_text())["norms"] == "ghost"
    fixed(monkeypatch, 3.0, 3.0, 3.0, 1.0)
    task = RecipeTask(recipe, CPU)
    assert task.with_norms().privacy.norms.kind == "hutch++"
    assert task.with_norms(former="ghost").privacy.norms.kind == "ghost"
    train(short, out, resume=True)
    assert json.loads((out / "run.json").read_text())["norms"] == "ghost"


def test_where_nothing_is_measured_auto_takes_exact_norms(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes would each measure, and could disagree."""
    fixed(monkeypatch, 3.0, 3.0, 1.0, 1.0)
    assert RecipeTask(recipe, CPU).with_norms(processes=2).privacy.norms.kind == "ghost"
    grape = recipe.with_changes({"optimizer.name": "grape", "optimizer.rank": 2})
    assert RecipeTask(grape, CPU).with_norms().privacy.norms.kind == "ghost"


def test_a_recipe_is_measured_and_left_as_it_was(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.get_rng_state()
    costs = recipe_costs(recipe, device="cpu")
    assert [one.way for one in costs.ways] == WAYS
    exact = dry_run(recipe.with_changes({"privacy.norms.kind": "exact"}))
    assert of(costs, "exact").epsilon == pytest.approx(exact.epsilon_after[6], rel=1e-3)
    assert torch.equal(torch.get_rng_state(), state)
    path = Path(recipe.data.train[0]).parent / "recipe.toml"
    path.write_text(recipe.to_toml())
    assert main(["plan", str(path), "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "a step of one micro-batch, measured; without privacy" in text
    assert "recommended: " in text


def test_the_peak_is_that_of_live_tensors() -> None:
    """Of the step that each method does take, its second one."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(96, 192), nn.GELU(), nn.Linear(192, 96)), torch.randn(4, 64, 96)
    costs = costs_of(model, x, **RUN)
    for way in WAYS:
        private = private_sgd(model, norms=way, noise_multiplier=1.0)
        for step in range(2):
            with TensorMemory() as memory:
                private.accumulate(losses(model, x), samples=range(4), step=step)
                private.step()
        private.close()
        assert of(costs, way).peak == pytest.approx(memory.peak, rel=0.05)
    assert costs.plain_peak > 4 * sum(value.numel() for value in model.parameters())  # their gradients at least
