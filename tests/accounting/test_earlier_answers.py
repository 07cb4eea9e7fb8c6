"""Bounds that an earlier version gave for the sweep's first mechanisms: both hold the truth, so they overlap."""

from __future__ import annotations

import json
import math
import re
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.sweep import TOLERANCE, Question, questions, width

PATH = Path(__file__).parent / "oracles" / "earlier_answers.jsonl"
ROWS = [json.loads(line) for line in PATH.read_text().splitlines()]
CHEAP = [row for row in ROWS if row["seconds"] < 0.12]
ASKED = list(islice(questions(seed=0, count=1 + max(row["number"] for row in ROWS)), None))


def to_twelve_digits(text: str) -> str:
    """Machines differ in the last digits of what is drawn."""
    return re.sub(r"\d+\.\d+(e-?\d+)?", lambda found: f"{float(found.group()):.12g}", text)


@pytest.mark.parametrize("row", CHEAP, ids=lambda row: str(row["number"]))
def test_the_intervals_overlap(row: dict[str, object]) -> None:
    question: Question = ASKED[int(str(row["number"]))]
    assert to_twelve_digits(repr(question.mechanism)) == row["mechanism"]
    bounds = question.mechanism.epsilon(steps=question.steps, delta=question.delta, tolerance=TOLERANCE)
    lower, upper = float(str(row["lower"])), math.inf if row["upper"] is None else float(str(row["upper"]))
    assert bounds.lower <= upper * (1 + 1e-9)
    assert lower <= bounds.upper * (1 + 1e-9)
    assert width(bounds) <= TOLERANCE
