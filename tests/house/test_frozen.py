"""What is said of stored answers on another machine: how far ends moved, and whether intervals contradict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.frozen import between_machines, distance, numbers, overlap


def row(lower: float, upper: float) -> dict[str, str]:
    return {"lower": lower.hex(), "upper": upper.hex()}


def test_intervals_contradict_where_no_number_lies_in_both() -> None:
    stored = row(1.0, 2.0)
    assert overlap(stored, row(1.5, 3.0))
    assert overlap(stored, row(2.0, 3.0))
    assert not overlap(stored, row(2.5, 3.0))
    assert not overlap(row(2.5, 3.0), stored)
    assert overlap(stored, {"error": "UnsoundLawError"})


def test_the_farther_end_counts() -> None:
    assert distance(row(1.0, 2.0), row(1.0, 2.0)) == 0.0
    assert distance(row(1.0, 2.0), row(0.5, 2.0)) == 0.5
    assert distance(row(1.0, 4.0), row(1.0, 3.0)) == 0.25
    assert distance(row(0.0, 0.0), row(0.0, 0.0)) == 0.0
    assert distance(row(1.0, 2.0), {"error": "UnsoundLawError"}) == float("inf")


@pytest.mark.parametrize(("factor", "apart"), [(1.0 + 1e-12, 0), (1.5, 1)])
def test_another_machine_s_last_digits_contradict_nothing(factor: float, apart: int, tmp_path: Path) -> None:
    """One quick setting, its stored ends moved."""
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "frozen.jsonl"
    first = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    assert first["number"] == numbers()[0]
    ends = {end: (factor * float.fromhex(first[end])).hex() for end in ("lower", "upper")}
    moved = tmp_path / "frozen.jsonl"
    moved.write_text(json.dumps({**first, **ends}) + "\n", encoding="utf-8")
    assert len(between_machines(moved)) == apart + 1
