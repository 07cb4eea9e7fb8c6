"""Section 5.1 of arXiv:2506.15588 on scikit-learn's digits: project before the noise, or after it.

DP-Adam (Opacus), DP-GRAPE with its variants, and naive DP-GaLore, at the same ε, over seeds: test accuracy, mean and
standard deviation. Poisson sampling; one learning rate per method, the best of a small grid on a seed that is not
counted.

Usage: ``python paper_figures/grape_order.py [SEEDS]``
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from sklearn.datasets import load_digits
from torch import nn

from dprmt.accounting import calibrate_noise_multiplier
from dprmt.training.clipping import make_private_projected

EPSILON, DELTA, RATE, STEPS, CLIPPING, RANK = 2.0, 1e-4, 0.1, 100, 1.0, 16
TRAIN, GRID = 1400, (6e-3, 2e-2, 6e-2)


@dataclass(frozen=True)
class Method:
    """One line of the table."""

    name: str
    options: dict[str, Any] | None = field(default_factory=dict)
    """Of ``make_private_projected``; None for DP-Adam."""


METHODS = (
    Method("DP-Adam", None),
    Method("DP-GRAPE, Gaussian"),
    Method("DP-GRAPE, Stiefel", {"projector": "stiefel"}),
    Method("DP-GRAPE, SVD", {"projector": "svd"}),
    Method("DP-GRAPE, moments kept", {"at_refresh": "keep"}),
    Method("DP-GRAPE, moments reset", {"at_refresh": "reset"}),
    Method("privatise, then Gaussian", {"order": "privatize-then-project"}),
    Method("naive DP-GaLore (SVD)", {"order": "privatize-then-project", "projector": "svd"}),
)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (1797, 64) in [0, 1] and labels, in a fixed random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.from_numpy(images[order]).float() / 16, torch.from_numpy(labels[order])


def accuracy(method: Method, lr: float, seed: int, sigma: float, steps: int = STEPS) -> float:
    """Test accuracy in per cent after training once."""
    images, labels = digits()
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    noise, coins = torch.Generator().manual_seed(2 * seed), torch.Generator().manual_seed(2 * seed + 1)
    size = RATE * TRAIN
    if method.options is None:
        model: nn.Module = GradSampleModule(net, loss_reduction="sum")
        optimizer = DPOptimizer(
            torch.optim.Adam(net.parameters(), lr=lr), noise_multiplier=sigma, max_grad_norm=CLIPPING,
            expected_batch_size=size, generator=noise,
        )  # fmt: skip
    else:
        private = make_private_projected(
            net, rank=lambda shape: min(RANK, shape.n), refresh_every=25, clipping_norm=CLIPPING,
            noise_multiplier=sigma, expected_batch_size=size, lr=lr, seed=seed, noise_generator=noise,
            keep_projectors=True, **method.options,
        )  # fmt: skip
        model, optimizer = private.model, private.optimizer
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        for _ in range(steps):
            drawn = torch.rand(TRAIN, generator=coins) < RATE
            scores = model(images[:TRAIN][drawn])
            nn.functional.cross_entropy(scores, labels[:TRAIN][drawn], reduction="sum").backward()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        return 100 * float((net(images[TRAIN:]).argmax(1) == labels[TRAIN:]).double().mean())


def main(seeds: int = 5) -> None:
    """Print the table."""
    sigma = calibrate_noise_multiplier(EPSILON, DELTA, RATE, STEPS)
    print(f"ε = {EPSILON:g}, δ = {DELTA:g}: σ = {sigma:.3f}; q = {RATE:g}, {STEPS} steps, r = {RANK}, {seeds} seeds")
    print(f"{'':<26}{'lr':>8}{'mean':>8}{'std':>7}{'against DP-Adam':>17}")
    reference = 0.0
    for method in METHODS:
        lr = max(GRID, key=lambda rate: accuracy(method, rate, 1000, sigma))
        found = np.array([accuracy(method, lr, seed, sigma) for seed in range(seeds)])
        reference = found.mean() if method.options is None else reference
        spread = found.std(ddof=1) if seeds > 1 else float("nan")
        print(
            f"{method.name:<26}{lr:>8g}{found.mean():>8.2f}{spread:>7.2f}{found.mean() - reference:>+17.2f}", flush=True
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
