"""Stored pieces that are measured again: what still holds agrees, what does not is named, and nothing stored moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from paper_figures import __main__ as command
from paper_figures._pieces import Pieces, raw_file
from paper_figures._reproduction import Found, Item, Scale, run

Capture = pytest.CaptureFixture[str]
VALUES = {"one": {"loss": [1.0, 2.0], "name": "a"}, "two": {"loss": [3.0, 0.0], "name": "b"}}


def item(values: dict[str, object], stopped: str = "") -> Item:
    """Its pieces are ``values`` as they are when it is measured."""

    def measure(scale: Scale, folder: Path) -> Found:
        kept = {name: (lambda value=value: value) for name, value in values.items()}
        Pieces(folder, "toy", scale).measure(kept)
        return Found([], "", stopped=stopped)

    return Item("toy", "A toy", measure)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "ITEMS", {"toy": item(VALUES)})
    run(command.ITEMS["toy"], "small", tmp_path)
    return tmp_path


def replayed(folder: Path, *more: str) -> int:
    return command.main(["replay", "toy", "--pieces", "2", "--results", str(folder), *more])


def test_what_still_holds_agrees_and_nothing_moves(stored: Path, capsys: Capture) -> None:
    before = raw_file(stored, "toy", "small").read_bytes()
    assert replayed(stored) == 0
    assert capsys.readouterr().out.count("agrees, 0 apart") == 2
    assert raw_file(stored, "toy", "small").read_bytes() == before


@pytest.mark.parametrize(
    ("new", "by"),
    [
        ({"loss": [1.0, 2.002], "name": "a"}, "0.001"),
        ({"loss": [1.0, 2.0, 3.0], "name": "a"}, "inf"),
        ({"loss": [1.0, 2.0], "name": "c"}, "inf"),
        ({"loss": [1.0, 2.0]}, "inf"),
    ],
)
def test_what_changed_is_named(
    new: dict[str, object], by: str, stored: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(command, "ITEMS", {"toy": item({**VALUES, "one": new})})
    assert replayed(stored) == 1
    said = capsys.readouterr().out
    assert f"toy, one: differs, {by} apart" in said
    assert "toy, two: agrees" in said
