"""Samples whose gradient is not finite are left out: the sum is that of the others, for every kind of layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from audits.steps import Parts, private_sgd
from dprmt.training.clipping import ClippedStep, plan_private
from tests.training.projected import projected_step

BAD = {"NaN": float("nan"), "infinite": float("inf"), "overflow": 3e38}
LEFT_OUT = [(0,), (2,), (4,), (0, 1), (1, 3), (0, 2, 4), (0, 1, 2, 3, 4)]
FLOATS = torch.rand(5, 1, 4, generator=torch.Generator().manual_seed(1)) + 0.5
WORDS = torch.tensor([[3, 1, 3], [2, 2, 2], [0, 1, 4], [4, 3, 1], [1, 1, 0]])


def ramp() -> nn.Module:
    """Nobody's layer: its samples run one by one."""
    return Parts(lambda model, x: x * model.slope, slope=nn.Parameter(torch.rand(4)))


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (lambda: nn.Linear(4, 3), FLOATS),
    "embedding": (lambda: nn.Embedding(5, 3), WORDS),
    "normalization": (lambda: nn.LayerNorm(4), FLOATS),
    "convolution": (lambda: nn.Conv1d(1, 2, 1), FLOATS),
    "whole": (ramp, FLOATS),
}


def private(kind: str, clipping: str) -> ClippedStep:
    torch.manual_seed(0)
    model = MODELS[kind][0]()
    options: dict[str, Any] = {"clipping_norm": 0.5, "noise_multiplier": 0.0, "expected_batch_size": 1.0}
    if clipping == "a few at a time":
        plan = plan_private(model, norms="exact", clipping_norm=0.5, expected_batch_size=1.0)
        plan = replace(plan, policy=replace(plan.policy, memory_budget=1))
        return plan.privatize(torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=0.0)
    if clipping == "projected":
        return projected_step(model, rank=2, lr=0.1, seed=0, **options)
    return private_sgd(model, 0.1, norms=clipping, **options)


def sums(step: ClippedStep, kind: str, positions: list[int], weights: list[float]) -> list[torch.Tensor]:
    """Of the samples, each output weighted; nothing that is first looked at is not finite."""
    inputs = MODELS[kind][1]
    outputs = step.model(inputs[[0, 1]]).flatten(1).sum(1)
    step.accumulate(outputs, samples=["first", "look"], step=0)
    if positions:
        outputs = step.model(inputs[positions]).flatten(1).sum(1)
        step.accumulate(outputs * torch.tensor(weights) * 10.0, samples=positions, step=0)
    return [p.summed_grad.clone() for p in step.model.parameters()]


KINDS = [
    *itertools.product(MODELS, ("exact", "ghost", "hutchinson")),
    ("linear", "projected"),
    ("convolution", "a few at a time"),
]


@pytest.mark.parametrize(("kind", "clipping"), KINDS)
@pytest.mark.parametrize("value", BAD)
def test_the_others_are_summed_as_if_it_were_not_there(kind: str, clipping: str, value: str) -> None:
    """At every position, several, and all of them."""
    for bad in LEFT_OUT:
        weights = [BAD[value] if position in bad else 1.0 + position for position in range(5)]
        found = sums(private(kind, clipping), kind, list(range(5)), weights)
        kept = [position for position in range(5) if position not in bad]
        expected = sums(private(kind, clipping), kind, kept, [1.0 + position for position in kept])
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_long_but_finite_counts() -> None:
    """Clipped to C, not left out: rows of up to 2⁹⁶ are summed in float32."""
    found = sums(private("linear", "exact"), "linear", [2], [1e27])
    alone = sums(private("linear", "exact"), "linear", [], [])
    norm = sum(float((a - b).square().sum()) for a, b in zip(found, alone, strict=True)) ** 0.5
    assert norm == pytest.approx(0.5, rel=1e-3)
