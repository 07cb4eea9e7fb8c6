"""What is in a sum: no sample whose gradient is not finite, at most C of each in 16 bits, and noise of σC once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn

from audits.steps import Parts, private_sgd
from dprmt.training.clipping import ClippedStep, plan_private
from tests.training.clipping_table import CLIPPINGS, IDS, SEED, K, S, Way, data, losses, make_model, make_step
from tests.training.norms_by_word import by_word
from tests.training.projected import projected_step

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers
LEFT_OUT = [(0,), (2,), (4,), (0, 1), (1, 3), (0, 2, 4), (0, 1, 2, 3, 4)]
BAD = {"NaN": math.nan, "infinite": math.inf, "overflow": 3e38, "NaN input": math.nan, "infinite input": math.inf}
FLOATS = torch.rand(5, 1, 4, generator=torch.Generator().manual_seed(1)) + 0.5
WORDS = torch.tensor([[3, 1, 3], [2, 2, 2], [0, 1, 4], [4, 3, 1], [1, 1, 0]])
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (lambda: nn.Linear(4, 5), FLOATS),
    "embedding": (lambda: nn.Embedding(5, 3), WORDS),
    "normalization": (lambda: nn.LayerNorm(4), FLOATS),
    "convolution": (lambda: nn.Conv1d(1, 2, 1), FLOATS),
    "whole": (lambda: Parts(lambda model, x: x * model.slope, slope=nn.Parameter(torch.rand(4))), FLOATS),
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
    return private_sgd(model, 0.1, norms=by_word(clipping, K, S, seed=SEED), **options)


def sums(
    kind: str, clipping: str, positions: Sequence[int], weight: float = 1.0, bad: Sequence[int] = (), value: str = ""
) -> list[torch.Tensor]:
    """Of the samples, each output weighted; nothing that is first looked at is not finite."""
    step, inputs = private(kind, clipping), MODELS[kind][1].clone()
    step.accumulate(step.model(inputs[[0, 1]]).flatten(1).sum(1), samples=["first", "look"], step=0)
    weights = weight * (1.0 + torch.arange(5))
    if bad:
        (inputs if value.endswith("input") else weights)[list(bad)] = BAD[value]
    if positions:
        outputs = step.model(inputs[positions]).flatten(1).sum(1)
        step.accumulate(outputs * weights[positions] * 10.0, samples=positions, step=0)
    return [p.summed_grad.clone() for p in step.model.parameters()]


KINDS = [
    *itertools.product(MODELS, CLIPPINGS),
    ("linear", "projected"),
    ("convolution", "a few at a time"),
]


@pytest.mark.parametrize(("kind", "clipping"), KINDS)
@pytest.mark.parametrize("value", BAD)
def test_the_others_are_summed_as_if_it_were_not_there(kind: str, clipping: str, value: str) -> None:
    """At every position, several, and all of them; words are integers."""
    for bad in LEFT_OUT if kind != "embedding" or not value.endswith("input") else []:
        found = sums(kind, clipping, range(5), 1.0, bad, value)
        expected = sums(kind, clipping, [position for position in range(5) if position not in bad])
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_long_but_finite_counts() -> None:
    """Clipped to C, not left out: rows of up to 2⁹⁶ are summed in float32."""
    found, alone = sums("linear", "exact", [2], 1e27 / 3), sums("linear", "exact", [])
    norm = sum(float((a - b).square().sum()) for a, b in zip(found, alone, strict=True)) ** 0.5
    assert norm == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("trained", ["full", "lora"])
def test_bfloat16_contributions_keep_their_bound(trained: str, clipping: str) -> None:
    """The float32 sum of one sample has norm at most C with exact norms; estimates keep factor and bound together."""
    way, bound = Way(trained, clipping, "sample", "sgd"), 1e-3
    model = make_model(way).to(torch.bfloat16)
    step = make_step(way, model, bound)
    for number, sample in enumerate(IDS):
        step.accumulate(losses(step.model, data()[[number]]), samples=[sample], step=number)
        found = [value.summed_grad for value in step.optimizer.params]
        assert {value.dtype for value in found} == {torch.float32}
        norm = math.sqrt(sum(float(value.double().square().sum()) for value in found)) / bound
        assert 1 - 2e-4 < norm <= 1 if clipping in ("exact", "ghost") else 0.3 < norm < 4.0
        step.step()


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_noise_has_the_stated_variance_and_comes_once(clipping: str) -> None:
    """Per entry σC/L, L the expected batch size, after three micro-batches; 5 % more or less is rejected."""
    torch.manual_seed(0)
    model, generator = nn.Linear(90, 90), torch.Generator().manual_seed(SEED)
    options = {"noise_multiplier": 1.5, "clipping_norm": 2.0, "expected_batch_size": 40.0}
    step = private_sgd(model, norms=by_word(clipping, K, S), noise_generator=generator, **options)
    for i in range(3):
        x = torch.zeros(2, 4, 90)  # the weight's gradient is zero
        step.accumulate(step.model(x).square().sum((1, 2)), samples=[2 * i, 2 * i + 1], step=0)
    assert sum(float(value.summed_grad.double().square().sum()) for value in model.parameters()) > 0  # the bias'
    before = model.weight.detach().clone()
    step.step()
    noise = (before - model.weight.detach()).flatten().numpy()
    scale = 1.5 * 2.0 / 40.0
    assert stats.kstest(noise, stats.norm(scale=scale).cdf).pvalue > 1e-3
    squares = float((noise.astype(float) ** 2).sum())
    accepts = lambda sd: 1e-4 < stats.chi2.cdf(squares / sd**2, noise.size) < 1 - 1e-4  # noqa: E731
    assert accepts(scale)
    for wrong in (0.95, 1.05, 1 / math.sqrt(3), math.sqrt(3), 40 / 6):
        assert not accepts(wrong * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 15, 16, 100, 65_535, 65_536, 65_551, 65_552, 3 * 65_536 + 5])
def test_noise_in_pieces_is_what_torch_draws_at_once(size: int, dtype: torch.dtype) -> None:
    """Of a parameter of that size and a gradient of small integers; it leaves the generator where torch does."""
    one, other = torch.Generator().manual_seed(size), torch.Generator().manual_seed(size)
    model, x = nn.Linear(size, 1, bias=False, dtype=dtype), torch.randint(-1, 2, (1, 1, size)).to(dtype)
    nn.init.zeros_(model.weight)
    options = {"clipping_norm": 1024.0, "noise_multiplier": 0.25, "noise_generator": other}
    step = private_sgd(model, norms="exact", **options)
    step.accumulate(step.model(x).sum((1, 2)), samples=[0], step=0)
    step.step()
    expected = x[0] + torch.normal(0.0, 256.0, (1, size), generator=one, dtype=dtype)
    assert torch.equal(model.weight, -expected)
    assert torch.equal(one.get_state(), other.get_state())
