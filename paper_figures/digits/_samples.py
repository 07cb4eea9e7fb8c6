"""What is trained on: a network's weights, sums of clipped gradients, accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch

from paper_figures.digits._networks import Weights

Part = Literal["tune", "test"]


class Samples(Protocol):
    """Samples for three uses that share none, with the network that is trained on them."""

    @property
    def size(self) -> int:
        """How many there are to train on."""

    @property
    def sizes(self) -> list[int]:
        """How many there are to train on, to tune on, to test on."""

    def start(self, hidden: int, seeds: Sequence[int]) -> Weights:
        """Weights of as many runs; ``hidden``: units between input and output, where the network has such a layer."""

    def clipped_sum(self, weights: Weights, drawn: torch.Tensor, clip: float) -> Weights:
        """Σ min(1, C/‖g‖) g over the drawn samples, for weights of one run."""

    def accuracy(self, weights: Weights, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
        """Share of right answers and mean cross-entropy, by run."""
