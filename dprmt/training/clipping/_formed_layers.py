"""Computation of norms in a whole model, and the interface of every kind of layer.

The norms of all layers must be known before anything can be summed. Until then each layer keeps what its norms were
computed from, and the weighted sum Σ_i c_i A_iᵀG_i is formed from exactly that ("book-keeping", Bu et al. 2023,
arXiv:2210.00038). There is no second backward pass, because no norm would account for its rounding, in bfloat16 for
the whole sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dprmt.training.clipping._modules import Body
from dprmt.training.clipping._optimizer import sum_of
from dprmt.training.clipping._units import UnitRows, Use, by_token
from dprmt.training.norms import LayerRecord, NormEstimator
from dprmt.training.norms._clipping import as_tokens, full_precision, sum_of_squares
from dprmt.training.norms._estimators import HutchinsonEstimator, layer_record
from dprmt.training.norms._exact import MEMORY_BUDGET
from dprmt.training.norms._probes import SampleId

UNKNOWN_TOKENS = 65_000
"""Additions per entry, assumed where the number of tokens is unknown: the default margin, 2⁻¹³ in float32, fits."""
Samples: TypeAlias = Sequence[SampleId] | torch.Tensor | None


@dataclass(frozen=True)
class NormPolicy:
    """Decisions for a whole model.

    ``form``: whether exact norms use formed gradients, even where Gram matrices are cheaper. ``memory_budget``:
    largest number of bytes formed of a layer in one block, in addition to what is kept. ``sharded``: whether
    parameters are whole only while their layer computes, so that nothing can be formed twice.
    """

    estimator: NormEstimator | None = None
    tokens: int | None = None
    form: bool = False
    memory_budget: int = MEMORY_BUDGET
    sharded: bool = False

    @property
    def everything(self) -> HutchinsonEstimator | None:
        """The estimator if layers whose exact norm is cheaper are estimated too, so that a finite rank is claimed."""
        estimator = self.estimator
        return estimator if isinstance(estimator, HutchinsonEstimator) and estimator.everything else None


class Contribution(Protocol):
    """A part of every sample's gradient."""

    def add_to_sums(self, factors: torch.Tensor, kept: torch.Tensor | slice) -> None:
        """Add Σ_i c_i g_i over the kept samples to the parameters' sums.

        ``kept``: the samples that count. The others may hold NaN, and 0·NaN is NaN: they are not touched.
        """


Measured: TypeAlias = tuple[torch.Tensor, list[Contribution]]


class Layer(Protocol):
    """A module with trainable parameters: how its gradients are normed, and summed once clip factors are known.

    A new kind of layer is a class with these members, a line in `_layer` of `_matrix_layers`, and a kind in `kind_of`.
    """

    name: str
    """Name of the module, by which its probes are drawn."""
    module: nn.Module
    per_token: bool
    """Whether samples have tokens, all axes between first and last, on which the rounding or the rank depends."""
    records: list[LayerRecord]
    """The records for the accountant."""

    def terms(self, tokens: int) -> int:
        """Return the longest chain of additions, see ``rounding_margin``, at T tokens: more of these, no fewer
        additions.
        """

    def measure(self, uses: Sequence[Use], step: int, samples: Samples, units: UnitRows | None = None) -> Measured:
        """Return squared norms, shape (B,) and float64, and what their weighted sum can be formed from.

        ``uses``: of a layer with tokens one only, see `joined`.
        ``units``: where several rows are one of the samples, and the layer has no tokens: whose gradients to add.
        """


def joined(uses: Sequence[Use]) -> Use:
    """Join inputs and output gradients of several uses along T, because a layer has one gradient."""
    activations, gradients = zip(*map(by_token, uses), strict=True)
    return [torch.cat(activations, 1)], torch.cat(gradients, 1)


def row_gradient(layer: Layer, uses: Sequence[Use] | None, row: int) -> dict[nn.Parameter, torch.Tensor]:
    """Compute the gradient of one row of the uses, as a step adds it with the clip factor 1; no sum is changed."""
    if not uses:
        return {}
    parts: list[Use] = []
    for inputs, g in uses:  # a module that is run whole has its parameter as input
        own = [x if isinstance(x, nn.Parameter) or len(x) != len(g) else x[row : row + 1] for x in inputs]
        parts.append((own, g[row : row + 1]))
    parameters = [value for value in layer.module.parameters() if value.requires_grad]
    sums = [getattr(value, "summed_grad", None) for value in parameters]
    try:
        for value in parameters:
            value.summed_grad = None
        _, contributions = layer.measure([joined(parts)] if layer.per_token and len(parts) > 1 else parts, 0, ["one"])
        for contribution in contributions:
            contribution.add_to_sums(torch.ones(1, device=parts[0][1].device), slice(None))
        sums_of_row = ((value, value.summed_grad) for value in parameters)
        return {value: total.as_subclass(torch.Tensor) for value, total in sums_of_row if total is not None}
    finally:
        for value, total in zip(parameters, sums, strict=True):
            value.summed_grad = total


