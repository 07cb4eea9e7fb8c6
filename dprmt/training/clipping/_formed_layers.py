"""Layers whose per-sample gradients are formed, and embedding tables, whose rows are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from dprmt.training.clipping._contributions import EmbeddingRows, PerSampleGradients
from dprmt.training.clipping._per_sample_gradients import GradSampler
from dprmt.training.clipping._policy import Measured, NormPolicy, Samples, Use, joined
from dprmt.training.norms import EmbeddingNormEstimator, LayerRecord, embedding_rows


class FormedNorms:
    """Norms of formed gradients: exact; if everything is estimated, each parameter's is a matrix of one row."""

    def __init__(self, name: str, parameters: Mapping[nn.Parameter, str], policy: NormPolicy) -> None:
        self.parameters = parameters
        self._names = {parameter: f"{name}.{inside}" for parameter, inside in parameters.items()}
        self._estimator = policy.estimator if policy.estimate_all else None

    def records(self, exact_name: str) -> list[LayerRecord]:
        """One for each parameter, or one for all if they are exact."""
        if self._estimator is None:
            return [LayerRecord(exact_name, "exact")] if self.parameters else []
        return [self._estimator.layer_record(name, 1, value.numel()) for value, name in self._names.items()]

    def terms(self) -> int:
        """The longest chain of additions."""
        if self._estimator is None:
            return 1
        return max((self._estimator.terms(1, 1, value.numel()) for value in self.parameters), default=1)

    def squared(self, formed: PerSampleGradients, step: int, samples: Samples) -> torch.Tensor:
        """Squared norms over all parameters, shape (B,), float64."""
        if self._estimator is None:
            return formed.squared_norms()
        norms = []
        for parameter, value in formed.values.items():
            row = value.reshape(len(value), 1, -1)
            layer, one = self._names[parameter], torch.ones_like(row[..., :1])
            norms.append(self._estimator.squared_norms(one, row, layer=layer, step=step, samples=samples))
        return torch.stack(norms).sum(0)


class FormedLayer:
    """Normalizations, convolutions, a bias alone, layers of somebody else: by a sampler of per-sample gradients."""

    per_token = False

    def __init__(
        self, name: str, module: nn.Module, policy: NormPolicy, sampler: GradSampler, *, whole: bool = False
    ) -> None:
        self.name, self.module, self._sampler = name, module, sampler
        trained = {p: inside for inside, p in module.named_parameters(recurse=whole) if p.requires_grad}
        self.norms = FormedNorms(name, trained, policy)

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        return self.norms.records(self.name)

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return self.norms.terms()

    def measure(self, uses: Sequence[Use], step: int, samples: Samples) -> Measured:
        """See `Layer`."""
        totals: dict[nn.Parameter, torch.Tensor] = {}
        for inputs, gradients in uses:
            for parameter, value in self._sampler(self.module, list(inputs), gradients).items():
                totals[parameter] = value if parameter not in totals else totals[parameter] + value
        formed = PerSampleGradients(totals)
        return self.norms.squared(formed, step, samples), formed


class WholeModule(FormedLayer):
    """A module whose parts cannot be followed one by one: by the gradients of every sample's copy of its parameters.

    A use has a parameter in place of inputs, and its gradients.
    """

    def __init__(self, name: str, module: nn.Module, policy: NormPolicy) -> None:
        super().__init__(name, module, policy, _as_they_are, whole=True)


def _as_they_are(
    module: nn.Module, inputs: Sequence[torch.Tensor], gradients: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    (parameter,) = inputs
    return {parameter: gradients}


class EmbeddingLayer:
    """An embedding table: the rows that were looked up are formed, in the memory of the output gradients.

    If everything is estimated, Hutchinson's probes multiply the output gradients, and rows are added by token.
    """

    per_token = True

    def __init__(self, name: str, module: nn.Embedding, policy: NormPolicy) -> None:
        self.name, self.module, self._tokens = name, module, policy.tokens
        estimator = policy.estimator if policy.estimate_all else None
        self._estimator = estimator if isinstance(estimator, EmbeddingNormEstimator) else None

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        if self._estimator is None:
            return [LayerRecord(self.name, "exact")]
        rows, columns = self.module.num_embeddings, self.module.embedding_dim
        return [self._estimator.layer_record(self.name, rows, columns, tokens=self._tokens)]

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
