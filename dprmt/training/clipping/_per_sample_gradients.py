"""Per-sample gradients of the layers that are not linear, and of those that Opacus' own samplers get wrong.

Opacus' sampler for Embedding gives the padding row a gradient, which autograd does not; the one for LayerNorm
fails without a bias; HF's Conv1D has none. Opacus' class dictionaries are left as they are: what is returned here
is for one model's hooks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from dprmt.training.norms._layer_gradient import tokens_in_the_middle

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


def is_rms_norm(module: nn.Module) -> bool:
    """Whether the module is one of the models' own RMSNorm classes: one vector of weights, one input.

    Returns
    -------
    bool
        By name and shape of its parameters; ``transformers`` has a class per model.
    """
    shapes = [(name, value.ndim) for name, value in module.named_parameters()]
    return type(module).__name__.endswith("RMSNorm") and shapes == [("weight", 1)] and not list(module.children())


def grad_samplers(modules: Sequence[nn.Module]) -> dict[type[nn.Module], GradSampler]:
    """Opacus' samplers with this file's in their place, for the types of the given modules.

    Returns
    -------
    dict
        From type to a function of (module, inputs, output gradients), as Opacus calls it.
    """
    known = dict(GradSampleModule.GRAD_SAMPLERS)
    own = {Conv1D: _conv1d, nn.Embedding: _embedding, nn.LayerNorm: _layer_norm}
    return {type(module): own.get(type(module)) or known.get(type(module), _by_functorch) for module in modules}


def _by_functorch(
    module: nn.Module, activations: Sequence[torch.Tensor], gradients: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    values = ft_compute_per_sample_gradient(module, activations, gradients)
    return {parameter: value for parameter, value in values.items() if parameter.requires_grad}


def _conv1d(
    module: nn.Module, activations: Sequence[torch.Tensor], gradients: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    left = tokens_in_the_middle(activations[0], gradients.dtype)
    right = tokens_in_the_middle(gradients, gradients.dtype)
    values = {}
    if module.weight.requires_grad:
        values[module.weight] = left.transpose(1, 2) @ right
    if module.bias.requires_grad:
        values[module.bias] = right.sum(1)
    return values


def _embedding(
    module: nn.Module, activations: Sequence[torch.Tensor], gradients: torch.Tensor
) -> dict[nn.Parameter, torch.Tensor]:
    values = GradSampleModule.GRAD_SAMPLERS[nn.Embedding](module, activations, gradients)
    if module.padding_idx is not None:
        values[module.weight][:, module.padding_idx] = 0.0
    return values


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
