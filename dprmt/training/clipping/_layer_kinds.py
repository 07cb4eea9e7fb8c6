"""How norms are computed: the estimator that is wanted, and which kind of layer a module is.

Decided by types and by what is asked for, never by data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from torch import nn

from dprmt._validation import ParameterError, check_choice
from dprmt.accounting import ExactNorms, Hutchinson, HutchPlusPlus, Norms
from dprmt.training.clipping._embedding_layer import EmbeddingLayer
from dprmt.training.clipping._formed_layers import FormedLayer, WholeModule, bias_alone, formed_layer
from dprmt.training.clipping._matrix_layers import LinearLayer, ProjectedLayer
from dprmt.training.clipping._policy import Layer, NormPolicy
from dprmt.training.clipping._tied_weights import tied_tables
from dprmt.training.clipping._trainable_modules import embedding_scale, is_matrix, is_whole
from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator, NormEstimator, NormRecord, ProbeGenerator
from dprmt.training.recipes import NORMS, NormsRecipe
from dprmt.training.recipes._choices import EXACT_NORMS
from dprmt.training.subspaces import Subspaces

NormsWanted: TypeAlias = str | Norms | NormsRecipe | NormEstimator
"""Names are "exact", "ghost", "hutchinson" and "hutch++", with secret probes, and registered ones."""


def wanted_estimator(norms: NormsWanted, generator: ProbeGenerator | None) -> NormEstimator | None:
    """Return the estimator, with a new secret unless probes come from a ``generator``; None for exact norms."""
    if isinstance(norms, NormEstimator):
        return norms
    if isinstance(norms, ExactNorms):
        return None
    generator = ProbeGenerator() if generator is None else generator
    if isinstance(norms, Hutchinson):
        if norms.analysis != "tight":
            allowed = "of the tight analysis, in training: the accountant takes the smaller answer of both"
            raise ParameterError("norms", norms, allowed)
        everything = norms.rank is not None
        return HutchinsonEstimator(norms.probes, secret=norms.secret, everything=everything, generator=generator)
    if isinstance(norms, HutchPlusPlus):
        own = {"power_iteration": norms.power_iteration, "secret": norms.secret}
        return HutchPlusPlusEstimator(norms.probes, norms.sketch, generator=generator, **own)
    if isinstance(norms, str):
        norms = NormsRecipe(kind=check_choice("norms", norms, tuple(NORMS)))
    if not isinstance(norms, NormsRecipe):
        words = ", ".join(map(repr, NORMS))
        raise ParameterError(
            "norms", norms, f"one of {words}, a value such as Hutchinson(32, secret=False), or a NormEstimator"
        )
    if norms.kind in EXACT_NORMS:
        return None
    options = {"sketch": norms.sketch, "power_iteration": norms.power_iteration} if norms.kind == "hutch++" else {}
    make = NORMS.load(norms.kind)
    estimator: NormEstimator = make(probes=norms.probes, secret=norms.secret, generator=generator, **options)
    return estimator


def forms_gradients(norms: NormsWanted) -> bool:
    """Return whether per-sample gradients are formed even where Gram matrices are smaller."""
    return norms == "exact" or (isinstance(norms, NormsRecipe) and norms.kind == "exact")


def check_rank(norms: NormsWanted, record: NormRecord) -> None:
    """Raise unless a rank that was given is one that holds."""
    if isinstance(norms, Hutchinson) and norms.rank is not None:
        least = getattr(record.norms, "rank", None)
        if least is None or least > norms.rank:
            what = "None" if least is None else f"at least {least}, that of all layers' shapes together"
            raise ParameterError("norms.rank", norms.rank, what)


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
