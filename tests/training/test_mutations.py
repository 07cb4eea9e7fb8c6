"""The bugs of ``audits/mutations.toml``: each can be planted, and what became of it is that of the present list."""

from __future__ import annotations

import os

import pytest

from audits import mutations

BUGS = mutations.read_list()


def test_every_planted_bug_has_its_place() -> None:
    assert len({bug["name"] for bug in BUGS}) == len(BUGS)
    for bug in BUGS:
        source = mutations.place_of(bug).read_text(encoding="utf-8")
        assert compile(mutations.mutated(bug, source), bug["file"], "exec")
        assert all((mutations.ROOT / test.split("::")[0]).exists() for test in bug["tests"] if test.startswith("tests"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_bug_is_seen_by_its_tests() -> None:
    assert mutations.main(["--area", os.environ.get("AREA", "")]) == 0
