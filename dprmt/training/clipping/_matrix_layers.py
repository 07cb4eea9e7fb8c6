"""Layers whose weight's gradient is a product of two factors: linear ones, and weights trained in a subspace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import nn

from dprmt._validation import ParameterError, check_choice
from dprmt.accounting import Hutchinson, HutchPlusPlus, Norms
from dprmt.training.clipping._formed_layers import (
    UNKNOWN_TOKENS,
    Contribution,
    FormedLayer,
    Layer,
    Measured,
    NormPolicy,
    PerSampleGradients,
    Samples,
    WholeModule,
    bias_alone,
)
from dprmt.training.clipping._modules import Kind, Trained
from dprmt.training.clipping._optimizer import add_product, sum_dtype, sum_of
from dprmt.training.clipping._units import UnitRows, Use
from dprmt.training.norms import (
    HutchinsonEstimator,
    HutchPlusPlusEstimator,
    LayerRecord,
    NormEstimator,
    ProbeGenerator,
    exact_squared_norms,
    ghost_squared_norms,
)
from dprmt.training.norms._clipping import as_tokens, cancellation_allowance, full_precision, sum_of_squares
from dprmt.training.norms._estimators import layer_record
from dprmt.training.norms._exact import embedding_rows, gram_entries
from dprmt.training.recipes import NORMS, NormsRecipe
from dprmt.training.recipes._choices import EXACT_NORMS
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
        """Form every sample's product."""
        a, g = as_tokens(self.activations, self.gradients)
        left, right = (a, g) if self.inputs_first else (g, a)
        with full_precision(a.device):
            values = {self.weight: left.transpose(1, 2) @ right}
        return PerSampleGradients(values if self.bias is None else values | {self.bias: g.sum(1)})

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """See `Contribution`."""
        both = as_tokens(self.activations[kept], self.gradients[kept])
        a, g = (factor.to(sum_dtype(self.weight)) for factor in both)
        g = g * factors.to(g)[:, None, None]
        left, right = (a, g) if self.inputs_first else (g, a)
        with full_precision(g.device):
            add_product(self.weight, left.flatten(0, 1).T, right.flatten(0, 1))
            if self.bias is not None:
                sum_of(self.bias).add_(g.sum((0, 1)))


class LinearLayer:
    """Linear or Conv1D with a trainable weight, whose gradients are AᵀG, d × p; a trainable bias is treated with it.

    How the norm is obtained is decided by the shape alone. ``sizes``: d and p, if factors are not inputs and output
    gradients; then the bias is left out. ``gram``: the least precise dtype of Gram matrices.
    """

    per_token = True

    def __init__(
        self,
        name: str,
        module: nn.Module,
        policy: NormPolicy,
        sizes: tuple[int, int] | None = None,
        gram: torch.dtype = torch.float32,
    ) -> None:
        self.name, self.module, self._policy, self._gram = name, module, policy, gram
        self._inputs_first = sizes is None and not isinstance(module, nn.Linear)  # Conv1D
        self._has_bias = sizes is None and module.bias is not None and module.bias.requires_grad
        self._sizes = d, p = sizes or tuple(module.weight.shape if self._inputs_first else module.weight.shape[::-1])
        self._terms = d + p + 1 + (policy.tokens or UNKNOWN_TOKENS)
        self._estimator, self.records = policy.estimator, [LayerRecord(name)]
        if self._estimator is not None and not (policy.everything or self._estimator.is_cheaper(d, p)):
            self._estimator = None
        if self._estimator is not None:
            self.records = [layer_record(self._estimator, name, d, p, bias=self._has_bias, tokens=policy.tokens)]

    def terms(self, tokens: int) -> int:
        """See `Layer`; of products that are formed, to be summed later in another order, only the tokens are added."""
        if self._estimator is not None:
            return self._estimator.terms(tokens, *self._sizes)
        return tokens + 1 if self._policy.form else tokens + sum(self._sizes) + 1

    def measure(self, uses: Sequence[Use], step: int, samples: Samples, units: UnitRows | None = None) -> Measured:
        """Measure estimated norms, norms of formed gradients, or norms by Gram matrices with an allowance for tokens
        that cancel.

        Gram matrices are taken if (d + p) products an entry are fewer than T·d·p; they are twice as expensive in
        float64. A gradient no larger than its factors is formed and kept instead of them. That costs nothing, because
        the sum needs no other product.
        """
        (a, *_), g = uses[0]
        (d, p), bias, weight = self._sizes, self._has_bias, self.module.weight
        factors = Factors(weight, self.module.bias if bias else None, self._inputs_first, a, g)
        present = math.prod(g.shape[1:-1])
        tokens = self._policy.tokens or present  # public if given: not the batch's padding
        enough = d * p / (d + p)  # tokens with which factors are as large as the gradient
        price = 2 if self._gram == torch.float64 and weight.dtype != torch.float64 else 1
        if self._estimator is not None:
            named = {"layer": self.name, "step": step, "samples": samples}
            squared = self._estimator.squared_norms(a, g, bias=bias, **named)  # type: ignore[arg-type]
        elif not self._policy.form and tokens < enough and price * gram_entries(tokens) < tokens * enough:
            own, other = as_tokens(a, g)
            dtype = torch.promote_types(own.dtype, self._gram)
            squared = ghost_squared_norms(own.to(dtype), other.to(dtype), bias=bias)
        elif present >= enough:
            formed = factors.formed()
            return formed.squared_norms(), [formed]
        else:
            squared = exact_squared_norms(a, g, bias=bias, memory_budget=self._policy.memory_budget)
        both = torch.promote_types(a.dtype, g.dtype) == sum_dtype(weight) == torch.float64
        dtype = torch.float64 if both else torch.float32  # the less precise one of norm's and sum's
        return squared + cancellation_allowance(a, g, terms=self._terms, bias=bias, dtype=dtype), [factors]


