"""The page on other accountants says what the stored answers say, and these are of the settings that are drawn."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("flint")

from benchmarks import other_accountants_page as page
from benchmarks.other_accountants import Setting, drawn, proved, stored, word

ROWS = stored()


def test_the_page_is_written_from_the_results() -> None:
    assert page.PAGE.read_text() == page.page()


def test_each_decade_of_delta_and_runs_without_sampling_are_among_them() -> None:
    assert {page.decade(row) for row in ROWS} == set(page.DECADES)
    assert any(row["rate"] == 1.0 for row in ROWS)
    assert len({row["number"] for row in ROWS}) == len(ROWS)


def test_words_follow_from_what_is_proved() -> None:
    for row in ROWS:
        low, high = row["proved"]
        high = math.inf if high is None else high
        assert low <= high
        for answer in row["answers"].values():
            for end in ("lower", "upper"):
                if answer.get(end):
                    assert answer[f"{end} is"] == word(end, answer[end], low, high)


@pytest.mark.parametrize("row", ROWS[::10], ids=lambda row: str(row["number"]))
def test_settings_are_those_that_are_drawn_and_our_answer_is_between(row: dict) -> None:
    setting, ours = drawn(row["number"])
    assert vars(setting) == {name: row[name] for name in vars(setting)}
    low, high = row["proved"]
    assert ours.lower <= high
    assert low <= ours.upper


@pytest.mark.slow
def test_a_refuted_answer_is_refuted_again() -> None:
    """dp-accounting at mesh 1e-3 claims ε = 3.2272 here, in version 0.6.0."""
    setting = Setting(0.8, 0.001, 20_000, 1e-14)
    low, high = proved(setting, 3.2272, 0.0)
    assert word("upper", 3.2272, low, high) == "refuted"
    assert 3.9 < low < high < 3.94
