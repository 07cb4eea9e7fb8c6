"""Units of several rows, such as persons: every way to clip against a literal loop over units."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from audits.processes import in_processes
from audits.steps import Parts, private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import ExactNorms, Hutchinson
from dprmt.training.clipping import Units, plan_private
from dprmt.training.norms import HutchinsonEstimator, ProbeGenerator
from tests.training import clipping_table as table
from tests.training.clipping_table import CLIPPINGS, SEED, Way, losses, make_model, make_step
from tests.training.literal import clipped_sum, gradients_of, norm_of
from tests.training.test_whole_modules import KINDS as WHOLE
from tests.training.test_whole_modules import build, net

private = partial(private_sgd, norms="exact")
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers

ROWS = ["r0", "r1", "r2", "r3"]
UNITS = ["anna", 7, "anna", 7]
WAYS = [
    Way(trained, clipping, sharing, "sgd")
    for trained, clipping, sharing in itertools.product(("full", "lora", "projected"), CLIPPINGS, ("batch", "sample"))
    if sharing == "sample" or clipping in ("hutchinson", "hutch++")
]


def released_of(
    step: object, model: nn.Module, units: Sequence[object], parts: Sequence[Sequence[int]]
) -> dict[str, torch.Tensor]:
    """What a step gives the inner optimizer after micro-batches of the rows in ``parts``."""
    with table.received(step, model) as found:
        for part in parts:
            rows = list(part)
            batch, given = table.data()[rows], {"samples": [ROWS[i] for i in rows], "units": [units[i] for i in rows]}
            step.accumulate(lambda tokens: losses(step.model, tokens), batch=batch, step=table.STEP, **given)
        step.step()
    return found


def summed(gradients: Sequence[dict[str, torch.Tensor]], units: Sequence[object]) -> dict[object, dict]:
    """Gradients of rows as those of their units."""
    result: dict[object, dict] = {}
    for unit, row in zip(units, gradients, strict=True):
        so_far = result.get(unit, dict.fromkeys(row, 0))
        result[unit] = {name: so_far[name] + value for name, value in row.items()}
    return result


class Literal:
    """The loop over units, made before there are hooks on the model; C clips some units only."""

    def __init__(self, way: Way, model: nn.Module, units: Sequence[object]) -> None:
        self.gradients = summed(table.literal_gradients(way, model), units)
        norms = ((unit, table.literal_squared_norm(way, model, own, unit)) for unit, own in self.gradients.items())
        self.norms = {unit: math.sqrt(squared) for unit, squared in norms}
        self.bound = math.sqrt(min(self.norms.values()) * max(self.norms.values()))

    def released(self, rounding: float) -> dict[str, torch.Tensor]:
        """Σ_u min(1, (1-ρ)C/√n̂_u) g_u / L."""
        total = clipped_sum([*self.gradients.values()], (1 - rounding) * self.bound, [*self.norms.values()])
        return {name: value / table.L for name, value in total.items()}


def check_units(way: Way, literal: Way, units: Sequence[object], parts: Sequence[Sequence[int]], regime: str) -> Any:
    """Whether micro-batches of these rows give the literal sum; the step."""
    model = make_model(literal)
    reference = Literal(literal, model, units)
    step = make_step(way, model, reference.bound, units=Units(3, regime=regime))
    found, expected = released_of(step, model, units, parts), reference.released(step.rounding)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-7, atol=1e-9)
    return step


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_side_by_side_is_the_literal_loop_over_units(way: Way) -> None:
    """Σ_u min(1, (1-ρ)C/√n̂_u) g_u / L, g_u the sum over a unit's rows, n̂_u by probes keyed by the unit."""
    for units, parts in (
        (UNITS, [[0, 1, 2, 3]]),  # two units, interleaved
        (["anna", 7, 7, 7], [[0], [1, 2, 3]]),  # of one and of three rows, in micro-batches of their own
        (["anna", 7, 7, 8], [[0, 1, 2], [3]]),  # padded with a row of zeros
    ):
        step = check_units(way, way, units, parts, "together")
        assert step.replays >= 1  # rows were run alone, each by itself


