"""Which kind of layer a module is: decided by its type and by what is asked for, never by data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from dprmt._validation import ParameterError
from dprmt.training.clipping._embedding_layer import EmbeddingLayer
from dprmt.training.clipping._formed_layers import FormedLayer, WholeModule, bias_alone, formed_layer
from dprmt.training.clipping._matrix_layers import LinearLayer, ProjectedLayer
from dprmt.training.clipping._policy import Layer, NormPolicy
from dprmt.training.clipping._tied_weights import tied_tables
from dprmt.training.clipping._trainable_modules import embedding_scale, is_matrix, is_whole
from dprmt.training.subspaces import Subspaces


def plan_layers(
    modules: Mapping[str, nn.Module], policy: NormPolicy, subspaces: Subspaces | None = None
) -> list[Layer]:
    """Choose how each trainable module's norms are computed."""
    tied = tied_tables(modules.values())
    layers = []
    for name, module in modules.items():
        if getattr(module, "weight", None) not in tied:
            layers.append(_layer(name, module, policy, subspaces))
            continue
        # An estimate of one part and another of the other have no law together.
        if policy.everything is not None:
            allowed = f"without a rank: the norm of {name}.weight, which several layers share, is exact"
            raise ParameterError("norms", policy.everything.norms, allowed)
        if subspaces is not None and module.weight in subspaces:
            raise ParameterError("subspaces", f"{name}.weight", "of weights that no other layer shares")
        layers.append(_layer(name, module, replace(policy, estimator=None), None))
    return layers


def _layer(name: str, module: nn.Module, policy: NormPolicy, subspaces: Subspaces | None) -> Layer:
    if is_whole(name, module, policy.whole):
        return _whole(name, module, policy, subspaces)
    if embedding_scale(module) is not None:
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
