"""The ledger counts up whatever it is told, and all processes know the same ε, of the charge that is on the disk."""

from __future__ import annotations

import math
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from audits.processes import in_processes
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


def trains(rank: int, size: int, out: str) -> list[int]:
    """Rank 0's disk is slow: whoever does not wait for it finds fewer lines than steps."""
    seen: list[int] = []
    charge, write = PrivateRun._charge, _ledger.append_line

    def charged(run: PrivateRun) -> None:
        charge(run)
        seen.append(charged_steps(Path(out)))

    def slowly(*args: Any, **options: Any) -> None:
        time.sleep(0.2)
        write(*args, **options)

    PrivateRun._charge, _ledger.append_line = charged, slowly  # type: ignore[method-assign]
    train_task(network(), task(), settings(), out)
    return seen


def test_all_processes_go_on_once_the_charge_is_on_the_disk(tmp_path: Path) -> None:
    found = in_processes(2, partial(trains, out=str(tmp_path / "run")), tmp_path)
    metrics = read_metrics(tmp_path / "run")
    steps = [entry["step"] for entry in metrics]
    assert found == [steps, steps]
    assert all(math.isfinite(entry["epsilon"]) for entry in metrics)
