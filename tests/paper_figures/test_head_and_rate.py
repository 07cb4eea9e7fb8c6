"""Whether the head or the rate is why the denoiser is behind on docstrings: order, choice of rates, what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprmt._files import read_lines
from dprmt.training.recipes import load_recipe
from paper_figures._pieces import Pieces, raw_file
from paper_figures._reproduction import RESULTS, load
from paper_figures._verdict import mean_interval
from paper_figures.items import _head_and_rate as runs_of
from paper_figures.items import speedup, steps_to_reference
from paper_figures.items._head_and_rate import BODY, METHODS, OWN, PLAIN, RATES, SEEDS, WHOLE, Job
from paper_figures.items._head_and_rate_said import COMMAND, gap, reasons, rows
from paper_figures.long_runs import denoising_speedup

DOCS = Path(__file__).parents[2] / "docs"
LOW, HIGH = RATES[0], RATES[-1]


def scored(accuracy: float, test: float = 0.5) -> dict[str, dict[str, float]]:
    return {"validation": {"accuracy": accuracy, "loss": 1.0}, "test": {"accuracy": test, "loss": 1.0}}


def body_runs(shift: float) -> dict[str, Any]:
    """The head left alone at the recipe's rate: ``shift`` points from plain, not all the same."""
    plain = runs_of.stored()[PLAIN]
    return {Job(BODY, OWN, s).name: scored((plain[s] + shift + 0.2 * (s - 2)) / 100) for s in SEEDS}


def tuning_runs(best: dict[str, float]) -> dict[str, Any]:
    jobs = list(runs_of.tuning_jobs())
    return {job.name: scored(0.1, test=0.6 if job.rate == best[job.method] else 0.5) for job in jobs}


def last_runs(method: str, rate: float, shift: float) -> dict[str, Any]:
    plain = runs_of.stored()[PLAIN]
    return {Job(method, rate, s).name: scored((plain[s] + shift + 0.2 * (s - 2)) / 100) for s in SEEDS}


def test_the_design() -> None:
    recipe = load_recipe("minilm-docstrings")
    assert recipe.optimizer.learning_rate == OWN
    assert recipe.model.lora is not None
    assert min(int(target.split(".")[1]) for target in recipe.model.lora.targets) == runs_of.FIRST_LAYER
    assert np.log10(np.array(RATES) / OWN) == pytest.approx([-0.5, 0, 0.25, 0.5, 0.75, 1], abs=0.001)
    assert not set(runs_of.TUNING_SEEDS) & set(SEEDS)
    for method in METHODS:  # the same budget for all
        assert {job.rate for job in runs_of.tuning_jobs() if job.method == method} == set(RATES)
    order = list(runs_of.first_jobs())
    assert order[0] == Job(BODY, OWN, 0)
    assert {job for job in order if job.method == BODY} == {Job(BODY, OWN, seed) for seed in SEEDS}


def test_what_is_left_alone() -> None:
    from dprmt.training.denoising import Denoising

    recipe, names = load_recipe("minilm-docstrings"), ["classifier.weight", "encoder.layer.4.lora_A.weight"]
    for method, left in ((WHOLE, set()), (BODY, {"classifier.weight"})):
        changed = recipe.with_changes(METHODS[method]).denoising
        torch = pytest.importorskip("torch")
        values = {name: torch.zeros(3, 5) for name in names}
        _, report = Denoising(changed.method, exclude=changed.exclude).apply(values, 1.0)
        assert set(names) - set(report) == left
    assert recipe.denoising.exclude  # left out by default, so that "every matrix" has to be asked for
    for variants in (speedup.VARIANTS, denoising_speedup.VARIANTS):
        assert {name: change.get("denoising.exclude") for name, change in variants.items()} == {
            "DP-LoRA": None,
            "denoised": (),
            "blended": (),
        }


def test_without_runs_nothing_is_tested() -> None:
    (reason,) = reasons({})
    assert reason.kind == "open"
    assert "head is denoised too" in reason.text
    assert rows({}) == []
    some = dict(list(body_runs(0.0).items())[:-1])
    assert [found.kind for found in reasons(some)] == ["open"]
    assert gap(some, BODY, PLAIN) is None


