"""Results that are older than the code that makes them are found by what the code's files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from paper_figures import _sources
from paper_figures._sources import changed, digests

ITEM = "paper_figures.item", "f"
TEXT = '''"""Says."""

from paper_figures.other import x

# A comment.
def f():
    """Says more."""
    from paper_figures.room._deep import y
    return x + y + 1
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files of a package of the same name; what they say is read anew in every test."""
    (tmp_path / "paper_figures" / "room").mkdir(parents=True)
    root = tmp_path / "paper_figures"
    (root / "item.py").write_text(TEXT)
    (root / "other.py").write_text("import numpy\nfrom paper_figures._page import page\nx = page\n")
    (root / "_page.py").write_text("page = 1\n")
    (root / "room" / "__init__.py").write_text("")
    (root / "room" / "_deep.py").write_text("from paper_figures.item import f\ny = 2\nunused = 3\n")
    monkeypatch.setattr(_sources, "ROOT", root)
    monkeypatch.setattr(_sources, "_tree", _sources._tree.__wrapped__)
    return root


@pytest.mark.parametrize(
    ("file", "old", "new", "seen"),
    [
        ("item.py", "x + y + 1", "x + y + 2", "f"),
        ("item.py", "x + y + 1", "x + y + x", "f"),
        ("room/_deep.py", "y = 2", "y = 3", "y"),
        ("other.py", "x = page", "x = 1.0", "x"),
        ("item.py", "Says more.", "Says even more.\n\n    Two lines.\n    ", ""),
        ("item.py", "# A comment.\n", "# Another one.\n\n\n", ""),
        ("item.py", "x + y + 1", "x  +  y + 1", ""),
        ("room/_deep.py", "unused = 3", "unused = 4", ""),
        ("_page.py", "page = 1", "page = 2", ""),
    ],
)
def test_what_is_computed_is_seen_and_what_is_said_is_not(
    package: Path, file: str, old: str, new: str, seen: str
) -> None:
    before, path = digests(ITEM), package / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert changed(before, ITEM) == ([seen] if seen else [])
