"""Units of several rows over two processes: every clipping against the literal loop, and what all of them refuse."""

from __future__ import annotations

import itertools
import multiprocessing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from audits.steps import make_private
from dprmt import ParameterError
from dprmt.training.clipping import Units
from tests.training.clipping_table import CLIPPINGS, TRAINED, Way, make_model, make_step
from tests.training.test_units import Literal, released_of

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers

UNITS = ["anna", 7, 7, "ben"]
PARTS = ([[0], [3]], [[1, 2]])  # micro-batches of both processes


def all_ways(rank: int, store: str, said: Any) -> None:
    """Every clipping side by side, and one unit at a time; what process 1 starts from must not matter."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
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
        found = released_of(step, model, UNITS, PARTS[rank], function=False)
        wanted = literal.released(step.rounding)
        distance = max(float((found[name] - value).norm() / literal.bound) for name, value in wanted.items())
        said.put((trained, clipping, regime, found.keys() == wanted.keys(), distance))
    torch.distributed.destroy_process_group()


def in_both(work: Callable[[int, str, Any], None], folder: Path, answers: int) -> list[Any]:
    """What two processes say, so many answers together."""
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads
        both = [context.Process(target=work, args=(rank, str(folder / "store"), said)) for rank in (0, 1)]
        for process in both:
            process.start()
    words = [said.get(timeout=120) for _ in range(answers)]
    for process in both:
        process.join(60)
    return words


def test_two_processes_release_what_the_literal_loop_over_units_does(tmp_path: Path) -> None:
    answers = in_both(all_ways, tmp_path, 2 * (len(TRAINED) * len(CLIPPINGS) + len(TRAINED)))
    for *way, complete, distance in answers:
        assert complete, way
        assert distance < 1e-9, way


def the_same_unit(rank: int, store: str, said: Any) -> None:
    one_step(store, rank, units=("anna", "anna"), samples=(0, 1), said=said)


def the_same_row(rank: int, store: str, said: Any) -> None:
    one_step(store, rank, units=("anna", "ben"), samples=(5, 5), said=said)


def nobody_in_one(rank: int, store: str, said: Any) -> None:
    one_step(store, rank, units=("anna", None), samples=(0, 1), said=said)


def one_step(store: str, rank: int, *, units: tuple[Any, Any], samples: tuple[int, int], said: Any) -> None:
    """Of both regimes, one unit a process; None for no unit."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for regime in ("together", "alone"):
        model = torch.nn.Linear(3, 1, bias=False)
        options = {"norms": "exact", "clipping_norm": 1.0, "noise_multiplier": 0.0, "expected_batch_size": 1.0}
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        step = make_private(model, optimizer, **options, units=Units(2, regime=regime), distributed=True)
        if units[rank] is not None:
            x = torch.full((1, 3), 7.0)
            step.accumulate(step.model(x).flatten(), samples=[samples[rank]], units=[units[rank]], step=0)
        before = model.weight.detach().clone()
        try:
            step.step()
            said.put(f"moved {float((model.weight.detach() - before).norm()):.2f}")
        except ParameterError as error:
            assert torch.equal(model.weight, before)
            said.put(str(error))


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (the_same_unit, "samples must be in one process only"),
        (the_same_row, "samples must be in one process only"),
        (nobody_in_one, "moved 1.00"),
    ],
)
def test_a_unit_is_in_one_process(tmp_path: Path, work: Any, expected: str) -> None:
    words = in_both(work, tmp_path, 4)
    assert all(word.startswith(expected) for word in words), words
