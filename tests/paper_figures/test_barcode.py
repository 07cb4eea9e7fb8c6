"""Digits with barcodes: the set, the files it is read from, and private training against a literal loop."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dprmt import ParameterError
from dprmt.accounting import DPSGD

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from dprmt.training.private_run import PrivateRun  # noqa: E402
from dprmt.training.private_run._randomness import fresh_randomness  # noqa: E402
from paper_figures.barcode import (  # noqa: E402
    barcode_data,
)
from paper_figures.studies import (  # noqa: E402
    GroupTask,
    Measured,
    private_settings,
    read_records,
    train_privately,
)

PLAN = [(10, 4), (12, 2), (30, 1)]


def blank_images(per_digit: int = 6) -> tuple:
    """Black images with the digit as brightness in the middle, so that classes can be told."""
    digits = torch.arange(10).repeat(per_digit)
    images = torch.zeros(len(digits), 28, 28)
    images[:, 14, 14] = digits / 10
    return images, digits


def test_every_class_is_one_digit_with_one_barcode() -> None:
    data = barcode_data(*blank_images(), PLAN, seed=2)
    assert data.size == 40 + 24 + 30
    assert data.classes == 52
    assert data.images.shape == (94, 1, 28, 28)
    assert data.labels.bincount().tolist() == [4] * 10 + [2] * 12 + [1] * 30
    assert data.groups.bincount().tolist() == [40, 24, 30]
    powers = 2 ** torch.arange(9, -1, -1)
    codes = (data.images[:, 0, 0, :10].long() * powers).sum(1)
    digits = (10 * data.images[:, 0, 14, 14]).round().long()
    kinds = {}
    for label, digit, code in zip(data.labels.tolist(), digits.tolist(), codes.tolist(), strict=True):
        assert kinds.setdefault(label, (digit, code)) == (digit, code)
        assert (code == 0) == (label < 10)
    assert len(set(kinds.values())) == 52
    rest = data.images.clone()
    rest[:, 0, 0, :10] = 0
    rest[:, 0, 14, 14] = 0
    assert float(rest.abs().max()) == 0.0


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


def test_records_have_groups_and_epsilon(tmp_path: Path) -> None:
    task = Toy()
    settings = private_settings("adambc", 0.05, size=8, noise_multiplier=2.0, micro_batch=5)
    records = train_privately(linear(), task, settings, 3, tmp_path)
    assert [record.step for record in records] == [0, 1, 2, 3]
    assert records[0].epsilon == 0.0
    bounds = DPSGD(2.0, 1.0).epsilon(steps=3, delta=1e-5)
    assert (
        bounds.estimate <= records[3].epsilon <= 1.01 * bounds.upper
    )  # early in a long run: from a curve of many steps
    assert records[0].group_loss == pytest.approx((math.log(2), math.log(2)))
    assert records[0].group_accuracy == (1.0, 0.0)  # ties go to class 0
    assert read_records(tmp_path) == records
    for record in records:
        mixed = (6 * record.group_loss[0] + 2 * record.group_loss[1]) / 8
        assert record.loss == pytest.approx(mixed, rel=1e-6)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_training_in_pieces_and_micro_batches_is_the_same(rate: float, tmp_path: Path) -> None:
    results = []
    for name, pieces, micro in (("a", (6,), 8), ("b", (2, 3, 6), 8), ("c", (6,), 2)):
        settings = private_settings("adam", 0.05, size=8, sample_rate=rate, micro_batch=micro, seed=1)
        for steps in pieces:
            model = linear()
            train_privately(model, Toy(), settings, steps, tmp_path / name)
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(results[0], results[2], rtol=1e-5, atol=1e-6)
    with pytest.raises(ParameterError, match="recipe"):
        train_privately(linear(), Toy(), private_settings("adam", 0.1, size=8, sample_rate=rate), 7, tmp_path / "a")
