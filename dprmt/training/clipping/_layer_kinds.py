"""Which kind of layer a module is: decided by its type and by what is asked for, never by data."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from dprmt._validation import ParameterError
from dprmt.training.clipping._embedding_layer import EmbeddingLayer
from dprmt.training.clipping._formed_layers import FormedLayer, WholeModule, bias_alone, formed_layer
from dprmt.training.clipping._matrix_layers import LinearLayer, ProjectedLayer
from dprmt.training.clipping._policy import Layer, NormPolicy
from dprmt.training.clipping._trainable_modules import is_matrix, is_whole
from dprmt.training.subspaces import Subspaces


def plan_layers(
    modules: Mapping[str, nn.Module], policy: NormPolicy, subspaces: Subspaces | None = None
) -> list[Layer]:
    """How each trainable module's norms are obtained."""
    return [_layer(name, module, policy, subspaces) for name, module in modules.items()]


def _layer(name: str, module: nn.Module, policy: NormPolicy, subspaces: Subspaces | None) -> Layer:
    if is_whole(name, module, policy.whole):
        return _whole(name, module, policy, subspaces)
    if isinstance(module, nn.Embedding):
        return EmbeddingLayer(name, module, policy)
    if not is_matrix(module):
        return formed_layer(name, module, policy)
    if not module.weight.requires_grad:
        return FormedLayer(name, module, {f"{name}.bias": module.bias}, policy, bias_alone)
    if subspaces is not None and module.weight in subspaces:
        return ProjectedLayer(name, module, policy, subspaces)
    return LinearLayer(name, module, policy)


def _whole(name: str, module: nn.Module, policy: NormPolicy, subspaces: Subspaces | None) -> WholeModule:
    for inside, parameter in module.named_parameters():
        if subspaces is not None and parameter in subspaces:
            allowed = f"left out inside {type(module).__name__}, which hooks cannot follow, or train without DP-GRAPE"
            raise ParameterError("rank", f"{name}.{inside}", allowed)
    return WholeModule(name, module, policy)
