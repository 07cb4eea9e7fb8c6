"""The page of times says which command writes it: that command writes it as it stands."""

from __future__ import annotations

import json

import pytest

from tests.house.import_graph import ROOT


def test_the_page_is_what_its_command_writes() -> None:
    pytest.importorskip("torch")
    from benchmarks.accounting import page

    rows = json.loads((ROOT / "benchmarks" / "results" / "accounting.json").read_text(encoding="utf-8"))
    assert page(rows) == (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
