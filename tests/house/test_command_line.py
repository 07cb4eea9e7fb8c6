"""What all commands share: help with examples that work, any terminal, mistakes, runs in epochs, completion."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dprmt.cli import build_parser, main
from dprmt.training.recipes import builtin_recipes, load_recipe


def sub_parsers() -> dict[str, argparse.ArgumentParser]:
    """By the command's name."""
    (commands,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


COMMANDS = sub_parsers()


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    """The JSON object that a command prints."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr, and exit code 2."""
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err.rstrip()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_examples_that_parse(name: str) -> None:
    text = COMMANDS[name].format_help()
    assert "--json" in text
    assert " X\n" not in text
    examples = [line.strip() for line in text.partition("examples:\n")[2].splitlines() if line.strip()]
    assert len(examples) >= 2
    for line in examples:
        program, *arguments = shlex.split(line.partition(" > ")[0])
        assert program == "dprmt"
        assert build_parser().parse_args(arguments).command == name


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_alone_is_the_same_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is parsed without the other commands is described, and refused, in the same words."""
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert capsys.readouterr().out == COMMANDS[name].format_help()
    assert refusal(capsys, name, "--none").startswith(f"{COMMANDS[name].prog}: no such option: --none")


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_rates_are_never_rounded_down(batch: int, more: int) -> None:
    exact, printed = Fraction(batch, batch + more), io.StringIO()
    assume(exact > Fraction(1, 10**8))
    with contextlib.redirect_stdout(printed):
        main(
            [
                "delta",
                "--epsilon=1",
                "--noise-multiplier=9",
                f"--samples={batch + more}",
                f"--batch-size={batch}",
                "--steps=1",
                "--json",
            ]
        )
    rate = json.loads(printed.getvalue())["mechanism"]["sampling"]["rate"]
    assert Fraction(math.nextafter(rate, 0.0)) < exact <= Fraction(rate)


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "--out", ""],
        ["report", "--out", "page", "--recipe", " "],
        ["train", ""],
        ["train", "minilm-docstrings", "--out", ""],
        ["spectrum", "", "--sigma", "1"],
        ["tradeoff", "--noise-multiplier", "2", "--sample-rate", "0.1", "--steps", "5", "--plot", ""],
    ],
)
def test_empty_paths_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "must be the name of a" in refusal(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_recipes_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    assert tuple(capsys.readouterr().out.split()) == builtin_recipes()
    assert main(["recipes", "minilm-docstrings"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    assert printed == load_recipe("minilm-docstrings").to_dict()
    assert set(answer(capsys, "recipes")) == set(builtin_recipes())
    assert "no-such" in refusal(capsys, "recipes", "no-such")


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish"])
def test_completion(capsys: pytest.CaptureFixture[str], shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    assert "spectrum" in script
    option = "secret-probes" if shell == "fish" else "--secret-probes"
    assert shell == "tcsh" or (option in script and "envelope" in script)
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert refusal(capsys, "--print-completion", shell).endswith(
        "needs shtab: pip install '.[completion]' in a checkout of dprmt"
    )


def test_help_names_all_commands_and_loads_none_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed without them is what the whole parser prints; numpy is loaded by every command's options."""
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out == build_parser().format_help()
    code = "import sys; from dprmt.cli import main\ntry: main(['--help'])\nfinally: print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


QUESTION = ("--noise-multiplier", "1", "--sample-rate", "0.03", "--steps", "10", "--delta", "1e-5")


def shell(*arguments: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "dprmt", *arguments]
    return subprocess.run(command, capture_output=True, env=environment, check=False)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_any_encoding_gets_the_answer(encoding: str) -> None:
    done = shell("epsilon", *QUESTION, encoding=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    first = done.stdout.decode(encoding).splitlines()[0]
    assert first.startswith("ε <= 1.0" if encoding == "utf-8" else "epsilon <= 1.0")
    assert ("δ" if encoding == "utf-8" else "delta") + " = 1e-05" in first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train",), "a recipe must be named"),
        (("train", "--resume", "nowhere"), "--resume must be the folder of a run that was started"),
        (("train", "minilm-docstrings", "--resume", "runs/x"), "or only the folder of a run"),
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
    stopped = harness.TrainingResult(Path("runs/a"), False, 4, 4, 3.4, {}, "exact", "zero-out")
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
