"""Every ε that a command prints or writes says against which neighbours it is, whatever command will be added."""

from __future__ import annotations

import shlex

import pytest

from dprmt.cli import main

STEP = "--noise-multiplier 2 --sample-rate 0.02"
RUN = f"{STEP} --steps 20"


def said(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(shlex.split(words)) == 0, words
    return capsys.readouterr().out


def test_a_rate_that_tells_the_number_of_examples_is_none_of_add_remove(capsys: pytest.CaptureFixture[str]) -> None:
    """(N0): q = B/N differs between these neighbours, so no claim about them; nor does their card call n public."""
    of_n = "--noise-multiplier 2 --samples 1000 --batch-size 20 --epochs 1"
    for command, rest in (("epsilon", "--delta 1e-5"), ("delta", "--epsilon 1"), ("probes", "--delta 1e-5 --budget 2")):
        for relation in ("--neighbours add-remove", "--neighbours add-remove --group 2"):
            assert main(shlex.split(f"{command} {of_n} {rest} {relation}")) == 2
            error = capsys.readouterr().err
            assert "--samples must be left out where --neighbours is add-remove" in error
            assert error.count("\n") == 1
    assert main(shlex.split(f"epsilon {of_n} --delta 1e-5")) == 0
    public = "the number of samples, names of labels"
    assert public not in said(capsys, f"statement {RUN} --delta 1e-5 --neighbours add-remove")
    assert public not in said(capsys, f"statement {RUN} --delta 1e-5 --neighbours add-remove --group 2")
    assert public in said(capsys, f"statement {RUN} --delta 1e-5")
