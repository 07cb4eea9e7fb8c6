"""Check that pages name their type, lead to pages that exist, and stay short where a newcomer reads them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.modules import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TYPES = {"tutorial", "how-to", "concept", "reference", "results", "proof"}
# Made by the site, see docs/_site/hooks.py.
MADE = {"command_line.md", "gallery.md", "changelog.md", "contributing.md", "security.md"}
WORDS = {"how-to": 900, "concept": 1500}


def head_of(path: Path) -> dict[str, str]:
    """The keys above the text."""
    match = re.match(r"---\n(.*?)\n---\n", path.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None, path
    return dict(line.split(": ", 1) for line in match[1].splitlines())


def text_of(path: Path) -> str:
    """Without code, which is neither words nor links."""
    text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_names_its_type_its_readers_and_what_is_in_it(path: Path) -> None:
    head = head_of(path)
    assert head.keys() == {"type", "audience", "summary"}
    assert head["type"] in TYPES
    assert head["summary"].rstrip('"').endswith(".")
    assert len(text_of(path).split()) <= WORDS.get(head["type"], 20_000)


@pytest.mark.parametrize(
    "path", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=lambda path: str(path.relative_to(ROOT)).replace("/", "-")
)
def test_links_lead_to_files(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", text_of(path)):
        if target.startswith(("http", "mailto")) or Path(target).name in MADE:
            continue
        place = Path(os.path.normpath(path.parent / target))
        if place.parent == DOCS / "tutorials":
            place = ROOT / "notebooks" / f"{place.stem}.ipynb"
        assert place.exists(), target
