"""Section 5.1 of arXiv:2506.15588 on scikit-learn's digits: project before the noise, or after it.

DP-Adam, DP-GRAPE with its variants, and naive DP-GaLore, at the same ε, over seeds: test accuracy, mean and standard
deviation. Poisson sampling; one learning rate per method, the best of a small grid on a seed that is not counted.

Usage: ``python paper_figures/grape_order.py [SEEDS]``
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from dprmt.training.clipping import ClippedStep, make_private_projected
from dprmt.training.harness import ItemTask, run_in_memory
from dprmt.training.norms import LayerRecord, NormRecord
from dprmt.training.recipes import Settings

EPSILON, DELTA, BATCH, STEPS, CLIPPING, RANK = 2.0, 1e-4, 140, 100, 1.0, 16
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


@dataclass
class ProjectedTask(ItemTask):
    """A task that is trained in subspaces, with options that no recipe has."""

    projection: dict[str, Any] = field(default_factory=dict)

    def clipping_plan(self, model: nn.Module, **options: Any) -> ProjectedPlan:
        """See `Task`."""
        return ProjectedPlan(model, options["clipping_norm"], options["expected_batch_size"], self.projection)


@dataclass
class ProjectedPlan:
    """What `make_private_projected` will do; all its norms are exact."""

    model: nn.Module
    clipping_norm: float
    expected_batch_size: float
    options: dict[str, Any]
    subspaces: None = None  # they are made with the step, beside its optimizer

    @property
    def record(self) -> NormRecord:
        """Exact."""
        return NormRecord([LayerRecord(name, "exact") for name, _ in self.model.named_parameters()], "batch")

    def noise_variance(self, noise_multiplier: float) -> float:
        """(σC/L)²."""
        return (noise_multiplier * self.clipping_norm / self.expected_batch_size) ** 2

    def privatize(
        self, optimizer: torch.optim.Optimizer, *, noise_multiplier: float, noise_generator: torch.Generator
    ) -> ClippedStep:
        """With an optimizer of its own, at the learning rate of the one that is given."""
        return make_private_projected(
            self.model, rank=lambda shape: min(RANK, shape.n), refresh_every=25, clipping_norm=self.clipping_norm,
            noise_multiplier=noise_multiplier, expected_batch_size=self.expected_batch_size,
            lr=optimizer.defaults["lr"], noise_generator=noise_generator, keep_projectors=True, **self.options,
        )  # fmt: skip


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (1797, 64) in [0, 1] and labels, in a fixed random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.from_numpy(images[order]).float() / 16, torch.from_numpy(labels[order])


def network(seed: int) -> nn.Module:
    """Three layers, by seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def task(method: Method, seed: int = 0) -> ItemTask:
    """The training images, for a method."""
    images, labels = digits()

    def losses(model: nn.Module, drawn: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(images[drawn]), labels[drawn], reduction="none")

    if method.options is None:
        return ItemTask(range(TRAIN), torch.tensor, losses)
    return ProjectedTask(range(TRAIN), torch.tensor, losses, projection={"seed": seed, **method.options})


def settings(lr: float, steps: int, **noise: float) -> Settings:
    """With a target ε or a noise multiplier."""
    return Settings(
        privacy={"delta": DELTA, "clipping": "ghost", "clipping_norm": CLIPPING, **noise},
        optimizer={"name": "adam", "learning_rate": lr},
        training={"batch_size": BATCH, "micro_batch_size": TRAIN, "steps": steps},
    )


def accuracy(method: Method, lr: float, seed: int, sigma: float, steps: int = STEPS) -> float:
    """Test accuracy in per cent after training once."""
    net = network(seed)
    chosen = settings(lr, steps, noise_multiplier=sigma)
    with run_in_memory(net, task(method, seed), chosen, noise_seed=seed) as run:
        for _ in run.steps():
            pass
    images, labels = digits()
    with torch.no_grad():
        return 100 * float((net(images[TRAIN:]).argmax(1) == labels[TRAIN:]).double().mean())


def noise_multiplier() -> float:
    """The σ of all methods: their norms are exact, their coins the same."""
    with run_in_memory(network(0), task(METHODS[0]), settings(1.0, STEPS, target_epsilon=EPSILON)) as run:
        return run.prepared.mechanism.noise_multiplier


def main(seeds: int = 5) -> None:
    """Print the table."""
    sigma = noise_multiplier()
    print(
        f"ε = {EPSILON:g}, δ = {DELTA:g}: σ = {sigma:.3f}; q = {BATCH / TRAIN:g}, {STEPS} steps, r = {RANK},"
        f" {seeds} seeds"
    )
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
