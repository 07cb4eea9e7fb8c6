"""Identities of a task's items: those of the rows, so that removing one changes no other one's probes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from dprmt.accounting import Hutchinson
from dprmt.training.clipping import plan_private
from dprmt.training.harness import ItemTask
from dprmt.training.norms import ProbeGenerator

C = 0.1


def points() -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(5, 24, generator=draw), "y": number} for number in range(8)]


def losses(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (model(batch["x"]).sum((1, 2)) - batch["y"]).square()


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([row["x"] for row in rows]), "y": torch.tensor([float(row["y"]) for row in rows])}


def total(items: list[dict[str, Any]]) -> torch.Tensor:
    """The clipped sum of all items, with the same secret of the probes every time."""
    torch.manual_seed(1)
    model = torch.nn.Linear(24, 24, bias=False)
    plan = plan_private(
        model,
        norms=Hutchinson(2, secret=True, rank=24),
        clipping_norm=C,
        expected_batch_size=1.0,
        probe_generator=ProbeGenerator(bytes(32)),
    )
    step = plan.privatize(torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=0.0)
    task = ItemTask(items, collate, losses)
    for piece in task.pieces(range(len(items)), 3):
        task.accumulate(step, piece, 0)
    found = model.weight.summed_grad.clone()
    step.close()
    return found


@pytest.mark.parametrize("removed", [0, 3, 7])
def test_a_removed_item_takes_its_own_gradient_away_and_nothing_else(removed: int) -> None:
    """With positions as identities the others' factors would change too: the cosine was 0.967."""
    items = points()
    difference = total(items) - total(items[:removed] + items[removed + 1 :])
    torch.manual_seed(1)
    model = torch.nn.Linear(24, 24, bias=False)
    losses(model, collate([items[removed]])).sum().backward()
    own = model.weight.grad
    cosine = torch.nn.functional.cosine_similarity(difference.flatten(), own.flatten(), dim=0)
    assert float(cosine) > 1 - 1e-5


def test_equal_items_are_told_apart_and_others_by_content() -> None:
    task = ItemTask([], collate, losses)
    rows = [
        torch.ones(2),
        torch.ones(2),
        torch.ones(2, dtype=torch.float64),
        torch.ones(1, 2),
        [1, 2],
        (1, 2, None),
        {"a": "x", "b": 1.5},
        {"b": 1.5, "a": "x"},
        np.arange(3),
        "text",
    ]
    names = task._names_of(rows, 0)
    assert len(set(names)) == len(rows)
    digests = [str(name).split()[0] for name in names]
    assert digests[0] == digests[1]
    assert digests[6] == digests[7]
    assert len(set(digests)) == len(rows) - 2
    assert str(task._names_of(rows[::-1], 1)[-1]).split()[0] == digests[0]


def test_processes_name_a_batch_as_one_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else equal items in two processes had one name, and were refused as one sample that is added twice."""
    items = [0, 1, 1, 0, 1, 2, 1, 0]
    shares = [range(rank, len(items), 3) for rank in range(3)]

    def gathered(found: list[Counter[str]], own: Counter[str]) -> None:
        found[:] = [
            Counter(str(name).split()[0] for name in alone._names_of(share_of(rank), rank)) for rank in range(3)
        ]
        assert own in found

    def share_of(rank: int) -> list[int]:
        return [items[position] for position in shares[rank]]

    alone, names = ItemTask(items, torch.tensor, losses), []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gathered)
    for rank in range(3):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)  # noqa: B023  # asked within the turn
        task = ItemTask(items, torch.tensor, losses)
        task.pieces(shares[rank], 2)
        names += task._names_of(share_of(rank), 0)
    assert sorted(map(str, names)) == sorted(map(str, alone._names_of(items, 9)))
