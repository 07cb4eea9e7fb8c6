"""How the norm of each trainable layer is obtained: decided by its type and shape, never by data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dprmt._validation import ParameterError
from dprmt.training.clipping._contributions import EmbeddingRows, PerSampleGradients
from dprmt.training.clipping._linear_layer import LinearLayer, sum_over_tokens
from dprmt.training.clipping._per_sample_gradients import GradSampler
from dprmt.training.clipping._policy import Layer, Measured, NormPolicy, Samples
from dprmt.training.norms import EmbeddingNormEstimator, LayerRecord, NormEstimator, embedding_squared_norms


@dataclass(frozen=True)
class EmbeddingLayer:
    """An embedding table. Its exact norm needs no more memory than the output gradients: it is not estimated.

    Unless everything is: then Hutchinson's probes multiply the output gradients, and rows are added by token.
    """

    name: str
    module: nn.Embedding
    policy: NormPolicy

    @property
    def _estimator(self) -> EmbeddingNormEstimator | None:
        estimator = self.policy.estimator
        return estimator if self.policy.estimate_all and isinstance(estimator, EmbeddingNormEstimator) else None

    def records(self) -> list[LayerRecord]:
        """See :class:`Layer`."""
        if self._estimator is None:
            return [LayerRecord(self.name, "exact")]
        rows, columns = self.module.num_embeddings, self.module.embedding_dim
        return [self._estimator.layer_record(self.name, rows, columns, tokens=self.policy.tokens)]

    def terms(self, tokens: int) -> int:
        """See :class:`Layer`."""
        if self._estimator is None:
            return tokens + self.module.embedding_dim
        return self._estimator.terms(tokens, 1, self.module.embedding_dim)

    def measure(
        self, activations: Sequence[torch.Tensor], gradients: torch.Tensor, step: int, samples: Samples
    ) -> Measured:
        """See :class:`Layer`."""
        tokens, padding = activations[0], self.module.padding_idx
        rows = EmbeddingRows(self.module.weight, padding, tokens, gradients)
        if self._estimator is None:
            return embedding_squared_norms(tokens, gradients, padding_idx=padding), rows
        norms = self._estimator.embedding_squared_norms(
            tokens, gradients, layer=self.name, step=step, samples=samples, padding_idx=padding
        )
        return norms, rows


@dataclass(frozen=True)
class SmallLayer:
    """A layer whose per-sample gradients are formed: normalizations, convolutions, a bias alone.

    If everything is estimated, each parameter's gradient is a matrix of one row, of rank one.
    """

    name: str
    module: nn.Module
    policy: NormPolicy
    sampler: GradSampler = field(repr=False)

    def records(self) -> list[LayerRecord]:
        """See :class:`Layer`."""
        if self._estimator is None:
            return [LayerRecord(self.name, "exact")]
        return [
            self._estimator.layer_record(f"{self.name}.{name}", 1, parameter.numel())
            for name, parameter in self.module.named_parameters(recurse=False)
            if parameter.requires_grad
        ]

    def terms(self, tokens: int) -> int:
        """See :class:`Layer`."""
        if self._estimator is None:
            return 1
        sizes = [parameter.numel() for parameter in self.module.parameters(recurse=False)]
        return max(self._estimator.terms(1, 1, size) for size in sizes)

    @property
    def _estimator(self) -> NormEstimator | None:
        return self.policy.estimator if self.policy.estimate_all else None

    def measure(
        self, activations: Sequence[torch.Tensor], gradients: torch.Tensor, step: int, samples: Samples
    ) -> Measured:
        """See :class:`Layer`."""
        formed = PerSampleGradients(self.sampler(self.module, list(activations), gradients))
        if self._estimator is None:
            return formed.squared_norms(), formed
        names = {parameter: name for name, parameter in self.module.named_parameters(recurse=False)}
        norms = []
        for parameter, value in formed.values.items():
            row = value.reshape(len(value), 1, -1)
            norms.append(
                self._estimator.squared_norms(
                    torch.ones_like(row[..., :1]),
                    row,
                    layer=f"{self.name}.{names[parameter]}",
                    step=step,
                    samples=samples,
                )
            )
        return torch.stack(norms).sum(0), formed


def _bias_alone(
    module: nn.Module, activations: Sequence[torch.Tensor], gradients: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    return {module.bias: sum_over_tokens(gradients)}


def plan_layers(
    modules: Mapping[str, nn.Module], policy: NormPolicy, samplers: Mapping[type[nn.Module], GradSampler]
) -> list[Layer]:
    """How each module's norms are obtained.

    Parameters
    ----------
    modules : mapping of str to Module
        The trainable ones.
    policy : NormPolicy
        The choice for all.
    samplers : mapping
        Per-sample gradients by type.

    Returns
    -------
    list of Layer
        One for every module.

    Raises
    ------
    ParameterError
        If everything is to be estimated by what cannot estimate embedding tables.
    """
    if policy.estimate_all and not isinstance(policy.estimator, EmbeddingNormEstimator):
        allowed = "False unless norms are Hutchinson's or of an estimator that can do embeddings as well"
        raise ParameterError("estimate_all", True, allowed)
    return [_plan_layer(name, module, policy, samplers[type(module)]) for name, module in modules.items()]


def _plan_layer(name: str, module: nn.Module, policy: NormPolicy, sampler: GradSampler) -> Layer:
    if isinstance(module, nn.Embedding):
        return EmbeddingLayer(name, module, policy)
    if isinstance(module, (nn.Linear, Conv1D)):
        if not module.weight.requires_grad:
            return SmallLayer(name, module, policy, _bias_alone)
        sizes = tuple(module.weight.shape)
        d, p = sizes if isinstance(module, Conv1D) else sizes[::-1]
        return LinearLayer(name, module, policy, d, p)
    return SmallLayer(name, module, policy, sampler)
