"""What the first process refuses ends the others too, with the same words."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from audits.processes import in_processes
from dprmt import ParameterError, TrainingStateError
from dprmt.training.harness import train_task
from tests.training.test_planted_bugs import network, settings, task


def another_mechanism(run: Path) -> None:
    file = run / "privacy.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "mechanism": "0123456789abcdef"}) + "\n" for line in lines))


def damaged_checkpoints(run: Path) -> None:
    for folder in run.glob("checkpoint*"):
        (folder / "checksums.json").write_text("{")


def another_recipe(run: Path) -> None:
    file = run / "config.toml"
    file.write_text(file.read_text().replace("steps = 4", "steps = 5"))


def no_record(run: Path) -> None:
    (run / "run.json").write_text("[]")


DAMAGES = (another_mechanism, damaged_checkpoints, another_recipe, no_record)


def resumes(rank: int, size: int, folder: Path) -> list[str]:
    said = []
    for damage in DAMAGES:
        with pytest.raises((ParameterError, TrainingStateError)) as error:
            train_task(network(), task(), settings(), folder / damage.__name__, resume=True)
        said.append(str(error.value))
    return said


def test_all_processes_end_when_the_first_refuses(tmp_path: Path) -> None:
    for damage in DAMAGES:
        train_task(network(), task(), settings(), tmp_path / damage.__name__)
        damage(tmp_path / damage.__name__)
    first, second = in_processes(2, partial(resumes, folder=tmp_path), tmp_path)
    assert isinstance(first, list), first
    assert first == second
    assert all(re.search("resume|recipe|cannot go on", words) for words in first)
