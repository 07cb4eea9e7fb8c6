"""How norms are obtained in a whole model, and what every kind of layer can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import nn

from dprmt.training.clipping._contributions import Contribution
from dprmt.training.norms import LayerRecord, NormEstimator
from dprmt.training.norms._probes import SampleId

Samples: TypeAlias = Sequence[SampleId] | torch.Tensor | None
Measured: TypeAlias = tuple[torch.Tensor, Contribution]


@dataclass(frozen=True)
class NormPolicy:
    """What is decided for a whole model.

    Parameters
    ----------
    estimator : NormEstimator, optional
        None: exact norms everywhere.
    estimate_all : bool
        Whether layers whose exact norm is cheaper are estimated too, so that a finite rank may be claimed.
    tokens : int, optional
        The largest possible T.
    """

    estimator: NormEstimator | None = None
    estimate_all: bool = False
    tokens: int | None = None

    def estimates(self, rows: int, columns: int) -> NormEstimator | None:
        """The estimator for a layer of this shape, or None if its norm is to be exact.

        Returns
        -------
        NormEstimator or None
            By the shape alone.
        """
        if self.estimator is None:
            return None
        return self.estimator if self.estimate_all or self.estimator.is_cheaper(rows, columns) else None


class Layer(Protocol):
    """A module with trainable parameters, and how the norms of its per-sample gradients are obtained."""

    @property
    def name(self) -> str:
        """Of the module, by which its probes are drawn."""

    @property
    def module(self) -> nn.Module:
        """The module."""

    def records(self) -> list[LayerRecord]:
        """What the accountant is told."""

    def terms(self, tokens: int) -> int:
        """The longest chain of additions, see ``rounding_margin``, at T tokens."""

    def measure(
        self, activations: Sequence[torch.Tensor], gradients: torch.Tensor, step: int, samples: Samples
    ) -> Measured:
        """Squared norms, shape (B,) and float64, and what their weighted sum can be formed from."""
