"""The README's examples run as they stand (those with prompts are doctests already)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dprmt.cli import build_parser, main

README = Path(__file__).parents[2] / "README.md"


TEXT = README.read_text(encoding="utf-8")


def test_training_example_runs() -> None:
    """On a model whose layer is wide enough for an estimate, with the names that a user brings."""
    torch = pytest.importorskip("torch")
    clipping = pytest.importorskip("dprmt.training.clipping")
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (script,) = [block for block in blocks if ">>>" not in block]
    model = torch.nn.Linear(64, 48)
    names: dict[str, Any] = {"make_private": clipping.make_private, "model": model, "ids": range(8), "step": 0}
    names |= {"optimizer": torch.optim.Adam(model.parameters(), lr=1e-3), "batch": torch.randn(8, 5, 64)}
    names["losses"] = lambda batch: names["private"].model(batch).square().mean((1, 2))
    before = model.weight.detach().clone()
    exec(compile(script, "README.md", "exec"), names)
    assert not torch.equal(before, model.weight)
    assert 0 < names["epsilon"].lower <= names["epsilon"].upper < 2


def test_commands_parse_and_one_setting_has_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command is one; the numbers beside them and in the sentence are those that they print."""
    commands = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in commands if line.startswith("dprmt ")]
    assert len(words) >= 3
    for _, *arguments in words:
        assert build_parser().parse_args(arguments)
    epsilon, probes = ([*w[1:]] for w in words if w[1] in ("epsilon", "probes"))
    assert main(epsilon) == 0
    (stated,) = re.findall(r"# exact norms: (.*)", TEXT)
    assert capsys.readouterr().out.startswith(f"{stated} at")
    assert main(probes) == 0
    rows = {tuple(line.split()[1:]): line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]}
    upper = {"exact": rows["-", "-", "exact", "norms"]}
    for sharing in ("secret", "public"):
        upper[f"hutch++ {sharing}"] = rows["16", "32", sharing, "Hutch++,", "one", "pass"]
        upper[f"plain {sharing}"] = rows["-", "64", sharing, "Hutchinson"]
    sentence = re.search(r"exact norms ε = ([\d.]+), Hutch\+\+ ([\d.]+), plain probes ([\d.]+)", TEXT)
    others = re.search(r"public ones ([\d.]+) and ([\d.]+)", TEXT)
    assert sentence
    assert others
    order = ["exact", "hutch++ secret", "plain secret", "hutch++ public", "plain public"]
    for name, number in zip(order, [*sentence.groups(), *others.groups()], strict=True):
        assert abs(float(number) - float(upper[name])) <= 0.0051, name


def test_installing_comes_early_and_trains_what_is_named_later() -> None:
    lines = TEXT.splitlines()
    install = [number for number, line in enumerate(lines) if line.startswith("pip install")]
    assert max(install) < 15
    assert "[demo]" in lines[install[-1]]
