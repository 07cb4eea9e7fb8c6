"""What waits for a GPU sees noise of another size, and halves batches that do not fit."""

from __future__ import annotations

import pytest
import torch

from audits import device


@pytest.mark.slow
def test_noise_and_games_are_as_they_should_be_on_a_cpu(tmp_path) -> None:
    assert device.main(["--device", "cpu", "--trials", "1000", "--out", str(tmp_path / "found.json")]) == 0


@pytest.mark.parametrize("generator", ["torch", "secure"])
def test_noise_of_the_right_size_is_taken_and_of_another_refused(generator: str) -> None:
    """One part in a hundred more or less is seen."""
    assert device.noise_law("cpu", generator, torch.float32).fine
    for sigma in (1.98, 2.02):
        assert not device.noise_law("cpu", generator, torch.float32, sigma=sigma).fine
