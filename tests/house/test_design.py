"""The map in ``docs/design.md`` is true: every equation it lists is where it says."""

from __future__ import annotations

import ast
import re

import pytest

from tests.house.import_graph import ROOT

PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| `(dprmt/\S+\.py)` \| `(\w+)` \|$", PAGE, re.MULTILINE)
LABEL = re.compile(r"Eqs?\. [\d–-]+|Theorem \S+|Proposition \S+|Algorithm \d+")


def test_ten_equations_and_more_are_listed() -> None:
    assert len(ROWS) >= 10


@pytest.mark.parametrize(("published", "says", "file", "name"), ROWS)
def test_an_equation_is_where_the_map_says(published: str, says: str, file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    kinds = (ast.FunctionDef, ast.ClassDef)
    assert name in {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)}
    label = LABEL.search(published)
    if label is not None:  # the file cites what the page promises
        number = label.group().replace("–", "-").rstrip(",")
        assert number in text.replace("–", "-")
