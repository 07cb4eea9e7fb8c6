"""Norms of per-sample matrices AᵀG: estimated, by Gram matrices of tokens, or of gradients that are formed."""

from __future__ import annotations

import math

import torch

from dprmt.training.clipping._contributions import Factors, PerSampleGradients
from dprmt.training.clipping._policy import Measured, NormPolicy, Samples
from dprmt.training.norms import (
    UNIT_ROUNDOFF,
    LayerRecord,
    full_precision,
    ghost_squared_norms,
    layer_gradient,
    rounding_margin,
    token_factors,
)


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
        """See `Layer`."""
        a, g = factors.activations, factors.gradients
        if self._estimator is not None:
            named = {"layer": self._name, "step": step, "samples": samples}
            return self._estimator.squared_norms(a, g, bias=self._bias, **named), factors  # type: ignore[arg-type]
        tokens = self._policy.tokens or math.prod(g.shape[1:-1])  # public if given: not the batch's padding
        if self._policy.form or math.prod(self._sizes) <= 2 * tokens**2:
            formed = _formed(factors)
            return formed.squared_norms(), formed
        a, g = (
            factor.to(torch.promote_types(factor.dtype, self._gram))
            for factor in token_factors(activations=a, gradients=g)
        )
        return ghost_squared_norms(a, g, bias=self._bias) + self._allowance(a, g), factors

    def _allowance(self, a: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        # What rounding of the Gram matrices may have taken from ghost norms, which are differences of squares: an entry
        # of AAᵀ∘GGᵀ is off by at most (d+p+3)u‖a_t‖‖a_s‖‖g_t‖‖g_s‖. As in the "statistical" model of rounding_margin
        # with independent errors, the sum over all t and s, every pair counted twice, is off by
        # 8√2 √(d+p+3) u Σ_t ‖a_t‖²‖g_t‖² at eight standard deviations.
        margin = self._margins[a.dtype, torch.get_float32_matmul_precision()]
        lengths = a.square().sum(2, dtype=torch.float64) + self._bias
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
    (per_token,) = token_factors(gradients=gradients)
    return per_token.sum(1)
