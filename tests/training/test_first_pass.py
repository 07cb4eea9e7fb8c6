"""What shapes do not show is refused in the first micro-batch: samples that mix, parameters used beside their layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from audits.steps import Parts, private_sgd
from dprmt import ParameterError
from tests.training.literal import literal_sum
from tests.training.norms_by_word import by_word
from tests.training.projected import projected_step

CLIPPINGS = ("exact", "ghost", "hutchinson")


def private(model: nn.Module, clipping: str, **options: Any) -> Any:
    return private_sgd(model, norms=by_word(clipping, 2), **options)


def sequence_first() -> nn.Module:
    """A layer in the middle sees (T, B, d)."""
    return Parts(
        lambda model, inputs: model.out(model.inner(inputs.transpose(0, 1)).transpose(0, 1)).squeeze(-1),
        inner=nn.Linear(4, 4),
        out=nn.Linear(4, 1),
    )


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_a_layer_whose_first_axis_is_not_the_sample_is_refused_when_the_axes_are_as_long(clipping: str) -> None:
    model = sequence_first()
    step = private(model, clipping)
    with pytest.raises(ParameterError, match=r"samples must be the first axis of every trainable layer.*'inner'"):
        step.accumulate(step.model(torch.randn(5, 5, 4)).sum(1), samples=range(5), step=0)


@pytest.mark.parametrize(
    ("size", "whose", "other"),
    [(2, 0, 1), (2, 1, 0), (4, 0, 1), (4, 0, 3), (4, 1, 0), (4, 1, 3), (4, 3, 0), (4, 3, 1)],
)
def test_one_loss_with_one_other_samples_row_in_it_is_refused(size: int, whose: int, other: int) -> None:
    """Where one of the two is the first or the last: one backward pass shows either's loss and either's row."""
    step = private(nn.Linear(3, 2), "exact")
    outputs = step.model(torch.randn(size, 3)).square().sum(1)
    share = torch.zeros(size)
    share[whose] = 0.01
    with pytest.raises(ParameterError, match="no sample in another's loss"):
        step.accumulate(outputs + share * outputs[other], samples=range(size), step=0)


def test_one_sample_shows_nothing_so_that_the_next_micro_batch_is_looked_at_too() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inputs = torch.randn(4, 3)
    expected = literal_sum(model, [model(row[None]).square().sum() for row in inputs], 1.0)
    before = [value.detach().clone() for value in model.parameters()]
    step = private(model, "exact")
    step.accumulate(step.model(inputs[:1]).square().sum(1), samples=[0], step=0)
    mixed = step.model(inputs[1:]).square().sum(1)
    with pytest.raises(ParameterError, match="no sample in another's loss"):
        step.accumulate(mixed - mixed.mean(), samples=[1, 2, 3], step=0)
    step.discard()
    step.accumulate(step.model(inputs[1:]).square().sum(1), samples=[4, 5, 6], step=0)
    step.step()  # the first micro-batch is still in the sum, once
    for old, value, total in zip(before, model.parameters(), expected, strict=True):
        torch.testing.assert_close(old - value.detach(), total, rtol=1e-3, atol=1e-6)


def test_after_one_that_is_not_finite_the_next_micro_batch_is_looked_at() -> None:
    """Of another size, so that what was kept of the first must be forgotten."""
    step = private(nn.Linear(3, 2), "exact")
    step.accumulate(step.model(torch.full((2, 3), torch.inf)).square().sum(1), samples=[0, 1], step=0)
    mixed = step.model(torch.randn(3, 3)).square().sum(1)
    with pytest.raises(ParameterError, match="no sample in another's loss"):
        step.accumulate(mixed - mixed.mean(), samples=[2, 3, 4], step=0)


class TiedMatrix(nn.Module):
    """A linear layer's weight is used once more, transposed, outside of it."""

    def __init__(self, shape: tuple[int, int], again: bool) -> None:
        super().__init__()
        self.inner, self.again = nn.Linear(*shape), again

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(inputs)
        return functional.linear(hidden, self.inner.weight.T) if self.again else hidden


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
@pytest.mark.parametrize(
    ("projector", "order", "dtype"),
    [
        ("gaussian", "project-then-privatize", torch.bfloat16),
        ("svd", "project-then-privatize", torch.float64),
        ("gaussian", "privatize-then-project", torch.float64),
    ],
)
def test_a_projected_weight_that_is_used_beside_its_layer_is_refused_too(
    shape: tuple[int, int], projector: Any, order: Any, dtype: torch.dtype
) -> None:
    for again in (False, True):
        torch.manual_seed(0)
        step = projected_step(
            TiedMatrix(shape, again).to(dtype),
            rank=3,
            clipping_norm=1.0,
            noise_multiplier=0.0,
            expected_batch_size=1.0,
            lr=0.1,
            projector=projector,
            order=order,
            seed=0,
        )
        losses = step.model(torch.randn(3, 2, shape[0], dtype=dtype)).float().square().sum((1, 2))
        if not again:
            step.accumulate(losses, samples=range(3), step=0)
            continue
        with pytest.raises(ParameterError, match=r"used through its own layer only.*got 'inner\.weight'"):
            step.accumulate(losses, samples=range(3), step=0)
