"""Items of any kind whose unit of privacy is their owner: `ItemTask` with owners."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dprmt import ParameterError
from dprmt.accounting import DPSGD
from dprmt.training.clipping import Units
from dprmt.training.harness import ItemTask, train_task
from dprmt.training.private_run import MicroBatch
from dprmt.training.recipes import Settings

ITEMS = [[1, 2, 3], [4], [5, 6], [7, 1], [2, 2, 9, 4], [3]]
OWNERS = ["anna", "ben", "anna", 3, "anna", "ben"]
SETTINGS = Settings(
    privacy={"noise_multiplier": 1.0, "delta": 1e-3, "norms": "ghost"},
    optimizer={"name": "gd", "learning_rate": 0.1},
    training={"batch_size": 2, "micro_batch_size": 4, "steps": 4},
)


def as_mapping(items: list[list[int]]) -> dict[str, torch.Tensor]:
    """Padded texts."""
    longest = max(map(len, items))
    ids = torch.tensor([[*item, *[0] * (longest - len(item))] for item in items])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def as_tuple(items: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    batch = as_mapping(items)
    return batch["input_ids"], batch["attention_mask"]


def losses(model: nn.Module, batch: Any) -> torch.Tensor:
    """Of a language model, summed over a text's own tokens."""
    ids, mask = (batch["input_ids"], batch["attention_mask"]) if isinstance(batch, dict) else batch
    found = nn.functional.cross_entropy(model(ids).transpose(1, 2), (ids + 1) % 10, reduction="none")
    return (found * mask).sum(1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 10)).double().train()


@pytest.mark.parametrize("collate", [as_mapping, as_tuple])
@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("regime", ["together", "alone"])
def test_a_sum_is_that_of_owners(regime: str, averages: bool, collate: Any) -> None:
    """Σ_u min(1, (1-ρ)C/‖g_u‖) g_u, g_u the sum or mean of the gradients of the items that were drawn of u."""
    units = Units(2, micro_batch_size=4, regime=regime)
    task = ItemTask(ITEMS, collate, losses, length=len, owners=OWNERS, units=units, averages=averages, seed=5)
    model, plain = network(), network()
    plan = task.clipping_plan(model, norms="exact", clipping_norm=2.0, expected_batch_size=2.0, units=units)
    assert plan.regime == regime
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = plan.privatize(optimizer, noise_multiplier=0.0, noise_generator=torch.Generator())
    drawn = [task.owners_of_rows.used(unit, 3) for unit in range(task.size)]
    assert [len(rows) for rows in drawn] == [2, 2, 1]
    factors, expected = [], [torch.zeros_like(p) for p in plain.parameters()]
    for rows in drawn:
        found = [losses(plain, collate([ITEMS[row]])).sum() / (len(rows) if averages else 1) for row in rows]
        own = torch.autograd.grad(sum(found), list(plain.parameters()))
        factors.append(min(1.0, (1 - private.rounding) * 2.0 / math.sqrt(sum(float(g.square().sum()) for g in own))))
        expected = [a + factors[-1] * g for a, g in zip(expected, own, strict=True)]
    assert min(factors) < 0.9
    found = []
    source = task.source(plan, 4 if regime == "together" else 1)  # a unit cut by borders
    for part in source.parts(range(task.size), 3):
        rows = MicroBatch(task.batch_of([ITEMS[row] for row in part.positions]), 0, [], _weights=part.weights)
        batch, of_rows = rows._weighted(lambda batch: losses(model, batch))
        names = {"samples": part.positions, "units": part.owners}
        found.append(private.accumulate(of_rows, batch=batch, step=3, **names))
    assert sum(map(len, found)) == 5
    before = [p.detach().clone() for p in model.parameters()]
    private.step()
    for p, old, value in zip(model.parameters(), before, expected, strict=True):
        torch.testing.assert_close(old - p, value / 2.0, rtol=1e-9, atol=1e-12)


def test_owners_are_drawn_and_charged(tmp_path: Path) -> None:
    """The number of owners is n: two expected of three, not of six items."""
    task = ItemTask(ITEMS, as_mapping, losses, length=len, owners=OWNERS, units=Units(2))
    result = train_task(network(), task, SETTINGS, tmp_path / "run")
    rate = math.ceil(2 / 3 * 2**24) / 2**24
    assert result.epsilon == pytest.approx(DPSGD(1.0, rate).epsilon(steps=4, delta=1e-3).upper, rel=1e-6)
    text = (tmp_path / "run" / "run.json").read_text()
    assert '"unit_of_privacy": "all items that have one of the owners"' in text
    assert '"samples": 3' in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"owners": ["a"] * 5}, "owners must be one integer or string for each of the 6 rows, got 5"),
        ({"owners": "abcdef"}, "owners must be one integer or string for each of the 6 rows, got 6"),
        (
            {"owners": ["a", "", "b", None, math.nan, "c"]},
            "missing values of owners must be 0: .*, got 3",
        ),
        ({"owners": [1.0] * 6}, "owners must be integers or strings, got 1.0"),
        ({"owners": [True] * 6}, "owners must be integers or strings, got True"),
        ({"units": Units(2)}, "owners must be given with units or averages"),
        ({"averages": True}, "owners must be given with units or averages"),
    ],
)
def test_bad_owners_are_refused_in_a_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        ItemTask(ITEMS, as_mapping, losses, **options)