def lone_bias() -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.weight.requires_grad_(False)
    return net(layer)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "Conv1D": lambda: net(nn.Sequential(Conv1D(7, 6), nn.GELU(), Conv1D(6, 7))),
    "convolution": lambda: net(nn.Conv1d(3, 3, 3, padding=1)),
    "normalizations": lambda: net(nn.Sequential(nn.LayerNorm(6), nn.GroupNorm(3, 3), nn.RMSNorm(6))),
    "lone bias": lone_bias,
    **{kind: WHOLE[kind] for kind in ("layers in two places", "class token", "attention", "gru")},
}


@pytest.mark.parametrize("how", ["exact", "ghost", "everything", "alone"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_layers(kind: str, how: str) -> None:
    """Norms of units, exact or with everything estimated: in both, what is added is clipped to C by the law's X."""
    everything = how == "everything"
    model, whose = build(KINDS[kind]), ["a", "b", "a", "c", "a"]
    x = torch.randint(4, 13, (5, 3), generator=torch.Generator().manual_seed(1))  # no padding
    units = [*summed(gradients_of(model, (losses(model, row[None]) for row in x)), whose).values()]
    bound = sorted(map(norm_of, units))[1]
    estimator = HutchinsonEstimator(400, everything=True, generator=ProbeGenerator(SEED)) if everything else how
    step = private_sgd(
        model,
        norms="hutchinson" if how == "alone" else estimator,
        clipping_norm=bound,
        units=Units(3, regime="alone" if how == "alone" else "together"),
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step.accumulate(lambda tokens: losses(step.model, tokens), samples=range(5), units=whose, step=0, batch=x)
    step.step()
    expected = clipped_sum(units, (1 - step.rounding) * bound)
    # With 400 probes an estimated norm is within a fifth of the exact one, at 5 standard deviations of rank one.
    close = {"rtol": 0.2, "atol": 0.2 * bound} if everything else {"rtol": 1e-6, "atol": 1e-8 * bound}
    for name, p in model.named_parameters():
        if p.requires_grad:
            torch.testing.assert_close(before[name] - p, expected[name], **close)
    assert (step.record.norms == ExactNorms()) is not everything


def test_the_rank_that_is_claimed_is_that_of_all_rows() -> None:
    """A unit's gradient has the rank of all its tokens: with T = 2 a row of rank 2, three rows of rank 6."""
    model = nn.Linear(40, 40, bias=False)
    estimator = HutchinsonEstimator(8, everything=True)
    options = {"norms": estimator, "clipping_norm": 1.0, "expected_batch_size": 1.0, "tokens": 2}
    units = (None, Units(3, regime="together"))
    ranks = [plan_private(model, **options, units=one).record.norms for one in units]
    assert ranks == [Hutchinson(8, secret=True, rank=2), Hutchinson(8, secret=True, rank=6)]


def linear() -> nn.Module:
    """The gradient of a row is the row."""
    return nn.Linear(3, 1, bias=False)


def add(
    step: Any,
    rows: Sequence[object],
    units: object,
    number: Any = 0,
    *,
    x: torch.Tensor | None = None,
    losses: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> None:
    """Rows of ones, unless told."""
    own = (lambda b: step.model(b).flatten()) if losses is None else losses
    batch = torch.ones(len(rows), 3) if x is None else x
    step.accumulate(own, samples=rows, units=units, step=number, batch=batch)


def moved_by(step: Any) -> torch.Tensor:
    """What a step takes away from the first parameter."""
    value = next(step.model.parameters())
    before = value.detach().clone()
    step.step()
    return before - value.detach()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("regime", ["together", "alone"])
def test_a_unit_with_a_row_that_is_not_finite_is_left_out_whole(regime: str, bad: float) -> None:
    step, x = private(linear(), units=Units(2, regime=regime)), torch.ones(3, 3)
    x[1] = bad
    units = ["a", "a", "b"]
    if regime == "together":
        step.accumulate(step.model(x).flatten(), samples=[0, 1, 2], units=units, step=0)
    else:
        add(step, [0, 1, 2], units, x=x)
    torch.testing.assert_close(moved_by(step), (1 - step.rounding) * torch.ones(1, 3) / math.sqrt(3))


def test_any_module_runs_alone_but_none_with_a_state() -> None:
    """Batch statistics of one unit's rows are its own; running ones hold other units."""

    def run(model: nn.Module) -> None:
        step = private(model, units=Units(2, regime="alone"))
        add(step, range(4), ["a", "b", "a", "b"], x=torch.randn(4, 3))
        step.step()

    run(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 1)))
    with pytest.raises(TrainingStateError, match=r"changes buffer 0\.num_batches_tracked"):
        run(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)))


