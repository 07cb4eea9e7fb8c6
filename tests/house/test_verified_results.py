"""Stored verdicts on our own answers and on planted bugs: pages say what is stored; nothing of ours is refuted."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flint")

from audits import false_ends
from audits.mutations import digest, mutated, place_of
from benchmarks import verified

THEORY = Path(__file__).parents[2] / "docs" / "theory" / "verifier.md"
BUGS = {bug["name"]: bug for bug in false_ends.read_list()}


def test_the_page_has_the_table_of_what_is_stored() -> None:
    rows = verified.stored()
    assert verified.table(rows) in THEORY.read_text()
    assert f"So far {len(rows)} of {verified.COUNT}." in THEORY.read_text()


def test_no_end_of_ours_is_refuted() -> None:
    assert not [row["number"] for row in verified.stored() if verified.word(row) == "refuted"]


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_has_its_place_and_a_result(name: str) -> None:
    bug = BUGS[name]
    for place in (bug, *({"name": name, **also} for also in bug.get("also", []))):
        file = place_of(place)
        assert mutated(place, file.read_text()) != file.read_text()
    row = false_ends.read_results()[name]
    assert row["digest"] == digest(bug)
    assert row["false"]
    assert all(word in ("refuted", "not settled") for word, *_ in row["proof"].values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["half the rate", "a thousandth more noise than there is", "groups: one sample too few"]
)
def test_what_a_planted_bug_claims_is_refuted(name: str) -> None:
    with false_ends.copied() as copy:
        row = false_ends.judged(BUGS[name], copy, 2.0)
    assert row["false"]
    assert row["refuted"] == row["false"]
