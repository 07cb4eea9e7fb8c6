"""The bugs of ``audits/mutations.toml``: each can be planted, and what became of it is that of the present list."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

from audits import mutations

BUGS = mutations.read_list()


def test_forty_bugs_beside_the_eight_gaps_each_in_one_place() -> None:
    assert sum(bug["area"] == "gap" for bug in BUGS) == 8
    assert len(BUGS) >= 48
    areas = {"gap", "clipping", "noise", "ledger", "resume", "sampling", "projection", "accounting"}
    assert {bug["area"] for bug in BUGS} == areas
    assert len({bug["name"] for bug in BUGS}) == len(BUGS)
    assert [bug["name"] for bug in BUGS if "function" not in bug] == []
    for bug in BUGS:
        source = mutations.place_of(bug).read_text(encoding="utf-8")
        assert compile(mutations.mutated(bug, source), bug["file"], "exec")
        assert all((mutations.ROOT / test.split("::")[0]).exists() for test in bug["tests"] if test.startswith("tests"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_bug_is_seen_by_its_tests() -> None:
    assert mutations.main(["--area", os.environ.get("AREA", "")]) == 0
