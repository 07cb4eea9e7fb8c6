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
from dprmt.training.recipes import builtin_recipes, load_recipe, recipe_from_dict
from tests.conftest import Ask, Say


def sub_parsers() -> dict[str, argparse.ArgumentParser]:
    """By the command's name."""
    (commands,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


COMMANDS = sub_parsers()


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
def test_a_command_alone_is_the_same_command(name: str, capsys: pytest.CaptureFixture[str], refusal: Say) -> None:
    """What is parsed without the other commands is described, and refused, in the same words."""
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert capsys.readouterr().out == COMMANDS[name].format_help()
    assert refusal(name, "--none").startswith(f"{COMMANDS[name].prog}: no such option: --none")


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_rates_are_never_rounded_down(batch: int, more: int) -> None:
    exact, printed = Fraction(batch, batch + more), io.StringIO()
    assume(exact > Fraction(1, 10**8))
    words = f"delta --epsilon 1 --noise-multiplier 9 --samples {batch + more} --batch-size {batch} --steps 1 --json"
    with contextlib.redirect_stdout(printed):
        main(words.split())
    rate = json.loads(printed.getvalue())["mechanism"]["sampling"]["rate"]
    assert Fraction(math.nextafter(rate, 0.0)) < exact <= Fraction(rate)


def test_recipes_are_listed_and_printed(say: Say, ask: Ask) -> None:
    assert tuple(say("recipes").split()) == builtin_recipes()
    printed = tomllib.loads(say("recipes minilm-docstrings"))
    assert recipe_from_dict(printed) == load_recipe("minilm-docstrings")
    assert set(ask("recipes")) == set(builtin_recipes())


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish"])
def test_completion(
    capsys: pytest.CaptureFixture[str], refusal: Say, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    script = capsys.readouterr().out
    assert "spectrum" in script
    option = "secret-probes" if shell == "fish" else "--secret-probes"
    assert shell == "tcsh" or (option in script and "envelope" in script)
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert "needs shtab: pip install '.[completion]'" in refusal("--print-completion", shell)


def test_help_names_all_commands_and_loads_none_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed without them is what the whole parser prints; numpy is loaded by every command's options."""
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out == build_parser().format_help()
    code = "import sys; from dprmt.cli import main\ntry: main(['--help'])\nfinally: print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


QUESTION = ("--noise-multiplier", "1", "--sample-rate", "0.03", "--steps", "10", "--delta", "1e-5")


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_any_encoding_gets_the_answer(encoding: str) -> None:
    command = [sys.executable, "-m", "dprmt", "epsilon", *QUESTION]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding}, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    first = done.stdout.decode(encoding).splitlines()[0]
    assert first.startswith("ε <= 1.0" if encoding == "utf-8" else "epsilon <= 1.0")
    assert ("δ" if encoding == "utf-8" else "delta") + " = 1e-05" in first


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
