"""The ledger counts up whatever it is told, and all processes know the same ε, of the charge that is on the disk."""

from __future__ import annotations

import math
import multiprocessing
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt.training.harness import read_metrics, train_task
from dprmt.training.private_run import PrivateRun, _ledger
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


def trains(rank: int, store: str, out: str, answers: Any) -> None:
    """Rank 0's disk is slow: whoever does not wait for it finds fewer lines than steps."""
    torch.set_num_threads(1)
    seen: list[int] = []
    charge, write = PrivateRun._charge, _ledger.append_line

    def charged(run: PrivateRun) -> None:
        charge(run)
        seen.append(charged_steps(Path(out)))

    def slowly(*args: Any, **options: Any) -> None:
        time.sleep(0.2)
        write(*args, **options)

    PrivateRun._charge, _ledger.append_line = charged, slowly  # type: ignore[method-assign]
    try:
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        train_task(network(), task(), settings(), out)
        answers.put((rank, seen))
    except BaseException:
        answers.put((rank, traceback.format_exc()))


def test_all_processes_go_on_once_the_charge_is_on_the_disk(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads
        given = [(rank, str(tmp_path / "store"), str(tmp_path / "run"), answers) for rank in (0, 1)]
        both = [context.Process(target=trains, args=arguments) for arguments in given]
        for process in both:
            process.start()
    try:
        found = dict(answers.get(timeout=120) for _ in both)
    finally:
        for process in both:
            process.kill()
            process.join()
    metrics = read_metrics(tmp_path / "run")
    steps = [entry["step"] for entry in metrics]
    assert found == {0: steps, 1: steps}
    assert all(math.isfinite(entry["epsilon"]) for entry in metrics)
