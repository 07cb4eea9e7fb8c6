"""The commands about a run's privacy: their numbers are the library's, and bad input is one line and exit code 2."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dprmt.accounting import (
    DPSGD,
    ExactNorms,
    FixedOrder,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    LaplaceRelease,
    RandomAllocation,
    ReplaceOne,
    compose,
    fixed,
    largest_steps,
)
from dprmt.cli import main
from dprmt.cli._run import composition_of, document_of
from tests.conftest import Ask, Say
from tests.house.test_mistakes import AT, BATCHES, DONE, EPOCHS, RUN

PHASES = [(DPSGD(2.0, 0.05), 10), (DPSGD(1.5, 0.1, Hutchinson(16, secret=True)), 5)]
FILE = """\
sample_rate = "1/20"
[[phases]]
noise_multiplier = 2
steps = 10
[[phases]]
noise_multiplier = 1.5
sample_rate = 0.1
steps = 5
probes = 16
secret_probes = true
"""


PROBES = Hutchinson(32, secret=False)


def step(*rest: Any) -> DPSGD:
    return DPSGD(1.1, 0.02, *rest)


ALLOCATED = f"--noise-multiplier 1.2 {EPOCHS}"
PUBLIC, SECRET = f"{RUN} --probes 16 --public-probes", f"{RUN} --probes 16 --secret-probes"
ORDERED = "--noise-multiplier 1 --sampling fixed-order --epochs 1"
SKETCH = HutchPlusPlus(16, 16, power_iteration=True, secret=False)
ENVELOPE = Hutchinson(16, secret=False, analysis="envelope")


@pytest.mark.parametrize(
    ("words", "mechanism", "analysis"),
    [
        (RUN, step(), "exact"),
        (PUBLIC, step(Hutchinson(16, secret=False)), "tight"),
        (SECRET, step(Hutchinson(16, secret=True)), "tight"),
        (f"{PUBLIC} --analysis envelope", step(ENVELOPE), "envelope"),
        (f"{PUBLIC} --analysis envelope --rank 1", step(replace(ENVELOPE, rank=1)), "envelope"),
        (f"{PUBLIC} --sketch 16 --power-iteration", step(SKETCH), "tight"),
        (f"{RUN} --group 3", DPSGD(1.1, 0.02, neighbours=Group(3)), "exact"),
        (f"{RUN} --group 2 --neighbours replace-one", step(ExactNorms(), Group(2, ReplaceOne())), "exact"),
        (f"{SECRET} --neighbours replace-one", step(Hutchinson(16, secret=True), ReplaceOne()), "tight"),
        (ALLOCATED, DPSGD(1.2, RandomAllocation(20)), "exact"),
        (ORDERED, DPSGD(1.0, FixedOrder()), "exact"),
        (f"{ALLOCATED} --probes 32 --public-probes", DPSGD(1.2, RandomAllocation(20), PROBES), "tight"),
        (f"{ALLOCATED} --participations 3", DPSGD(1.2, RandomAllocation(20, 3)), "exact"),
    ],
)
def test_epsilon_is_the_library_s(ask: Ask, words: str, mechanism: DPSGD, analysis: str) -> None:
    document = ask(f"epsilon {words} {AT}")
    expected = mechanism.epsilon(steps=document["steps"], delta=1e-5)
    assert document["epsilon"] == expected.as_dict()
    assert (document["direction"], document["analysis"]) == (expected.direction, analysis)
    assert document["mechanism"] == mechanism.as_dict()
    assert set(document["by_direction"]) <= {"remove", "add"}


def test_the_other_questions_are_the_library_s(ask: Ask, tmp_path: Path, say: Say) -> None:
    assert ask(f"delta --epsilon 0.5 {RUN}")["delta"] == step().delta(steps=50, epsilon=0.5).as_dict()
    noise = ask(f"noise --epsilon 1 {AT} {BATCHES}")
    assert 0.98 < noise["epsilon"]["upper"] <= 1.0
    assert DPSGD(noise["noise_multiplier"], 0.02).epsilon(steps=50, delta=1e-5).upper <= 1.0
    lines = say(f"tradeoff {RUN} --points 11").splitlines()
    assert (lines[0], len(lines)) == ("alpha,lower,estimate,upper,neighbours", 12)
    curve = ask(f"tradeoff {RUN} --points 11")
    assert curve["lower"] == step().trade_off(alpha=curve["alpha"], steps=50).lower.tolist()
    printed = [line.split(",")[1:4:2] for line in lines[1:]]
    for ends, low, high in zip(printed, curve["lower"], curve["upper"], strict=True):
        assert float(ends[0]) <= low <= high <= float(ends[1])
    say(f"tradeoff {RUN} --plot {tmp_path / 'curve.png'}")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_lines_round_outward_and_name_norms_sampling_and_direction(say: Say) -> None:
    lines = say(f"epsilon {RUN} {AT}").splitlines()
    assert float(lines[0].split()[2]) >= step().epsilon(steps=50, delta=1e-5).upper
    assert sum("decides" in line for line in lines) == 1
    assert "(exact norms, allocation; zero-out)" in say(f"epsilon --noise-multiplier 1.2 {EPOCHS} {AT}")
    estimated = say(f"epsilon {RUN} {AT} --probes 16 --public-probes --sketch 16")
    assert "16 public probes, a sketch of 16, tight analysis" in estimated
    assert "composed curves; zero-out, groups of 2" in say(f"epsilon {RUN} {AT} --probes 4 --secret-probes --group 2")
    replaced = say(f"epsilon {RUN} {AT} --neighbours replace-one --statement")
    upper = step(ExactNorms(), ReplaceOne()).epsilon(steps=50, delta=1e-5).upper
    assert upper <= float(replaced.partition("ε ≤ ")[2].split()[0]) < 1.001 * upper
    assert "decides" not in replaced  # one direction
    assert "  both " in replaced


def test_numbers_as_people_write_them(ask: Ask) -> None:
    words = "epsilon --noise-multiplier 1 --sample-rate .001"
    found = ask(f"{words} --steps 1e4 --delta 1/60000")
    assert found["steps"] == 10_000
    assert Fraction(found["delta"]) <= Fraction(1, 60000)
    assert found["delta"] == pytest.approx(1 / 60000, rel=1e-15)
    for rate, epochs, steps in (
        (".3", "1", 4),
        (".03", "12", 400),
        (".06", "12.0", 200),
        (".1", "1.1", 11),
        ("2000/67349", "12", 405),
    ):
        by_text = ask(f"epsilon --noise-multiplier 1 --sample-rate {rate} {AT} --epochs {epochs}")
        assert by_text["steps"] == steps  # of the decimals, not of the floats next to them
    rated = ask(f"epsilon --noise-multiplier 2 --samples 1000 --batch-size 30 --epochs 1.5 {AT}")
    assert rated == ask(f"epsilon --noise-multiplier 2 --sample-rate 3/100 --steps 50 {AT}")


def test_releases_beside_a_run(ask: Ask) -> None:
    found = ask(f"epsilon {RUN} {AT} --also laplace:4 --also laplace:4")
    assert found["epsilon"]["upper"] == compose([(step(), 50), (LaplaceRelease(4.0), 2)]).epsilon(1e-5).upper
    assert found["also"] == [{"kind": "laplace", "scale": 4.0, "rate": 1.0}] * 2
    assert ask(f"epsilon {RUN} {AT} --also 2xlaplace:4") == found


def test_a_delta_above_one_over_n_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["epsilon", *f"--samples 100 --batch-size 10 --steps 5 --noise-multiplier 1 {AT} --json --delta".split()]
    assert main([*words, ".1"]) == 0
    out, err = capsys.readouterr()
    assert "above 1/N = 0.01" in err
    json.loads(out)
    assert main([*words, "1e-3"]) == 0
    assert capsys.readouterr().err == ""


# --- phases, budgets, targets ---------------------------------------------------------------------------------------


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return str(path)


def test_phases_are_composed(ask: Ask, say: Say, run_file: str) -> None:
    """From a file or one by one: what is said of the run holds for every phase that does not say otherwise."""
    composed = compose(PHASES)
    of_file = ask(f"epsilon --phases {run_file} {AT}")
    assert of_file["epsilon"]["upper"] == composed.epsilon(1e-5).upper
    second = "noise_multiplier=1.5,steps=5,sample-rate=0.1,probes=16,secret-probes"
    phases = f"--phase noise-multiplier=2,steps=10 --phase {second}"
    assert ask(f"epsilon --sample-rate 1/20 {phases} {AT}") == of_file
    assert ask(f"delta --phases {run_file} --epsilon 1")["delta"]["upper"] == composed.delta(1.0).upper
    curve = ask(f"tradeoff --phases {run_file} --points 3")["lower"]
    assert curve == pytest.approx(composed.trade_off([0.0, 0.5, 1.0]).lower.tolist(), abs=1e-9)
    said = say(f"epsilon --phases {run_file} {AT} --statement")
    assert "in 2 phases: for T = 10 steps" in said
    assert "; then for T = 5 steps" in said


def test_phases_are_calibrated_in_their_ratios(ask: Ask, say: Say, run_file: str) -> None:
    document = ask(f"noise --epsilon 0.5 --phases {run_file} {AT}")
    first, second = document["noise_multipliers"]
    assert first / second == pytest.approx(2.0 / 1.5)
    composed = compose([(DPSGD(first, 0.05), 10), (DPSGD(second, 0.1, Hutchinson(16, secret=True)), 5)])
    assert composed.epsilon(1e-5).upper == document["epsilon"]["upper"]
    assert 0.49 < document["epsilon"]["upper"] <= 0.5
    assert "spent" not in document
    assert "all scaled, in their ratios" in say(f"noise --epsilon 0.5 --phases {run_file} {AT}").splitlines()[0]


def test_only_phases_without_noise_move(ask: Ask) -> None:
    found = ask(f"noise --epsilon 2 --sample-rate .01 {AT} {DONE} --phase steps=500")
    rest = found["noise_multiplier"]
    assert (found["spent"]["mechanism"]["noise_multiplier"], found["spent"]["steps"]) == (1.0, 1000)
    assert rest == pytest.approx(1.312, abs=2e-3)  # both phases scaled would be 1.058
    composed = compose([(DPSGD(1.0, 0.01), 1000), (DPSGD(rest, 0.01), 500)])
    assert found["epsilon"]["upper"] == composed.epsilon_by_direction(1e-5)["remove"].upper <= 2.0


def test_noise_with_a_release_and_with_what_was_spent(ask: Ask, say: Say, tmp_path: Path) -> None:
    """A card or an answer stands for what is over; the answer is a record that can be spent in turn."""
    place, again = tmp_path / "past.json", tmp_path / "again.json"
    place.write_text(json.dumps(ask(f"statement --noise-multiplier 1 --steps 1000 --sample-rate .01 {AT}")))
    words = f"--sample-rate .01 {AT} --steps 500 --also gaussian:8 --spent {place}"
    found = ask(f"noise --epsilon 2.2 {words}")
    rest = (DPSGD(found["noise_multiplier"], 0.01), 500)
    composed = compose([(DPSGD(1.0, 0.01), 1000), rest, GaussianRelease(8.0)])
    assert composed.epsilon(1e-5).upper == pytest.approx(found["epsilon"]["upper"], rel=1e-9)
    assert 2.195 < found["epsilon"]["upper"] <= 2.2
    again.write_text(json.dumps(found))
    assert ask(f"epsilon --from-json {again}")["epsilon"]["upper"] == found["epsilon"]["upper"]
    assert "3 phases: exact norms, 1 more released" in say(f"epsilon {RUN} {AT} --spent {again}")
    run = compose([(DPSGD(1.0, 0.01), 10), (GaussianRelease(2.0), 3), fixed((DPSGD(1.0, 0.01), 5))])
    assert composition_of(document_of(run)) == run


def test_steps_that_are_left(ask: Ask, say: Say) -> None:
    assert "(no steps; zero-out)" in say(f"steps --epsilon 1e-4 --noise-multiplier .5 --sample-rate 1 {AT}")
    alone = ask(f"steps --epsilon 2 --noise-multiplier 1 --sample-rate .01 {AT}")
    assert alone["largest_steps"] == largest_steps(DPSGD(1.0, 0.01), 2.0, 1e-5) == alone["steps"]
    left = ask(f"steps --epsilon 2 --sample-rate .01 {AT} {DONE} --phase noise-multiplier=1")
    assert left["largest_steps"] == alone["largest_steps"] - 1000
    assert (left["spent"]["steps"], left["steps"]) == (1000, left["largest_steps"])
    allocated = "--sampling allocation --steps-per-epoch 100 --noise-multiplier 1"
    epochs = ask(f"steps --epsilon 2 {allocated} {AT}")["largest_steps"]
    assert epochs == largest_steps(DPSGD(1.0, RandomAllocation(100)), 2.0, 1e-5)
    assert epochs % 100 == 0


def test_noise_for_what_an_attacker_may_reach(ask: Ask, say: Say, tmp_path: Path) -> None:
    """Targets of :func:`calibrate`: met from above, nearly; the answer is a record that is met again."""
    for target, name, wanted in (
        ("--advantage 0.1", "advantage", 0.1),
        ("--true-positive-rate 0.03 --false-positive-rate 0.01", "true_positive_rate", 0.03),
    ):
        found = ask(f"noise {BATCHES} {AT} {target}")
        assert 0.998 * wanted <= found[name]["upper"] <= wanted
        assert found[f"target_{name}"] == wanted
        noise, reached = (float(line.split()[-1]) for line in say(f"noise {BATCHES} {AT} {target}").splitlines()[:2])
        assert (noise >= found["noise_multiplier"], reached >= found[name]["upper"]) == (True, True)
        (tmp_path / "noise.json").write_text(json.dumps(found))
        assert ask(f"noise --from-json {tmp_path / 'noise.json'}") == found
