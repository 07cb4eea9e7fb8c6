"""Only ``accumulate`` and ``step`` reach the sum and the optimizer, and dropout is drawn from a secret."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from audits.steps import Parts, make_private, private_sgd
from dprmt import TrainingStateError
from dprmt.training.clipping import Units
from dprmt.training.randomness import draws_from
from tests.training.norms_by_word import by_word

SIZE, WIDTH = 6, 5


def private(model: nn.Module, norms: str = "exact", **options: Any) -> Any:
    return private_sgd(model, norms=by_word(norms, 2), **options)


def accumulate(step: Any, x: torch.Tensor, number: int = 0, **options: Any) -> None:
    def losses(batch: torch.Tensor) -> torch.Tensor:
        return 100 * step.model(batch).square().sum(1)

    step.accumulate(losses, batch=x, samples=range(len(x)), step=number, **options)


@pytest.mark.parametrize("norms", ["exact", "ghost", "hutchinson"])
def test_a_backward_pass_outside_of_accumulate_is_refused(norms: str) -> None:
    """Opacus' own loop: nothing of it is looked at, a mean loss moves the sum by 2 C."""
    model = nn.Linear(WIDTH, 2)
    step, before = private(model, norms), model.weight.detach().clone()
    losses = step.model(torch.randn(SIZE, WIDTH, requires_grad=True)).square().sum(1)
    with pytest.raises(TrainingStateError, match=r"other than the one of accumulate\(\)"):
        losses.mean().backward()
    with pytest.raises(TrainingStateError, match="a step of the optimizer that was made private"):
        step.optimizer.step()
    assert torch.equal(model.weight, before)


def test_a_backward_pass_between_accumulate_and_step_adds_nothing() -> None:
    """A saliency map moved the sum by 2 C: it raises, or in evaluation mode adds nothing."""
    moved = []
    for kind in ("none", "saliency", "evaluation"):
        torch.manual_seed(0)
        model = nn.Linear(WIDTH, 2)
        step, x = private(model), torch.randn(SIZE, WIDTH)
        before = model.weight.detach().clone()
        accumulate(step, x)
        again = x.clone().requires_grad_()
        if kind == "saliency":
            with pytest.raises(TrainingStateError, match=r"other than the one of accumulate\(\)"):
                step.model(again).square().sum().backward()
            step.discard()
        elif kind == "evaluation":
            model.eval()
            step.model(again).square().sum().backward()
            assert again.grad is not None
            model.train()
        step.step()
        moved.append(model.weight.detach() - before)
    assert torch.equal(moved[0], moved[1])
    assert torch.equal(moved[0], moved[2])


@pytest.mark.parametrize("units", [None, Units(2, regime="alone")])
def test_the_optimizer_moves_in_the_private_step_alone(units: Units | None) -> None:
    """Neither the one that was given nor the one that adds noise."""
    model = nn.Linear(WIDTH, 2)
    given = torch.optim.SGD(model.parameters(), lr=1.0)
    settings: dict[str, Any] = {"clipping_norm": 1.0, "noise_multiplier": 0.0, "expected_batch_size": 1.0}
    step = make_private(model, given, norms="exact", units=units, **settings)
    before = model.weight.detach().clone()
    named = {} if units is None else {"units": [0, 0, 1, 1, 2, 2]}
    accumulate(step, torch.randn(SIZE, WIDTH), **named)
    model.weight.grad = torch.ones_like(model.weight)
    with pytest.raises(TrainingStateError, match="step"):
        given.step()
    assert torch.equal(model.weight, before)
    step.step()
    assert not torch.equal(model.weight, before)
    assert step.close() is model
    given.zero_grad()
    model(torch.ones(1, WIDTH)).sum().backward()
    given.step()  # the optimizer is as it was given


def dropped() -> nn.Module:
    """A row of dropout is seen in the gradient of the head."""
    return Parts(
        lambda model, x: model.head(model.dropout(x)), head=nn.Linear(64, 1, bias=False), dropout=nn.Dropout(0.5)
    )


@pytest.mark.parametrize("units", [None, Units(2, regime="alone")])
def test_dropout_does_not_follow_the_seed_that_is_known(units: Units | None) -> None:
    """With a public seed masks go by place in the batch: removing the first of 60 samples moved the sum by 2.6 C."""
    released = []
    for _ in range(2):
        torch.manual_seed(42)
        model = dropped()
        step, x = private(model, units=units), torch.ones(SIZE, 64)
        named = {} if units is None else {"units": list(range(SIZE))}
        torch.manual_seed(42)
        before = model.head.weight.detach().clone()
        accumulate(step, x, **named)
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(42)))
        step.step()
        released.append(model.head.weight.detach() - before)
    assert not torch.equal(released[0], released[1])


def test_each_micro_batch_has_draws_of_its_own() -> None:
    model = dropped()
    step, seen = private(model), []
    for number in range(2):
        before = model.head.weight.detach().clone()
        accumulate(step, torch.ones(2, 64), number)
        step.step()
        seen.append((model.head.weight.detach() - before) == 0)  # where both rows dropped it
    assert bool(seen[0].any())
    assert not torch.equal(seen[0], seen[1])


def test_draws_from_a_secret_come_again_and_leave_no_trace() -> None:
    """All default generators; 32 bytes that differ anywhere give other draws."""
    import random

    import numpy as np

    def draws(secret: bytes) -> tuple[Any, ...]:
        with draws_from(secret, []):
            return tuple(torch.rand(4).tolist()), random.random(), float(np.random.rand())  # noqa: NPY002

    before = torch.get_rng_state(), random.getstate()
    one, again, other = draws(b"a" * 32), draws(b"a" * 32), draws(b"a" * 31 + b"b")
    assert one == again
    assert all(a != b for a, b in zip(one, other, strict=True))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
