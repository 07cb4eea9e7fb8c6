"""What a newcomer meets: terminals of every encoding, a core without extras, a run that is resumed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dprmt.cli import main

RUN = ("--noise-multiplier", "1", "--sample-rate", "0.03", "--steps", "10", "--delta", "1e-5")


def shell(*arguments: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "dprmt", *arguments]
    return subprocess.run(command, capture_output=True, env=environment, check=False)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_any_encoding_gets_the_answer(encoding: str) -> None:
    done = shell("epsilon", *RUN, encoding=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    first = done.stdout.decode(encoding).splitlines()[0]
    assert first.startswith("ε <= 1.0" if encoding == "utf-8" else "epsilon <= 1.0")
    assert ("δ" if encoding == "utf-8" else "delta") + " = 1e-05" in first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train",), "a recipe must be named"),
        (("train", "--resume", "nowhere"), "--resume must be the folder of a run that was started"),
        (("train", "minilm-docstrings", "--resume", "runs/x"), "without a folder beside a recipe"),
    ],
)
def test_which_run_is_asked_for_in_one_line(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert words in captured.err


def test_what_was_stopped_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On a line of its own, so that what is copied is a command."""
    harness = pytest.importorskip("dprmt.training.harness")
    stopped = harness.TrainingResult(Path("runs/a"), False, 4, 4, 3.4, {}, "exact", 3.4, "zero-out")
    monkeypatch.setattr(harness, "train", lambda *_, **__: stopped)
    assert main(["train", "minilm-docstrings", "--out", str(tmp_path / "run")]) == 130
    first, then, *_ = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"runs/a: stopped after 4 of \d+ steps", first)
    assert then == "continue with: dprmt train --resume runs/a"


def test_a_bare_command_prints_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: dprmt")
    assert "report" in out
    assert max(map(len, out.splitlines())) <= 60


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("epsilom --x", "epsilon"),
        ("--verson", "--version"),
        ("epsilon --noise-multiplyer 1 --steps 3 --delta 1e-5", "--noise-multiplier"),
        ("epsilon --noise-multiplier=1 --stepps=3", "--steps"),
        ("train minilm-docstring", "minilm-docstrings"),
        ("recipes minilm-sst", "minilm-sst2"),
        ("train minilm-docstrings --set trainig.steps=3", "training"),
        ("train minilm-docstrings --set training.stps=3", "steps"),
        ("train minilm-docstrings --set privacy.norms=hutchpp", "hutch++"),
    ],
)
def test_what_was_meant(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert f"(did you mean {meant!r}?)" in captured.err
