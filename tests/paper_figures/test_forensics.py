"""Printed numbers, each with a state, and the relations between them: every comparison can fail."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paper_figures import _states, forensics
from paper_figures._page import cell_states
from paper_figures._published import FILE, Published, published
from paper_figures._reproduction import Row, load
from paper_figures._states import StatelessError, states
from paper_figures._verdict import Interval, judge, mean_interval, share_interval
from paper_figures.forensics import CHECKS
from paper_figures.items import ITEMS

SLOW = {"epsilon-saved", "noise-multipliers", "budgets"}
"""Seconds of an accountant each."""
FACTORS = (1.1, 0.9, 0.5, 2.0, 10.0, -1.0)


def forensic_rows() -> list[Row]:
    return [row for kept in forensics.stored().values() for row in kept.rows]


def numbers_in(value: Any) -> int:
    """Of a piece of the file, by another way than the code's."""
    if isinstance(value, Mapping):
        return sum(numbers_in(entry) for name, entry in value.items() if name != "absent")
    if isinstance(value, list):
        return sum(map(numbers_in, value))
    return type(value) in (int, float)


def test_every_number_of_the_file_has_one_state() -> None:
    found = cell_states({name: load(name) for name in ITEMS})
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))["items"]
    assert len(found) == numbers_in(content) > 690
    assert {state.kind for state in found.values()} == {"compared", "setting", "not computable here"}
    assert all((state.verdict is not None) == (state.kind == "compared") for state in found.values())
    assert all(bool(state.why) == (state.kind == "not computable here") for state in found.values())


def test_a_number_without_a_state_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [row for name in ITEMS if (result := load(name)) for row in result.found.rows]
    bare = replace(published("generation-400"), absent={})
    monkeypatch.setattr(_states, "published", lambda name: bare if name == bare.name else published(name))
    with pytest.raises(StatelessError, match=r"generation-400\.0"):
        states(measured, forensic_rows())


@pytest.mark.parametrize("is_measured", [True, False])
@pytest.mark.parametrize("off", [1.0001, 0.9, 2.0])
def test_a_row_beside_another_number_than_the_printed_one_is_an_error(is_measured: bool, off: float) -> None:
    measured = [row for name in ITEMS if (result := load(name)) for row in result.found.rows]
    printed = next(row for row in measured if row.verdict() and row.published and len(row.cells) == 1)
    wrong = replace(printed, published=(printed.published or 0.0) * off)
    of = ([*measured, wrong], forensic_rows()) if is_measured else (measured, [*forensic_rows(), wrong])
    with pytest.raises(StatelessError, match="and the file has"):
        states(*of)


def changed(key: str, factor: float) -> Callable[[str], Published]:
    """The printed numbers with one multiplied, or, where it is 0, set to the factor."""
    name, at, column = key.split(".")

    def read(wanted: str) -> Published:
        item = published(wanted)
        if wanted != name:
            return item
        rows = [dict(row) for row in item.rows]
        rows[int(at)][column] = (rows[int(at)][column] or 1.0) * factor
        return replace(item, rows=tuple(rows))

    return read


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in SLOW])
def test_a_number_that_agrees_would_not_if_it_were_another(name: str) -> None:
    """For every cell, of at most fifty, of rows that reproduce there is a change by which a row does no longer."""
    rows = CHECKS[name].rows(published)
    agreeing = {row.label: row for row in rows if row.verdict() == "reproduced"}
    keys = sorted({key for row in agreeing.values() for key in row.cells})
    for key in keys[:: 1 + len(keys) // 50]:
        assert any(_fails(name, key, agreeing, factor) for factor in FACTORS), key


def _fails(name: str, key: str, agreeing: Mapping[str, Row], factor: float) -> bool:
    try:
        after = {row.label: row.verdict() for row in CHECKS[name].rows(changed(key, factor))}
    except ValueError:  # the range of a statement would be empty
        return True
    about = [label for label, row in agreeing.items() if key in row.cells]
    return any(after.get(label) != "reproduced" for label in about)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CHECKS])
def test_the_checks_give_what_is_stored(name: str) -> None:
    kept = forensics.stored()[name].rows
    for ours, before in zip(CHECKS[name].rows(published), kept, strict=True):
        assert (ours.label, ours.verdict(), ours.cells) == (before.label, before.verdict(), before.cells)
        assert ours.ours == pytest.approx(before.ours, rel=1e-3)  # the accountant's tolerance: its grids may change


@given(st.lists(st.floats(-10, 10), min_size=4, max_size=4))
def test_a_verdict_is_by_containment(ends: list[float]) -> None:
    """Reproduced iff every point of ours is one of theirs, differs iff none is."""
    ours, theirs = Interval(*sorted(ends[:2])), Interval(*sorted(ends[2:]))
    points = [*ends, *(ours.low + share * (ours.high - ours.low) for share in (0.25, 0.5, 0.75))]
    mine = [x for x in points if ours.low <= x <= ours.high]
    shared = [x for x in mine if theirs.low <= x <= theirs.high]
    verdict = judge(ours, theirs)
    assert (verdict == "reproduced") == (len(shared) == len(mine))
    assert (verdict == "differs") == (not shared)


def test_the_interval_of_a_mean_holds_it_as_often_as_it_says() -> None:
    """95 % of samples of 5; two standard errors would hold it in 88 %."""
    draws = np.random.default_rng(0).standard_normal((2000, 5))
    held = np.mean([found.low <= 0 <= found.high for found in map(mean_interval, draws)])
    assert 0.935 < held < 0.965
    assert mean_interval([1.0]) == mean_interval([2.0, 2.0]) == Interval(-math.inf, math.inf)


def test_the_interval_of_a_share_is_not_a_point_at_its_ends() -> None:
    """Of none of n trials the upper end is 1 - (α/2)^(1/n)."""
    assert share_interval(0, 6).high == pytest.approx(1 - 0.025 ** (1 / 6))
    assert share_interval(6, 6).low == pytest.approx(0.025 ** (1 / 6))
    assert share_interval(6, 6).high == 1.0
    assert share_interval(0, 0) == Interval(0.0, 1.0)
