"""Models and optimizers that would break the guarantee, refused before the first step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import torch
from opacus.grad_sample.gsm_base import AbstractGradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

from dprmt._validation import ParameterError
from dprmt.training.clipping._shards import check_shards, is_sharded
from dprmt.training.clipping._tied_weights import tied_tables
from dprmt.training.clipping._trainable_modules import (
    is_container,
    is_renaming,
    is_whole,
    module_with,
    trainable_modules,
)

_UNSHARDED = (
    "without FullyShardedDataParallel, whose flat parameters hide which layer they are of: shard with "
    "torch.distributed.fsdp.fully_shard, or hold the model in every process"
)
_ONE_PLACE = (
    "without trainable parameters in several places, other than a table of torch.nn.Embedding layers that one "
    "torch.nn.Linear may share: freeze the parameter (LoRA does), or run the model with regime='alone'"
)


def check_any_model(model: nn.Module) -> None:
    """Raise unless gradients of the model can be taken and clipped whole: what is run one unit at a time needs."""
    if not isinstance(model, nn.Module):
        raise ParameterError("model", type(model).__name__, "a torch.nn.Module")
    if isinstance(model, AbstractGradSampleModule) or hasattr(model, "autograd_grad_sample_hooks"):
        raise ParameterError("model", type(model).__name__, "a model without Opacus' hooks; remove them first")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ParameterError("model", type(model).__name__, "a model with a trainable parameter")
    _check_parameters(model)


def check_model(model: nn.Module, *, whole: Collection[str] = ()) -> None:
    """Raise unless every sample's gradient is its own and can be computed."""
    check_any_model(model)
    modules = trainable_modules(model, whole)
    _check_shared(model, modules, whole, set() if is_sharded(model) else tied_tables(modules.values()))
    for name, module in model.named_modules():
        check_samples_apart(name, module)
    for name, module in modules.items():
        _check_layer(name, module)


def _check_parameters(model: nn.Module) -> None:
    """Check that hooks can follow the parameters: whole in every process or while a layer computes, and real."""
    for name, module in model.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
            raise ParameterError("model", f"{name or 'model'}: {type(module).__name__}", _UNSHARDED)
    if is_sharded(model):
        check_shards(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            allowed = "without trainable complex parameters: hold real and imaginary parts as real ones"
            raise ParameterError("model", f"{name}: {parameter.dtype}", allowed)


def _check_shared(
    model: nn.Module, modules: Mapping[str, nn.Module], whole: Collection[str], tied: Collection[nn.Parameter]
) -> None:
    apart = {module for name, module in modules.items() if is_whole(name, module, whole)}
    names, users = defaultdict(list), defaultdict(set)
    for prefix, module in model.named_modules(remove_duplicate=False):
        if not is_renaming(module):  # its parts have the same parameters under other names
            for name, parameter in module.named_parameters(recurse=False):
                names[parameter].append(f"{prefix}.{name}" if prefix else name)
                users[parameter].add(module_with(modules, prefix))
    for parameter, shared in names.items():
        inside_one = len(users[parameter]) == 1 and users[parameter] <= apart
        # A module around the layer may hold the parameter too: BERT's head has the bias of its last layer.
        layers = users[parameter] - {None}
        by_layers = not layers & apart and (len(layers) == 1 or parameter in tied)
        if parameter.requires_grad and len(shared) > 1 and not inside_one and not by_layers:
            raise ParameterError("model", " = ".join(shared), _ONE_PLACE)


def is_frozen_batch_norm(module: nn.Module) -> bool:
    """Return whether nothing of the module is trained, and it has statistics for its evaluation mode."""
    known = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None
    return known and not any(value.requires_grad for value in module.parameters())


def check_samples_apart(name: str, module: nn.Module) -> None:
    """Raise if what a layer does to one sample depends on the others, trained or not."""
    kind = f"{name}: {type(module).__name__}"
    if is_frozen_batch_norm(module) and not module.training:
        return  # a fixed map: `Capture` sees to it that it stays one
    kinds = (
        "peft.tuners.prompt_tuning.model",
        "peft.tuners.p_tuning.model",
        "peft.tuners.multitask_prompt_tuning.model",
    )
    if type(module).__module__ in kinds and any(value.requires_grad for value in module.parameters()):
        allowed = (
            "without prompts of which one row is repeated for all samples, so that a sample's gradient is nowhere: "
            "peft.PrefixTuningConfig, or units=Units(1, regime='alone'), which runs each row alone"
        )
        raise ParameterError("model", kind, allowed)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        allowed = (
            "without batch normalization, which mixes samples: opacus.validators.ModuleValidator.fix replaces it; or "
            "freeze it and call its eval()"
        )
        raise ParameterError("model", kind, allowed)
    if getattr(module, "track_running_stats", False):
        allowed = "without running statistics, which are not private: set track_running_stats=False"
        raise ParameterError("model", kind, allowed)
    if isinstance(module, nn.Embedding):
        for option in ("max_norm", "scale_grad_by_freq", "sparse") if module.weight.requires_grad else ("max_norm",):
            if getattr(module, option):
                raise ParameterError("model", kind, f"without {option}, which depends on the batch")


def _check_layer(name: str, module: nn.Module) -> None:
    kind = f"{name}: {type(module).__name__}"
    if any(isinstance(part, nn.EmbeddingBag) for part in module.modules()):
        raise ParameterError("model", kind, "without EmbeddingBag, whose bags have no sample axis: freeze it")
    if is_container(module):
        raise ParameterError("model", kind, "a module with a forward pass around its parameters")


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise unless the optimizer moves the model's trainable parameters and no others."""
    if isinstance(optimizer, DPOptimizer) or not isinstance(optimizer, torch.optim.Optimizer):
        raise ParameterError("optimizer", type(optimizer).__name__, "a torch optimizer, not yet a private one")
    moved = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
    trained = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for parameter, name in trained.items():
        if not any(parameter is other for other in moved):
            allowed = f"given all trainable parameters, {name} too: add or freeze it"
            raise ParameterError("optimizer", type(optimizer).__name__, allowed)
    for parameter in moved:
        if parameter not in trained:
            allowed = f"given parameters of this model only, not one of shape {tuple(parameter.shape)}"
            raise ParameterError("optimizer", type(optimizer).__name__, allowed)


def parameters_added(later: Sequence[torch.Tensor]) -> str:
    """Return a sentence about what an optimizer got since it was made private."""
    shapes = [tuple(value.shape) for value in later]
    return f"the optimizer got parameters of shapes {shapes} since it was made private: they have no clipped gradients"


def changed_buffer(name: str) -> str:
    """Explain the error if a forward pass changes a buffer, and its fix."""
    todo = "a sample run alone must give what it gives in the batch: freeze it"
    if name.endswith(("_u", "_v")) and ".parametrizations." in f".{name}":
        todo = (
            "spectral norm iterates once in each forward pass, and how many there are is private; call "
            "layer.parametrizations.weight[0].eval() after model.train()"
        )
    return f"a forward pass changes buffer {name}, a state of many samples: {todo}"