def test_regimes_are_chosen_from_public_sizes() -> None:
    def reason(**options: object) -> tuple[str, str]:
        plan = plan_private(nn.Linear(3, 1), norms="ghost", clipping_norm=1.0, expected_batch_size=1.0, **options)
        return plan.regime, plan.reason

    assert reason() == ("rows", "every row is a sample")
    assert reason(units=Units())[0] == "alone"  # nobody knows how many rows
    assert reason(units=Units(4))[0] == "together"
    assert reason(units=Units(4, micro_batch_size=8))[0] == "together"
    alone = "units are clipped one at a time: two of 5 rows exceed a micro-batch of 8"
    assert reason(units=Units(5, micro_batch_size=8)) == ("alone", alone)
    assert "exceed a micro-batch of 8" in reason(units=Units(9, micro_batch_size=8))[1]
    # A unit of 256 tokens or more (docs/how_to/people_with_several_rows.md).
    assert reason(tokens=128, units=Units(2, 64))[0] == "alone"
    assert reason(tokens=127, units=Units(2, 64))[0] == "together"


@pytest.mark.parametrize("regime", ["together", "alone"])
def test_bad_units_are_refused_by_name_and_the_sum_stays(regime: str) -> None:
    step = private(linear(), units=Units(2, regime=regime))
    for units, message in (
        (["a", "b"], "units must be one integer or string for each of the 3 rows"),
        ("abc", "units must be one integer or string for each of the 3 rows"),
        (["a", "b", 1.5], "integers or strings, got 1.5"),
        (["a", "b", True], "integers or strings, got True"),
    ):
        with pytest.raises(ParameterError, match=message):
            add(step, [0, 1, 2], units)
    add(step, [0, 1], ["a", "a"])
    add(step, [2], ["b"])
    with pytest.raises(ParameterError, match="samples that come twice in a logical step must be 0"):
        add(step, [3], ["a"])
    torch.testing.assert_close(moved_by(step), 2 * (1 - step.rounding) * torch.ones(1, 3) / math.sqrt(3))


def test_a_state_is_seen_behind_a_second_forward_pass() -> None:
    """It is kept in every second one."""
    passes = itertools.count()

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        if next(passes) % 2 == 0:
            model.seen += x.sum(0)
        return model.layer(x).flatten()

    step = private(Parts(call, layer=nn.Linear(3, 1), seen=torch.zeros(3)), units=Units())
    with pytest.raises(TrainingStateError, match="a forward pass changes buffer seen"):
        add(step, [0], ["a"], losses=lambda b: step.model(b) + step.model(b))


def test_a_state_that_only_another_unit_changes_is_seen() -> None:
    step, largest, x = private(linear(), units=Units()), torch.ones(()), torch.tensor([[0.5] * 3, [2.0] * 3])
    with pytest.raises(TrainingStateError, match="depends on other units"):
        add(step, [0, 1], ["a", "b"], x=x, losses=lambda b: step.model(b)[:, 0] * largest.fill_(max(largest, b.max())))


def test_units_of_one_call_draw_other_numbers() -> None:
    step, drawn = private(linear(), units=Units()), list[float]()
    add(step, [0, 1], ["a", "b"], losses=lambda b: drawn.append(float(torch.rand(1))) or step.model(b).flatten())
    assert drawn[-1] != drawn[-2]


