"""What a step is said to cost before it is taken, against what the step that is taken does cost."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dprmt import ParameterError
from dprmt.cli import main
from dprmt.training.clipping import (
    ClippedStep,
    Rates,
    StepCosts,
    TensorMemory,
    WayCost,
    make_private,
    measured_rates,
    plan_private,
)
from dprmt.training.clipping._matrix_layers import LinearLayer
from dprmt.training.clipping._policy import NormPolicy
from dprmt.training.harness import dry_run
from dprmt.training.norms import gram_entries
from dprmt.training.optimizers import DPGrape
from dprmt.training.recipes import load_recipe
from dprmt.training.subspaces import Subspaces

RUN: dict[str, Any] = {"noise_multiplier": 1.0, "sampling": 2000 / 67349, "steps": 400, "delta": 1e-5}
WAYS = ["exact", "ghost", "hutchinson", "hutch++"]
SHAPES = {"long": (2, 256, 192), "short": (8, 16, 320), "one token": (64, 1, 256)}
"""Samples, tokens, width."""
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


def network(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    wide = 4 * width
    return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width), nn.Linear(width, width))


def batch(samples: int, tokens: int, width: int) -> torch.Tensor:
    return torch.randn(samples, tokens, width, requires_grad=True)


def losses(model: Any, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean((1, 2))


def counted(shape: str, **options: Any) -> StepCosts:
    samples, tokens, width = SHAPES[shape]
    model, x = network(width), batch(samples, tokens, width)
    plan = plan_private(model, norms="ghost", clipping_norm=1.0, expected_batch_size=4.0, tokens=tokens)
    return plan.costs(lambda: losses(model, x), **options)


def of(costs: StepCosts, way: str) -> WayCost:
    return next(one for one in costs.ways if one.way == way)


def second_step(shape: str, way: str) -> tuple[Callable[[], None], nn.Module]:
    """Of a run whose first one is done."""
    samples, tokens, width = SHAPES[shape]
    model, x = network(width), batch(samples, tokens, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    if way == "plain":

        def plain() -> None:
            optimizer.zero_grad()
            losses(model, x).sum().backward()
            optimizer.step()
            x.grad = None

        plain()
        optimizer.zero_grad()
        return plain, model
    private = make_private(
        model,
        optimizer,
        norms=way,
        clipping_norm=1.0,
        noise_multiplier=1.0,
        expected_batch_size=4.0,
        tokens=tokens,
    )
    assert isinstance(private, ClippedStep)
    numbers = iter(range(9))

    def step() -> None:
        private.accumulate(losses(private.model, x), samples=range(samples), step=next(numbers))
        private.step()
        x.grad = None

    step()
    return step, model


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["plain", *WAYS])
def test_flops_are_those_of_the_step(shape: str, way: str) -> None:
    """Torch's own counter sees the whole step; a tenth at most is not counted here, or too much."""
    costs = counted(shape)
    step, _ = second_step(shape, way)
    with FlopCounterMode(display=False) as counter:
        step()
    expected = costs.plain_flops + (0 if way == "plain" else of(costs, way).flops)
    assert expected == pytest.approx(counter.get_total_flops(), rel=0.1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["plain", *WAYS])
def test_the_peak_is_that_of_live_tensors(shape: str, way: str) -> None:
    """Within a fifth."""
    costs = counted(shape)
    step, model = second_step(shape, way)
    with TensorMemory(list(model.parameters())) as memory:
        held = memory.live
        step()
    expected = costs.plain_peak if way == "plain" else of(costs, way).peak
    assert expected == pytest.approx(memory.peak - held, rel=0.2)


def test_epsilon_is_the_accountants() -> None:
    costs = counted("long", **RUN)
    for way in WAYS:
        plan = plan_private(network(192), norms=way, clipping_norm=1.0, expected_batch_size=4.0, tokens=256)
        mechanism = plan.record.mechanism(1.0, RUN["sampling"])
        assert of(costs, way).epsilon == mechanism.epsilon(RUN["steps"], RUN["delta"]).upper
    assert of(costs, "exact").epsilon == of(costs, "formed").epsilon == of(costs, "ghost").epsilon


def test_what_a_layer_costs_says_how() -> None:
    assert {cost.how for cost in of(counted("long"), "exact").layers} == {"formed"}
    assert {cost.how for cost in of(counted("short"), "exact").layers} == {"blocks"}
    assert {cost.how for cost in of(counted("short"), "ghost").layers} == {"Gram"}
    assert {cost.how for cost in of(counted("short"), "hutchinson").layers} == {"Hutchinson"}
    assert {cost.how for cost in of(counted("short"), "hutch++").layers} == {"Hutch++"}


