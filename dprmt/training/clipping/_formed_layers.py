"""Layers whose per-sample gradients are formed, by samplers of Opacus' or functorch.

Opacus' sampler for LayerNorm fails without a bias. Its class dictionaries are left as they are.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from torch import nn
from torch.nn import functional

from dprmt.training.clipping._optimizer import sum_of
from dprmt.training.clipping._policy import Measured, NormPolicy, Rows, Samples, Use
from dprmt.training.norms import LayerRecord, full_precision, layer_record, sum_of_squares, token_factors

Gradients = Mapping[nn.Parameter, torch.Tensor]
GradSampler = Callable[[nn.Module, Sequence[torch.Tensor], torch.Tensor], Gradients]
"""A function of module, inputs and output gradients."""


@dataclass(frozen=True)
class PerSampleGradients:
    """Gradients that were formed, each of shape (B, *sum)."""

    values: Gradients

    def squared_norms(self) -> torch.Tensor:
        """Exact ones, of what is stored: shape (B,), float64."""
        return torch.stack([sum_of_squares(value) for value in self.values.values()]).sum(0)

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """See `Contribution`."""
        for parameter, value in self.values.items():
            total = sum_of(parameter, value.shape[1:])
            with full_precision(total.device):
                matrix = value[kept][..., None].flatten(1).to(total.dtype)  # a scalar's gradients have one axis
                total += (factors.to(matrix) @ matrix).view_as(total)


@dataclass(frozen=True)
class FormedAgain:
    """Gradients formed twice, of a few samples at a time: for their norms, and by the same calls for the sum."""

    form: Callable[[slice], PerSampleGradients]
    parts: Sequence[slice]

    def squared_norms(self) -> torch.Tensor:
        """Exact ones: shape (B,), float64."""
        return torch.cat([self.form(part).squared_norms() for part in self.parts])

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """See `Contribution`."""
        if isinstance(kept, slice):
            counts: list[int] = [part.stop - part.start for part in self.parts]
            masks: list[torch.Tensor | slice] = [slice(None)] * len(counts)
        else:
            counts, masks = [int(kept[part].sum()) for part in self.parts], [kept[part] for part in self.parts]
        for part, own, mask in zip(self.parts, factors.split(counts), masks, strict=True):
            if len(own):
                self.form(part).add_to_sums(own, mask)


class FormedLayer:
    """Normalizations, convolutions, a bias alone, layers of somebody else.

    Norms are exact. If everything is estimated, each parameter's gradient is a matrix of one row; ``parameters`` are
    by the names under which they are then recorded. Exact norms of gradients that exceed both the memory budget and the
    layer's inputs and output gradients are of a few samples at a time.
    """

    per_token = False

    def __init__(
        self,
        name: str,
        module: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        policy: NormPolicy,
        sampler: GradSampler,
    ) -> None:
        self.name, self.module, self._sampler = name, module, sampler
        self._names = {parameter: own for own, parameter in parameters.items() if parameter.requires_grad}
        self._estimator, self._budget = policy.everything, sys.maxsize if policy.sharded else policy.memory_budget

    def records(self) -> list[LayerRecord]:
        """See `Layer`."""
        if self._estimator is None:
            return [LayerRecord(self.name)]
        return [layer_record(self._estimator, name, 1, value.numel()) for value, name in self._names.items()]

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return max(1 if self._estimator is None else self._estimator.terms(1, 1, p.numel()) for p in self._names)

    def measure(self, uses: Sequence[Use], step: int, samples: Samples, units: Rows | None = None) -> Measured:
        """See `Layer`."""
        if units is None and self._estimator is None and (few := self._few_samples(uses)) < len(uses[0][1]):
            again = FormedAgain(partial(self._formed, uses), _parts(len(uses[0][1]), few))
            return again.squared_norms(), [again]
        totals: Gradients = self._formed(uses).values
        if units is not None:
            totals = {parameter: units.summed(value) for parameter, value in totals.items()}
        formed = PerSampleGradients(totals)
        squared = formed.squared_norms() if self._estimator is None else self._estimates(totals, step, samples)
        return squared, [formed]

    def _formed(self, uses: Sequence[Use], part: slice = slice(None)) -> PerSampleGradients:
        totals: dict[nn.Parameter, torch.Tensor] = {}
        for inputs, gradients in uses:
            own = list(inputs) if part == slice(None) else [value[part] for value in inputs]
            for parameter, value in self._sampler(self.module, own, gradients[part]).items():
                totals[parameter] = value if parameter not in totals else totals[parameter] + value
        return PerSampleGradients(totals)

    def _few_samples(self, uses: Sequence[Use]) -> int:
        """How many samples' gradients are formed at once: all, unless they take more than may be kept."""
        each = sum(parameter.numel() * max(parameter.itemsize, 4) for parameter in self._names)
        stored = sum(value.nbytes for inputs, gradients in uses for value in (*inputs, gradients))
        size = len(uses[0][1])
        return size if size * each <= max(self._budget, stored) else max(1, self._budget // each)

    def _estimates(self, gradients: Gradients, step: int, samples: Samples) -> torch.Tensor:
        assert self._estimator is not None
        norms = []
        for parameter, value in gradients.items():
            row = value.reshape(len(value), 1, -1)
            layer, one = self._names[parameter], torch.ones_like(row[..., :1])
            norms.append(self._estimator.squared_norms(one, row, layer=layer, step=step, samples=samples))
        return torch.stack(norms).sum(0)


class WholeModule(FormedLayer):
    """A module whose parts cannot be followed one by one: by the gradients of every sample's copy of its parameters.

    A use has a parameter in place of inputs, and its gradients.
    """

    def __init__(self, name: str, module: nn.Module, policy: NormPolicy) -> None:
        parameters = {f"{name}.{inside}": parameter for inside, parameter in module.named_parameters()}
        super().__init__(name, module, parameters, policy, _as_they_are)

    def _few_samples(self, uses: Sequence[Use]) -> int:
        return len(uses[0][1])  # formed already, by the backward pass


def formed_layer(name: str, module: nn.Module, policy: NormPolicy) -> FormedLayer:
    """By Opacus' sampler for the type of the module, or functorch."""
    sampler = GradSampleModule.GRAD_SAMPLERS.get(type(module), _by_functorch)
    parameters = {f"{name}.{inside}": parameter for inside, parameter in module.named_parameters(recurse=False)}
    return FormedLayer(name, module, parameters, policy, _layer_norm if type(module) is nn.LayerNorm else sampler)


def bias_alone(module: nn.Module, inputs: Sequence[torch.Tensor], gradients: torch.Tensor) -> Gradients:
    """A sampler: a linear layer's bias, in float32 or float64."""
    (per_token,) = token_factors(gradients=gradients)
    return {module.bias: per_token.sum(1)}


def _parts(size: int, few: int) -> list[slice]:
    return [slice(first, min(first + few, size)) for first in range(0, size, few)]


def _as_they_are(module: nn.Module, inputs: Sequence[torch.Tensor], gradients: torch.Tensor) -> Gradients:
    (parameter,) = inputs
    return {parameter: gradients}


def _by_functorch(module: nn.Module, inputs: Sequence[torch.Tensor], gradients: torch.Tensor) -> Gradients:
    values = ft_compute_per_sample_gradient(module, inputs, gradients)
    return {parameter: value for parameter, value in values.items() if parameter.requires_grad}


def _layer_norm(module: nn.Module, inputs: Sequence[torch.Tensor], gradients: torch.Tensor) -> Gradients:
    shape = (len(gradients), -1, math.prod(module.normalized_shape))
    values = {}
    if module.weight.requires_grad:
        normalized = functional.layer_norm(inputs[0], module.normalized_shape, eps=module.eps)
        values[module.weight] = (normalized * gradients).reshape(shape).sum(1)
    if module.bias is not None and module.bias.requires_grad:
        values[module.bias] = gradients.reshape(shape).sum(1)
    return {parameter: value.view(-1, *parameter.shape) for parameter, value in values.items()}
