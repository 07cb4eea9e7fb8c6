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
        file, _, test = name.partition("::")
        assert (ROOT / file).is_file(), name
        assert not test or re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name
    rows = [line for line in text.splitlines() if re.match(r"\| \d+[a-z]? \|", line)]
    assert len(rows) >= 25
    for row in rows:
        assert "`tests/" in row, row
    assert "replace-one" in text


def test_no_page_claims_add_remove_of_a_rate_that_reads_n() -> None:
    """(N0): README, pitfalls and the Trainer say zero-out; adding or removing comes with its condition."""
    for name in ("README.md", "docs/pitfalls.md", "docs/guarantees.md", "dprmt/training/hugging_face/_callback.py"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert re.search("zero-out|[Zz]eroing out", text), name
        for found in re.finditer(r"[Aa]dd(?:ing)? or remov(?:e|ing)|add-remove\*\* ", text):
            assert re.search(r"only if rate and divisor\s+were\s+chosen without n", text[found.start() :][:120]), name


def test_claims_of_relations_name_the_tests_that_could_refute_them() -> None:
    """Of whole files nobody can tell which test a sentence rests on."""
    text = PAGE.read_text(encoding="utf-8")
    for row in ("4a", "4b", "4c", "4d", "4e"):
        (line,) = re.findall(rf"^\| {row} \|.*$", text, re.MULTILINE)
        assert "::test_" in line, row
