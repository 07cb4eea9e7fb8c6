"""Units of several rows over two processes: every clipping against the literal loop, and what all of them refuse."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from audits.processes import in_processes
from audits.steps import make_private
from dprmt import ParameterError
from dprmt.training.clipping import Units
from tests.training.clipping_table import CLIPPINGS, TRAINED, Way, make_model, make_step
from tests.training.test_units import Literal, released_of

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers

UNITS = ["anna", 7, 7, "ben"]
PARTS = ([[0], [3]], [[1, 2]])  # micro-batches of both processes


def all_ways(rank: int, size: int) -> list[tuple[Any, ...]]:
    """Every clipping side by side, and one unit at a time; what process 1 starts from must not matter."""
    answers = []
    ways = [(*both, "together") for both in itertools.product(TRAINED, CLIPPINGS)]
    for trained, clipping, regime in [*ways, *((trained, "exact", "alone") for trained in TRAINED)]:
        way = Way(trained, clipping, "sample", "sgd")
        model = make_model(way)
        literal = Literal(way, model, UNITS)
        if rank:
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(2.0)
        options = {"seed": 9 + rank, "units": Units(2, regime=regime), "distributed": True}
        step = make_step(way, model, literal.bound, **options)
        found = released_of(step, model, UNITS, PARTS[rank])
        wanted = literal.released(step.rounding)
        distance = max(float((found[name] - value).norm() / literal.bound) for name, value in wanted.items())
        answers.append((trained, clipping, regime, found.keys() == wanted.keys(), distance))
    return answers


def test_two_processes_release_what_the_literal_loop_over_units_does(tmp_path: Path) -> None:
    for answers in in_processes(2, all_ways, tmp_path):
        assert isinstance(answers, list), answers
        for *way, complete, distance in answers:
            assert complete, way
            assert distance < 1e-9, way


CASES: list[tuple[tuple[Any, Any], tuple[int, int], str]] = [
    (("anna", "anna"), (0, 1), "samples must be in one process only"),
    (("anna", None), (0, 1), "moved 1.00"),  # no unit in the second process
]


def one_step(rank: int, units: tuple[Any, Any], samples: tuple[int, int], regime: Any) -> str:
    """With one unit a process."""
    model = torch.nn.Linear(3, 1, bias=False)
    options = {"norms": "exact", "clipping_norm": 1.0, "noise_multiplier": 0.0, "expected_batch_size": 1.0}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = make_private(model, optimizer, **options, units=Units(2, regime=regime), distributed=True)
    if units[rank] is not None:
        x = torch.full((1, 3), 7.0)
        named = {"samples": [samples[rank]], "units": [units[rank]]}
        step.accumulate(lambda rows: step.model(rows).flatten(), batch=x, step=0, **named)
    before = model.weight.detach().clone()
    try:
        step.step()
        return f"moved {float((model.weight.detach() - before).norm()):.2f}"
    except ParameterError as error:
        assert torch.equal(model.weight, before)
        return str(error)


def all_cases(rank: int, size: int) -> list[list[str]]:
    regimes = ("together", "alone")
    return [[one_step(rank, units, samples, regime) for regime in regimes] for units, samples, _ in CASES]


def test_a_unit_is_in_one_process(tmp_path: Path) -> None:
    for found in in_processes(2, all_cases, tmp_path):
        for words, (_, _, expected) in zip(found, CASES, strict=True):
            assert all(word.startswith(expected) for word in words), words
