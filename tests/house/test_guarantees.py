"""The page of guarantees points at what is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"


def test_every_claim_names_its_test_and_every_link_leads_somewhere() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (PAGE.parent / link).is_file(), link
    named = re.findall(r"`(tests/[^`]+)`", text)
    assert len(named) > 15
    for name in named:
        assert (ROOT / name).is_file(), name
    rows = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) >= 10
    for row in rows:
        assert "`tests/" in row, row
    assert "replace-one" in text
