"""The published numbers, the stored results beside them, and the page that shows both."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from paper_figures._needs import DATA
from paper_figures._page import PAGE, page
from paper_figures._pieces import Pieces, raw_file
from paper_figures._reproduction import RESULTS, Found, Item, Row, Scale, Stored, load, run
from paper_figures._verdict import Reason
from paper_figures.items import ITEMS


def near(published: float, reach: float = 0.0) -> Row:
    return Row("a", 1.0, published, interval=(1.0 - reach, 1.0 + reach), margin=0.1)


def stored(*rows: Row, scale: Scale = "small", form_only: bool = False) -> Stored:
    return Stored("item", scale, form_only, Found(rows, differs="Nothing."), "command", 1.0, 1.0)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([near(1.05)], "reproduced at small scale"),
        ([near(1.2), near(1.0)], "differs in 1 of 2 at small scale"),
        ([near(1.0, reach=0.2), near(1.0)], "compatible, wide in 1 of 2 at small scale"),
        ([near(1.2, reach=math.inf)], "compatible, wide in 1 of 1 at small scale"),
        ([Row("a", 1.0, claim="> 2", interval=(0.9, 1.1), within=(2.0, math.inf))], "differs in 1 of 1 at small scale"),
        ([Row("a", 1.0)], "shown at small scale"),
    ],
)
def test_the_state_follows_from_the_numbers(rows: list[Row], expected: str) -> None:
    assert stored(*rows).state() == expected


def test_a_result_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    rows = [near(2.0), Row("b", 1.0, claim="> 0", interval=(-math.inf, math.inf), within=(0.0, math.inf), cells=("k",))]
    reasons = [Reason("open", "because"), Reason("tested", "because", "a command")]
    item = Item("toy", "Toy", lambda scale, folder: Found(rows, "Nothing.", reasons=reasons))
    made = run(item, "small", tmp_path)
    again = load("toy", tmp_path)
    assert again == made
    assert again is not None
    assert again.versions["dprmt"]


def test_pieces_are_measured_once_and_their_time_is_counted(tmp_path: Path) -> None:
    calls = []

    def measure(scale: Scale, folder: Path) -> Found:
        pieces = Pieces(folder, "toy", scale)
        tasks = {"a": lambda: calls.append("a") or 1.5, "b": lambda: calls.append("b") or 2.5}
        if not calls:  # stopped between the two
            tasks["b"] = interrupted
        values = pieces.measure(tasks)
        assert list(values) == ["a", "b"]
        return Found([Row(*pair) for pair in values.items()], "Nothing.", earlier_seconds=pieces.earlier_seconds)

    def interrupted() -> float:
        raise KeyboardInterrupt

    toy = Item("toy", "Toy", measure)
    with pytest.raises(KeyboardInterrupt):
        run(toy, "small", tmp_path)
    lines = raw_file(tmp_path, "toy", "small").read_text().splitlines()
    assert len(lines) == 2  # a piece, and the code that measured it
    raw_file(tmp_path, "toy", "small").write_text(
        "\n".join([lines[0].replace('"cpu_seconds": 0.0', '"cpu_seconds": 70.0'), lines[1], ""])
    )
    made = run(toy, "small", tmp_path)
    assert calls == ["a", "b"]
    assert [row.ours for row in made.found.rows] == [1.5, 2.5]
    assert 70 <= made.cpu_seconds < 71


def test_a_page_without_a_reason_for_what_differs_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load("latency")
    assert whole is not None
    assert whole.disagrees
    bare = replace(whole, found=replace(whole.found, reasons=()))
    monkeypatch.setattr("paper_figures._page.load", lambda name: bare if name == "latency" else load(name))
    with pytest.raises(ValueError, match="latency: a row differs, and no reason"):
        page()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row("a", 5.0, 1.0, interval=(0.9, 1.1), margin=0.2), "outside of its own interval"),
        (Row("a", 1.0, 1.0, interval=(0.9, 1.1), margin=math.inf), "nothing could lie outside"),
        (Row("a", 1.0, interval=(0.9, 1.1), claim="finite", within=(-math.inf, math.inf)), "nothing could lie outside"),
        (Row("a", 1.0, interval=(0.9, 1.1), within=(0.0, math.inf)), "without the claim"),
        (Row("a", 1.0, interval=(0.9, 1.1), margin=0.2), "a margin is around a printed number"),
        (Row("a", 1.0, 1.0, interval=(0.9, 1.1), margin=-0.2), "needs low <= high"),
        (Row("a", 1.0, 1.0, interval=(math.nan, 1.1), margin=0.2), "needs low <= high"),
        (Row("a", 4.0, 4.0, interval=(4, 4), margin=0.2, cells=("latency.0.value",)), "compared with 4, and the file"),
        (Row("a", 4.0, 4.0, interval=(4, 4), margin=0.2, cells=("latency.9.value",)), "which is not in the file"),
    ],
)
def test_a_page_with_a_planted_verdict_is_not_written(row: Row, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could not be otherwise, or is about another number than the row shows."""
    whole = load("latency")
    assert whole is not None
    planted = replace(whole, found=replace(whole.found, rows=(*whole.found.rows, row)))
    monkeypatch.setattr("paper_figures._page.load", lambda name: planted if name == "latency" else load(name))
    with pytest.raises(ValueError, match=message):
        page()


def test_the_page_is_the_one_that_the_results_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


ITEMS_WITH_PIECES = (
    "generation-counts adam-bound speedup steps-to-reference grape-accuracy grape-rank improvement improvement-by-shape"
    " overhead heavy-tail heavy-tail-c10 heavy-tail-sigma5 heavy-tail-small"
)


@pytest.mark.parametrize(
    "name", [pytest.param("accuracy-low-budget", marks=pytest.mark.slow), *ITEMS_WITH_PIECES.split()]
)
def test_an_item_gives_what_is_stored_from_its_pieces(name: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for path in (RESULTS / "raw").glob("*.jsonl"):
        (tmp_path / "raw" / path.name).symlink_to(path)
    (tmp_path / "sst2").mkdir()  # sets that are there, and not read
    for split in ("train", "dev"):
        (tmp_path / "sst2" / f"{split}.tsv").touch()
    kept = load(name)
    assert kept is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA, str(tmp_path))
        patch.setattr(Pieces, "_keep", None)  # measuring would fail
        made = ITEMS[name].measure(kept.scale, tmp_path)
    for ours, before in zip(made.rows, kept.found.rows, strict=True):
        assert (ours.label, ours.verdict()) == (before.label, before.verdict())
        assert ours.ours == pytest.approx(before.ours, rel=1e-6, nan_ok=True)
