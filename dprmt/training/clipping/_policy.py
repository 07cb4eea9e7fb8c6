"""Computation of norms in a whole model, and the interface of every kind of layer.

The norms of all layers must be known before anything can be summed. Until then each layer keeps what its norms were
computed from, and the weighted sum Σ_i c_i A_iᵀG_i is formed from exactly that ("book-keeping", Bu et al. 2023,
arXiv:2210.00038). There is no second backward pass, because no norm would account for its rounding, in bfloat16 for
the whole sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import nn

from dprmt.training.norms import MEMORY_BUDGET, EmbeddingNormEstimator, LayerRecord, NormEstimator, SampleId

Samples: TypeAlias = Sequence[SampleId] | torch.Tensor | None
Use: TypeAlias = tuple[Sequence[torch.Tensor], torch.Tensor]
"""A layer's inputs in one of its uses, and the gradients of its output."""


@dataclass(frozen=True)
class NormPolicy:
    """Decisions for a whole model.

    ``form``: whether exact norms use formed gradients, even where Gram matrices are cheaper. ``memory_budget``:
    largest number of bytes formed of a layer in one block, in addition to what is kept. ``sharded``: whether
    parameters are whole only while their layer computes, so that nothing can be formed twice. ``whole``: names of
    modules that run sample by sample although hooks could follow their layers.
    """

    estimator: NormEstimator | None = None
    tokens: int | None = None
    form: bool = False
    whole: frozenset[str] = frozenset()
    memory_budget: int = MEMORY_BUDGET
    sharded: bool = False

    @property
    def everything(self) -> EmbeddingNormEstimator | None:
        """The estimator if layers whose exact norm is cheaper are estimated too, so that a finite rank is claimed."""
        estimator = self.estimator
        return estimator if isinstance(estimator, EmbeddingNormEstimator) and estimator.everything else None

    def estimates(self, rows: int, columns: int) -> NormEstimator | None:
        """Return the estimator for a layer of this shape, by the shape alone; None if its norm is to be exact."""
        if self.estimator is None:
            return None
        return self.estimator if self.everything or self.estimator.is_cheaper(rows, columns) else None


class Contribution(Protocol):
    """A part of every sample's gradient."""

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """Add Σ_i c_i g_i over the kept samples to the parameters' sums.

        ``kept``: the samples that count. The others may hold NaN, and 0·NaN is NaN: they are not touched.
        """


Measured: TypeAlias = tuple[torch.Tensor, list[Contribution]]


class Rows(Protocol):
    """Which rows make up each sample."""

    def summed(self, gradients: torch.Tensor) -> torch.Tensor:
        """Sum gradients of rows to gradients of samples."""


class Layer(Protocol):
    """A module with trainable parameters: how its gradients are normed, and summed once clip factors are known.

    A new kind of layer is a class with these members, and a line in `_layer_kinds`.
    """

    name: str
    """Name of the module, by which its probes are drawn."""
    module: nn.Module
    per_token: bool
    """Whether samples have tokens, all axes between first and last, on which the rounding or the rank depends."""

    def records(self) -> list[LayerRecord]:
        """Return the records for the accountant."""

    def terms(self, tokens: int) -> int:
        """Return the longest chain of additions, see ``rounding_margin``, at T tokens: more of these, no fewer
        additions.
        """

    def measure(self, uses: Sequence[Use], step: int, samples: Samples, units: Rows | None = None) -> Measured:
        """Return squared norms, shape (B,) and float64, and what their weighted sum can be formed from.

        ``uses``: of a layer with tokens one only, see `joined`.
        ``units``: where several rows are one of the samples, and the layer has no tokens: whose gradients to add.
        """


def joined(uses: Sequence[Use]) -> Use:
    """Join inputs and output gradients of several uses along T, because a layer has one gradient."""
    several = [gradients.flatten(1, -2) if gradients.ndim > 2 else gradients[:, None] for _, gradients in uses]
    shapes = [
        (*gradients.shape[:2], -1) if inputs[0].is_floating_point() else gradients.shape[:2]
        for (inputs, _), gradients in zip(uses, several, strict=True)
    ]
    activations = [inputs[0].reshape(shape) for (inputs, _), shape in zip(uses, shapes, strict=True)]
    return [torch.cat(activations, 1)], torch.cat(several, 1)


def row_gradient(layer: Layer, uses: Sequence[Use] | None, row: int) -> dict[nn.Parameter, torch.Tensor]:
    """Compute the gradient of one row of the uses in float64, as a step adds it with the clip factor 1; no sum is
    changed.
    """
    if not uses:
        return {}
    parts: list[Use] = []
    for inputs, g in uses:  # a module that is run whole has its parameter as input
        own = [x if isinstance(x, nn.Parameter) or len(x) != len(g) else x[row : row + 1] for x in inputs]
        parts.append((own, g[row : row + 1]))
    parameters = [value for value in layer.module.parameters() if value.requires_grad]
    sums = [getattr(value, "summed_grad", None) for value in parameters]
    try:
        for value in parameters:
            value.summed_grad = None
        _, contributions = layer.measure([joined(parts)] if layer.per_token and len(parts) > 1 else parts, 0, ["one"])
        for contribution in contributions:
            contribution.add_to_sums(torch.ones(1, device=parts[0][1].device), slice(None))
        return {value: value.summed_grad.double() for value in parameters if value.summed_grad is not None}
    finally:
        for value, total in zip(parameters, sums, strict=True):
            value.summed_grad = total
