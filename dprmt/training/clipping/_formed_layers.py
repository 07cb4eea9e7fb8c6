"""Layers whose per-sample gradients are formed: convolutions, normalizations, lone biases, layers of any other kind.

Gradients are formed in float32 at least, by operations that read tensors by their indices: how inputs and output
gradients lie in memory makes no difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
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
        """Compute exact norms of the stored gradients: shape (B,), float64."""
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
        """Compute exact norms: shape (B,), float64."""
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
    """Normalizations, convolutions, single biases, and custom layers.

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
        """Return how many samples' gradients are formed in one block: all, unless they exceed the memory budget."""
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
    """A module whose layers cannot be followed, by the gradients of every sample's copy of its parameters.

    A use has a parameter, instead of inputs, and its gradients.
    """

    def __init__(self, name: str, module: nn.Module, policy: NormPolicy) -> None:
        parameters = {f"{name}.{inside}": parameter for inside, parameter in module.named_parameters()}
        super().__init__(name, module, parameters, policy, _as_they_are)

    def _few_samples(self, uses: Sequence[Use]) -> int:
        return len(uses[0][1])  # formed already, by the backward pass


def formed_layer(name: str, module: nn.Module, policy: NormPolicy) -> FormedLayer:
    """Choose a formula for the type of the module, or else run it on each sample again."""
    sampler = _GRADIENT_FORMULAS.get(type(module), _by_running_again)
    parameters = {f"{name}.{inside}": parameter for inside, parameter in module.named_parameters(recurse=False)}
    return FormedLayer(name, module, parameters, policy, partial(_in_float32_at_least, sampler))


def bias_alone(module: nn.Module, inputs: Sequence[torch.Tensor], gradients: torch.Tensor) -> Gradients:
    """Return a sampler: a linear layer's bias, in float32 or float64."""
    (per_token,) = token_factors(gradients=gradients)
    return {module.bias: per_token.sum(1)}


def _parts(size: int, few: int) -> list[slice]:
    return [slice(first, min(first + few, size)) for first in range(0, size, few)]


def _as_they_are(module: nn.Module, inputs: Sequence[torch.Tensor], gradients: torch.Tensor) -> Gradients:
    (parameter,) = inputs
    return {parameter: gradients}


# Samplers of modules with one floating input: by name of the parameter, the trainable ones' gradients.
_GradientFormula = Callable[[nn.Module, torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor]]


def _in_float32_at_least(
    sampler: _GradientFormula, module: nn.Module, inputs: Sequence[torch.Tensor], gradients: torch.Tensor
) -> Gradients:
    dtype = torch.promote_types(torch.promote_types(inputs[0].dtype, gradients.dtype), torch.float32)
    x = inputs[0].to(dtype) if inputs[0].is_floating_point() else inputs[0]
    with full_precision(gradients.device):
        values = sampler(module, x, gradients.to(dtype))
    return {getattr(module, name): value for name, value in values.items() if getattr(module, name).requires_grad}


def _convolution(module: nn.Module, x: torch.Tensor, gradients: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Form gradients of Conv1d, 2d and 3d: products of output gradients and the windows of the input."""
    if any(module._reversed_padding_repeated_twice):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x = functional.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    for axis, (size, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True), start=2
    ):
        x = x.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    batch, places = len(x), gradients.shape[2:]
    windows = x.movedim(tuple(range(2, 2 + len(places))), tuple(range(-len(places), 0)))
    windows = windows.reshape(batch, module.groups, -1, places.numel())
    outputs = gradients.reshape(batch, module.groups, -1, places.numel())
    weight = (outputs @ windows.transpose(2, 3)).reshape(batch, *module.weight.shape)
    return {"weight": weight} if module.bias is None else {"weight": weight, "bias": gradients.flatten(2).sum(2)}


def _normalization(module: nn.Module, x: torch.Tensor, gradients: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Sum output gradients, and their products with the normalized input, over all axes that the parameters lack."""
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        norm = functional.layer_norm if isinstance(module, nn.LayerNorm) else functional.rms_norm
        normalized, shape = norm(x, module.normalized_shape, eps=module.eps), module.normalized_shape
        products = {"weight": (normalized * gradients).reshape(len(x), -1, *shape).sum(1)}
        if getattr(module, "bias", None) is not None:
            products["bias"] = gradients.reshape(len(x), -1, *shape).sum(1)
        return products
    groups = module.num_groups if isinstance(module, nn.GroupNorm) else module.num_features
    normalized = functional.group_norm(x, groups, eps=module.eps)
    return {"weight": (normalized * gradients).flatten(2).sum(2), "bias": gradients.flatten(2).sum(2)}


def _by_running_again(module: nn.Module, x: torch.Tensor, gradients: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Run the forward pass of a module with one input and no parts again, mapped over the samples."""
    bare = _WithoutHooks(module)
    parameters = {
        f"module.{name}": value.detach().to(gradients.dtype) for name, value in module.named_parameters(recurse=False)
    }

    def product(values: Mapping[str, torch.Tensor], row: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return (functional_call(bare, dict(values), (row[None],)) * gradient[None]).sum()

    found = vmap(grad(product), in_dims=(None, 0, 0))(parameters, x, gradients)
    return {name.removeprefix("module."): value for name, value in found.items()}


class _WithoutHooks(nn.Module):  # type: ignore[misc]  # torch is skipped by mypy
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module.forward(x)


_GRADIENT_FORMULAS: dict[type[nn.Module], _GradientFormula] = {
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm, nn.GroupNorm), _normalization),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _normalization),
}
