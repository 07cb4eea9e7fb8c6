"""The commands about a run's privacy: their numbers are the library's, and bad input is one line and exit code 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dprmt.accounting import (
    DPSGD,
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

BATCHES = "--sample-rate 0.02 --steps 50"
RUN = f"--noise-multiplier 1.1 {BATCHES}"
EPOCHS = "--sampling allocation --steps-per-epoch 20 --epochs 3"
AT = "--delta 1e-5"
DONE = "--phase noise-multiplier=1,steps=1000"
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
Ask = Callable[[str], dict[str, Any]]
Say = Callable[[str], str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """What a command prints."""

    def ask(words: str) -> str:
        assert main(words.split()) == 0
        return capsys.readouterr().out

    return ask


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """The one JSON object that a command prints."""

    def ask(words: str) -> dict[str, Any]:
        assert main([*words.split(), "--json"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        assert words.startswith("statement") or captured.out.count("\n") == 1
        return json.loads(captured.out)

    return ask


def step(*rest: Any, noise: float = 1.1, sampling: Any = 0.02) -> DPSGD:
    return DPSGD(noise, sampling, *rest)


ALLOCATED = {"noise": 1.2, "sampling": RandomAllocation(20)}


@pytest.mark.parametrize(
    ("words", "mechanism", "analysis"),
    [
        (RUN, step(), "exact"),
        (f"{RUN} --probes 16 --public-probes", step(Hutchinson(16, secret=False)), "tight"),
        (f"{RUN} --probes 16 --secret-probes", step(Hutchinson(16, secret=True)), "tight"),
        (
            f"{RUN} --probes 16 --public-probes --analysis envelope",
            step(Hutchinson(16, secret=False, analysis="envelope")),
            "envelope",
        ),
        (
            f"{RUN} --probes 16 --public-probes --sketch 16 --power-iteration",
            step(HutchPlusPlus(16, 16, power_iteration=True, secret=False)),
            "tight",
        ),
        (f"{RUN} --group 3", DPSGD(1.1, 0.02, neighbours=Group(3)), "exact"),
        (
            f"{RUN} --neighbours replace-one --probes 16 --secret-probes",
            step(Hutchinson(16, secret=True), ReplaceOne()),
            "tight",
        ),
        (f"--noise-multiplier 1.2 {EPOCHS}", step(**ALLOCATED), "exact"),
        ("--noise-multiplier 1 --sampling fixed-order --epochs 1", DPSGD(1.0, FixedOrder()), "exact"),
        (
            f"--noise-multiplier 1.2 {EPOCHS} --probes 32 --public-probes",
            step(Hutchinson(32, secret=False), **ALLOCATED),
            "tight",
        ),
        (
            f"--noise-multiplier 1.2 {EPOCHS} --participations 3",
            step(noise=1.2, sampling=RandomAllocation(20, 3)),
            "exact",
        ),
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
    assert "decides" not in replaced  # one direction
    assert "  both " in replaced


def test_numbers_as_people_write_them(ask: Ask) -> None:
    words = "epsilon --noise-multiplier 1 --sample-rate .001"
    found = ask(f"{words} --steps 1e4 --delta 1/60000")
    assert found["steps"] == 10_000
    assert Fraction(found["delta"]) <= Fraction(1, 60000)
    assert found["delta"] == pytest.approx(1 / 60000, rel=1e-15)
    epochs = ask(f"epsilon --noise-multiplier 1 --sample-rate .3 {AT} --epochs 1")  # an epoch of 3⅓ steps
    assert epochs["steps"] == 4
    rated = ask(f"epsilon --noise-multiplier 2 --samples 1000 --batch-size 30 --epochs 1.5 {AT}")
    assert rated == ask(f"epsilon --noise-multiplier 2 --sample-rate 3/100 --steps 50 {AT}")


def test_releases_beside_a_run(ask: Ask) -> None:
    found = ask(f"epsilon {RUN} {AT} --also laplace:4 --also laplace:4")
    assert found["epsilon"]["upper"] == compose([(step(), 50), (LaplaceRelease(4.0), 2)]).epsilon(1e-5).upper
    assert found["also"] == [{"kind": "laplace", "scale": 4.0, "rate": 1.0}] * 2


def test_a_delta_above_one_over_n_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["epsilon", *f"--samples 100 --batch-size 10 --steps 5 {NOISE} --json --delta".split()]
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


def test_steps_that_are_left(ask: Ask) -> None:
    alone = ask(f"steps --epsilon 2 --noise-multiplier 1 --sample-rate .01 {AT}")
    assert alone["largest_steps"] == largest_steps(DPSGD(1.0, 0.01), 2.0, 1e-5) == alone["steps"]
    left = ask(f"steps --epsilon 2 --sample-rate .01 {AT} {DONE} --phase noise-multiplier=1")
    assert left["largest_steps"] == alone["largest_steps"] - 1000
    assert (left["spent"]["steps"], left["steps"]) == (1000, left["largest_steps"])
    allocated = "--sampling allocation --steps-per-epoch 100 --noise-multiplier 1"
    epochs = ask(f"steps --epsilon 2 {allocated} {AT}")["largest_steps"]
    assert epochs == largest_steps(DPSGD(1.0, RandomAllocation(100)), 2.0, 1e-5)
    assert epochs % 100 == 0


def test_noise_for_what_an_attacker_may_reach(ask: Ask, tmp_path: Path) -> None:
    """Targets of :func:`calibrate`: met from above, nearly; the answer is a record that is met again."""
    for target, name, wanted in (
        ("--advantage 0.1", "advantage", 0.1),
        ("--true-positive-rate 0.03 --false-positive-rate 0.01", "true_positive_rate", 0.03),
    ):
        found = ask(f"noise {BATCHES} {AT} {target}")
        assert 0.998 * wanted <= found[name]["upper"] <= wanted
        assert found[f"target_{name}"] == wanted
        (tmp_path / "noise.json").write_text(json.dumps(found))
        assert ask(f"noise --from-json {tmp_path / 'noise.json'}") == found


# --- bad input ------------------------------------------------------------------------------------------------------

FIVE, NOISE = "--steps 5", f"--noise-multiplier 1 {AT}"
BAD = [
    (f"epsilon {RUN}", "--delta must be given, or in a record that --from-json names"),
    *((f"epsilon {RUN} --delta {x}", f"in [1e-290, 1), got {x}") for x in ("-1e-5", "-.5", "-inf", "-nan", "1/0")),
    (f"epsilon {AT}", "--noise-multiplier must be given, for every phase"),
    (f"epsilon {RUN} {AT} --noise-multiplier 0", "--noise-multiplier must be a finite number in [0.001, 1e+06], got 0"),
    *(
        (f"epsilon {NOISE} {FIVE} --sample-rate {rate}", "--sample-rate must be a number or a fraction such as")
        for rate in ("nan", "3/0", "1e-999999999", "5/4")
    ),
    *(
        (f"epsilon {NOISE} --sample-rate .1 --steps {x}", f"--steps must be an integer in [1, 1000000000], got {x}")
        for x in ("0", "1.5e0", "1e999", "1e")
    ),
    (f"epsilon {NOISE} {FIVE}", "--samples must be given with --batch-size where --sample-rate is not"),
    (f"epsilon {NOISE} {FIVE} --samples 9", "--batch-size must be given where --sample-rate is not"),
    (f"epsilon {NOISE} {FIVE} --sample-rate .1 --samples 9", "--samples must be left out where --sample-rate"),
    (f"epsilon {NOISE} --sample-rate .1", "--steps must be given where --epochs is not"),
    (f"epsilon {NOISE} --sample-rate .1 {FIVE} --epochs 2", "--epochs must be left out where --steps is given"),
    (f"epsilon {NOISE} --sampling allocation --epochs 3", "--steps-per-epoch must be given"),
    (f"epsilon {NOISE} --sampling allocation --steps-per-epoch 3", "--epochs must be given"),
    (f"epsilon {NOISE} {EPOCHS} --steps 60", "--steps must be left out where --sampling is allocation, got 60"),
    (f"epsilon {NOISE} {EPOCHS} --epochs 1.5", "--epochs must be an integer where --sampling is allocation, got 1.5"),
    *(
        (f"epsilon {NOISE} --sampling fixed-order {more}", message)
        for more, message in (
            ("", "--epochs"),
            ("--epochs 1.5", "an integer where --sampling is fixed-order"),
            ("--epochs 1 --sample-rate 0.1", "left out where --sampling is fixed-order"),
            ("--epochs 1 --neighbours add-remove", "in a fixed order"),
        )
    ),
    (f"epsilon {NOISE} {BATCHES} --participations 2", "--participations must be left out where --sampling is poisson"),
    (
        f"epsilon {NOISE} --sampling allocation --samples 100 --batch-size 10 --steps 5",
        "--steps must be left out where --sampling is allocation, and so must --samples and --batch-size; give"
        " --steps-per-epoch and --epochs instead",
    ),
    (f"epsilon {RUN} {AT} --rank 4", "--rank must be left out where --probes is not given, got 4"),
    (f"epsilon {RUN} {AT} --secret-probes", "--secret-probes must be left out where --probes is not given, got given"),
    (f"epsilon {RUN} {AT} --probes 16", "--secret-probes must be given where --probes is, or --public-probes"),
    (f"epsilon {RUN} {AT} --probes 9 --secret-probes --public-probes", "--public-probes must be left out where"),
    (f"epsilon {RUN} {AT} --probes 9 --public-probes --power-iteration", "--power-iteration must be left out"),
    (f"epsilon {RUN} {AT} --probes 9 --public-probes --sketch 9 --analysis envelope", "--analysis must be left out"),
    (f"epsilon {RUN} {AT} --sampling cyclic-poisson --bands 90", "--sample-rate must be a finite number in [1e-09"),
    (f"epsilon {RUN} {AT} --also gauss:1", "did you mean 'gaussian'?"),
    (f"epsilon {RUN} {AT} --also laplace", "--also must be gaussian:SIGMA"),
    (f"epsilon {AT} --phase steps=3,noise=2", "--phase: no such option: --noise"),
    (f"epsilon {AT} --phase noise-multiplyer=2", "did you mean '--noise-multiplier'?"),
    (f"epsilon {AT} --phase steps", "--steps: expected one argument"),
    (f"epsilon {AT} --phase steps=3", "--noise-multiplier must be given, for every phase"),
    (f"epsilon {AT} --phases x.toml", "--phases must be a TOML file with a list of tables [[phases]] (["),
    (f"epsilon {RUN} {AT} --colour red", "no such option: --colour"),
    (f"steps --epsilon 2 --sample-rate .01 {AT} {DONE}", "--steps must be left out"),
    (f"steps --epsilon 2 {RUN} {AT}", "--steps must be left out"),
    *(
        (f"noise {BATCHES} {AT} {targets}", "pass exactly one of --epsilon, --advantage, --true-positive-rate")
        for targets in ("", "--advantage 0.1 --epsilon 2")
    ),
    (f"noise {BATCHES} {AT} --true-positive-rate 0.1", "--false-positive-rate must be given"),
    (f"noise {BATCHES} {AT} --advantage 0.1 --false-positive-rate 0.1", "--false-positive-rate must be left out with"),
    (f"noise {BATCHES} {AT} --true-positive-rate 0.01 --false-positive-rate 0.1", ": --true-positive-rate must be"),
    (f"tradeoff {RUN} --plot curve.gif", "--plot must be a file name that ends in .png, .pdf or .svg"),
    (f"tradeoff {RUN} --plot missing-folder/curve.png", "--plot must be a file in an existing folder"),
    (f"statement {RUN} {AT} --run nowhere", "--noise-multiplier must be left out where --run is given"),
    ("nonsense", "no such command: 'nonsense'"),
]


@pytest.mark.parametrize(("words", "message"), BAD)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], words: str, message: str) -> None:
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err
    assert captured.err.startswith(f"dprmt {words.split()[0]}: " if " " in words else "dprmt: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "[[phases]]"),
        ("phases = 3", "[[phases]]"),
        ("[[phases]]\nnoise = 2", "no such option: --noise"),
        ("[[phases]]\nsteps = 2", "--noise-multiplier must be given, for every phase"),
        ("[[phases]]\nnoise_multiplier = -1\nsteps = 3\nsample_rate = 1", "--noise-multiplier must be a finite number"),
        ("[[phases]]\nnoise_multiplier = 1\nsteps = true\nsample_rate = 1", "--steps: expected one argument"),
        ("[[phases", "[[phases]]"),
    ],
)
def test_a_bad_file_of_phases_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert main(["epsilon", "--phases", str(path), "--delta", "1e-5"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
