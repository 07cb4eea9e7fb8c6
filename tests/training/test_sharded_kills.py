"""A process of a spread run is killed without a word: the others end, nothing was noised that is not charged, and any
number of processes goes on from the last whole checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch")

import torch

from dprmt.training.clipping._optimizer import NoisySumOptimizer
from dprmt.training.harness import _checkpoint
from dprmt.training.harness._checkpoint import load_checkpoint
from dprmt.training.private_run import _ledger
from dprmt.training.private_run._ledger import charged_steps
from tests.training.sharded import in_processes
from tests.training.test_sharded_runs import settings, start

STEP = 3
NOISED = "noised-by-{}"


def _killed(times: int, work: Callable[..., Any], *, before: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Dies in place of the call of this number, after ``before``."""
    calls = iter(range(1, 10_000))

    def instead(*arguments: Any, **options: Any) -> Any:
        if next(calls) == times:
            if before is not None:
                before(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments, **options)

    return instead


@contextmanager
def _noise_is_counted(folder: Path, rank: int) -> Iterator[None]:
    add_noise = NoisySumOptimizer.add_noise

    def counted(self: Any) -> None:
        with (folder / NOISED.format(rank)).open("ab") as file:
            file.write(b".")
        add_noise(self)

    with mock.patch.object(NoisySumOptimizer, "add_noise", counted):
        yield


def _half(path: Path, content: Any) -> None:
    path.write_bytes(b"half")


def _kill_at(point: str) -> Any:
    if point == "charge":
        return mock.patch.object(_ledger, "append_line", _killed(STEP, _ledger.append_line))
    if point == "noise":
        return mock.patch.object(
            NoisySumOptimizer,
            "add_noise",
            _killed(STEP, NoisySumOptimizer.add_noise, before=NoisySumOptimizer.add_noise),
        )
    return mock.patch.object(_checkpoint, "_written", _killed(STEP, _checkpoint._written, before=_half))


def _start(
    rank: int, size: int, folder: Path, strategy: str = "fsdp", point: str = "", victim: int = -1
) -> dict[str, Any]:
    config = settings(strategy, noise=1.0, training={"checkpoint_every": 1})
    with _kill_at(point) if rank == victim else mock.patch.object(os, "nice"), _noise_is_counted(folder, rank):
        return start(rank, size, str(folder / "run"), config, resume=victim < 0)


def _enter(rank: int, folder: Path, strategy: str, point: str, victim: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    _start(rank, 2, folder, strategy, point, victim)


@pytest.mark.parametrize(
    ("strategy", "point", "victim", "size"),
    [
        ("fsdp", "charge", 0, 1),
        ("replicated", "charge", 0, 2),
        pytest.param("fsdp", "noise", 0, 3, marks=pytest.mark.slow),
        ("fsdp", "noise", 1, 3),
        pytest.param("fsdp", "half a shard", 0, 2, marks=pytest.mark.slow),
        ("fsdp", "half a shard", 1, 3),
    ],
)
def test_a_killed_process_ends_the_others_and_any_number_goes_on(
    tmp_path: Path, strategy: str, point: str, victim: int, size: int
) -> None:
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads
        group = [context.Process(target=_enter, args=(rank, tmp_path, strategy, point, victim)) for rank in range(2)]
        for process in group:
            process.start()
    for process in group:
        process.join(100)
    codes = [process.exitcode for process in group]
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] not in (0, None)  # it neither went on alone nor waits
    noised = [len((tmp_path / NOISED.format(rank)).read_bytes()) for rank in range(2)]
    assert noised == [STEP - 1 if point == "charge" else STEP] * 2
    charged = charged_steps(tmp_path / "run")
    assert charged == max(noised)
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert checkpoint["steps_taken"] == STEP - 1
    found = in_processes(size, partial(_start, folder=tmp_path, strategy=strategy), tmp_path)
    assert [one["steps"] for one in found] == [6] * size, found
    again = 6 - (STEP - 1)
    assert [one["charged"] for one in found] == [charged + again] * size
    assert len((tmp_path / NOISED.format(0)).read_bytes()) == noised[0] + again
