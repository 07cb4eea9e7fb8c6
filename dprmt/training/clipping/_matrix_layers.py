"""Layers whose weight's gradient is a product of two factors: linear ones, and weights trained in a subspace."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dprmt.training.clipping._contributions import Factors, PerSampleGradients, Together
from dprmt.training.clipping._formed_layers import FormedNorms
from dprmt.training.clipping._matrix_norms import MatrixNorms, sum_over_tokens
from dprmt.training.clipping._policy import Measured, NormPolicy, Samples, Use, joined
from dprmt.training.norms import LayerRecord, full_precision, token_factors
from dprmt.training.subspaces import Subspaces


class LinearLayer:
    """Linear or Conv1D with a trainable weight; a trainable bias is treated together with it."""

    per_token = True

    def __init__(self, name: str, module: nn.Module, policy: NormPolicy) -> None:
        self.name, self.module = name, module
        self._bias, self._inputs_first = _trained_bias(module), type(module) is Conv1D
        d, p = module.weight.shape if self._inputs_first else module.weight.shape[::-1]
        self._norms = MatrixNorms(name, policy, d, p, bias=self._bias is not None)

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        return [self._norms.record()]

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return self._norms.terms(tokens)

    def measure(self, uses: Sequence[Use], step: int, samples: Samples) -> Measured:
        """See `Layer`."""
        factors = Factors(self.module.weight, self._bias, self._inputs_first, *joined(uses))
        return self._norms.measure(factors, step, samples)


class ProjectedLayer:
    """Linear or Conv1D whose weight is trained in a subspace: the longer side of the gradient is multiplied by P.

    With output gradients G (B, T, p) and activations A (B, T, d), the gradient of a Linear's weight is GᵀA, p × d. If p
    is the longer side, Pᵀ(GᵀA) = (GP)ᵀA; if d is, Pᵀ(AᵀG) = (AP)ᵀG. So what is clipped has factors as well, the
    projected side and the other one, and m × n numbers are formed nowhere. Gram matrices are taken in float64: the
    factors are small, and their inner product cancels. Singular vectors are of whole gradients, which are m × n.
    """

    per_token = True

    def __init__(self, name: str, module: nn.Module, policy: NormPolicy, subspaces: Subspaces) -> None:
        self.name, self.module, self._subspaces = name, module, subspaces
        matrix, self._bias = subspaces.layer(module.weight), _trained_bias(module)
        assert matrix is not None  # this kind is chosen for weights of the subspaces
        self._matrix = matrix
        self._projects_inputs = (matrix.axis == 0) == (type(module) is Conv1D)
        rows = matrix.m if subspaces.kind == "svd" else matrix.rank
        self._norms = MatrixNorms(name, policy, matrix.n, rows, gram=torch.float64)
        self._bias_norms = FormedNorms(name, {} if self._bias is None else {self._bias: "bias"}, policy)

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        return [self._norms.record(), *self._bias_norms.records(f"{self.name}.bias")]

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return max(self._norms.terms(tokens), self._bias_norms.terms())

    def measure(self, uses: Sequence[Use], step: int, samples: Samples) -> Measured:
        """See `Layer`."""
        self._subspaces.check_shapes()
        activations, gradients = joined(uses)
        short, projected = self._factors(activations, gradients)
        squared, weight = self._norms.measure(Factors(self.module.weight, None, False, short, projected), step, samples)
        if self._bias is None:
            return squared, weight
        formed = PerSampleGradients({self._bias: sum_over_tokens(gradients)})
        return squared + self._bias_norms.squared(formed, step, samples), Together([weight, formed])

    def as_captured(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient of the weight in the coordinates in which this layer's are summed."""
        whole, projector = self._matrix.orient(gradient), self._subspaces.projector(self.module.weight)
        if projector is None:
            return whole
        dtype = torch.promote_types(whole.dtype, torch.float32)
        with full_precision(whole.device):
            return (projector.to(dtype).mT @ whole.to(dtype)).to(gradient.dtype)

    def _factors(self, activations: torch.Tensor, gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, g = token_factors(activations=activations, gradients=gradients)
        long, short = (a, g) if self._projects_inputs else (g, a)
        projector = self._subspaces.projector(self.module.weight)
        if projector is None:
            return short, long
        with full_precision(long.device):
            return short, long @ projector.to(long.dtype)


def _trained_bias(module: nn.Module) -> nn.Parameter | None:
    bias = module.bias
    return bias if bias is not None and bias.requires_grad else None
