"""What a newcomer meets: terminals of every encoding, a core without extras, a run that is resumed."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from dprmt.cli import _terminal, main
from dprmt.cli._terminal import text_table

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


def test_a_spectrum_needs_the_core_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", 9 * np.eye(3, 5))
    extras = "matplotlib rich safetensors torch opacus transformers peft datasets joblib shtab"
    code = f"import sys; sys.modules |= dict.fromkeys({extras.split()}); from dprmt.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "spectrum", str(tmp_path / "x.npy"), "--sigma", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "A value is above the gate" in done.stdout


def test_tables_fit_a_narrow_terminal() -> None:
    rows = [["1.25", f"encoder.layer.{i}.attention.self.query.weight"] for i in range(3)]
    lines = text_table(["top", "matrix"], rows, width=30).splitlines()
    assert max(map(len, lines)) <= 30
    assert lines[2] == "1.25  …ntion.self.query.weight"
    wide = text_table(["top", "matrix"], rows).splitlines()
    assert wide[2].endswith(rows[0][1])
    assert text_table(["", "木"], [["a", "b"]]).splitlines()[1] == "-  --"


def test_a_narrow_terminal_shows_whose_probes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    said = {}
    for width in ("40", "80"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["probes", *RUN, "--budget", "14"]) == 0
        said[width] = capsys.readouterr().out
        assert max(map(len, said[width].splitlines())) <= int(width)
        for words in ("secret\n", "public\n", "exact\n"):
            assert words in said[width]


@pytest.mark.parametrize("width", [40, 60])
@pytest.mark.parametrize("names", [("layer.0.query.weight",), ("layer.0.query.weight", "layer.1.query.weight")])
def test_tables_of_spectra_fit_narrow_terminals(
    names: tuple[str, ...],
    width: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a narrow table leaves out is not explained under it."""
    np.savez(tmp_path / "x.npz", **{name: 99 * np.eye(300, 500) for name in names})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["spectrum", str(tmp_path / "x.npz"), "--sigma", "1"]) == 0
    table, explained = capsys.readouterr().out.split("\n\n")[1:3]
    assert max(sum(not unicodedata.combining(sign) for sign in line) for line in table.splitlines()) <= width
    headings = table.splitlines()[0]
    for word in ("clean", "overlap", "gate", "threshold", "spikes", "σ̂"):
        assert (f"{word}:" in explained) <= (word in headings)
    assert ("clean" in headings) == (len(names) == 1)


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


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "seconds", "shows"), [(Terminal(), 0.5, True), (Terminal(), 0.0, False), (io.StringIO(), 0.5, False)]
)
def test_something_moves_on_terminals_where_an_answer_takes_long(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds: float, shows: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(_terminal, "_PATIENCE", 0.05 if seconds else 9.0)
    monkeypatch.setenv("TERM", "xterm")
    with _terminal.waiting("composing"):
        time.sleep(seconds)
    assert ("composing" in stream.getvalue()) == shows
