"""The share of the slow tests that a commit draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.share import DURATIONS, UNKNOWN, draw, known_durations

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def budget() -> float:
    """Seconds of one core that CI gives."""
    (found,) = re.findall(r"--share (\d+)", MAKEFILE)
    return float(found)


def test_ten_commits_have_run_each_test_with_99_percent() -> None:
    """By drawing: a test that takes long comes as often as one that does not."""
    durations = {name: seconds for name, seconds in known_durations().items() if seconds <= budget()}
    assert len(durations) > 50
    missed, tens = dict.fromkeys(durations, 0), 200
    for ten in range(tens):
        seen: set[str] = set()
        for commit in range(10):
            seen |= draw(list(durations), durations, budget(), f"{ten} {commit}")
        for name in durations.keys() - seen:
            missed[name] += 1
    assert max(missed.values()) <= 0.01 * tens + 3 * (0.01 * tens) ** 0.5


def test_what_fits_no_share_is_never_drawn() -> None:
    assert draw(["long", "short"], {"long": 500.0, "short": 1.0}, 240.0, "a") == {"short"}
    assert [
        name for name, seconds in known_durations().items() if seconds > budget() and "four_people" not in name
    ] == []


def test_a_share_takes_no_longer_than_four_minutes_of_two_cores() -> None:
    durations = known_durations()
    for commit in range(50):
        drawn = draw(list(durations), durations, budget(), str(commit))
        assert sum(durations[name] for name in drawn) < 2 * 240.0


def test_a_draw_is_the_commit_s_and_another_commit_draws_others() -> None:
    names = [f"test_{number}" for number in range(400)]
    one, again, other = (draw(names, {}, 100 * UNKNOWN, key) for key in ("a", "a", "b"))
    assert one == again != other
    assert draw(names[::-1], {}, 100 * UNKNOWN, "a") == one
    assert len(one) == 100
    assert len(draw(names, dict.fromkeys(names, 0.0), 9.95, "a")) == 100  # none takes nothing
    assert draw(names, {}, 1e9, "a") == set(names)


def test_long_tests_are_drawn_as_often_as_short_ones() -> None:
    """Passing over what does not fit would starve them; half of the time is drawn, so the longest half as often."""
    durations = {"long": 50.0, **{f"short {number}": 1.0 for number in range(150)}}
    drawn = sum("long" in draw(list(durations), durations, 100.0, str(key)) for key in range(400))
    assert drawn == pytest.approx(400 * 100 / 200, rel=0.35)


def test_ci_runs_the_test_command_and_the_share() -> None:
    said = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert said[-2:] == ["make test", "make test-share"]
    assert DURATIONS.exists()