def test_the_head_explains_it() -> None:
    found = body_runs(-0.1)
    tested, *others = reasons(found)
    assert (tested.kind, tested.command) == ("tested", COMMAND)
    assert [reason.kind for reason in others] == ["open", "open"]
    whole = runs_of.stored()[WHOLE] - runs_of.stored()[PLAIN]
    share = 100 * (-0.1 - whole.mean()) / -whole.mean()
    assert f"gains {-0.1 - whole.mean():+.2f} [" in tested.text
    assert f"({share:.0f} % of the gap)" in tested.text
    assert "cannot be told from it: -0.10 [-0.49, +0.29] points" in tested.text
    assert f"and {whole.mean():+.2f} [-8.72, -5.16] with it" in tested.text
    assert "not measured whole." in others[0].text


@pytest.mark.parametrize(
    ("shift", "said"),
    [
        (-6.9, "moves it by"),
        (-6.9, "which chance alone can do"),
        (-3.0, "is still behind"),
        (3.0, "is ahead"),
        (-12.0, "costs"),
    ],
)
def test_each_outcome_has_its_word(shift: float, said: str) -> None:
    assert said in reasons(body_runs(shift))[0].text
    assert said not in reasons(body_runs(-0.1))[0].text


def test_rates_are_chosen_once_all_are_tried() -> None:
    best = {PLAIN: OWN, WHOLE: LOW, BODY: HIGH}
    found = tuning_runs(best)
    assert runs_of.chosen(found) == best
    found.pop(Job(PLAIN, HIGH, runs_of.TUNING_SEEDS[0]).name)
    assert runs_of.chosen(found) == {}
    text = reasons(body_runs(-0.1) | found)[1].text
    assert f"on one seed of its own, test texts: {PLAIN} 50.0 % at {LOW:g}, 60.0 % at {OWN:g}, 50.0 % at" in text
    level = {job.name: scored(0.1) for job in runs_of.tuning_jobs()}
    assert set(runs_of.chosen(level).values()) == {LOW}


def test_tuned_rates_are_said_when_they_are_whole() -> None:
    found = body_runs(-0.1) | tuning_runs({PLAIN: OWN, WHOLE: LOW, BODY: OWN})
    (_, tested, _), unknown = reasons(found), f"with the head denoised (rate {LOW:g})"
    assert tested.kind == "tested"
    assert unknown not in tested.text
    other = body_runs(-0.1) | tuning_runs({PLAIN: OWN, WHOLE: LOW, BODY: HIGH}) | last_runs(WHOLE, LOW, -4.0)
    assert [reason.kind for reason in reasons(other)] == ["tested", "open", "open"]
    found |= last_runs(WHOLE, LOW, -4.0)
    _, tested, _ = reasons(found)
    assert tested.kind == "tested"
    assert f"-4.00 [-4.39, -3.61] points with the head denoised (rate {LOW:g})" in tested.text
    assert (
        f"and -0.10 [-0.49, +0.29] points with it left alone (rate {OWN:g}) against {PLAIN} (rate {OWN:g});"
        in tested.text
    )
    assert f"{LOW:g} is an end of the grid" in tested.text
    assert "cannot be told whether the denoiser with the head left alone is behind or ahead: at the best" in tested.text
    for shift, said in (
        (-3.0, "is behind with the head left alone, too:"),
        (3.0, "with the head left alone is ahead:"),
    ):
        assert said in reasons(found | last_runs(BODY, OWN, shift))[1].text
    labels = {row.label: row for row in rows(found)}
    row = labels[f"{WHOLE}, rate {LOW:g}, against {PLAIN}, rate {OWN:g}, each tuned: last accuracy, paired"]
    assert row.ours == pytest.approx(-4.0)
    assert (row.verdict(), row.unit) == ("differs", "points")
    inside = reasons(body_runs(-0.1) | tuning_runs(dict.fromkeys(METHODS, OWN)))[1]
    assert "end of the grid" not in inside.text


def test_rounding_is_told_apart() -> None:
    moved = runs_of.stored()[PLAIN][0] + 0.25
    found = {Job(PLAIN, OWN, 0).name: scored(moved / 100)}
    assert runs_of.moved_by_rounding(found) == {PLAIN: pytest.approx(0.25)}
    own = {Job(PLAIN, OWN, seed).name: scored(0.5) for seed in SEEDS}
    assert runs_of.at_rate(own, PLAIN, OWN) == pytest.approx(50.0)  # runs of one arithmetic, where all are there
    assert runs_of.at_rate({}, PLAIN, LOW) is None