def ways(times: list[float], epsilons: list[float]) -> StepCosts:
    names = ["exact", "ghost", "hutchinson", "hutch++"]
    made = [WayCost(way, [], 0, time, 0, epsilon) for way, time, epsilon in zip(names, times, epsilons, strict=True)]
    return StepCosts(made, 1, 1)


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


def test_the_sentence() -> None:
    costs = ways([1.4, 1.09, 0.9, 1.0], [3.81, 3.81, 4.05, 3.849])
    assert costs.sentence == "ghost: 9 % slower than hutch++, ε 3.81 against 3.85"
    costs = ways([1.5, 1.4, 1.0, 1.05], [3.81, 3.81, 4.2, 3.849])
    assert costs.sentence == "hutch++: 25 % faster than ghost, ε 3.85 against 3.81"
    silent = StepCosts([replace(one, epsilon=None) for one in costs.ways], 1, 1)
    assert silent.recommended.way == "ghost"
    assert silent.sentence == "ghost: 40 % slower than hutchinson"


def test_rates_turn_counts_into_time() -> None:
    """Where random numbers cost nothing and products all, exact norms of long texts cost as many FLOPs as they take."""
    costs = counted("long", rates=Rates(flops=1.0, normals=1e30, bytes=1e30))
    found = of(costs, "exact")
    assert found.time == pytest.approx(1 + found.flops / costs.plain_flops)
    assert of(counted("long", rates=Rates(normals=1.0)), "exact").time > 1e4
    measured = measured_rates()
    assert measured.flops > measured.normals
    with pytest.raises(ParameterError, match="flops must be"):
        Rates(flops=0.0)


@pytest.mark.parametrize("left_out", RUN)
def test_of_the_noise_all_is_said_or_nothing(left_out: str) -> None:
    with pytest.raises(ParameterError, match=left_out):
        counted("long", **{name: value for name, value in RUN.items() if name != left_out})


def test_what_nobody_counted_is_refused() -> None:
    model = nn.Linear(30, 20)
    grape = DPGrape(model.parameters(), lr=0.1, subspaces=Subspaces(model, rank=4))
    options: dict[str, Any] = {"norms": "exact", "clipping_norm": 1.0, "expected_batch_size": 4.0}
    with pytest.raises(ParameterError, match="no weights in subspaces"):
        plan_private(model, subspaces=grape.subspaces, **options).costs(lambda: model(torch.ones(2, 30)).sum(1))
    with pytest.raises(ParameterError, match="losses"):
        plan_private(model, **options).costs(lambda: model(torch.ones(2, 30)).sum())


FEW = {"data.limit": 30, "training.batch_size": 10, "training.steps": 2, "model.tokenizer": "bytes"}


def test_a_recipes_auto_is_what_its_plan_recommends(capsys: pytest.CaptureFixture[str]) -> None:
    changes = [word for key, value in FEW.items() for word in ("--set", f"{key}={value}")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["plan", "qwen3-tiny-docstrings", *changes, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert main(["plan", "qwen3-tiny-docstrings", *changes, "--layers"]) == 0
        text = capsys.readouterr().out
    assert f"recommended: {said['sentence']}\n" in text
    assert [way["way"] for way in said["ways"]] == ["formed", *WAYS]
    recipe = load_recipe("qwen3-tiny-docstrings").with_changes(FEW)
    auto = recipe.with_changes({"privacy.norms.kind": "auto"})
    taken = recipe.with_changes({"privacy.norms.kind": said["recommended"]})
    assert dry_run(auto).layers == dry_run(taken).layers


def test_bad_input_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "no-such-recipe"]) == 2
    assert capsys.readouterr().err.startswith("dprmt plan: RECIPE must be")
    assert main(["plan", "minilm-docstrings", "--set", "optimizer.name=grape"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_gradients_that_take_the_place_of_the_sums_product_are_formed_though_gram_matrices_are_symmetric() -> None:
    """Of 300 tokens 512 × 512 numbers are kept; of 200, Gram matrices are cheaper."""
    layer = LinearLayer("layer", nn.Linear(512, 512), NormPolicy())
    assert gram_entries(300) * 1024 < 300 * 512 * 512
    assert (layer.takes_gram_matrices(300), layer.takes_gram_matrices(200)) == (False, True)


def test_frozen_weights_are_no_memory_of_a_step() -> None:
    """Of a wide frozen layer, which autograd saves: its 4 MiB are there before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 8))
    model[1].requires_grad_(requires_grad=False)
    plan = plan_private(model, norms="ghost", clipping_norm=1.0, expected_batch_size=2.0)
    costs = plan.costs(lambda: losses(model, torch.randn(2, 3, 8)))
    assert max(costs.plain_peak, of(costs, "ghost").peak) < 1 << 20
