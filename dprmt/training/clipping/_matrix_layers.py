"""Layers whose weight's gradient is a product of two factors: linear ones, and weights trained in a subspace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dprmt.training.clipping._formed_layers import FormedLayer, PerSampleGradients, bias_alone
from dprmt.training.clipping._optimizer import sum_of
from dprmt.training.clipping._policy import Measured, NormPolicy, Samples, Use
from dprmt.training.norms import (
    UNIT_ROUNDOFF,
    LayerRecord,
    full_precision,
    ghost_squared_norms,
    rounding_margin,
    token_factors,
)
from dprmt.training.subspaces import Subspaces


@dataclass(frozen=True)
class Factors:
    """Activations and output gradients of a layer.

    ``weight``: whose sum is GᵀA (p × d), or AᵀG (d × p) if ``inputs_first``, as ``transformers``' ``Conv1D`` has it.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    inputs_first: bool
    activations: torch.Tensor
    gradients: torch.Tensor

    def formed(self) -> PerSampleGradients:
        """Every sample's product."""
        a, g = token_factors(activations=self.activations, gradients=self.gradients)
        left, right = (a, g) if self.inputs_first else (g, a)
        with full_precision(a.device):
            values = {self.weight: left.transpose(1, 2) @ right}
        return PerSampleGradients(values if self.bias is None else values | {self.bias: g.sum(1)})

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """See `Contribution`."""
        sizes = self.gradients.shape[-1], self.activations.shape[-1]
        total = sum_of(self.weight, sizes[::-1] if self.inputs_first else sizes)
        both = token_factors(activations=self.activations[kept], gradients=self.gradients[kept])
        a, g = (factor.to(total.dtype) for factor in both)
        g = g * factors.to(total)[:, None, None]
        left, right = (a, g) if self.inputs_first else (g, a)
        with full_precision(total.device):
            total.addmm_(left.flatten(0, 1).T, right.flatten(0, 1))
            if self.bias is not None:
                sum_of(self.bias).add_(g.sum((0, 1)))


class MatrixNorms:
    """How the norms of AᵀG, d × p for every sample, are obtained for one layer: by its shape alone."""

    def __init__(
        self,
        name: str,
        policy: NormPolicy,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        gram: torch.dtype = torch.float32,
    ) -> None:
        self._name, self._policy, self._bias, self._gram = name, policy, bias, gram
        self._sizes = in_features, out_features
        self._estimator = policy.estimates(*self._sizes)  # None if the norm is exact
        self._margins = {
            (dtype, products): rounding_margin(sum(self._sizes) + 1, dtype=dtype, precision=products)
            for dtype in (torch.float32, torch.float64)
            for products in UNIT_ROUNDOFF
        }

    def record(self) -> LayerRecord:
        """What the accountant is told."""
        if self._estimator is None:
            return LayerRecord(self._name, "exact")
        return self._estimator.layer_record(self._name, *self._sizes, bias=self._bias, tokens=self._policy.tokens)

    def terms(self, tokens: int) -> int:
        """The longest chain of additions; norms of what is stored have none."""
        if self._estimator is not None:
            return self._estimator.terms(tokens, *self._sizes)
        return 1 if self._policy.form else tokens + sum(self._sizes) + 1

    def measure(self, factors: Factors, step: int, samples: Samples) -> Measured:
        """Estimated, of gradients that are formed, or by Gram matrices of tokens."""
        a, g = factors.activations, factors.gradients
        if self._estimator is not None:
            named = {"layer": self._name, "step": step, "samples": samples}
            return self._estimator.squared_norms(a, g, bias=self._bias, **named), [factors]  # type: ignore[arg-type]
        tokens = self._policy.tokens or math.prod(g.shape[1:-1])  # public if given: not the batch's padding
        if self._policy.form or math.prod(self._sizes) <= 2 * tokens**2:
            formed = factors.formed()
            return formed.squared_norms(), [formed]
        return self._ghost(*token_factors(activations=a, gradients=g)), [factors]

    def _ghost(self, a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        # What rounding of the Gram matrices may have taken from ghost norms, which are differences of squares: an entry
        # of AAᵀ∘GGᵀ is off by at most (d+p+3)u‖a_t‖‖a_s‖‖g_t‖‖g_s‖. As in the "statistical" model of rounding_margin
        # with independent errors, the sum over all t and s, every pair counted twice, is off by
        # 8√2 √(d+p+3) u Σ_t ‖a_t‖²‖g_t‖² at eight standard deviations.
        dtype = torch.promote_types(a.dtype, self._gram)
        a, g = a.to(dtype), g.to(dtype)
        margin = self._margins[dtype, torch.get_float32_matmul_precision()]
        lengths = a.square().sum(2, dtype=torch.float64) + self._bias
        allowance = math.sqrt(2) * margin * (lengths * g.square().sum(2, dtype=torch.float64)).sum(1)
        return ghost_squared_norms(a, g, bias=self._bias) + allowance


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
        inputs, gradients = uses[0]
        factors = Factors(self.module.weight, self._bias, self._inputs_first, inputs[0], gradients)
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
        matrix, bias = subspaces.layer(module.weight), _trained_bias(module)
        assert matrix is not None  # this kind is chosen for weights of the subspaces
        self._matrix, apart = matrix, f"{name}.bias"
        self._projects_inputs = (matrix.axis == 0) == (type(module) is Conv1D)
        rows = matrix.m if subspaces.kind == "svd" else matrix.rank
        self._norms = MatrixNorms(name, policy, matrix.n, rows, gram=torch.float64)
        self._bias = None if bias is None else FormedLayer(apart, module, {apart: bias}, policy, bias_alone)

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        return [self._norms.record(), *([] if self._bias is None else self._bias.records())]

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return max(self._norms.terms(tokens), 1 if self._bias is None else self._bias.terms(tokens))

    def measure(self, uses: Sequence[Use], step: int, samples: Samples) -> Measured:
        """See `Layer`."""
        self._subspaces.check_shapes()
        short, projected = self._factors(*uses[0])
        squared, weight = self._norms.measure(Factors(self.module.weight, None, False, short, projected), step, samples)
        if self._bias is None:
            return squared, weight
        of_bias, bias = self._bias.measure(uses, step, samples)
        return squared + of_bias, weight + bias

    def as_captured(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient of the weight in the coordinates in which this layer's are summed."""
        whole, projector = self._matrix.orient(gradient), self._subspaces.projector(self.module.weight)
        if projector is None:
            return whole
        dtype = torch.promote_types(whole.dtype, torch.float32)
        with full_precision(whole.device):
            return (projector.to(dtype).mT @ whole.to(dtype)).to(gradient.dtype)

    def _factors(self, inputs: Sequence[torch.Tensor], gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, g = token_factors(activations=inputs[0], gradients=gradients)
        long, short = (a, g) if self._projects_inputs else (g, a)
        projector = self._subspaces.projector(self.module.weight)
        if projector is None:
            return short, long
        with full_precision(long.device):
            return short, long @ projector.to(long.dtype)


def _trained_bias(module: nn.Module) -> nn.Parameter | None:
    bias = module.bias
    return bias if bias is not None and bias.requires_grad else None