def test_a_stop_leaves_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Job] = []

    def train(self: Any, job: Job) -> dict[str, dict[str, float]]:
        if len(done) == stop:
            raise KeyboardInterrupt("cut")
        done.append(job)
        return scored(0.5, test=0.6 if job.rate == HIGH else 0.5)

    monkeypatch.setattr(runs_of.Trainer, "__call__", train)
    stop = 8
    found, stopped = runs_of.measured(Pieces(tmp_path, "speedup", "long"))
    assert (len(found), stopped) == (8, "cut")
    assert done[:7] == list(runs_of.first_jobs())
    stop = 1000
    found, stopped = runs_of.measured(Pieces(tmp_path, "speedup", "long"))
    assert not stopped
    assert len(done) == len(set(done)) == len(found)
    assert done[-15:] == [Job(method, HIGH, seed) for method in METHODS for seed in SEEDS]


def test_the_stored_answer_is_of_the_stored_runs() -> None:
    """Sentences and rows, and the numbers in them from the files alone."""
    lines = read_lines(raw_file(RESULTS, "speedup", "long"))
    known = {line["name"]: line["value"] for line in lines if "value" in line}
    own = np.array([100 * known[f"{BODY}, lr = 0.005, seed {s}"]["validation"]["accuracy"] for s in range(5)])
    plain, whole = runs_of.at_rate(known, PLAIN, OWN), runs_of.at_rate(known, WHOLE, OWN)
    item, reference = load("speedup"), load("steps-to-reference")
    assert item is not None
    assert reference is not None
    assert list(item.found.reasons) == reasons(known)
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    for reason in item.found.reasons:
        assert f"- {reason.sentence()}" in page
    tested = item.found.reasons[0].text
    for values in (own - plain, own - whole, whole - plain):
        interval = mean_interval(values)
        assert f"{values.mean():+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]" in tested
    by_label = {row.label: row for row in item.found.rows}
    for row in rows(known):
        assert by_label[row.label].ours == pytest.approx(row.ours, rel=1e-6)
    kinds = {reason.kind for reason in item.found.reasons}
    assert {reason.kind for reason in reference.found.reasons} == kinds
    assert all(reason.text == "as in `speedup`, whose runs these are." for reason in reference.found.reasons)
    assert steps_to_reference.measure("long", RESULTS).reasons == reference.found.reasons


def test_pages_say_the_stored_gaps() -> None:
    known = Pieces(RESULTS, "speedup", "long").known()
    body, head = gap(known, BODY, PLAIN), gap(known, BODY, WHOLE)
    assert body is not None
    assert head is not None
    behind, cost = (mean_interval(values) for values in (-body, head))
    left = f"{-body.mean():.1f} [{behind.low:.2f}, {behind.high:.1f}]"
    lost = f"{head.mean():.1f} [{cost.low:.1f}, {cost.high:.1f}]"
    for page in (
        "training.md",
        "theory/sure_denoiser.md",
        "theory/when_denoising_helps.md",
        "how_to/choose_denoiser.md",
    ):
        text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
        assert f"{lost} points" in text, page
        assert f"{left} points" in text or "how_to" in page, page
    last = 100 * np.array([known[f"{BODY}, lr = 0.005, seed {s}"]["validation"]["accuracy"] for s in SEEDS])
    page = (DOCS / "theory" / "when_denoising_helps.md").read_text(encoding="utf-8")
    assert f"{last.mean():.1f} ± {last.std(ddof=1):.1f} with the head left alone" in page
    rates = runs_of.chosen(known)
    tuned = {method: gap(known, method, PLAIN, (rates[method], rates[PLAIN])) for method in (WHOLE, BODY)}
    said = {}
    for method, values in tuned.items():
        assert values is not None
        interval = mean_interval(-values)
        said[method] = f"{-values.mean():.1f} [{interval.low:.1f}, {interval.high:.1f}] behind"
    assert f"on one other seed: {said[WHOLE]} none with the head denoised, and without it" in page
    assert f"({said[BODY]})" in page
    assert len(RATES) == 6
