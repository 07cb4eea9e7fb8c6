"""Tuning on one seed and averaging over all, on made-up runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("torch")

from paper_figures._pieces import Pieces
from paper_figures._tuner import tuned
from paper_figures.studies import GroupRecord


def record(loss: float, accuracy: float = 0.0) -> list[GroupRecord]:
    start = GroupRecord(0, 0.0, 5.0, 0.0, (5.0, 5.0), (0.0, 0.0))
    return [start, GroupRecord(3, 2.0, loss, accuracy, (loss, loss + 1), (accuracy, accuracy / 2))]


def test_the_rate_is_chosen_on_the_first_seed_by_the_lowest_loss(tmp_path: Path) -> None:
    """A run that diverged is not the best, whichever comes first."""
    losses = {("gd", 0.1, 7): math.nan, ("gd", 1.0, 7): 2.0, ("gd", 5.0, 7): 1.5, ("gd", 10.0, 7): math.nan}
    losses["gd", 5.0, 8] = 2.5
    asked = []

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> list[GroupRecord]:
        asked.append((optimizer, rate, seed))
        return record(losses[optimizer, rate, seed], accuracy=seed / 10)

    found = tuned(Pieces(tmp_path, "toy", "small"), train, {"gd": [0.1, 1.0, 5.0, 10.0]}, [7, 8])["gd"]
    assert asked == list(losses)
    assert (found.rate, found.at_edge) == (5.0, False)
    assert found.tried == {0.1: math.inf, 1.0: 2.0, 5.0: 1.5, 10.0: math.inf}
    assert [found.last("group_loss", group) for group in (0, 1)] == [2.0, 3.0]
    steps, values = found.curve("group_accuracy", 1)
    assert (steps, values.tolist()) == ([0.0, 2.0], [[0.0, pytest.approx(0.35)], [0.0, pytest.approx(0.4)]])
    assert found.curve("loss")[1].mean(0).tolist() == [5.0, 2.0]
