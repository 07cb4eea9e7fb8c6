"""The study on digits again, of a head on a frozen MiniLM: its page and what is said of it."""

from __future__ import annotations

from pathlib import Path

from paper_figures.digits import HEADS, with_tables
from paper_figures.digits._page import corrected, corrected_blend, readings
from paper_figures.digits._tuning import NULL
from paper_figures.long_runs._stored import PAGE, read
from paper_figures.long_runs.pretrained_head import STUDY

HOW_TO = Path(__file__).parents[2] / "docs" / "how_to" / "choose_denoiser.md"


def test_the_page_shows_the_stored_runs() -> None:
    stored = read(STUDY.file)
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page, stored["settings"], STUDY.name) == page
    assert list(stored["settings"]) == list(HEADS)
    assert {tuple(results["sizes"]) for results in stored["settings"].values()} == {(3132, 412, 377)}
    train, tune, test = 3132, 412, 377
    assert f"{train:,} texts to train on, {tune} to tune on,\n{test} to test on" in page
    for results in stored["settings"].values():
        assert all(len(method["test"]) == 20 for method in results["methods"].values())


def test_what_the_page_says_of_it_is_what_was_found() -> None:
    short, large = read(STUDY.file)["settings"].values()
    found = [readings(results) for results in (short, large)]
    for one in found:
        assert not [name for name, row in one.items() if row.reading in ("better", "equal within the margin")]
        for method in ("gate", "momentum gate", "spiked Muon", "DOPPLER"):
            assert one[method].reading == "worse"
        for method in ("blend", "momentum blend", "average of weights", "DiSK", "Muon", NULL):
            assert one[method].reading == "cannot tell"
    assert [round(-one["gate"].mean, 1) for one in found] == [4.4, 1.2]
    assert [round((one[NULL].interval.high - one[NULL].interval.low) / 2, 1) for one in found] == [1.3, 1.5]
    over = [results["methods"]["Adam"]["over"]["head"] for results in (short, large)]
    assert [[sum(value > 1 for value in look) for look in looks] for looks in over] == [[5, 1, 1], [1, 0, 0]]
    assert [corrected(results).reading for results in (short, large)] == ["better", "worse"]
    blends = [corrected_blend(results) for results in (short, large)]
    assert [row.reading for row in blends] == ["better", "better"]
    words = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"it is {blends[0].mean:.2f} and {blends[1].mean:.2f} points better so" in words
    ahead, behind = (corrected(results) for results in (short, large))
    low, high = f"{ahead.interval.low:.2f}"[1:], f"{ahead.interval.high:.2f}"
    assert f"the reverse once, {ahead.mean:.2f} [{low}, {high}] ahead" in words
    low, high = (f"{-end:.2f}"[1:] for end in (behind.interval.high, behind.interval.low))
    assert f"same once, {-behind.mean:.2f}".replace("0.", ".") + f" [{low}, {high}] behind" in words


def test_the_how_to_says_it_at_its_size() -> None:
    words = " ".join(HOW_TO.read_text(encoding="utf-8").split())
    assert "two settings of a head on a frozen MiniLM" in words
    assert "norm correction loses in three of these four" in words
