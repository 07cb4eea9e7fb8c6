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
from dprmt.training.clipping._plan import Layer, Measured, Plan, Samples
from dprmt.training.norms import Hutchinson, LayerRecord, embedding_squared_norms


@dataclass(frozen=True)
class EmbeddingLayer:
    """An embedding table. Its exact norm needs no more memory than the output gradients: it is not estimated.

    Unless everything is: then Hutchinson's probes multiply the output gradients, and rows are added by token.
    """

    name: str
    module: nn.Embedding
    plan: Plan

    @property
    def _estimator(self) -> Hutchinson | None:
        estimator = self.plan.estimator
        return estimator if self.plan.estimate_all and isinstance(estimator, Hutchinson) else None

    def records(self) -> list[LayerRecord]:
        """See :class:`Layer`."""
        if self._estimator is None:
            return [LayerRecord(self.name, "exact")]
        rows, columns = self.module.num_embeddings, self.module.embedding_dim
        return [self._estimator.layer_record(self.name, rows, columns, tokens=self.plan.tokens)]

    def terms(self, tokens: int) -> int:
        """See :class:`Layer`."""
        return tokens + self.module.embedding_dim

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
    plan: Plan
    sampler: GradSampler = field(repr=False)

    def records(self) -> list[LayerRecord]:
        """See :class:`Layer`."""
        if not (self.plan.estimate_all and isinstance(self.plan.estimator, Hutchinson)):
            return [LayerRecord(self.name, "exact")]
        return [
            self.plan.estimator.layer_record(f"{self.name}.{name}", 1, parameter.numel())
            for name, parameter in self.module.named_parameters(recurse=False)
            if parameter.requires_grad
        ]

    def terms(self, tokens: int) -> int:
        """See :class:`Layer`."""
        return max(parameter.numel() for parameter in self.module.parameters(recurse=False)) if self._estimates else 1

    @property
    def _estimates(self) -> bool:
        return self.plan.estimate_all and self.plan.estimator is not None

    def measure(
        self, activations: Sequence[torch.Tensor], gradients: torch.Tensor, step: int, samples: Samples
    ) -> Measured:
        """See :class:`Layer`."""
        formed = PerSampleGradients(self.sampler(self.module, list(activations), gradients))
        if not self._estimates or self.plan.estimator is None:
            return formed.squared_norms(), formed
        names = {parameter: name for name, parameter in self.module.named_parameters(recurse=False)}
        norms = []
        for parameter, value in formed.values.items():
            row = value.reshape(len(value), 1, -1)
            norms.append(
                self.plan.estimator.squared_norms(
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
    modules: Mapping[str, nn.Module], plan: Plan, samplers: Mapping[type[nn.Module], GradSampler]
) -> list[Layer]:
    """How each module's norms are obtained.

    Parameters
    ----------
    modules : mapping of str to Module
        The trainable ones.
    plan : Plan
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
        If everything is to be estimated by something else than Hutchinson.
    """
    if plan.estimate_all and not isinstance(plan.estimator, Hutchinson):
        raise ParameterError("estimate_all", True, "False unless norms are Hutchinson's: only they earn a finite rank")
    return [_plan_layer(name, module, plan, samplers[type(module)]) for name, module in modules.items()]


def _plan_layer(name: str, module: nn.Module, plan: Plan, sampler: GradSampler) -> Layer:
    if isinstance(module, nn.Embedding):
        return EmbeddingLayer(name, module, plan)
    if isinstance(module, (nn.Linear, Conv1D)):
        if not module.weight.requires_grad:
            return SmallLayer(name, module, plan, _bias_alone)
        sizes = tuple(module.weight.shape)
        d, p = sizes if isinstance(module, Conv1D) else sizes[::-1]
        return LinearLayer(name, module, plan, d, p)
    return SmallLayer(name, module, plan, sampler)