class ProjectedLayer(LinearLayer):
    """Linear or Conv1D whose weight is trained in a subspace: the longer side of the gradient is multiplied by P.

    With output gradients G (B, T, p) and activations A (B, T, d), the gradient of a Linear's weight is GᵀA, p × d. If p
    is the longer side, Pᵀ(GᵀA) = (GP)ᵀA; if d is, Pᵀ(AᵀG) = (AP)ᵀG. So what is clipped has factors as well, the other
    side and the projected one, and m × n numbers are formed nowhere. Gram matrices are taken in float64: the
    factors are small, and their inner product cancels. Singular vectors are of whole gradients, which are m × n.
    """

    def __init__(self, name: str, module: nn.Module, policy: NormPolicy, subspaces: Subspaces) -> None:
        matrix, bias = subspaces.layer(module.weight), module.bias
        assert matrix is not None  # this kind is chosen for weights of the subspaces
        rows = matrix.m if subspaces.kind == "svd" else matrix.rank
        super().__init__(name, module, policy, (matrix.n, rows), gram=torch.float64)
        self._subspaces, apart = subspaces, f"{name}.bias"
        self._projects_inputs = (matrix.axis == 1) == isinstance(module, nn.Linear)
        self._bias_layer: FormedLayer | None = None
        if bias is not None and bias.requires_grad:
            self._bias_layer = FormedLayer(apart, module, policy, {apart: bias}, bias_alone)
            self.records += self._bias_layer.records

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return max(super().terms(tokens), 1 if self._bias_layer is None else self._bias_layer.terms(tokens))

    def measure(self, uses: Sequence[Use], step: int, samples: Samples, units: UnitRows | None = None) -> Measured:
        """See `Layer`."""
        self._subspaces.check_shapes(self.module.weight)
        inputs, gradients = uses[0]
        a, g = as_tokens(inputs[0], gradients)
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


# Embedding tables: the rows that were looked up are formed, in the memory of the output gradients.


@dataclass(frozen=True)
class EmbeddingRows:
    """The rows of a table that a batch's samples have gradients in, each sample's own."""

    weight: torch.nn.Parameter
    owners: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """See `Contribution`."""
        total = sum_of(self.weight)
        owners, tokens, rows = self.owners, self.tokens, self.rows
        if isinstance(kept, torch.Tensor):
            used = kept.to(owners.device)[owners]
            owners, tokens, rows = (kept.cumsum(0) - 1).to(owners)[owners[used]], tokens[used], rows[used]
        total.index_add_(0, tokens, rows.to(total.dtype) * factors.to(total)[owners, None])


