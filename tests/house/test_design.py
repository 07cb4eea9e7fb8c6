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


def test_every_file_of_accounting_is_on_the_map_once() -> None:
    """In its folder, and nothing stands there that is no file."""
    drawn = re.search(r"^## From a mechanism to a number\n.*?```\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
    assert drawn is not None
    folders = dict(re.findall(r"^(\w+)/(.*?)(?=^\w+/|\Z)", drawn[1], re.MULTILINE | re.DOTALL))
    root = ROOT / "dprmt" / "accounting"
    assert set(folders) == {path.parent.name for path in root.glob("*/__init__.py")}
    for folder, text in folders.items():
        files = {path.stem for path in (root / folder).glob("*.py")} - {"__init__"}
        named = re.findall(r"(?<!\w)(?:_[a-z]\w*|pld|prv)(?![\w-])", text)
        assert sorted(named) == sorted(files), folder