def test_the_norm_of_a_sparse_gradient_is_that_of_its_sum() -> None:
    """Torch holds one token's gradients apart: (1 + 1)² + 1² is not 1² + 1² + 1²."""
    step = private(nn.Embedding(5, 1, sparse=True), units=Units())
    tokens = torch.tensor([[1, 2], [1, 1]])
    add(step, [0, 1], ["a", "a"], x=tokens, losses=lambda b: step.model(b).sum((1, 2)))
    expected = (1 - step.rounding) * torch.tensor([0.0, 3.0, 1.0, 0.0, 0.0]) / math.sqrt(10)
    torch.testing.assert_close(moved_by(step).flatten(), expected)


def test_a_loss_that_is_constant_for_every_unit_alone_is_refused() -> None:
    """Such as one with negatives in the batch; after a gradient that is not zero, any number may be."""
    for first in (0.0, 1.0):
        model = linear()
        step = private(model, units=Units())
        add(step, [0], ["first"], losses=lambda b, f=model, by=first: by * f(b).flatten())
        add(step, range(1, 10), range(1, 10), losses=lambda b, f=model: 0.0 * f(b).flatten())
        with nullcontext() if first else pytest.raises(TrainingStateError, match="first 10 samples are zero"):
            step.complete()


def test_what_fails_within_a_unit_is_dropped_whole() -> None:
    """Its first rows too: they may come again."""
    step = private(linear(), units=Units())
    add(step, [0], ["a"])
    with pytest.raises(ParameterError, match="losses must be a tensor of shape"):
        add(step, [1], ["a"], losses=lambda b: step.model(b).sum())
    add(step, [0], ["a"], losses=lambda b: 0.1 * step.model(b).flatten())
    torch.testing.assert_close(moved_by(step), 0.1 * torch.ones(1, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_per_unit": 0}, "rows_per_unit must be an integer >= 1, got 0"),
        ({"rows_per_unit": True}, "rows_per_unit must be an integer >= 1, got True"),
        ({"micro_batch_size": 2.5}, "micro_batch_size must be an integer >= 1, got 2.5"),
        ({"regime": "together"}, "rows_per_unit must be given with regime='together'"),
        ({"rows_per_unit": 9, "micro_batch_size": 8, "regime": "together"}, "micro_batch_size must be at least"),
        ({"rows_per_unit": 2, "regime": "both"}, "regime must be one of"),
    ],
)
def test_units_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Units(**options)


@pytest.mark.parametrize("units", [True, 8])
def test_what_is_no_value_of_units_is_refused(units: object) -> None:
    with pytest.raises(ParameterError, match="units must be dprmt"):
        private(nn.Linear(3, 1), units=units)


# Two processes

SHARED = ["anna", 7, 7, "ben"]
PARTS = ([[0], [3]], [[1, 2]])  # micro-batches of both processes


def all_ways(rank: int, size: int) -> list[tuple[Any, ...]]:
    """Every clipping side by side, and one unit at a time; what process 1 starts from must not matter."""
    answers = []
    ways = [(*both, "together") for both in itertools.product(table.TRAINED, CLIPPINGS)]
    for trained, clipping, regime in [*ways, *((trained, "exact", "alone") for trained in table.TRAINED)]:
        way = Way(trained, clipping, "sample", "sgd")
        model = make_model(way)
        literal = Literal(way, model, SHARED)
        if rank:
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(2.0)
        options = {"seed": 9 + rank, "units": Units(2, regime=regime)}
        step = make_step(way, model, literal.bound, **options)
        found = released_of(step, model, SHARED, PARTS[rank])
        wanted = literal.released(step.rounding)
        distance = max(float((found[name] - value).norm() / literal.bound) for name, value in wanted.items())
        answers.append((trained, clipping, regime, found.keys() == wanted.keys(), distance))
    return answers


def test_two_processes_release_what_the_literal_loop_over_units_does(tmp_path: Path) -> None:
    for answers in in_processes(2, all_ways, tmp_path):
        assert isinstance(answers, list), answers
        for *way, complete, distance in answers:
            assert complete, way
            assert distance < 1e-9, way
