"""Digits with barcodes: the set, the files it is read from, and private training against a literal loop."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from dprmt.training.private_run import PrivateRun  # noqa: E402
from dprmt.training.private_run._randomness import fresh_randomness  # noqa: E402
from paper_figures.studies import (  # noqa: E402
    GroupTask,
    Measured,
    private_settings,
    train_privately,
)


class Toy(GroupTask):
    """Eight points in two classes, for a linear layer."""

    size, group_names = 8, ("many", "few")

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(8, 3, generator=generator)
        self.y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])

    def measure(self, model, indices) -> Measured:
        logits, y = model(self.x[indices]), self.y[indices]
        losses = torch.nn.functional.cross_entropy(logits, y, reduction="none")
        return Measured(losses, losses, logits.argmax(1) == y, y)


def linear() -> torch.nn.Module:
    layer = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    return layer


@pytest.fixture
def noise_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise by the number of the step alone, so that a literal loop can draw it: a run's own depends on the sums."""
    monkeypatch.setattr(PrivateRun, "_of_this_sum", lambda run, purpose: f"{purpose} of step {run._place}")


@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.usefixtures("noise_of_steps")
def test_training_is_dp_sgd_literally(rate: float, tmp_path: Path) -> None:
    task, C, σ, steps = Toy(), 0.6, 0.5, 4
    settings = private_settings(
        "gd", 0.7, size=8, clipping_norm=C, noise_multiplier=σ, sample_rate=rate, micro_batch=3, seed=5
    )
    model = linear()
    train_privately(model, task, settings, steps, tmp_path)
    randomness = fresh_randomness(5, 1)
    L = round(8 * rate)
    expected = linear()
    clipped = 0
    for step in range(steps):
        noise = randomness.generator(f"noise of step {step}")
        draws = randomness.generator(f"Poisson sampling after {step} steps")
        drawn = torch.nonzero(torch.rand(8, generator=draws) < L / 8)[:, 0].tolist()
        sums = [torch.zeros_like(p) for p in expected.parameters()]
        for i in drawn:
            loss = task.measure(expected, torch.tensor([i])).losses[0]
            gradients = torch.autograd.grad(loss, list(expected.parameters()))
            norm = float(torch.cat([g.flatten() for g in gradients]).norm())
            clipped += norm > C
            for total, g in zip(sums, gradients, strict=True):
                total += g * min(1.0, (1 - 2**-13) * C / norm)
        with torch.no_grad():
            for p, total in zip(expected.parameters(), sums, strict=True):
                z = torch.normal(0.0, σ * C, p.shape, generator=noise)
                p -= 0.7 * (total + z) / L  # the expected size, not the drawn one
    assert clipped > 3
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
