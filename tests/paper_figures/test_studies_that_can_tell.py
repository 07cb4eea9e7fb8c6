"""What the page says of how its studies at tuned rates were made: by what is stored, and by the loop that made it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dprmt.training.denoising import Denoising
from paper_figures._pieces import Pieces
from paper_figures.denoising._page import verdict
from paper_figures.digits import (
    ADAPTERS,
    HEADS,
    MARGIN,
    METHODS,
    SETTINGS,
    Run,
    Samples,
    Setting,
    compared,
    drawn_images,
)
from paper_figures.digits import _tuning as tuning
from paper_figures.digits._page import corrected, corrected_blend, readings
from paper_figures.digits._runs import Ended
from paper_figures.digits._tuning import NULL
from paper_figures.long_runs._denoisers import seconds_of
from paper_figures.long_runs._stored import PAGE, read
from paper_figures.long_runs.denoising import STORED
from paper_figures.long_runs.digits import STUDY as DIGITS
from paper_figures.long_runs.last_matrix import STUDY as LAST
from paper_figures.long_runs.pretrained_head import STUDY as HEAD

STUDIES = (DIGITS, HEAD, LAST)
NUMBERS = {5: "five", 6: "six", 7: "seven"}
ALL: dict[str, Setting] = {**SETTINGS, **HEADS, **ADAPTERS}


def words(file: Path = PAGE) -> str:
    return " ".join(file.read_text(encoding="utf-8").split())


def stored() -> dict[str, Any]:
    return {name: found for study in STUDIES for name, found in read(study.file)["settings"].items()}


@pytest.mark.parametrize("name", ALL)
def test_rates_are_tuned_on_three_seeds_or_more_that_are_not_among_the_ten_or_more_compared(name: str) -> None:
    setting = ALL[name]
    assert len(set(setting.seeds)) >= 10
    assert len(set(setting.tuning_seeds)) >= 3
    assert not set(setting.seeds) & set(setting.tuning_seeds)
    assert list(setting.first_rates) == list(range(setting.first_rates[0], setting.first_rates[-1] + 1))


@pytest.mark.parametrize("name", stored())
def test_every_method_had_every_rate_and_the_best_is_inside(name: str) -> None:
    """A method has more rates than others only where its best was the last of those."""
    setting, methods = ALL[name], stored()[name]["methods"]
    assert set(methods) == {*METHODS, NULL}
    for method in METHODS:
        tried = {int(k): accuracy for k, accuracy in methods[method]["tried"].items()}
        assert set(setting.first_rates) <= set(tried)
        assert sorted(tried) == list(range(min(tried), max(tried) + 1))
        assert tried[methods[method]["rate"]] == max(tried.values())
        assert min(tried) < methods[method]["rate"] < max(tried)
        assert len(methods[method]["test"]) == len(setting.seeds)
        if len(tried) > len(setting.first_rates):
            first = {k: tried[k] for k in setting.first_rates}
            assert max(first, key=lambda k: first[k]) in (min(first), max(first))
    assert methods[NULL]["rate"] == methods["Adam"]["rate"]


def test_the_loop_has_quarter_decades_the_same_noise_for_all_and_another_for_the_null(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[Setting, str, list[Run]]] = []

    def train(setting: Setting, method: str, runs: list[Run], samples: Samples, look: bool) -> list[Ended]:
        asked.append((setting, method, runs))
        return [Ended(1 - abs(np.log10(run.rate) - 0.25), 0.0, 0.5, {}) for run in runs]

    monkeypatch.setattr(tuning, "train", train)
    samples = drawn_images(1000, 1, 1)
    setting = Setting(3.0, 100, first_rates=(-4, -3, -2), tuning_seeds=(7, 8, 9), seeds=(0, 1))
    found = tuning.tuned_and_run(Pieces(tmp_path, "digits", "test"), samples, {"made": setting})["made"]
    assert {one["rate"] for one in found["methods"].values()} == {1}  # beyond the first three
    by_method = {name: [runs for _, method, runs in asked if method == name] for name in METHODS}
    assert {id(one) for one, _, _ in asked} == {id(setting)}  # one ε, one length, one batch size
    for calls in by_method.values():
        *tried, chosen = calls[:4]
        rates = [[run.rate for run in runs[::3]] for runs in tried]
        exponents = ((-4, -3, -2), (-1, 0, 1), (2, 3, 4))
        assert rates == [pytest.approx([10 ** (k / 4) for k in some]) for some in exponents]
        assert {(run.seed, run.noise) for runs in tried for run in runs} == {(seed, seed) for seed in (7, 8, 9)}
        assert [(run.seed, run.noise) for run in chosen] == [(0, 0), (1, 1)]
        assert {run.rate for run in chosen} == {10**0.25}
    assert {name: len(calls) for name, calls in by_method.items()} == dict.fromkeys(METHODS, 4) | {"Adam": 5}
    others = by_method["Adam"][-1]
    assert [(run.seed, run.noise) for run in others] == [(0, 1000), (1, 1001)]


@pytest.mark.parametrize(("first", "towards", "last"), [((-23, -22), -1, -26), ((5, 6), 1, 9)])
def test_rates_end_beyond_which_none_is_looked_for(
    first: tuple[int, int], towards: int, last: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However far the best one seems to lie: 10^-6 or 10^2, and what is tried with it."""

    def train(setting: Setting, method: str, runs: list[Run], samples: Samples, look: bool) -> list[Ended]:
        return [Ended(towards * np.log10(run.rate), 0.0, 0.5, {}) for run in runs]

    monkeypatch.setattr(tuning, "train", train)
    setting = Setting(3.0, 100, first_rates=first, tuning_seeds=(7,), seeds=(0,))
    pieces = Pieces(tmp_path, "digits", "test")
    found = tuning.of_method(pieces, drawn_images(100, 1, 1), "made", setting, "Adam")
    assert found["rate"] == last


