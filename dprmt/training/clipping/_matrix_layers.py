"""Layers whose weight's gradient is a product of two factors: linear ones, and weights trained in a subspace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dprmt.training.clipping._contributions import Factors, PerSampleGradients, Together
from dprmt.training.clipping._formed_layers import FormedNorms
from dprmt.training.clipping._matrix_norms import MatrixNorms, sum_over_tokens
from dprmt.training.clipping._policy import Measured, NormPolicy, Samples, Use, joined
from dprmt.training.norms import LayerRecord, full_precision, tokens_in_the_middle, working_dtype
from dprmt.training.subspaces import ProjectedMatrix, Subspaces


@dataclass(frozen=True)
class LinearLayer:
    """Linear or Conv1D with a trainable weight; a trainable bias is treated together with it."""

    name: str
    module: nn.Module
    policy: NormPolicy

    @property
    def norms(self) -> MatrixNorms:
        """Of weight and bias."""
        sizes = tuple(self.module.weight.shape)
        d, p = sizes if type(self.module) is Conv1D else sizes[::-1]
        return MatrixNorms(self.name, self.policy, d, p, trained_bias(self.module) is not None)

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        return [self.norms.record()]

    def tokens(self, gradients: torch.Tensor) -> int:
        """See `Layer`."""
        return max(math.prod(gradients.shape[1:-1]), 1)

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return self.norms.terms(tokens)

    def measure(self, uses: Sequence[Use], step: int, samples: Samples) -> Measured:
        """See `Layer`."""
        weight, bias, inputs_first = self.module.weight, trained_bias(self.module), type(self.module) is Conv1D
        return self.norms.measure(Factors(weight, bias, inputs_first, *joined(uses)), step, samples)


@dataclass(frozen=True)
class ProjectedLayer:
    """Linear or Conv1D whose weight is trained in a subspace: the longer side of the gradient is multiplied by P.

    With output gradients G (B, T, p) and activations A (B, T, d), the gradient of a Linear's weight is GᵀA, p × d. If p
    is the longer side, Pᵀ(GᵀA) = (GP)ᵀA; if d is, Pᵀ(AᵀG) = (AP)ᵀG. So what is clipped has factors as well, the
    projected side and the other one, and m × n numbers are formed nowhere. Gram matrices are taken in float64: the
    factors are small, and their inner product cancels.
    """

    name: str
    module: nn.Module
    policy: NormPolicy
    subspaces: Subspaces

    @property
    def matrix(self) -> ProjectedMatrix:
        """Which side is projected, and to how many dimensions."""
        matrix = self.subspaces.layer(self.module.weight)
        assert matrix is not None  # this kind is chosen for weights of the subspaces
        return matrix

    @property
    def norms(self) -> MatrixNorms:
        """Of the projected gradient; singular vectors are of whole ones, which are m × n."""
        rows = self.matrix.m if self.subspaces.kind == "svd" else self.matrix.rank
        return MatrixNorms(self.name, self.policy, self.matrix.n, rows, gram=torch.float64)

    @property
    def bias_norms(self) -> FormedNorms:
        """Of the bias, which is not projected."""
        bias = trained_bias(self.module)
        return FormedNorms(self.name, {} if bias is None else {bias: "bias"}, self.policy)

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        return [self.norms.record(), *self.bias_norms.records(f"{self.name}.bias")]

    def tokens(self, gradients: torch.Tensor) -> int:
        """See `Layer`."""
        return max(math.prod(gradients.shape[1:-1]), 1)

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return max(self.norms.terms(tokens), self.bias_norms.terms())

    def measure(self, uses: Sequence[Use], step: int, samples: Samples) -> Measured:
        """See `Layer`."""
        self.subspaces.check_shapes()
        activations, gradients = joined(uses)
        short, projected = self._factors(activations, gradients)
        squared, weight = self.norms.measure(Factors(self.module.weight, None, False, short, projected), step, samples)
        bias = trained_bias(self.module)
        if bias is None:
            return squared, weight
        formed = PerSampleGradients({bias: sum_over_tokens(gradients)})
        return squared + self.bias_norms.squared(formed, step, samples), Together([weight, formed])

    def as_captured(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient of the weight in the coordinates in which this layer's are summed."""
        whole, projector = self.matrix.orient(gradient), self.subspaces.projector(self.module.weight)
        if projector is None:
            return whole
        dtype = working_dtype(whole)
        with full_precision(whole.device):
            return (projector.to(dtype).mT @ whole.to(dtype)).to(gradient.dtype)

    def _factors(self, activations: torch.Tensor, gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = working_dtype(activations, gradients)
        a, g = tokens_in_the_middle(activations, dtype), tokens_in_the_middle(gradients, dtype)
        rows, columns = (a, g) if type(self.module) is Conv1D else (g, a)
        long, short = (rows, columns) if self.matrix.axis == 0 else (columns, rows)
        projector = self.subspaces.projector(self.module.weight)
        if projector is None:
            return short, long
        with full_precision(long.device):
            return short, long @ projector.to(dtype)


def trained_bias(module: nn.Module) -> nn.Parameter | None:
    """The bias, if there is one that is trained."""
    bias = module.bias
    return bias if bias is not None and bias.requires_grad else None
