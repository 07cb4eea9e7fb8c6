"""Every way to clip against a literal loop; no sum has what is not finite, nor more than C in 16 bits; noise of σC."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._functorch.config
from scipy import stats
from torch import nn

from audits.steps import Parts, private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import ClippedStep, plan_private
from dprmt.training.subspaces import Subspaces
from tests.training import clipping_table as table
from tests.training.clipping_table import CLIPPINGS, TRAINED, K, S, Way, check_released, make_model, make_step
from tests.training.norms_by_word import by_word
from tests.training.projected import projected_step

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers


@pytest.mark.parametrize("way", table.WAYS, ids="-".join)
def test_what_a_step_releases_is_the_literal_sum(way: Way) -> None:
    """Σ_i min(1, (1-ρ)C/√n̂_i) v_i / L with v_i whole or projected; some samples are clipped and some are not."""
    model = make_model(way)
    step = check_released(way, model)
    estimated = way.clipping not in ("exact", "ghost")
    assert step.record.mechanism(1.0, 0.01).norms.secret == (estimated and way.sharing == "sample")
    assert step.close() is model


@pytest.mark.parametrize("sharing", table.SHARINGS)
def test_what_does_not_go_together_is_refused_before_the_first_step(sharing: str) -> None:
    way = Way("projected", "hutchinson", sharing, "sgd")
    model = make_model(way)
    options = {"norms": by_word("hutchinson", sharing=sharing), "clipping_norm": 1.0, "expected_batch_size": table.L}
    plan = plan_private(model, subspaces=Subspaces(model, rank=2), **options)
    with pytest.raises(ParameterError, match="a DPGrape of the plan's subspaces"):
        plan.privatize(torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0)


@pytest.mark.parametrize("trained", ["full", "projected"])
@pytest.mark.parametrize("clipping", ["exact", "ghost"])
def test_one_rounding_margin_for_every_kind_of_layer(trained: str, clipping: str) -> None:
    """It grows with the unit roundoff of the products that torch may take, projected or not."""
    way, margins = Way(trained, clipping, "batch", "sgd"), []
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            margins.append(make_step(way, make_model(way).float(), 1.0).rounding)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert margins[0] <= 2.0**-13
    assert margins[1] > 6e-3


CLIPPED_WAYS = [Way(trained, clipping, "batch", "sgd") for trained in TRAINED for clipping in CLIPPINGS]


@pytest.mark.parametrize("way", CLIPPED_WAYS, ids="-".join)
def test_with_checkpoints_the_literal_sum_is_released(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table.Net, "checkpointed", True)
    check_released(way, make_model(way))


@contextmanager
def autocast_losses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plain = table.losses

    def rounded(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return plain(model, tokens)

    with monkeypatch.context() as patched:
        patched.setattr(table, "losses", rounded)
        yield


@pytest.mark.parametrize("way", CLIPPED_WAYS, ids="-".join)
def test_under_autocast_the_literal_sum_is_released_to_its_bits(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own gradients are rounded to eight bits, as are what layers see; sums and norms of that are not."""
    with autocast_losses(monkeypatch):
        check_released(way, make_model(way).float(), 0.02)


@pytest.mark.parametrize("clipping", ["exact", "ghost"])
def test_norms_under_autocast_have_the_digits_of_float32(clipping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that is clipped is (1 - ρ)C long after it, where a norm in eight bits would be off by 1e-3."""
    way, bound = Way("full", clipping, "batch", "sgd"), 1e-3
    with autocast_losses(monkeypatch):
        model = make_model(way).float()
        step = make_step(way, model, bound)
        row = table.data()[:1]
        step.accumulate(table.losses(step.model, row), samples=[0], step=0)
        length = math.sqrt(sum(float(value.summed_grad.double().square().sum()) for value in step.optimizer.params))
    assert length == pytest.approx((1 - step.rounding) * bound, rel=2e-5 if clipping == "exact" else 2e-4)
    assert length <= bound


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # as dynamo looks at hooks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what inductor imports
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])  # which needs a C++ compiler
def test_a_compiled_model_releases_the_literal_sum_if_its_backward_pass_keeps_its_buffers(backend: str) -> None:
    """Its graph breaks at every layer's hooks; what is between them is compiled."""
    way = Way("full", "exact", "batch", "sgd")
    with torch._functorch.config.patch(donated_buffer=False):
        check_released(way, make_model(way), backend=backend)
    with pytest.raises(TrainingStateError, match=r"set torch\._functorch\.config\.donated_buffer = False before"):
        check_released(way, make_model(way), backend=backend)


# What is in a sum

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
    return private_sgd(model, 0.1, norms=by_word(clipping, K, S, seed=table.SEED), **options)


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


KINDS = [*itertools.product(MODELS, CLIPPINGS), ("linear", "projected"), ("convolution", "a few at a time")]


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
@pytest.mark.parametrize("trained", TRAINED)
def test_bfloat16_contributions_keep_their_bound(trained: str, clipping: str) -> None:
    """The float32 sum of one sample has norm at most C with exact norms; estimates keep factor and bound together."""
    way, bound = Way(trained, clipping, "sample", "sgd"), 1e-3
    model = make_model(way).to(torch.bfloat16)
    step = make_step(way, model, bound)
    for number, sample in enumerate(table.IDS):
        step.accumulate(table.losses(step.model, table.data()[[number]]), samples=[sample], step=number)
        found = [value.summed_grad for value in step.optimizer.params]
        assert {value.dtype for value in found} == {torch.float32}
        norm = math.sqrt(sum(float(value.double().square().sum()) for value in found)) / bound
        assert 1 - 2e-4 < norm <= 1 if clipping in ("exact", "ghost") else 0.3 < norm < 4.0
        step.step()


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_noise_has_the_stated_variance_and_comes_once(clipping: str) -> None:
    """Per entry σC/L, L the expected batch size, after three micro-batches; 5 % more or less is rejected."""
    torch.manual_seed(0)
    model, generator = nn.Linear(90, 90), torch.Generator().manual_seed(table.SEED)
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
