"""What waits for a GPU sees noise of another size, and halves batches that do not fit."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from audits import device
from benchmarks import step


@pytest.mark.slow
def test_noise_and_games_are_as_they_should_be_on_a_cpu(tmp_path) -> None:
    assert device.main(["--device", "cpu", "--trials", "1000", "--out", str(tmp_path / "found.json")]) == 0


@pytest.mark.parametrize("generator", ["torch", "secure"])
def test_noise_of_the_right_size_is_taken_and_of_another_refused(generator: str) -> None:
    """One part in a hundred more or less is seen."""
    assert device.noise_law("cpu", generator, torch.float32).fine
    for sigma in (1.98, 2.02):
        assert not device.noise_law("cpu", generator, torch.float32, sigma=sigma).fine


def test_batches_are_halved_until_they_fit(monkeypatch) -> None:
    tried = []

    def measured(cell: step.Cell) -> dict[str, Any]:
        tried.append(cell.batch)
        fits = cell.batch is not None and cell.batch <= 4
        return {"ratio": 1.0} if fits else {"failed": "torch.OutOfMemoryError: CUDA out of memory. Tried"}

    monkeypatch.setattr(step, "measured", measured)
    assert step.halved(step.Cell("tiny", "ghost", batch=16, tokens=16)) == {"ratio": 1.0, "batch": 4}
    assert tried == [16, 8, 4]
    monkeypatch.setattr(step, "measured", lambda cell: {"failed": "CUDA out of memory"})
    assert step.halved(step.Cell("tiny", "ghost", batch=2, tokens=16))["batch"] == 1


def test_the_table_has_what_was_measured() -> None:
    own = {"device": "H100", "date": "2026-11-26", "batch": 8, "seconds": 0.0123, "ratio": 1.5, "mib": 2048.0}
    table = step.gpu_table({"llama-1b 16×512: ghost": own, "tiny: exact": {"failed": "OutOfMemoryError: 3"}})
    assert table.splitlines()[2:] == [
        "| H100, 2026-11-26 | llama-1b 16×512 | ghost | 8 | 12 | 1.50 | 2.0 |",
        "| –, – | tiny | exact | – | fails: OutOfMemoryError | – | – |",
    ]