class EmbeddingLayer:
    """If everything is estimated, Hutchinson's probes multiply the output gradients, and rows are added by token."""

    per_token = True

    def __init__(self, name: str, module: nn.Embedding, policy: NormPolicy) -> None:
        self.name, self.module = name, module
        self._scale = 1.0 if type(module) is nn.Embedding else float(module.embed_scale)
        self._estimator, self.records = policy.everything, [LayerRecord(name)]
        if self._estimator is not None:
            sizes = module.num_embeddings, module.embedding_dim
            self.records = [layer_record(self._estimator, name, *sizes, tokens=policy.tokens)]

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return 1 if self._estimator is None else self._estimator.terms(tokens, 1, self.module.embedding_dim)

    def measure(self, uses: Sequence[Use], step: int, samples: Samples, units: UnitRows | None = None) -> Measured:
        """See `Layer`."""
        (tokens, *_), gradients = uses[0]
        if self._scale != 1.0:
            gradients = gradients * self._scale
        padding = self.module.padding_idx
        owners, words, rows = embedding_rows(tokens, gradients, padding_idx=padding)
        contribution = EmbeddingRows(self.module.weight, owners, words, rows)
        if self._estimator is None:
            squares = torch.zeros(len(tokens), dtype=torch.float64, device=rows.device)
            return squares.index_add_(0, owners, sum_of_squares(rows)), [contribution]
        squared = self._estimator.embedding_squared_norms(
            owners, rows, len(tokens), layer=self.name, step=step, samples=samples
        )
        return squared, [contribution]


# One table that several layers use: input embeddings and the head of a language model, or encoder and decoder.
#
# Each layer measures its own part of the table's gradient. A sample's gradient is the sum of these parts. So its
# squared norm is the sum of their squared norms and of twice their inner products. These are formed from what the
# layers keep for the sum: rows by token for an embedding, inputs and output gradients for a head. With R a row for
# token v, and A and G of the head, ⟨R, GᵀA⟩ = Σ_t G_tv ⟨R, A_t⟩: nothing as large as a table is formed.


def add_inner_products(
    squared: torch.Tensor, contributions: Sequence[Contribution], tied: Collection[nn.Parameter], *, rounding: float
) -> torch.Tensor:
    """Compute squared norms over all layers from the single layers' norms.

    ``rounding``: ρ of the norms. If parts cancel, ρ applies to the parts, so 2ρ of the sum of squares is added.
    """
    found = torch.zeros_like(squared, dtype=torch.float64)
    for weight in tied:
        tables = [part for part in contributions if isinstance(part, EmbeddingRows) and part.weight is weight]
        heads: list[Contribution] = [
            part
            for part in contributions
            if (isinstance(part, Factors) and part.weight is weight)
            or (isinstance(part, PerSampleGradients) and weight in part.values)
        ]
        for place, one in enumerate(tables):
            for other in (*tables[place + 1 :], *heads):  # there is one head at most
                found.index_add_(0, one.owners.to(found.device), _row_products(one, other).to(found))
    return (squared * (1.0 + 2.0 * rounding) + 2.0 * found).clamp(min=0.0)


def _row_products(one: EmbeddingRows, other: Contribution) -> torch.Tensor:
    """Compute the inner product of each row with the row of the same sample and token in the other part."""
    rows = one.rows.double()
    if isinstance(other, PerSampleGradients):
        return (rows * other.values[one.weight][one.owners, one.tokens].double()).sum(1)
    products = rows.new_zeros(len(rows))
    if isinstance(other, EmbeddingRows):
        mine, others = _matching(one, other)
        return products.index_copy_(0, mine, (rows[mine] * other.rows[others].double()).sum(1))
    assert isinstance(other, Factors)
    a, g = as_tokens(other.activations, other.gradients)
    for sample in one.owners.unique().tolist():
        own = one.owners == sample
        products[own] = ((rows[own] @ a[sample].double().T) * g[sample][:, one.tokens[own]].double().T).sum(1)
    return products


