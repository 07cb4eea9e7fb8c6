"""Results that are older than the code that makes them are found by what the code's files say."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from paper_figures import _sources
from paper_figures.__main__ import main
from paper_figures._reproduction import load
from paper_figures._sources import changed, digests, place_of
from paper_figures.items import ITEMS

Capture = pytest.CaptureFixture[str]
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


@pytest.mark.slow
def test_every_item_has_code_of_its_own() -> None:
    for item in ITEMS.values():
        assert digests(place_of(item.measure)), item.name


def test_the_place_of_what_is_partly_called() -> None:
    assert place_of(partial(partial(digests, "a"), "b")) == ("paper_figures._sources", "digests")


def test_older_results_are_told(tmp_path: Path, capsys: Capture) -> None:
    assert main(["run", "generation-counts", "adam-bound", "--results", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["stale", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 of 2 results are older than their code; of 0 it was not recorded\n"
    path = tmp_path / "adam-bound.json"
    stored = load("adam-bound", tmp_path)
    assert stored is not None
    digest = stored.code["measure"]
    path.write_text(path.read_text().replace(digest, "0" * len(digest)))
    counts = tmp_path / "generation-counts.json"
    counts.write_text(counts.read_text().split('"code"')[0].rstrip().rstrip(",") + "}")
    assert main(["stale", "--results", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=1) == ["adam-bound", "changed since: measure"]
    assert lines[1] == "1 of 1 results are older than their code; of 1 it was not recorded"
