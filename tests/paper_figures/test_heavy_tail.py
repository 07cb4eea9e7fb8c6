"""The heavy-tail study: closed forms against autograd, runs against a literal loop, resume, and the order it shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dprmt.training.harness import load_parameters  # noqa: E402
from dprmt.training.private_run import PrivateRun  # noqa: E402
from dprmt.training.private_run._randomness import fresh_randomness  # noqa: E402
from paper_figures.heavy_tail import (  # noqa: E402
    Trial,
    clipped_gradient_sum,
    heavy_tail_data,
    run_trial,
)


def example(seed: int = 0, dtype=torch.float64) -> tuple:
    """Weights with some signal, inputs and labels of a small instance."""
    data = heavy_tail_data(groups=3, samples=8, dimension=10, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(7, 10, generator=generator).to(dtype), data.inputs.to(dtype), data.labels


def autograd_gradients(weight, inputs, labels):
    """The gradient of every sample's loss, one backward pass each."""
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        W = weight.clone().requires_grad_()
        (-torch.log_softmax(W @ x, 0)[y]).backward()
        rows.append(W.grad)
    return torch.stack(rows)


def test_norms_and_clipped_sum_are_those_of_autograd() -> None:
    weight, inputs, labels = example()
    gradients = autograd_gradients(weight, inputs, labels)
    norms = gradients.flatten(1).norm(dim=1)
    C = float(norms.median())
    assert int((norms < C).sum()) > 3  # some are clipped and some are not
    factors = torch.clamp((1 - 2**-13) * C / norms, max=1.0)  # less the margin for rounding
    expected = (gradients * factors[:, None, None]).sum(0)
    found = clipped_gradient_sum(weight, inputs, labels, C)
    torch.testing.assert_close(found.gradient, expected, rtol=1e-9, atol=1e-12)
    logits = inputs @ weight.T
    torch.testing.assert_close(found.losses, torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    assert torch.equal(found.correct, logits.argmax(1) == labels)
    wrong = (gradients * (C / norms)[:, None, None]).sum(0)  # normalised rather than clipped
    assert float((found.gradient - wrong).norm() / wrong.norm()) > 0.01


@pytest.fixture
def noise_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise by the number of the step alone, so that a literal loop can draw it: a run's own depends on the sums."""
    monkeypatch.setattr(PrivateRun, "_of_this_sum", lambda run, purpose: f"{purpose} of step {run._place}")


def literal_run(trial: Trial, steps: int) -> np.ndarray:
    """Algorithms 1 and 2 in float64, with the noise of the run."""
    data = heavy_tail_data(trial.groups, trial.samples, seed=trial.seed)
    n, C, σ = len(data.labels), trial.clipping_norm, trial.noise_multiplier
    X, Y = data.inputs.double(), torch.nn.functional.one_hot(data.labels).double()
    W = torch.zeros(data.classes, X.shape[1], dtype=torch.float64)
    b, m, v = torch.zeros_like(W), torch.zeros_like(W), torch.zeros_like(W)
    β1, β2 = trial.betas
    for t in range(1, steps + 1):
        generator = fresh_randomness(trial.seed, 1).generator(f"noise of step {t - 1}")
        total = torch.zeros_like(W)
        for x, residual in zip(X, torch.softmax(X @ W.T, 1) - Y, strict=True):
            g = torch.outer(residual, x)
            total += g / max(1.0, float(g.norm()) / ((1 - 2**-13) * C))
        g̃ = (total + σ * C * torch.randn(W.shape, generator=generator)) / n
        if trial.optimizer in ("gd", "gdm"):
            b = (trial.momentum if trial.optimizer == "gdm" else 0.0) * b + g̃
            W = W - trial.learning_rate * b
            continue
        m, v = β1 * m + (1 - β1) * g̃, β2 * v + (1 - β2) * g̃**2
        m̂, v̂ = m / (1 - β1**t), v / (1 - β2**t)
        Φ = (σ * C / n) ** 2
        if trial.optimizer == "adam":
            W = W - trial.learning_rate * m̂ / (v̂.sqrt() + trial.stability * Φ**0.5)
        else:
            W = W - trial.learning_rate * m̂ / (v̂ - Φ).clamp_min(trial.stability * Φ).sqrt()
    return W.numpy()


@pytest.mark.parametrize(("optimizer", "rate"), [("gd", 1.0), ("gdm", 0.5), ("adam", 0.05), ("adambc", 0.05)])
@pytest.mark.usefixtures("noise_of_steps")
def test_a_run_is_the_printed_algorithm(optimizer: str, rate: float, tmp_path: Path) -> None:
    trial = Trial(optimizer, rate, noise_multiplier=2.0, stability=0.3, groups=3, samples=8, seed=4)
    records = run_trial(trial, tmp_path, 6, record_every=2, device="cpu")
    weight = load_parameters(tmp_path)["weight"].numpy()
    expected = literal_run(trial, 6)
    np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert [record.step for record in records] == [0, 2, 4, 6]
    data = heavy_tail_data(3, 8, seed=4)
    logits = data.inputs.double().numpy() @ expected.T
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(24), data.labels]
    assert records[-1].loss == pytest.approx(losses.mean(), rel=1e-3)
    for group in range(3):
        assert records[-1].group_loss[group] == pytest.approx(losses[data.groups == group].mean(), rel=1e-3)