# Layers whose per-sample gradients are formed: convolutions, normalizations, lone biases, layers of any other kind.
#
# Gradients are formed in float32 at least, by operations that read tensors by their indices: how inputs and output
# gradients lie in memory makes no difference.

Gradients = Mapping[nn.Parameter, torch.Tensor]
Formula = Callable[[nn.Module, torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor]]
"""From a module, its one input and its output gradients to samples' gradients, by name of the parameter."""


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

    Norms are exact. If everything is estimated, each parameter's gradient is a matrix of one row; ``parameters``, by
    default all of the module's own, are by the names under which they are then recorded. Exact norms of gradients that
    exceed both the memory budget and the layer's inputs and output gradients are of a few samples at a time.

    ``formula``: by default the one for the module's type, or else a run of the module for each sample.
    """

    per_token = False

    def __init__(
        self,
        name: str,
        module: nn.Module,
        policy: NormPolicy,
        parameters: Mapping[str, nn.Parameter] | None = None,
        formula: Formula | None = None,
    ) -> None:
        self.name, self.module = name, module
        self._formula = formula or _GRADIENT_FORMULAS.get(type(module), _by_running_again)
        if parameters is None:
            parameters = {f"{name}.{inside}": value for inside, value in module.named_parameters(recurse=False)}
        self._names = {parameter: own for own, parameter in parameters.items() if parameter.requires_grad}
        self._estimator, self._budget = policy.everything, sys.maxsize if policy.sharded else policy.memory_budget
        self.records = [LayerRecord(name)]
        if self._estimator is not None:
            self.records = [layer_record(self._estimator, own, 1, value.numel()) for value, own in self._names.items()]

    def terms(self, tokens: int) -> int:
        """See `Layer`."""
        return max(1 if self._estimator is None else self._estimator.terms(1, 1, p.numel()) for p in self._names)

    def measure(self, uses: Sequence[Use], step: int, samples: Samples, units: UnitRows | None = None) -> Measured:
        """See `Layer`."""
        if units is None and self._estimator is None:
            size, each = len(uses[0][1]), sum(value.numel() * max(value.itemsize, 4) for value in self._names)
            stored = sum(value.nbytes for inputs, gradients in uses for value in (*inputs, gradients))
            few = max(1, self._budget // each)
            if few < size and size * each > stored:
                parts = [slice(first, min(first + few, size)) for first in range(0, size, few)]
                again = FormedAgain(partial(self._formed, uses), parts)
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
            own = inputs if part == slice(None) else [value[part] for value in inputs]
            for parameter, value in self._of_use(own, gradients[part]).items():
                totals[parameter] = value if parameter not in totals else totals[parameter] + value
        return PerSampleGradients(totals)

    def _of_use(self, inputs: Sequence[torch.Tensor], gradients: torch.Tensor) -> Gradients:
        x, module = inputs[0], self.module
        dtype = torch.promote_types(torch.promote_types(x.dtype, gradients.dtype), torch.float32)
        with full_precision(gradients.device):
            values = self._formula(module, x.to(dtype) if x.is_floating_point() else x, gradients.to(dtype))
        return {getattr(module, name): value for name, value in values.items() if getattr(module, name).requires_grad}

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
        super().__init__(name, module, policy, {f"{name}.{inside}": own for inside, own in module.named_parameters()})
        self._budget = sys.maxsize  # the backward pass has formed them already

    def _of_use(self, inputs: Sequence[torch.Tensor], gradients: torch.Tensor) -> Gradients:
        (parameter,) = inputs
        return {parameter: gradients}


def bias_alone(module: nn.Module, x: torch.Tensor, gradients: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Sum a linear layer's output gradients over the tokens."""
    (per_token,) = as_tokens(gradients)
    return {"bias": per_token.sum(1)}


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
    bare = Body(module)
    parameters = {
        f"module.{name}": value.detach().to(gradients.dtype) for name, value in module.named_parameters(recurse=False)
    }

    def product(values: Mapping[str, torch.Tensor], row: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return (functional_call(bare, dict(values), (row[None],)) * gradient[None]).sum()

    found = vmap(grad(product), in_dims=(None, 0, 0))(parameters, x, gradients)
    return {name.removeprefix("module."): value for name, value in found.items()}


_GRADIENT_FORMULAS: dict[type[nn.Module], Formula] = {
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm, nn.GroupNorm), _normalization),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _normalization),
}
