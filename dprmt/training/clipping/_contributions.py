"""What a layer adds to the sum of clipped gradients, kept until the clip factors are known.

The norms of all layers must be known before anything can be summed. Until then each layer keeps what its norms
were computed from, and the weighted sum Σ_i c_i A_iᵀG_i is formed from exactly that ("book-keeping", Bu et al.
2023, arXiv:2210.00038). There is no second backward pass, whose rounding, in bfloat16 that of the whole sum,
no norm would account for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from dprmt.training.clipping._optimizer import sum_of
from dprmt.training.norms import full_precision, sum_of_squares, token_factors


class Contribution(Protocol):
    """A layer's part of every sample's gradient."""

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """Add Σ_i c_i g_i over the kept samples to the parameters' sums.

        ``kept``: the samples that count. The others may hold NaN, and 0·NaN is NaN: they are not touched.
        """


@dataclass(frozen=True)
class PerSampleGradients:
    """Gradients that were formed, each of shape (B, *sum)."""

    values: Mapping[torch.nn.Parameter, torch.Tensor]

    def squared_norms(self) -> torch.Tensor:
        """Exact ones, of what is stored: shape (B,), float64."""
        return torch.stack([sum_of_squares(value) for value in self.values.values()]).sum(0)

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """See :class:`Contribution`."""
        for parameter, value in self.values.items():
            total = sum_of(parameter, value.shape[1:])
            with full_precision(total.device):
                matrix = value[kept][..., None].flatten(1).to(total.dtype)  # a scalar's gradients have one axis
                total += (factors.to(matrix) @ matrix).view_as(total)


@dataclass(frozen=True)
class Factors:
    """Activations and output gradients of a linear layer.

    ``weight``: whose sum is GᵀA (p × d), or AᵀG (d × p) if ``inputs_first``, as ``transformers``' ``Conv1D`` has it.
    """

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    inputs_first: bool
    activations: torch.Tensor
    gradients: torch.Tensor

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """See :class:`Contribution`."""
        sizes = self.gradients.shape[-1], self.activations.shape[-1]
        total = sum_of(self.weight, sizes[::-1] if self.inputs_first else sizes)
        both = token_factors(activations=self.activations[kept], gradients=self.gradients[kept])
        left, right = (factor.to(total.dtype) for factor in both)
        right = right * factors.to(total)[:, None, None]
        with full_precision(total.device):
            rows, columns = (left, right) if self.inputs_first else (right, left)
            total.addmm_(rows.flatten(0, 1).T, columns.flatten(0, 1))
            if self.bias is not None:
                sum_of(self.bias).add_(right.sum((0, 1)))


@dataclass(frozen=True)
class EmbeddingRows:
    """The rows of a table that a batch's samples have gradients in, each sample's own."""

    weight: torch.nn.Parameter
    owners: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """See :class:`Contribution`."""
        total = sum_of(self.weight)
        owners, tokens, rows = self.owners, self.tokens, self.rows
        if isinstance(kept, torch.Tensor):
            used = kept.to(owners.device)[owners]
            owners, tokens, rows = (kept.cumsum(0) - 1).to(owners)[owners[used]], tokens[used], rows[used]
        total.index_add_(0, tokens, rows.to(total.dtype) * factors.to(total)[owners, None])


@dataclass(frozen=True)
class Together:
    """Several contributions of one layer."""

    parts: Sequence[Contribution]

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """See :class:`Contribution`."""
        for part in self.parts:
            part.add_to_sums(factors, kept)
