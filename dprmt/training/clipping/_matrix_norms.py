"""Norms of per-sample matrices AᵀG: estimated, by Gram matrices of tokens, or of gradients that are formed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dprmt.training.clipping._contributions import Factors, PerSampleGradients
from dprmt.training.clipping._policy import Measured, NormPolicy, Samples
from dprmt.training.norms import (
    LayerRecord,
    NormEstimator,
    full_precision,
    ghost_squared_norms,
    layer_gradient,
    rounding_margin,
    tokens_in_the_middle,
    working_dtype,
)


@dataclass(frozen=True)
class MatrixNorms:
    """How the norms of AᵀG, d × p for every sample, are obtained for one layer."""

    name: str
    policy: NormPolicy
    in_features: int
    out_features: int
    bias: bool = False
    gram: torch.dtype = torch.float32

    @property
    def estimator(self) -> NormEstimator | None:
        """None if the norm is exact."""
        return self.policy.estimates(self.in_features, self.out_features)

    def record(self) -> LayerRecord:
        """What the accountant is told."""
        if self.estimator is None:
            return LayerRecord(self.name, "exact")
        sizes = self.in_features, self.out_features
        return self.estimator.layer_record(self.name, *sizes, bias=self.bias, tokens=self.policy.tokens)

    def terms(self, tokens: int) -> int:
        """The longest chain of additions; norms of what is stored have none."""
        if self.estimator is not None:
            return self.estimator.terms(tokens, self.in_features, self.out_features)
        return 1 if self.policy.form else tokens + self.in_features + self.out_features + 1

    def measure(self, factors: Factors, step: int, samples: Samples) -> Measured:
        """See `Layer`."""
        a, g = factors.activations, factors.gradients
        if self.estimator is not None:
            norms = self.estimator.squared_norms(a, g, layer=self.name, step=step, samples=samples, bias=self.bias)
            return norms, factors
        tokens = self.policy.tokens or math.prod(g.shape[1:-1])  # public if given: not the batch's padding
        if self.policy.form or self.in_features * self.out_features <= 2 * tokens**2:
            formed = _formed(factors)
            return formed.squared_norms(), formed
        dtype = torch.promote_types(working_dtype(a, g), self.gram)
        a, g = tokens_in_the_middle(a, dtype), tokens_in_the_middle(g, dtype)
        return ghost_squared_norms(a, g, bias=self.bias) + self._allowance(a, g), factors

    def _allowance(self, a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        # What rounding of the Gram matrices may have taken from ghost norms, which are differences of squares: an entry
        # of AAᵀ∘GGᵀ is off by at most (d+p+3)u‖a_t‖‖a_s‖‖g_t‖‖g_s‖. As in the "statistical" model of rounding_margin
        # with independent errors, the sum over all t and s, every pair counted twice, is off by
        # 8√2 √(d+p+3) u Σ_t ‖a_t‖²‖g_t‖² at eight standard deviations.
        margin = rounding_margin(self.in_features + self.out_features + 1, dtype=a.dtype)
        lengths = a.square().sum(2, dtype=torch.float64) + self.bias
        return math.sqrt(2) * margin * (lengths * g.square().sum(2, dtype=torch.float64)).sum(1)


def _formed(factors: Factors) -> PerSampleGradients:
    side = "gradients" if factors.inputs_first else "activations"  # the weight is stored as AᵀG or GᵀA
    layer = layer_gradient(factors.activations, factors.gradients, side=side)  # type: ignore[arg-type]
    with full_precision(layer.left.device):
        values = {factors.weight: layer.left.transpose(1, 2) @ layer.right}
    if factors.bias is not None:
        values[factors.bias] = sum_over_tokens(factors.gradients)
    return PerSampleGradients(values)


def sum_over_tokens(gradients: torch.Tensor) -> torch.Tensor:
    """A bias' per-sample gradient, shape (B, p), in float32 or float64."""
    return tokens_in_the_middle(gradients, working_dtype(gradients)).sum(1)
