"""Public examples of private training, written anew: each script beside the plain one that it comes from."""

from __future__ import annotations

import difflib
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


from audits.processes import in_processes

SCRIPTS = Path(__file__).parent / "scripts"
LINES = 6
"""Lines that a person writes to make a plain loop private, at most."""
LEARNS = {"mnist": 0.9, "char_lstm": 0.7, "imdb": 0.7, "lightning": 0.7, "ddp": 0.7}
"""Accuracy that a private script reaches, at least, where so little data suffice."""


def written(name: str) -> list[str]:
    plain, private = ((SCRIPTS / f"{name}_{kind}.py").read_text(encoding="utf-8") for kind in ("plain", "private"))
    lines = difflib.ndiff(plain.splitlines(), private.splitlines())
    return [line for line in lines if line.startswith("+") and line[1:].strip()]


def run(name: str, kind: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        for module in ("torch", "lightning", "peft", "transformers"):
            warnings.filterwarnings("ignore", module=module)
        return runpy.run_path(str(SCRIPTS / f"{name}_{kind}.py"))


def names() -> list[str]:
    return sorted(path.name.removesuffix("_private.py") for path in SCRIPTS.glob("*_private.py"))


@pytest.mark.parametrize("name", names())
def test_few_lines_are_written(name: str) -> None:
    assert len(names()) == 9
    assert 3 <= len(written(name)) <= LINES, "\n".join(written(name))


@pytest.mark.parametrize("name", [name for name in names() if name != "ddp"])
def test_the_script_trains_for_the_epsilon_it_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "lightning":
        pytest.importorskip("lightning")
    found = run(name, "private")
    private = found["private"] if "private" in found else found["module"].private
    assert private.steps_taken == private.steps_charged == len(private)
    bounds = private.epsilon(delta=1e-4)
    assert str(bounds) in capsys.readouterr().out
    assert 0 < bounds.upper <= 8.0
    assert found["score"] >= LEARNS.get(name, -4.0)


def test_the_plain_scripts_run() -> None:
    for name in ("mnist", "imdb"):
        assert run(name, "plain")["score"] >= LEARNS[name]


def in_a_group(rank: int, size: int) -> tuple[float, float, list[float]]:
    found = run("ddp", "private")
    weights = [float(value.detach().double().sum()) for value in found["model"].parameters()]
    return found["score"], found["private"].epsilon().upper, weights


def test_two_processes_train_one_model(tmp_path: Path) -> None:
    one, other = in_processes(2, in_a_group, tmp_path)
    assert one == other
    score, epsilon, _ = one
    assert score >= LEARNS["ddp"]
    assert epsilon <= 8.0
