"""The commands epsilon, noise, delta and tradeoff, through the same entry point as the shell's."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import dprmt
from dprmt.accounting import DPSGD, Hutchinson, HutchPlusPlus, norms_from_dict, sampling_from_dict
from dprmt.cli import build_parser, main

RUN = ["--noise-multiplier", "1.1", "--sample-rate", "0.02", "--steps", "50"]
EPSILON = ["epsilon", *RUN, "--delta", "1e-5"]
BOUNDS = {"lower", "estimate", "upper", "is_narrow"}


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    """The one JSON object that a command prints."""
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count("\n") == 1
    return json.loads(captured.out)


def test_epsilon_of_exact_norms(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, *EPSILON)
    expected = DPSGD(1.1, 0.02).epsilon(steps=50, delta=1e-5)
    assert document["epsilon"] == expected.as_dict()
    assert document["direction"] == expected.direction
    assert document["analysis"] == "exact"
    assert set(document["by_direction"]) == {"remove", "add"}
    assert all(set(bounds) == BOUNDS for bounds in document["by_direction"].values())


@pytest.mark.parametrize("analysis", ["tight", "envelope"])
@pytest.mark.parametrize("secret", [False, True])
def test_epsilon_of_randomized_clipping(capsys: pytest.CaptureFixture[str], analysis: str, secret: bool) -> None:
    options = ["--probes", "16", "--analysis", analysis, "--secret-probes" if secret else "--public-probes"]
    document = run_json(capsys, *EPSILON, *options)
    mechanism = DPSGD(1.1, 0.02, Hutchinson(16, secret=secret, analysis=analysis))  # type: ignore[arg-type]
    assert document["epsilon"] == mechanism.epsilon(steps=50, delta=1e-5).as_dict()
    assert (document["analysis"], document["mechanism"]) == (analysis, mechanism.as_dict())
    assert main([*EPSILON, *options]) == 0
    assert f"(16 {'secret' if secret else 'public'} probes, {analysis} analysis; zero-out)" in capsys.readouterr().out


def test_the_record_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """What was asked can be asked again from the answer alone."""
    document = run_json(capsys, *EPSILON, "--probes", "16", "--public-probes")
    mechanism = document["mechanism"]
    sampling, norms = sampling_from_dict(mechanism["sampling"]), norms_from_dict(mechanism["norms"])
    again = DPSGD(mechanism["noise_multiplier"], sampling, norms).epsilon(
        steps=document["steps"], delta=document["delta"]
    )
    assert document["epsilon"] == again.as_dict()
    assert document["version"] == dprmt.__version__


def test_an_answer_without_an_upper_end_is_not_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    run = "epsilon --noise-multiplier 0.05 --sample-rate 1e-6 --steps 1 --delta 1e-30 --probes 2 --public-probes"
    epsilon = run_json(capsys, *run.split())["epsilon"]
    bounds = DPSGD(0.05, 1e-6, Hutchinson(2, secret=False)).epsilon(steps=1, delta=1e-30)
    assert (epsilon["lower"], epsilon["is_narrow"]) == (bounds.lower, bounds.is_narrow)
    assert epsilon["upper"] is not None or not epsilon["is_narrow"]


def test_epsilon_with_a_sketch(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, *EPSILON, "--probes", "16", "--public-probes", "--sketch", "16", "--power-iteration")
    mechanism = DPSGD(1.1, 0.02, HutchPlusPlus(16, 16, power_iteration=True, secret=False))
    assert document["epsilon"] == mechanism.epsilon(steps=50, delta=1e-5).as_dict()
    assert document["mechanism"]["norms"] == mechanism.norms.as_dict()
    assert main([*EPSILON, "--probes", "16", "--public-probes", "--sketch", "16"]) == 0
    assert "16 public probes and a sketch of 16, tight analysis" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sketch", "16"], "--sketch must be left out where --probes is not given"),
        (["--probes", "16", "--sketch", "2"], "--sketch must be an integer in [3, 10000], got 2"),
        (
            ["--probes", "16", "--public-probes", "--sketch", "16", "--analysis", "envelope"],
            "--analysis must be 'tight' where",
        ),
        (["--probes", "16", "--public-probes", "--power-iteration"], "--power-iteration must be left out"),
        (["--probes", "16"], "--secret-probes must be given where --probes is, or --public-probes"),
        (["--probes", "16", "--secret-probes", "--public-probes"], "--public-probes must be left out where"),
        (["--secret-probes"], "--secret-probes must be left out where --probes is not given, got given"),
    ],
)
def test_a_wrong_sketch_is_one_line(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert main([*EPSILON, *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_every_command_that_takes_probes_takes_a_sketch() -> None:
    """By walking the parser: epsilon, noise, delta and tradeoff, and whatever comes after them."""
    (commands,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    flags = {name: set(command._option_string_actions) for name, command in commands.choices.items()}
    with_probes = {name for name, known in flags.items() if "--probes" in known}
    assert with_probes >= {"epsilon", "noise", "delta", "tradeoff"}
    assert all({"--sketch", "--power-iteration"} <= flags[name] for name in with_probes)


def test_noise_never_exceeds_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "noise", "--epsilon", "1", "--delta", "1e-5", *RUN[2:])
    assert 0.98 < document["epsilon"]["upper"] <= 1.0
    assert DPSGD(document["noise_multiplier"], 0.02).epsilon(steps=50, delta=1e-5).upper <= 1.0


def test_delta(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "delta", "--epsilon", "0.5", *RUN)
    assert document["delta"] == DPSGD(1.1, 0.02).delta(steps=50, epsilon=0.5).as_dict()


def test_text_names_the_deciding_direction(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(EPSILON) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ε <= ")
    assert float(lines[0].split()[2]) >= DPSGD(1.1, 0.02).epsilon(steps=50, delta=1e-5).upper
    assert sum("decides" in line for line in lines) == 1


def test_tradeoff_csv_json_and_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["tradeoff", *RUN, "--points", "11"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "alpha,lower,estimate,upper,neighbours"
    assert len(lines) == 12
    document = run_json(capsys, "tradeoff", *RUN, "--points", "11")
    assert document["lower"][5] == pytest.approx(float(lines[6].split(",")[1]), rel=1e-8)
    picture = tmp_path / "curve.png"
    assert main(["tradeoff", *RUN, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_nothing_finite_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(
        capsys,
        "epsilon",
        *RUN[2:],
        "--noise-multiplier",
        "0.002",
        "--delta",
        "1e-200",
        "--probes",
        "2",
        "--public-probes",
    )
    upper = document["epsilon"]["upper"]
    assert upper is None or math.isfinite(upper)


BAD = [
    (["--noise-multiplier", "0"], "--noise-multiplier must be a finite number in [0.001, 1e+06], got 0"),
    (["--noise-multiplier", "-1"], "--noise-multiplier must be a finite number in [0.001, 1e+06], got -1"),
    (["--noise-multiplier", "abc"], "--noise-multiplier must be a finite number in [0.001, 1e+06], got abc"),
    (
        ["--sample-rate", "1.5"],
        "--sample-rate must be a number or a fraction such as 2000/67349 in [1e-09, 1], got 1.5",
    ),
    (
        ["--sample-rate", "nan"],
        "--sample-rate must be a number or a fraction such as 2000/67349 in [1e-09, 1], got nan",
    ),
    (["--steps", "0"], "--steps must be an integer in [1, 1000000000], got 0"),
    (["--steps", "2.5"], "--steps must be an integer in [1, 1000000000], got 2.5"),
    (["--delta", "1"], "--delta must be a finite number in [1e-290, 1), got 1"),
    (["--delta", "inf"], "--delta must be a finite number in [1e-290, 1), got inf"),
    (["--probes", "1"], "--probes must be an integer in [2, 100000], got 1"),
    (["--probes", "8", "--public-probes", "--rank", "0"], "--rank must be an integer >= 1, got 0"),
    (["--probes", "8", "--analysis", "loose"], "--analysis must be one of 'tight', 'envelope', got loose"),
    (["--rank", "4"], "--rank must be left out where --probes is not given, got 4"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], change: list[str], message: str
) -> None:
    assert main([*EPSILON, *change]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"dprmt epsilon: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "'nonsense'"),
        (["epsilon"], "--delta"),
        ([*EPSILON, "--colour", "red"], "--colour"),
        (["tradeoff", *RUN, "--plot", "curve.gif"], "curve.gif"),
        (["tradeoff", *RUN, "--plot", "missing-folder/curve.png"], "missing-folder"),
    ],
)
def test_bad_usage_is_one_line_too(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_as_a_module_and_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "dprmt", "epsilon"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
