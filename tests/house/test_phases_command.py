"""Runs of several phases on the command line, and what moves while an answer takes its time."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path

import pytest

from dprmt.accounting import DPSGD, Hutchinson, compose
from dprmt.cli import _terminal, main

RUN = """\
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
PHASES = [(DPSGD(2.0, 0.05), 10), (DPSGD(1.5, 0.1, Hutchinson(16, secret=True)), 5)]


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return str(path)


@pytest.mark.parametrize(("command", "at"), [("epsilon", "--delta=1e-5"), ("delta", "--epsilon=1")])
def test_phases_are_composed(capsys: pytest.CaptureFixture[str], run_file: str, command: str, at: str) -> None:
    assert main([command, "--phases", run_file, at, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    composed = compose(PHASES)
    expected = composed.epsilon(1e-5) if command == "epsilon" else composed.delta(1.0)
    assert document[command]["upper"] == expected.upper
    assert [phase["mechanism"]["noise_multiplier"] for phase in document["phases"]] == [2.0, 1.5]
    assert document["phases"][1]["mechanism"]["norms"]["secret"] is True


def test_phases_are_given_one_by_one(capsys: pytest.CaptureFixture[str], run_file: str) -> None:
    """What is said of the run holds for every phase that does not say otherwise; the record is the file's."""
    assert main(["epsilon", "--phases", run_file, "--delta", "1e-5", "--json"]) == 0
    of_file = json.loads(capsys.readouterr().out)
    second = "noise_multiplier=1.5, steps=5, sample-rate=0.1, probes=16, secret-probes"
    phases = ["--phase", "noise-multiplier=2,steps=10", "--phase", second]
    assert main(["epsilon", "--sample-rate", "1/20", *phases, "--delta", "1e-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == of_file
    assert main(["noise", "--epsilon", ".5", "--phase", "steps=10", "--sample-rate=.05", "--delta=1e-5", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["phases"]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--phase", "steps=3,noise=2"], "--phase: no such option: --noise"),
        (["--phase", "noise-multiplyer=2"], "did you mean '--noise-multiplier'?"),
        (["--phase", "steps"], "--steps: expected one argument"),
        (["--phase", "steps="], "--steps must be an integer in [1, 1000000000], got"),
        (["--phase", ""], "--noise-multiplier must be given in every phase"),
        (["--phase", "steps=3"], "--noise-multiplier must be given in every phase, or for all of them"),
        (
            ["--phase", "noise-multiplier=1,steps=-3", "--sample-rate=1"],
            "--steps must be an integer in [1, 1000000000]",
        ),
        (["--phases", "run.toml"], "--phases must be a TOML file"),
    ],
)
def test_a_bad_phase_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["epsilon", *arguments, "--delta", "1e-5"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error


def test_phases_are_calibrated(capsys: pytest.CaptureFixture[str], run_file: str) -> None:
    assert main(["noise", "--epsilon", "0.5", "--phases", run_file, "--delta", "1e-5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    first, second = document["noise_multipliers"]
    assert (first / second, document["epsilon"]["upper"] <= 0.5) == (pytest.approx(2.0 / 1.5), True)
    composed = compose([(DPSGD(first, 0.05), 10), (DPSGD(second, 0.1, Hutchinson(16, secret=True)), 5)])
    assert composed.epsilon(1e-5).upper == document["epsilon"]["upper"] > 0.49
    assert document["fixed"] == [False, False]


def test_which_phases_were_fixed_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    phases = ["--phase", "noise-multiplier=1,steps=1000", "--phase", "steps=500"]
    arguments = ["noise", "--epsilon", "2", "--sample-rate", ".01", *phases, "--delta", "1e-5", "--json"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fixed"] == [True, False]
    assert document["noise_multipliers"][0] == 1.0 < document["noise_multipliers"][1]


def test_a_statement_names_every_phase(capsys: pytest.CaptureFixture[str], run_file: str) -> None:
    assert main(["epsilon", "--phases", run_file, "--delta", "1e-5", "--statement"]) == 0
    out = capsys.readouterr().out
    assert "in 2 phases: for T = 10 steps" in out
    assert "; then for T = 5 steps" in out


def test_a_curve_of_phases(capsys: pytest.CaptureFixture[str], run_file: str) -> None:
    assert main(["tradeoff", "--phases", run_file, "--points", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["lower"] == pytest.approx(compose(PHASES).trade_off([0.0, 0.5, 1.0]).lower.tolist(), abs=1e-9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "[[phases]]"),
        ("phases = 3", "[[phases]]"),
        ("[[phases]]\nnoise = 2", "no such option: --noise"),
        ("[[phases]]\nsteps = 2", "--noise-multiplier must be given in every phase"),
        ("[[phases]]\nnoise_multiplier = -1\nsteps = 3\nsample_rate = 1", "--noise-multiplier must be a finite number"),
        ("[[phases]]\nnoise_multiplier = 1\nsteps = true\nsample_rate = 1", "--steps: expected one argument"),
        ("[[phases", "[[phases]]"),
    ],
)
def test_bad_phases_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert main(["epsilon", "--phases", str(path), "--delta", "1e-5"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error


def test_phases_and_a_run_are_not_mixed(capsys: pytest.CaptureFixture[str], run_file: str) -> None:
    assert main(["epsilon", "--phases", run_file, "--delta", "1e-5", "--steps", "3"]) == 2
    assert "--steps must be left out where --phases is given" in capsys.readouterr().err
    assert main(["epsilon", "--phases", run_file, "--delta", "1e-5", "--phase", "steps=3"]) == 2
    assert "--phase must be left out where --phases is given" in capsys.readouterr().err
    assert main(["epsilon", "--delta", "1e-5"]) == 2
    assert "--noise-multiplier must be given, or --phases" in capsys.readouterr().err


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shows"), [(Terminal(), True), (io.StringIO(), False)])
def test_something_moves_on_terminals_only(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, shows: bool) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(_terminal, "_PATIENCE", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    with _terminal.waiting("composing"):
        time.sleep(0.5)
    assert ("composing" in stream.getvalue()) == shows


def test_a_quick_answer_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with _terminal.waiting("composing"):
        pass
    assert "composing" not in sys.stderr.getvalue()
