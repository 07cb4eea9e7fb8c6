"""Layers whose per-sample gradients are formed, and embedding tables, whose rows are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from dprmt.training.clipping._contributions import EmbeddingRows, PerSampleGradients
from dprmt.training.clipping._per_sample_gradients import GradSampler
from dprmt.training.clipping._policy import Measured, NormPolicy, Samples, Use, joined
from dprmt.training.norms import EmbeddingNormEstimator, LayerRecord, embedding_rows


@dataclass(frozen=True)
class FormedNorms:
    """Norms of formed gradients: exact; if everything is estimated, each parameter's is a matrix of one row."""

    name: str
    parameters: Mapping[nn.Parameter, str]
    policy: NormPolicy

    def records(self, exact_name: str) -> list[LayerRecord]:
        """One for each parameter, or one for all if they are exact."""
        estimator = self.policy.estimator if self.policy.estimate_all else None
        if estimator is None:
            return [LayerRecord(exact_name, "exact")] if self.parameters else []
        sizes = {f"{self.name}.{name}": parameter.numel() for parameter, name in self.parameters.items()}
        return [estimator.layer_record(name, 1, size) for name, size in sizes.items()]

    def terms(self) -> int:
        """The longest chain of additions."""
        estimator = self.policy.estimator if self.policy.estimate_all else None
        if estimator is None:
            return 1
        return max((estimator.terms(1, 1, parameter.numel()) for parameter in self.parameters), default=1)

    def squared(self, formed: PerSampleGradients, step: int, samples: Samples) -> torch.Tensor:
        """Squared norms over all parameters, shape (B,), float64."""
        estimator = self.policy.estimator if self.policy.estimate_all else None
        if estimator is None:
            return formed.squared_norms()
        norms = []
        for parameter, value in formed.values.items():
            row = value.reshape(len(value), 1, -1)
            layer = f"{self.name}.{self.parameters[parameter]}"
            one = torch.ones_like(row[..., :1])
            norms.append(estimator.squared_norms(one, row, layer=layer, step=step, samples=samples))
        return torch.stack(norms).sum(0)


@dataclass(frozen=True)
class FormedLayer:
    """Normalizations, convolutions, a bias alone, layers of somebody else: by a sampler of per-sample gradients."""

    name: str
    module: nn.Module
    policy: NormPolicy
    sampler: GradSampler = field(repr=False)

    @property
    def norms(self) -> FormedNorms:
        """Of the module's own parameters."""
        own = {value: name for name, value in self.module.named_parameters(recurse=False) if value.requires_grad}
        return FormedNorms(self.name, own, self.policy)

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        return self.norms.records(self.name)

    def tokens(self, gradients: torch.Tensor) -> int:
        """See `Layer`."""
        return 1

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return self.norms.terms()

    def measure(self, uses: Sequence[Use], step: int, samples: Samples) -> Measured:
        """See `Layer`."""
        totals: dict[nn.Parameter, torch.Tensor] = {}
        for inputs, gradients in uses:
            for parameter, value in self.sampler(self.module, list(inputs), gradients).items():
                totals[parameter] = value if parameter not in totals else totals[parameter] + value
        formed = PerSampleGradients(totals)
        return self.norms.squared(formed, step, samples), formed


@dataclass(frozen=True)
class WholeModule:
    """A module whose parts cannot be followed one by one: by the gradients of every sample's copy of its parameters."""

    name: str
    module: nn.Module
    policy: NormPolicy

    @property
    def norms(self) -> FormedNorms:
        """Of all the module's parameters."""
        trained = {value: name for name, value in self.module.named_parameters() if value.requires_grad}
        return FormedNorms(self.name, trained, self.policy)

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        return self.norms.records(self.name)

    def tokens(self, gradients: torch.Tensor) -> int:
        """See `Layer`."""
        return 1

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return self.norms.terms()

    def measure(self, uses: Sequence[Use], step: int, samples: Samples) -> Measured:
        """See `Layer`; a use has a parameter in place of inputs."""
        totals: dict[nn.Parameter, torch.Tensor] = {}
        for (parameter,), gradients in uses:
            totals[parameter] = gradients if parameter not in totals else totals[parameter] + gradients
        formed = PerSampleGradients(totals)
        return self.norms.squared(formed, step, samples), formed


@dataclass(frozen=True)
class EmbeddingLayer:
    """An embedding table: the rows that were looked up are formed, in the memory of the output gradients.

    If everything is estimated, Hutchinson's probes multiply the output gradients, and rows are added by token.
    """

    name: str
    module: nn.Embedding
    policy: NormPolicy

    @property
    def _estimator(self) -> EmbeddingNormEstimator | None:
        estimator = self.policy.estimator
        return estimator if self.policy.estimate_all and isinstance(estimator, EmbeddingNormEstimator) else None

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        if self._estimator is None:
            return [LayerRecord(self.name, "exact")]
        rows, columns = self.module.num_embeddings, self.module.embedding_dim
        return [self._estimator.layer_record(self.name, rows, columns, tokens=self.policy.tokens)]

    def tokens(self, gradients: torch.Tensor) -> int:
        """See `Layer`."""
        return max(math.prod(gradients.shape[1:-1]), 1)

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return 1 if self._estimator is None else self._estimator.terms(tokens, 1, self.module.embedding_dim)

    def measure(self, uses: Sequence[Use], step: int, samples: Samples) -> Measured:
        """See `Layer`."""
        tokens, gradients = joined(uses)
        padding = self.module.padding_idx
        owners, words, rows = embedding_rows(tokens, gradients, padding_idx=padding)
        contribution = EmbeddingRows(self.module.weight, owners, words, rows)
        if self._estimator is None:
            squares = torch.zeros(len(tokens), dtype=torch.float64, device=rows.device)
            return squares.index_add_(0, owners, rows.double().square().sum(1)), contribution
        norms = self._estimator.embedding_squared_norms(
            tokens, gradients, layer=self.name, step=step, samples=samples, padding_idx=padding
        )
        return norms, contribution
