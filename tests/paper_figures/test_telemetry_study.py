"""The study of telemetry: its sums are right on made-up runs, and the page has those of the stored ones."""

from __future__ import annotations

from typing import Any

from paper_figures.long_runs.telemetry import PAGE, stored, tables
from paper_figures.telemetry import RUNS, coverage, first_spikes, nulls


def made_up(hits: list[bool]) -> dict[str, Any]:
    """A run whose intervals hold the truth where they should."""
    readings = [{"step": 10 * k, "signal": [0.5 if hit else 2.0, 0.0, 0.4, 1.0]} for k, hit in enumerate(hits, 1)]
    readings[-1] |= {"change": [-1.0, -2.0, -1.0, -0.5], "advice": "unknown"}
    spikes = {"W": [[5, 0, 0.9, 12.0], [10, 0, 1.0, 9.0], [20, 1, 1.2, 8.0]], "V": [[5, 0, 0.9, None]]}
    return {
        "losses": [2.0, 1.0],
        "z": [0.0, 3.0],
        "z_truth": [0.0, 0.0],
        "readings": readings,
        "layers": [{"W": [1.0, 0.0, 0.5, 1.0]}],
        "spikes": spikes,
    }


def test_sums_of_made_up_runs() -> None:
    runs = {"toy, seed 0": made_up([True, True]), "toy, seed 1": made_up([True, False])}
    (row,) = coverage(runs).rows
    assert row[:6] == ["toy", "2", "75.0 (4)", "100.0 (2)", "50.0 (4)", "100.0 (2)"]
    (row,) = first_spikes(runs).rows
    assert row == ["toy", "4", "2", "2.00 (2.00 to 2.00)", "0", "0"]
    (row,) = nulls(runs).rows
    assert row[1:5] == ["2.000", "1.000", "-1.000", "2 of 2"]
    assert row[-1] == "unknown: 2"


def test_the_page_has_the_tables_of_the_stored_runs() -> None:
    known = stored()
    assert known
    assert tables(known) in PAGE.read_text(encoding="utf-8")
    assert len({run.name for run in RUNS}) == len(RUNS)


def test_without_data_nothing_is_claimed() -> None:
    """Of the stored runs on noise alone: none is seen to learn, none has a signal at its end, none is advised."""
    noise = {name: run for name, run in stored().items() if ", none, " in name}
    assert len(noise) >= 20
    for row in nulls(noise).rows:
        assert row[4].startswith("0 of")
        assert row[5].startswith("0 of")
        assert set(row[-1].split(": ")[:1]) <= {"unknown", "–"}


def test_the_page_says_what_little_a_small_batch_shows() -> None:
    """Of SmolLM2 at 8 rows a step: numbers of its prose, its slopes and layers covered, nothing claimed."""
    page, known = PAGE.read_text(encoding="utf-8"), stored()
    runs = {name: run for name, run in known.items() if name.startswith("smollm2-e2e, batch 8")}
    learning = runs["smollm2-e2e, batch 8, seed 0"]
    last = learning["readings"][-1]
    assert f"(σ = {learning['noise_multiplier']:.2f}".replace("0.", ".") in page
    assert f"adapters in {len(learning['shapes']) // 2} projections" in page
    assert f"share of signal is {100 * last['signal'][0]:.3f} %".replace("0.", ".") in page
    assert f"clean change {last['change'][0]:.3f}".replace("0.", ".") in page
    assert last["signal"][1] == 0
    assert last["change"][1] < 0 < last["change"][3]
    assert last["advice"] == "unknown"
    row = next(row for row in first_spikes(runs).rows if row[0] == "smollm2-e2e, batch 8")
    assert row[1:] == ["120", "0", "–", "4", "1"]