def _matching(one: EmbeddingRows, other: EmbeddingRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the places, in both, of rows of the same sample and token."""
    width = len(one.weight)
    keys = torch.cat([part.owners * width + part.tokens for part in (one, other)])
    ordered, order = keys.sort(stable=True)
    twice = (ordered[1:] == ordered[:-1]).nonzero().flatten()  # in each of them a key comes once
    return order[twice], order[twice + 1] - len(one.owners)


# Which kind of layer a module is, and the estimator that is wanted: decided by types and by what is asked for.

NormsWanted: TypeAlias = str | Norms | NormsRecipe | NormEstimator
"""Names are "exact", "ghost", "hutchinson" and "hutch++", with secret probes, and registered ones."""


def wanted_estimator(norms: NormsWanted, generator: ProbeGenerator | None) -> NormEstimator | None:
    """Return the estimator, with a new secret unless probes come from a ``generator``; None for exact norms."""
    if isinstance(norms, NormEstimator):
        return norms
    if getattr(norms, "kind", norms) in EXACT_NORMS:
        return None
    generator = ProbeGenerator() if generator is None else generator
    if isinstance(norms, Hutchinson):
        if norms.analysis != "tight":
            allowed = "of the tight analysis, in training: the accountant takes the smaller answer of both"
            raise ParameterError("norms", norms, allowed)
        everything = norms.rank is not None
        return HutchinsonEstimator(norms.probes, secret=norms.secret, everything=everything, generator=generator)
    if isinstance(norms, HutchPlusPlus):
        own = {"power_iteration": norms.power_iteration, "secret": norms.secret}
        return HutchPlusPlusEstimator(norms.probes, norms.sketch, generator=generator, **own)
    if isinstance(norms, str):
        norms = NormsRecipe(kind=check_choice("norms", norms, tuple(NORMS)))
    if not isinstance(norms, NormsRecipe):
        words = ", ".join(map(repr, NORMS))
        raise ParameterError(
            "norms", norms, f"one of {words}, a value such as Hutchinson(32, secret=False), or a NormEstimator"
        )
    options = {"sketch": norms.sketch, "power_iteration": norms.power_iteration} if norms.kind == "hutch++" else {}
    make = NORMS.load(norms.kind)
    estimator: NormEstimator = make(probes=norms.probes, secret=norms.secret, generator=generator, **options)
    return estimator


def plan_layers(modules: Mapping[str, Trained], policy: NormPolicy, subspaces: Subspaces | None = None) -> list[Layer]:
    """Choose how each trainable module's norms are computed."""
    uses = Counter(value for module, _ in modules.values() for value in module.parameters() if value.requires_grad)
    layers = []
    for name, (module, kind) in modules.items():
        weight = None if kind == "whole" else getattr(module, "weight", None)
        if uses[weight] < 2:
            layers.append(_layer(name, module, kind, policy, subspaces))
            continue
        # An estimate of one part and another of the other have no law together.
        if policy.everything is not None:
            allowed = f"without a rank: the norm of {name}.weight, which several layers share, is exact"
            raise ParameterError("norms", policy.everything.norms, allowed)
        if subspaces is not None and weight in subspaces:
            raise ParameterError("subspaces", f"{name}.weight", "of weights that no other layer shares")
        layers.append(_layer(name, module, kind, replace(policy, estimator=None), None))
    return layers


def _layer(name: str, module: nn.Module, kind: Kind, policy: NormPolicy, subspaces: Subspaces | None) -> Layer:
    if kind == "whole":
        for inside, parameter in module.named_parameters():
            if subspaces is not None and parameter in subspaces:
                what = f"left out inside {type(module).__name__}, which hooks cannot follow, or train without DP-GRAPE"
                raise ParameterError("rank", f"{name}.{inside}", what)
        return WholeModule(name, module, policy)
    if kind == "embedding":
        return EmbeddingLayer(name, module, policy)
    if kind == "formed":
        return FormedLayer(name, module, policy)
    if not module.weight.requires_grad:
        return FormedLayer(name, module, policy, formula=bias_alone)
    if subspaces is not None and module.weight in subspaces:
        return ProjectedLayer(name, module, policy, subspaces)
    return LinearLayer(name, module, policy)
