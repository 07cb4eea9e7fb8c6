"""Embedding tables: the rows that were looked up are formed, in the memory of the output gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from dprmt.training.clipping._optimizer import sum_of
from dprmt.training.clipping._policy import Measured, NormPolicy, Rows, Samples, Use
from dprmt.training.clipping._trainable_modules import embedding_scale
from dprmt.training.norms import LayerRecord, embedding_rows, layer_record, sum_of_squares


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
        self.name, self.module, self._tokens = name, module, policy.tokens
        self._scale = embedding_scale(module)
        self._estimator = policy.everything

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        if self._estimator is None:
            return [LayerRecord(self.name)]
        rows, columns = self.module.num_embeddings, self.module.embedding_dim
        return [layer_record(self._estimator, self.name, rows, columns, tokens=self._tokens)]

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return 1 if self._estimator is None else self._estimator.terms(tokens, 1, self.module.embedding_dim)

    def measure(self, uses: Sequence[Use], step: int, samples: Samples, units: Rows | None = None) -> Measured:
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
        norms = self._estimator.embedding_squared_norms(
            tokens, gradients, layer=self.name, step=step, samples=samples, padding_idx=padding
        )
        return norms, [contribution]
