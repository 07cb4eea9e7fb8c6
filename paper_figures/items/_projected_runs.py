"""Small networks on images, trained privately with and without projection: what the items on DP-GRAPE share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from dprmt.training.clipping import ClippingPlan, plan_private
from dprmt.training.clipping._formed_layers import NormPolicy
from dprmt.training.harness import ItemTask, run_in_memory
from dprmt.training.norms import LayerRecord, NormRecord
from dprmt.training.optimizers import DPGrape
from dprmt.training.recipes import Settings
from dprmt.training.subspaces import Subspaces

DELTA, CLIPPING = 1e-4, 1.0


@dataclass(frozen=True)
class Images:
    """A training set and a test set: images in [0, 1] of shape (n, …), and labels."""

    name: str
    train: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]


@dataclass
class ProjectedTask(ItemTask):
    """A task that is trained in subspaces, with options that no recipe has."""

    projection: dict[str, Any] = field(default_factory=dict)

    def clipping_plan(self, model: nn.Module, **options: Any) -> ProjectedPlan:
        """See `Task`."""
        record = NormRecord([LayerRecord(name) for name, _ in model.named_parameters()])
        sizes = options["clipping_norm"], options["expected_batch_size"]
        return ProjectedPlan(model, record, *sizes, NormPolicy(None, None), None, False, options=self.projection)


@dataclass(frozen=True)
class ProjectedPlan(ClippingPlan):
    """Subspaces, `DPGrape` and the order of projection and noise, by options; all norms are exact."""

    options: dict[str, Any] = field(default_factory=dict)  # subspaces are made with the step, beside its optimizer

    def privatize(
        self, optimizer: torch.optim.Optimizer, *, noise_multiplier: float, noise_generator: Any = None
    ) -> Any:
        """With an optimizer of its own, at the learning rate of the one that is given."""
        options = dict(self.options)
        order = options.pop("order", "project-then-privatize")
        grape = {name: options.pop(name) for name in ("rule", "betas", "floor") if name in options}
        most = options.pop("rank")
        matrices = {name: value for name, value in self.model.named_parameters() if value.ndim == 2}
        ranks = {name: min(most, *value.shape) for name, value in matrices.items()}
        subspaces = Subspaces(self.model, rank=ranks, **{"refresh_every": 25, **options})
        inner = DPGrape(self.model.parameters(), optimizer.defaults["lr"], subspaces=subspaces, **grape)
        plan = plan_private(
            self.model,
            norms="exact",
            clipping_norm=self.clipping_norm,
            expected_batch_size=self.expected_batch_size,
            subspaces=subspaces if order == "project-then-privatize" else None,
        )
        return plan.privatize(inner, noise_multiplier=noise_multiplier, noise_generator=noise_generator)


def perceptron(inputs: int, labels: int, seed: int) -> nn.Module:
    """Three layers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, labels))


def digits(*, flat: bool = True) -> Images:
    """scikit-learn's 1,797 digits in a fixed random order, 1,400 of them to train on."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = torch.from_numpy(images[order]).float() / 16, torch.from_numpy(labels[order])
    x = x if flat else x.reshape(-1, 1, 8, 8)
    return Images("scikit-learn's digits", (x[:1400], y[:1400]), (x[1400:], y[1400:]))


def train_once(
    network: nn.Module,
    images: Images,
    *,
    optimizer: dict[str, Any],
    privacy: dict[str, Any],
    steps: int,
    batch: int,
    seed: int,
    projection: dict[str, Any] | None = None,
    scores: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda net, x: net(x),
) -> float:
    """Test accuracy in percent after one private run.

    ``privacy`` has keys of a recipe's section, ``projection`` options of `ProjectedPlan`.
    """
    x, y = images.train

    def losses(model: nn.Module, drawn: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores(model, x[drawn]), y[drawn], reduction="none")

    task: ItemTask = ItemTask(range(len(y)), torch.tensor, losses)
    if projection is not None:
        task = ProjectedTask(range(len(y)), torch.tensor, losses, projection={"seed": seed, **projection})
    sections: Any = {
        "privacy": {"delta": DELTA, "norms": "ghost", "clipping_norm": CLIPPING, **privacy},
        "optimizer": optimizer,
        "training": {"batch_size": batch, "micro_batch_size": 256, "steps": steps, "seed": seed},
    }
    settings = Settings(**sections)
    with run_in_memory(network, task, settings, noise_seed=seed) as run:
        for _ in run.steps():
            pass
    network.eval()
    with torch.no_grad():
        found = torch.cat([scores(network, part).argmax(1) for part in images.test[0].split(512)])
    return 100 * float((found == images.test[1]).double().mean())
