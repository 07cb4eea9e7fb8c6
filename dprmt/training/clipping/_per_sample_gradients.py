"""Per-sample gradients of the layers that are not linear, and of those that Opacus' own samplers get wrong.

Opacus' sampler for LayerNorm fails without a bias. Its class dictionaries are left as they are: what is returned here
is for one model's hooks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from torch import nn
from torch.nn import functional

GradSampler = Callable[[nn.Module, Sequence[torch.Tensor], torch.Tensor], dict[nn.Parameter, torch.Tensor]]

INDEPENDENT_NORMALIZATIONS = (
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_replayable(module: nn.Module) -> bool:
    """Whether functorch can replay the module on one sample: a layer of somebody else's, with one input and no parts.

    Torch's own layers that are not named above keep a state, take several inputs or have another first axis.
    """
    if type(module).__module__.startswith("torch.nn") or list(module.children()) or list(module.buffers()):
        return False
    needed = [a for a in inspect.signature(module.forward).parameters.values() if a.default is a.empty]
    return len(needed) == 1 and needed[0].kind in (needed[0].POSITIONAL_ONLY, needed[0].POSITIONAL_OR_KEYWORD)


def grad_sampler(module: nn.Module) -> GradSampler:
    """Opacus' sampler for the module, or functorch, as a function of (module, inputs, output gradients)."""
    if type(module) is nn.LayerNorm:
        return _layer_norm
    sampler: GradSampler = GradSampleModule.GRAD_SAMPLERS.get(type(module), _by_functorch)
    return sampler


def _by_functorch(
    module: nn.Module, activations: Sequence[torch.Tensor], gradients: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    values = ft_compute_per_sample_gradient(module, activations, gradients)
    return {parameter: value for parameter, value in values.items() if parameter.requires_grad}


def _layer_norm(
    module: nn.Module, activations: Sequence[torch.Tensor], gradients: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    features = math.prod(module.normalized_shape)
    shape = (len(gradients), -1, features)
    values = {}
    if module.weight.requires_grad:
        normalized = functional.layer_norm(activations[0], module.normalized_shape, eps=module.eps)
        values[module.weight] = (normalized * gradients).reshape(shape).sum(1)
    if module.bias is not None and module.bias.requires_grad:
        values[module.bias] = gradients.reshape(shape).sum(1)
    return {parameter: value.view(-1, *parameter.shape) for parameter, value in values.items()}