@pytest.mark.parametrize("name", stored())
def test_intervals_are_student_s_of_paired_seeds_and_verdicts_follow_from_them(name: str) -> None:
    """Bonferroni's level over the rows of a table; by scipy's own test, not by the code that wrote the page."""
    methods = stored()[name]["methods"]
    rows = [method for method in methods if method != "Adam"]
    assert MARGIN == 0.5
    for method, found in readings(stored()[name]).items():
        difference = 100 * (np.array(methods[method]["test"]) - np.array(methods["Adam"]["test"]))
        low, high = stats.ttest_1samp(difference, 0).confidence_interval(1 - 0.05 / len(rows))
        assert (found.interval.low, found.interval.high) == pytest.approx((low, high))
        told = "better" if low > 0 else "worse" if high < 0 else "cannot tell"
        assert found.reading == ("equal within the margin" if max(-low, high) <= 0.5 else told)
        said = found.reading.replace("the margin", "0.5")
        assert f"| {found.mean:+.2f} [{low:+.2f}, {high:+.2f}] | {said} |" in words()


def test_what_decides_norm_correction_is_said_with_its_six_intervals_held_at_once() -> None:
    found = stored()
    alone = [corrected(results).reading for results in found.values()]
    gates = [[of["methods"][f"gate{end}"]["test"] for end in ("", " without norm correction")] for of in found.values()]
    at_once = [compared(with_it, without, len(found)) for with_it, without in gates]
    assert alone == ["worse", "worse", "better", "worse", "cannot tell", "equal within the margin"]
    assert [one.reading for one in at_once] == ["worse", "worse", "better", "cannot tell", "cannot tell", "cannot tell"]
    head = at_once[3]
    said = f"{-head.mean:.2f} [{-head.interval.high:.2f}, {-head.interval.low:.2f}] behind".replace("0.", ".")
    text = words()
    assert f"of the other three it cannot be told (the other head: {said})" in text
    assert f"Each of these {NUMBERS[len(found)]} intervals is at 95 % by itself" in text
    assert (
        "Held at once (Bonferroni) the two of digits are left for doing without and the short head against it" in text
    )
    last = corrected(found["adapter, E2E"])
    said = f"{last.mean:.2f} [{last.interval.low:.2f}, {last.interval.high:.2f}] ahead".replace("0.", ".")
    assert f"of one in SmolLM2 the two are equal within half a point ({said})" in text
    heads, adapters = (
        " and ".join(f"{corrected_blend(one).mean:.2f}".removeprefix("0") for name, one in found.items() if of in name)
        for of in ("head", "adapter")
    )
    assert f"on the head it is {heads} points better so, with adapters {adapters}." in text
    assert "two small settings against one decide the default, and no more" in words()
    root = PAGE.parents[2]
    training, how_to = (words(root / "docs" / name) for name in ("training.md", "how_to/choose_denoiser.md"))
    assert "at tuned rates cost accuracy in two settings, gained it in one, and could not be told in three" in training
    assert "held at once with the other two below, in two and one" in how_to
    counted = f"cost accuracy in two of {NUMBERS[len(found)]} settings and gained it in one;"
    assert counted in " ".join((Denoising.__doc__ or "").split())


def test_the_spiked_step_is_behind_muon_s_in_all_settings() -> None:
    for results in stored().values():
        of = results["methods"]
        assert np.mean(of["spiked Muon"]["test"]) < np.mean(of["Muon"]["test"])
    assert f"the spiked step is behind Muon's in all {NUMBERS[len(stored())]} settings measured" in words()


def test_processor_times_are_on_the_page() -> None:
    def minutes(study: Any) -> int:
        """Stored before settings had times of their own."""
        times = read(study.file)
        return round((times["cpu_seconds"] + times["more_cpu_seconds"]) / 60)

    def after(command: str) -> str:
        return words().split(f"study {command}")[1].split("<!--")[0]

    assert 20 <= minutes(DIGITS) <= 25
    assert "(some 25 minutes of processor time)" in after("digits train")
    assert f"(some {minutes(HEAD)} minutes of processor time)" in after("pretrained-head train")
    small, decoder = (round(seconds_of(one) / 60) for one in read(LAST.file)["settings"].values())
    said = f'(some {small} minutes of processor time, with `"adapter, E2E"` some {decoder})'
    assert said in after("last-matrix train")
    files = [STORED.with_name(f"gate-map{precision}.jsonl") for precision in ("", "-float32")]
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    seconds = sum(line["cpu_seconds"] for line in lines)
    assert f"(some {round(seconds / 60)} minutes of processor time)" in after("gate-map train")


def test_the_older_study_says_that_it_cannot_tell() -> None:
    old = read(STORED)
    said = verdict(old)
    assert {len(row["seeds"]) for one in old.values() for row in one["rows"].values()} == {3, 5}
    assert "3 to 5 seeds, rates in steps of half a decade, chosen on one seed, intervals each by itself" in said
    assert "such runs cannot tell methods apart, and of 13 comparisons 1 says otherwise." in said
    assert said in PAGE.read_text(encoding="utf-8")
    for one in old.values():
        rates = sorted({float(rate) for losses in one["tried"].values() for rate in losses})
        assert np.diff(np.log10(rates)) == pytest.approx(0.5, abs=1e-3)
