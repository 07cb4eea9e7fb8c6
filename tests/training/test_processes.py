"""What the first process refuses ends the others too, with the same words."""

from __future__ import annotations

import json
import multiprocessing
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from dprmt import ParameterError, TrainingStateError
from dprmt.training.harness import train_task
from tests.training.test_planted_bugs import network, settings, task


def another_mechanism(run: Path) -> None:
    file = run / "privacy.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "mechanism": "0123456789abcdef"}) + "\n" for line in lines))


def damaged_checkpoints(run: Path) -> None:
    for folder in run.glob("checkpoint*"):
        (folder / "document.json").write_text("{")


def another_recipe(run: Path) -> None:
    file = run / "config.toml"
    file.write_text(file.read_text().replace("steps = 4", "steps = 5"))


def no_record(run: Path) -> None:
    (run / "run.json").write_text("[]")


def resumes(rank: int, store: str, out: str, said: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        train_task(network(), task(), settings(), out, resume=True)
    except (ParameterError, TrainingStateError) as error:
        said.put((rank, str(error)))


@pytest.mark.parametrize("damage", [another_mechanism, damaged_checkpoints, another_recipe, no_record])
def test_all_processes_end_when_the_first_refuses(tmp_path: Path, damage: Any) -> None:
    train_task(network(), task(), settings(), tmp_path / "run")
    damage(tmp_path / "run")
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads
        both = [
            context.Process(target=resumes, args=(rank, str(tmp_path / "store"), str(tmp_path / "run"), said))
            for rank in (0, 1)
        ]
        for process in both:
            process.start()
    words = dict(said.get(timeout=60) for _ in both)
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert words[0] == words[1]
    assert re.search("resume|recipe|cannot go on", words[0])
