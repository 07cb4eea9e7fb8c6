"""Norms of linear layers: estimated, by Gram matrices of tokens, or of gradients that are formed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dprmt.training.clipping._contributions import LinearFactors, PerSampleGradients
from dprmt.training.clipping._policy import Measured, NormPolicy, Samples
from dprmt.training.norms import LayerRecord, NormEstimator, ghost_squared_norms, rounding_margin
from dprmt.training.norms._layer_gradient import full_precision, layer_gradient, tokens_in_the_middle, working_dtype


@dataclass(frozen=True)
class LinearLayer:
    """Linear or Conv1D with a trainable weight; a trainable bias is treated together with it."""

    name: str
    module: nn.Module
    policy: NormPolicy
    in_features: int
    out_features: int

    @property
    def bias(self) -> nn.Parameter | None:
        """The bias, if it is trained."""
        bias = self.module.bias
        return bias if bias is not None and bias.requires_grad else None

    @property
    def estimator(self) -> NormEstimator | None:
        """None if the norm is exact."""
        return self.policy.estimates(self.in_features, self.out_features)

    def records(self) -> list[LayerRecord]:
        """See :class:`Layer`."""
        if self.estimator is None:
            return [LayerRecord(self.name, "exact")]
        sizes = self.in_features, self.out_features
        biased = self.bias is not None
        return [self.estimator.layer_record(self.name, *sizes, bias=biased, tokens=self.policy.tokens)]

    def terms(self, tokens: int) -> int:
        """See :class:`Layer`."""
        if self.estimator is not None:
            return self.estimator.terms(tokens, self.in_features, self.out_features)
        return tokens + self.in_features + self.out_features + 1

    def measure(
        self, activations: Sequence[torch.Tensor], gradients: torch.Tensor, step: int, samples: Samples
    ) -> Measured:
        """See :class:`Layer`."""
        factors = LinearFactors(self.module.weight, self.bias, type(self.module) is Conv1D, activations[0], gradients)
        biased = self.bias is not None
        if self.estimator is not None:
            norms = self.estimator.squared_norms(
                activations[0], gradients, layer=self.name, step=step, samples=samples, bias=biased
            )
            return norms, factors
        tokens = self.policy.tokens or math.prod(gradients.shape[1:-1])  # public if given: not the batch's padding
        if self.in_features * self.out_features <= 2 * tokens**2:
            formed = self._formed(factors)
            return formed.squared_norms(), formed
        return ghost_squared_norms(activations[0], gradients, bias=biased) + self._allowance(factors), factors

    def _formed(self, factors: LinearFactors) -> PerSampleGradients:
        side = "gradients" if factors.inputs_first else "activations"  # the weight is stored as AᵀG or GᵀA
        layer = layer_gradient(factors.activations, factors.gradients, side=side)  # type: ignore[arg-type]
        with full_precision(layer.left.device):
            values = {factors.weight: layer.left.transpose(1, 2) @ layer.right}
        if factors.bias is not None:
            values[factors.bias] = sum_over_tokens(factors.gradients)
        return PerSampleGradients(values)

    def _allowance(self, factors: LinearFactors) -> torch.Tensor:
        """What rounding of the Gram matrices may have taken from ghost norms, which are differences of squares.

        An entry of AAᵀ∘GGᵀ is off by at most (d+p+3)u‖a_t‖‖a_s‖‖g_t‖‖g_s‖; as in the "statistical" model of
        ``rounding_margin`` with independent errors, the sum over all t and s, every pair counted twice, is off by
        8√2 √(d+p+3) u Σ_t ‖a_t‖²‖g_t‖² at eight standard deviations.

        Returns
        -------
        Tensor, shape (B,)
            Of the squared norm.
        """
        dtype = working_dtype(factors.activations, factors.gradients)
        margin = rounding_margin(self.in_features + self.out_features + 1, dtype=dtype)
        left, right = (tokens_in_the_middle(factor, dtype) for factor in (factors.activations, factors.gradients))
        lengths = left.square().sum(2, dtype=torch.float64) + (factors.bias is not None)
        return math.sqrt(2) * margin * (lengths * right.square().sum(2, dtype=torch.float64)).sum(1)


def sum_over_tokens(gradients: torch.Tensor) -> torch.Tensor:
    """A bias' per-sample gradient.

    Returns
    -------
    Tensor, shape (B, p)
        float32 or float64.
    """
    return tokens_in_the_middle(gradients, working_dtype(gradients)).sum(1)
