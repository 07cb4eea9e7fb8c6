"""Names of rows that need probes of their own: by content, so that removing one changes no other one's probes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import dprmt
from dprmt.accounting import Hutchinson
from dprmt.training.private_run import PrivateBatch
from dprmt.training.private_run._batches import Draws, Part, Source, content_of
from dprmt.training.private_run._randomness import Randomness

C = 0.1


def points() -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(5, 24, generator=draw), "y": float(number)} for number in range(8)]


def losses(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (model(batch["x"]).sum((1, 2)) - batch["y"]).square()


def total(items: list[dict[str, Any]], patch: pytest.MonkeyPatch) -> torch.Tensor:
    """The clipped sum of all items, with the same secret of the probes every time."""
    torch.manual_seed(1)
    model = torch.nn.Linear(24, 24, bias=False)
    optimizer, norms = torch.optim.SGD(model.parameters(), lr=0.1), Hutchinson(2, secret=True, rank=24)
    sizes = {"batch_size": 1, "micro_batch_size": 3, "steps": 1, "noise_multiplier": 1.0}
    private = dprmt.make_private(model, optimizer, items, norms=norms, clipping_norm=C, **sizes)
    private._draw_from(Randomness(bytes(32), False))
    patch.setattr(Draws, "at", lambda *_: list(range(len(items))))
    batch = next(iter(private))
    for part in private.micro_batches(batch):
        private.accumulate(lambda rows: losses(model, rows), part)
    found: torch.Tensor = model.weight.summed_grad.clone()
    private.close()
    return found


@pytest.mark.parametrize("removed", [0, 3, 7])
def test_a_removed_item_takes_its_own_gradient_away_and_nothing_else(
    removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With positions as identities the others' factors would change too: the cosine was 0.967."""
    items = points()
    difference = total(items, monkeypatch) - total(items[:removed] + items[removed + 1 :], monkeypatch)
    torch.manual_seed(1)
    model = torch.nn.Linear(24, 24, bias=False)
    losses(model, torch.utils.data.default_collate([items[removed]])).sum().backward()
    own = model.weight.grad
    cosine = torch.nn.functional.cosine_similarity(difference.flatten(), own.flatten(), dim=0)
    assert float(cosine) > 1 - 1e-5


def names_of(rows: list[Any], before: Counter[str] | None = None) -> list[str]:
    source = Source(torch.utils.data.DataLoader(rows, collate_fn=list), None, None)
    parts = [Part(list(range(len(rows))))]
    loaded = source.loaded(iter([parts]), True)
    batch = PrivateBatch(0, len(rows), parts, loaded.__next__, 0, list, Counter() if before is None else before)
    return [str(name) for part in map(added, batch._micro_batches()) for name in part._names]


def added(part: Any) -> Any:
    part._is_added = True
    return part


def test_equal_items_are_told_apart_and_others_by_content() -> None:
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
    names = names_of(rows)
    assert len(set(names)) == len(rows)
    digests = [name.split()[0] for name in names]
    assert digests[0] == digests[1]
    assert digests[6] == digests[7]
    assert len(set(digests)) == len(rows) - 2
    assert names_of(rows[::-1])[-1].split()[0] == digests[0]
    assert content_of(rows[4]) != content_of(rows[5])


def test_processes_name_a_batch_as_one_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else equal items in two processes had one name, and were refused as one sample that is added twice."""
    items, size = [0, 1, 1, 0, 1, 2, 1, 0], 3
    shares = [list(range(rank, len(items), size)) for rank in range(size)]
    contents = [Counter(name.split()[0] for name in names_of([items[place] for place in share])) for share in shares]
    whole = names_of(items)

    def gathered(found: list[Counter[str]], own: Counter[str]) -> None:
        found[:] = contents
        assert own in found

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gathered)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: size)
    names: list[str] = []
    for rank in range(size):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)  # noqa: B023  # asked within the turn
        before = Source(items, None, None).seen_before([Part(shares[rank])], size)
        names += names_of([items[place] for place in shares[rank]], before)
    assert sorted(names) == sorted(whole)
