"""Bounds on δ against balls that certainly hold it, by ball arithmetic that shares no code.

``oracles/make_balls.py`` in commit 411bdc64 made them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dprmt.accounting import DPSGD, Hutchinson, HutchPlusPlus, PrivacyBounds, compose
from dprmt.accounting.laws._sketch import probe_copies

STORED = json.loads((Path(__file__).parent / "oracles" / "balls.json").read_text())
CASES = STORED["cases"]


def _some(kind: str, step: int) -> list[dict[str, Any]]:
    return [row for row in CASES if row["kind"] == kind][::step]


SOME = _some("exact", 4) + _some("known", 3) + _some("secret", 3) + _some("sketch", 3)


def mechanism(row: dict[str, Any]) -> Any:
    sigma, rate, probes = row["sigma"], row["rate"], row["probes"]
    if row["kind"] == "exact":
        return DPSGD(sigma, rate)
    if row["kind"] == "sketch":
        return DPSGD(sigma, rate, HutchPlusPlus(probes, row["sketch"], secret=False))
    return DPSGD(sigma, rate, Hutchinson(probes, secret=row["kind"] == "secret"))


def contradicts(bounds: PrivacyBounds, ball: list[float]) -> bool:
    return bounds.lower > ball[1] or bounds.upper < ball[0]


@pytest.mark.parametrize("number", range(len(SOME)))
def test_bounds_meet_the_balls_and_are_tight(number: int) -> None:
    row = SOME[number]
    run = compose([(mechanism(row), row["steps"])])
    for place, epsilon in enumerate(row["epsilons"]):
        for direction, bounds in run.delta_by_direction(epsilon).items():
            low, high = row[direction][place]
            assert not contradicts(bounds, (low, high))
            if row["kind"] in ("secret", "sketch") and row["probes"] <= 8 and not bounds.is_narrow:
                continue  # it says that it is wide
            if low > 1e-9:
                assert 0.95 * low <= bounds.lower
                assert bounds.upper <= 1.05 * high
                narrow = high < 1.02 * low
                assert not narrow or contradicts(PrivacyBounds(1.1 * high, 1.1 * high, 1.2 * high), (low, high))
                assert not narrow or contradicts(PrivacyBounds(0.0, 0.8 * low, 0.9 * low), (low, high))


@pytest.mark.parametrize("row", [row for row in CASES if row["kind"] == "sketch"][:3], ids=lambda row: row["sketch"])
def test_the_law_of_a_sketch_is_the_stored_one(row: dict[str, Any]) -> None:
    """Else the stored values are of another mechanism, and have to be made again."""
    copies, weights = probe_copies(row["sketch"], power_iteration=False)
    assert [list(copies), list(weights)] == [row["law"][0], pytest.approx(row["law"][1], rel=1e-12)]


def test_a_whole_run_meets_its_balls() -> None:
    """All 400 steps of a run, by repeated squaring of ball polynomials: δ at each ε, and ε itself."""
    row = STORED["run"]
    run = DPSGD(row["sigma"], row["rate"])
    answers = {epsilon: compose([(run, row["steps"])]).delta_by_direction(epsilon) for epsilon in row["epsilons"]}
    for place, epsilon in enumerate(row["epsilons"]):
        for direction, bounds in answers[epsilon].items():
            assert not contradicts(bounds, row[direction][place])
        low, high = row["remove"][place]
        assert high < 1.002 * low
        assert 0.99 * low <= answers[epsilon]["remove"].lower <= answers[epsilon]["remove"].upper <= 1.01 * high
    below = max(epsilon for epsilon, (low, _) in zip(row["epsilons"], row["remove"], strict=True) if low > 1e-5)
    above = min(epsilon for epsilon, (_, high) in zip(row["epsilons"], row["remove"], strict=True) if high < 1e-5)
    answer = run.epsilon(steps=row["steps"], delta=1e-5)
    assert (below, above) == (6.69, 6.71)
    assert below <= answer.lower <= answer.upper <= above
