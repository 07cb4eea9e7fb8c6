"""Layers whose weight's gradient is a product of two factors: linear ones, and weights trained in a subspace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dprmt.training.clipping._formed_layers import FormedLayer, PerSampleGradients, bias_alone
from dprmt.training.clipping._optimizer import add_product, sum_dtype, sum_of
from dprmt.training.clipping._policy import Measured, NormPolicy, Rows, Samples, Use
from dprmt.training.norms import (
    LayerRecord,
    cancellation_allowance,
    exact_squared_norms,
    full_precision,
    ghost_squared_norms,
    gram_entries,
    is_conv1d,
    layer_record,
    token_factors,
)
from dprmt.training.subspaces import Subspaces

_SKETCHED = 16
UNKNOWN_TERMS = 65_000  # additions per entry assumed by margins if the number of tokens is unknown


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
        """Form every sample's product."""
        a, g = token_factors(activations=self.activations, gradients=self.gradients)
        left, right = (a, g) if self.inputs_first else (g, a)
        with full_precision(a.device):
            values = {self.weight: left.transpose(1, 2) @ right}
        return PerSampleGradients(values if self.bias is None else values | {self.bias: g.sum(1)})

    def sketched(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Sum the samples' products with `sketch_columns`, in few operations."""
        a, g = token_factors(activations=self.activations, gradients=self.gradients)
        left, right = (value.flatten(0, 1) for value in ((a, g) if self.inputs_first else (g, a)))
        with full_precision(g.device):
            yield self.weight, left.T @ (right @ sketch_columns(right.shape[1], right.dtype).to(right.device))
            if self.bias is not None:
                columns = sketch_columns(g.shape[-1], g.dtype).to(g.device)
                yield self.bias, g.flatten(0, 1).sum(0, keepdim=True) @ columns

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """See `Contribution`."""
        both = token_factors(activations=self.activations[kept], gradients=self.gradients[kept])
        a, g = (factor.to(sum_dtype(self.weight)) for factor in both)
        g = g * factors.to(g)[:, None, None]
        left, right = (a, g) if self.inputs_first else (g, a)
        with full_precision(g.device):
            add_product(self.weight, left.flatten(0, 1).T, right.flatten(0, 1))
            if self.bias is not None:
                sum_of(self.bias).add_(g.sum((0, 1)))


def sketch_columns(width: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw N(0, 1/16) columns of the gradients' width, the same in every call."""
    if width <= _SKETCHED:
        return torch.eye(width, dtype=dtype)
    generator = torch.Generator().manual_seed(width)
    return torch.randn(width, _SKETCHED, generator=generator, dtype=dtype).div_(_SKETCHED**0.5)


class FactoredLayer:
    """A weight whose per-sample gradient is AᵀG, d × p: how its norm is obtained is decided by the shape alone."""

    per_token = True

    def __init__(
        self,
        name: str,
        module: nn.Module,
        policy: NormPolicy,
        sizes: tuple[int, int],
        *,
        bias: nn.Parameter | None = None,
        inputs_first: bool = False,
        gram: torch.dtype = torch.float32,
    ) -> None:
        self.name, self.module = name, module
        self._policy, self._sizes, self._bias, self._inputs_first = policy, sizes, bias, inputs_first
        self._gram = gram  # the least precise dtype of Gram matrices
        self._estimator = policy.estimates(*sizes)  # None if the norm is exact
        self._terms = sum(sizes) + 1 + (policy.tokens or UNKNOWN_TERMS)

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        if self._estimator is None:
            return [LayerRecord(self.name)]
        with_bias, tokens = self._bias is not None, self._policy.tokens
        return [layer_record(self._estimator, self.name, *self._sizes, bias=with_bias, tokens=tokens)]

    def terms(self, tokens: int) -> int:
        """See `Layer`; of products that are formed, to be summed later in another order, only the tokens are added."""
        if self._estimator is not None:
            return self._estimator.terms(tokens, *self._sizes)
        return tokens + 1 if self._policy.form else tokens + sum(self._sizes) + 1

    def measure(self, uses: Sequence[Use], step: int, samples: Samples, units: Rows | None = None) -> Measured:
        """Measure estimated norms, norms of formed gradients, or norms by Gram matrices with an allowance for tokens
        that cancel.
        """
        (a, *_), g = uses[0]
        own = None if self._bias is None else self.module.bias  # whole, where the planned one is a shard
        factors, bias = Factors(self.module.weight, own, self._inputs_first, a, g), own is not None
        present = math.prod(g.shape[1:-1])
        tokens = self._policy.tokens or present  # public if given: not the batch's padding
        if self._estimator is not None:
            named = {"layer": self.name, "step": step, "samples": samples}
            squared = self._estimator.squared_norms(a, g, bias=bias, **named)  # type: ignore[arg-type]
        elif self.takes_gram_matrices(tokens):
            own, other = token_factors(activations=a, gradients=g)
            dtype = torch.promote_types(own.dtype, self._gram)
            squared = ghost_squared_norms(own.to(dtype), other.to(dtype), bias=bias)
        elif self.keeps_formed(present):
            formed = factors.formed()
            return formed.squared_norms(), [formed]
        else:
            squared = exact_squared_norms(a, g, bias=bias, memory_budget=self._policy.memory_budget)
        both = torch.promote_types(a.dtype, g.dtype) == sum_dtype(self.module.weight) == torch.float64
        dtype = torch.float64 if both else torch.float32  # the less precise one of norm's and sum's
        return squared + cancellation_allowance(a, g, terms=self._terms, bias=bias, dtype=dtype), [factors]

    def takes_gram_matrices(self, tokens: int) -> bool:
        """True if (d + p) products an entry of a Gram matrix are fewer than T·d·p; twice as expensive in float64.

        A gradient that is kept as it was formed costs nothing, as it takes the place of the sum's own product.
        """
        if self._policy.form or self.keeps_formed(tokens):
            return False
        price = 2 if self._gram == torch.float64 and self.module.weight.dtype != torch.float64 else 1
        return price * gram_entries(tokens) * sum(self._sizes) < tokens * math.prod(self._sizes)

    def keeps_formed(self, tokens: int) -> bool:
        """Return whether gradients are no larger than their factors: then they are formed, and kept in their place."""
        return math.prod(self._sizes) <= tokens * sum(self._sizes)


class LinearLayer(FactoredLayer):
    """Linear or Conv1D with a trainable weight; a trainable bias is treated together with it."""

    def __init__(self, name: str, module: nn.Module, policy: NormPolicy) -> None:
        inputs_first = is_conv1d(module)
        d, p = module.weight.shape if inputs_first else module.weight.shape[::-1]
        super().__init__(name, module, policy, (d, p), bias=_trained_bias(module), inputs_first=inputs_first)


class ProjectedLayer(FactoredLayer):
    """Linear or Conv1D whose weight is trained in a subspace: the longer side of the gradient is multiplied by P.

    With output gradients G (B, T, p) and activations A (B, T, d), the gradient of a Linear's weight is GᵀA, p × d. If p
    is the longer side, Pᵀ(GᵀA) = (GP)ᵀA; if d is, Pᵀ(AᵀG) = (AP)ᵀG. So what is clipped has factors as well, the other
    side and the projected one, and m × n numbers are formed nowhere. Gram matrices are taken in float64: the
    factors are small, and their inner product cancels. Singular vectors are of whole gradients, which are m × n.
    """

    def __init__(self, name: str, module: nn.Module, policy: NormPolicy, subspaces: Subspaces) -> None:
        matrix, bias = subspaces.layer(module.weight), _trained_bias(module)
        assert matrix is not None  # this kind is chosen for weights of the subspaces
        rows = matrix.m if subspaces.kind == "svd" else matrix.rank
        super().__init__(name, module, policy, (matrix.n, rows), gram=torch.float64)
        self._subspaces, self._matrix, apart = subspaces, matrix, f"{name}.bias"
        self._projects_inputs = (matrix.axis == 0) == (is_conv1d(module))
        self._bias_layer = None if bias is None else FormedLayer(apart, module, {apart: bias}, policy, bias_alone)

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        return super().records() + ([] if self._bias_layer is None else self._bias_layer.records())

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return max(super().terms(tokens), 1 if self._bias_layer is None else self._bias_layer.terms(tokens))

    def measure(self, uses: Sequence[Use], step: int, samples: Samples, units: Rows | None = None) -> Measured:
        """See `Layer`."""
        self._subspaces.check_shapes(self.module.weight)
        inputs, gradients = uses[0]
        a, g = token_factors(activations=inputs[0], gradients=gradients)
        long, short = (a, g) if self._projects_inputs else (g, a)
        projector = self._subspaces.projector(self.module.weight)
        if projector is not None:
            with full_precision(long.device):
                long = long @ projector.to(long.dtype)
        squared, weight = super().measure([([short], long)], step, samples)
        if self._bias_layer is None:
            return squared, weight
        of_bias, bias = self._bias_layer.measure(uses, step, samples)
        return squared + of_bias, weight + bias


def _trained_bias(module: nn.Module) -> nn.Parameter | None:
    bias = module.bias
    return bias if bias is not None and bias.requires_grad else None
