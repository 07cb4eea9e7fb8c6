"""How often noise alone is called a spike: by the command and by `denoise`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dprmt.cli import main
from dprmt.spectra import false_alarm_rate
from tests.spectra.simulation import denoise

SHAPES = ((8, 384), (16, 768), (4, 9), (64, 64), (128, 40))


def spectrum(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> str:
    assert main(["spectrum", str(path), "--sigma", "1", *options]) == 0
    return capsys.readouterr().out


def noise_file(folder: Path, number: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    arrays = {f"{shape}.{i}": rng.standard_normal(shape) for shape in SHAPES for i in range(number)}
    np.savez(folder / "noise.npz", **arrays)
    return folder / "noise.npz"


def test_the_rate_and_what_is_to_be_expected_are_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = spectrum(capsys, noise_file(tmp_path, 40, seed=1))
    assert "noise alone would give 2 on average (false alarm rate 1 %)" in out
    assert "noise ends" not in out
    strict = spectrum(capsys, noise_file(tmp_path, 40, seed=1), "--false-alarm", "1e-6")
    assert "matrices with a value above the gate: 0 of 200" in strict
    assert "Nothing here can be told from noise." in strict


def test_a_rate_above_that_of_the_edge_is_not_claimed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((16, 768)))
    (matrix,) = json.loads(spectrum(capsys, tmp_path / "x.npy", "--json", "--false-alarm", "0.9"))["matrices"]
    assert matrix["gate"] == matrix["bulk_edge"]
    assert matrix["false_alarm"] == false_alarm_rate((16, 768), 1.0) < 0.2


def test_the_default_of_denoise_leaves_noise_alone() -> None:
    """8 × 384, where κ = 1.02 fires twice as often: by default in 1 % of draws."""
    shape, draws = (8, 384), 4000
    noise = np.random.default_rng(7).standard_normal((draws, *shape))
    found = denoise(noise, 1.0)
    fired = int((found != noise).any((1, 2)).sum())
    paper = int((denoise(noise, 1.0, 1.02) != noise).any((1, 2)).sum())
    assert 20 <= fired <= 62  # 40 expected, 3.5 standard deviations
    assert paper > 1.4 * fired
