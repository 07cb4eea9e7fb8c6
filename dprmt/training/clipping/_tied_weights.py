"""One table that several layers use: input embeddings and the head of a language model, or encoder and decoder.

Each layer measures its own part of the table's gradient. A sample's gradient is the sum of these parts. So its squared
norm is the sum of their squared norms and of twice their inner products. These are formed from what the layers keep
for the sum: rows by token for an embedding, inputs and output gradients for a head. With R a row for token v, and A
and G of the head, ⟨R, GᵀA⟩ = Σ_t G_tv ⟨R, A_t⟩: nothing as large as a table is formed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import nn

from dprmt.training.clipping._embedding_layer import EmbeddingRows
from dprmt.training.clipping._formed_layers import PerSampleGradients
from dprmt.training.clipping._matrix_layers import Factors
from dprmt.training.clipping._policy import Contribution
from dprmt.training.clipping._trainable_modules import embedding_scale
from dprmt.training.norms import token_factors

_PARTS = (EmbeddingRows, Factors, PerSampleGradients)


def tied_tables(modules: Iterable[nn.Module]) -> set[nn.Parameter]:
    """Return tables whose parts can be added: the weight of embeddings, and of at most one linear layer."""
    users = defaultdict(list)
    for module in modules:
        if embedding_scale(module) is not None or type(module) is nn.Linear:
            users[module.weight].append(type(module))
    return {weight for weight, kinds in users.items() if len(kinds) > 1 and kinds.count(nn.Linear) < 2}


def add_inner_products(
    squared: torch.Tensor, contributions: Sequence[Contribution], tied: Collection[nn.Parameter], *, rounding: float
) -> torch.Tensor:
    """Compute squared norms over all layers from the single layers' norms.

    ``rounding``: ρ of the norms. If parts cancel, ρ applies to the parts, so 2ρ of the sum of squares is added.
    """
    found = torch.zeros_like(squared, dtype=torch.float64)
    for weight in tied:
        parts = [part for part in contributions if isinstance(part, _PARTS) and weight in set(_weights(part))]
        for one, other in itertools.combinations(parts, 2):
            found += _inner_products(one, other, weight, len(squared)).to(found)
    return (squared * (1.0 + 2.0 * rounding) + 2.0 * found).clamp(min=0.0)


def _weights(part: EmbeddingRows | Factors | PerSampleGradients) -> Collection[nn.Parameter]:
    return part.values if isinstance(part, PerSampleGradients) else (part.weight,)


def _inner_products(one: object, other: object, weight: nn.Parameter, size: int) -> torch.Tensor:
    if not isinstance(one, EmbeddingRows):
        one, other = other, one
    assert isinstance(one, EmbeddingRows)  # there is one layer of another kind at most
    rows = one.rows.double()
    if isinstance(other, EmbeddingRows):
        mine, others = _matching(one, other)
        products = rows.new_zeros(len(rows)).index_copy_(0, mine, (rows[mine] * other.rows[others].double()).sum(1))
    elif isinstance(other, Factors):
        products = _with_factors(one, rows, other)
    else:
        assert isinstance(other, PerSampleGradients)
        products = (rows * other.values[weight][one.owners, one.tokens].double()).sum(1)
    return torch.zeros(size, dtype=torch.float64, device=rows.device).index_add_(0, one.owners, products)


def _matching(one: EmbeddingRows, other: EmbeddingRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the places, in both, of rows of the same sample and token."""
    width = len(one.weight)
    keys = torch.cat([part.owners * width + part.tokens for part in (one, other)])
    ordered, order = keys.sort(stable=True)
    twice = (ordered[1:] == ordered[:-1]).nonzero().flatten()  # in each of them a key comes once
    return order[twice], order[twice + 1] - len(one.owners)


def _with_factors(one: EmbeddingRows, rows: torch.Tensor, head: Factors) -> torch.Tensor:
    """Compute Σ_t G_tv ⟨R, A_t⟩ of each row, sample by sample."""
    a, g = token_factors(activations=head.activations, gradients=head.gradients)
    products = rows.new_zeros(len(rows))
    for sample in one.owners.unique().tolist():
        own = one.owners == sample
        products[own] = ((rows[own] @ a[sample].double().T) * g[sample][:, one.tokens[own]].double().T).sum(1)
    return products
