"""What waits for a GPU goes through on a CPU, sees noise of another size, and halves batches that do not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from audits.device import noise_law
from benchmarks import gpu, step


@pytest.mark.slow
def test_the_line_goes_through_on_a_cpu(tmp_path) -> None:
    assert gpu.main(["--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "device.json").read_text())
    assert found["device"] == "cpu"
    assert all(entry["fine"] for entry in (*found["noise"].values(), *found["games"].values()))
    steps = json.loads((tmp_path / "step_cuda.json").read_text())["cells"]
    assert steps["tiny 2×16: ghost"]["batch"] == 2
    assert steps["tiny 2×16: ghost"]["ratio"] > 0
    assert "| cpu, 20" in step.gpu_table(steps)


def test_a_part_that_fails_is_counted_and_the_others_run(tmp_path, monkeypatch, capsys) -> None:
    parts = {"one": ["-c", "raise SystemExit(3)"], "two": ["-c", "print('ran')"]}
    monkeypatch.setattr(gpu, "commands", lambda *_, **__: parts)
    assert gpu.main(["--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out.endswith("failed: one\n")


@pytest.mark.parametrize("generator", ["torch", "secure"])
def test_noise_of_the_right_size_is_taken_and_of_another_refused(generator: str) -> None:
    """One part in a hundred more or less is seen."""
    assert noise_law("cpu", generator, torch.float32).fine
    for sigma in (1.98, 2.02):
        assert not noise_law("cpu", generator, torch.float32, sigma=sigma).fine


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
