"""The ledger counts up whatever it is told, and all processes know the same ε, of the charge that is on the disk."""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from audits.processes import in_processes
from audits.steps import private_sgd
from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import Hutchinson
from dprmt.training.clipping import ClippedStep, Units, plan_private
from dprmt.training.harness import read_metrics, train_task
from dprmt.training.private_run import _ledger
from dprmt.training.private_run._ledger import PrivacyLedger, charged_steps
from tests.training.test_planted_bugs import network, settings, task


@given(st.lists(st.none() | st.integers(0, 12), max_size=8))
def test_every_charge_counts_and_none_takes_back(stated: list[int | None]) -> None:
    """Whatever count a caller states; and whoever opens the file again goes on from there."""
    with tempfile.TemporaryDirectory() as folder:
        for step, count in enumerate(stated):
            ledger = PrivacyLedger(Path(folder), "a mechanism")
            before = ledger.charged
            for again in (0, 1):
                ledger.charge(1, step, 1.0, count)
                assert ledger.charged >= before + 1 + again
                assert ledger.charged >= (count or 0)
            assert charged_steps(Path(folder)) == ledger.charged


def trains(rank: int, size: int, out: str) -> list[int]:
    """Rank 0's disk is slow: whoever does not wait for it finds fewer lines than steps."""
    seen: list[int] = []
    step, write = ClippedStep.step, _ledger.append_line

    def noised(private: ClippedStep) -> None:
        seen.append(charged_steps(Path(out)))
        step(private)

    def slowly(*args: Any, **options: Any) -> None:
        time.sleep(0.2)
        write(*args, **options)

    ClippedStep.step, _ledger.append_line = noised, slowly  # type: ignore[method-assign]
    train_task(network(), task(), settings(), out)
    return seen


def test_all_processes_go_on_once_the_charge_is_on_the_disk(tmp_path: Path) -> None:
    found = in_processes(2, partial(trains, out=str(tmp_path / "run")), tmp_path)
    metrics = read_metrics(tmp_path / "run")
    steps = [entry["step"] for entry in metrics]
    assert found == [steps, steps]
    assert all(math.isfinite(entry["epsilon"]) for entry in metrics)


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


def one_step(*, step: int = 0, samples: tuple[int, ...] = (0, 1), owner: str | None = None) -> None:
    """A logical step of this process."""
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 30)
    options = {"noise_multiplier": 1.0, "expected_batch_size": 4.0}
    norms = Hutchinson(4, secret=False) if owner is None else "exact"
    private = private_sgd(model, 0.1, norms=norms, units=None if owner is None else Units(2), **options)
    before = model.weight.detach().clone()
    try:
        if samples:
            x, named = torch.ones(len(samples), 40), {} if owner is None else {"units": [owner] * len(samples)}
            private.accumulate(private.model(x).square().mean(1), samples=samples, step=step, **named)
        private.step()
    except (ParameterError, TrainingStateError):
        assert torch.equal(model.weight.detach(), before)
        raise


ROWS = [(0, 1), (2, 3)]
RUNS: list[tuple[Callable[[int], dict[str, Any]], str]] = [
    (lambda rank: {"samples": ROWS[rank]}, "done"),
    (lambda rank: {"samples": [(0, 1), ()][rank]}, "done"),
    (lambda rank: {"samples": ROWS[rank], "owner": "ab"[rank]}, "done"),
    (lambda rank: {"samples": ROWS[rank], "step": rank}, "step must be the same number in all processes"),
    (lambda rank: {"samples": [(0, 1), (1, 2)][rank]}, "samples must be in one process only"),
    (lambda rank: {"samples": ROWS[rank], "owner": "a"}, "samples must be in one process only"),
]


def outcomes(rank: int, size: int) -> list[Any]:
    """What is said, and probes that all processes have to share."""
    options = {"norms": Hutchinson(4, secret=False), "clipping_norm": 1.0, "expected_batch_size": 1.0}
    estimator: Any = plan_private(torch.nn.Linear(40, 30), **options).policy.estimator
    found = [estimator.generator.shared(step=0, layer="l", rows=2, probes=2).tolist()]
    for options, _ in RUNS:
        try:
            one_step(**options(rank))
            found.append("done")
        except (ParameterError, TrainingStateError) as error:
            found.append(str(error))
    return found


def test_processes_agree_or_all_refuse(tmp_path: Path) -> None:
    (probes, *_), (others, *_) = both = in_processes(2, outcomes, tmp_path)
    assert probes == others
    for _, *words in both:
        for word, (_, expected) in zip(words, RUNS, strict=True):
            assert word.startswith(expected), words
