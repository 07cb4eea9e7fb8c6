"""The bugs of ``audits/mutations.toml``: each can be planted, and what became of it is that of the present list."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")

from audits import mutations

BUGS = mutations.read_list()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_bug_is_seen_by_its_tests() -> None:
    assert mutations.main(["--area", os.environ.get("AREA", "")]) == 0
