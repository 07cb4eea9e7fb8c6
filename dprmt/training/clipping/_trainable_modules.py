"""What is captured as one: layers that hooks can follow, and modules that must run sample by sample."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from opacus.layers.dp_rnn import RNNLinear
from opacus.layers.param_rename import RenameParamsMixin
from torch import nn

from dprmt._validation import ParameterError
from dprmt.training.norms import is_conv1d

_MATRICES = (nn.Linear, RNNLinear)  # and the Conv1D of Transformers
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_NORMALIZATIONS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, *_INSTANCE_NORMS)  # normalizations over single samples
_FOLLOWED = (*_MATRICES, nn.Embedding, *_CONVOLUTIONS, *_NORMALIZATIONS)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_SEQUENCE_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def trainable_modules(model: nn.Module, whole: Iterable[str] = ()) -> dict[str, nn.Module]:
    """Map names to the modules in which the trainable parameters' gradients are formed, none inside another.

    A layer that hooks can follow is such a module. For any other module with direct parameters, the smallest enclosing
    module is used that is called and that contains all their uses. Modules in ``whole`` are such modules too.

    Modules are in the model's order; the model itself is named "model".
    """
    modules = dict(model.named_modules())
    taken = {_caller(modules, name) for name, module in modules.items() if _is_opaque(module)}.union(whole)
    for name in taken:
        if name not in modules or not any(value.requires_grad for value in modules[name].parameters()):
            raise ParameterError("whole", name, "names of the model's trainable modules, '' being the model itself")
    return {
        name or "model": module
        for name, module in modules.items()
        if not taken.intersection(_ancestors(name)) and (name in taken or has_parameters(module))
    }


def module_with(modules: Mapping[str, nn.Module], place: str) -> nn.Module | None:
    """Return the trainable module that covers the parameters of the module at a place."""
    around = (name or "model" for name in (place, *_ancestors(place)))
    return next((modules[name] for name in around if name in modules), None)


def is_followed(module: nn.Module) -> bool:
    """Return whether inputs and output gradients of the module, which has no parts, determine its per-sample
    gradients.
    """
    if type(module) is not nn.Embedding and embedding_scale(module) is not None:
        return "forward" not in vars(module)
    known = type(module) in _FOLLOWED or is_conv1d(module)
    return (is_torch_layer(module) if known else _is_replayable(module)) and not list(module.buffers())


def is_torch_layer(module: nn.Module) -> bool:
    """Return whether the forward pass is torch's (or Transformers' Conv1D's) and has not been replaced."""
    if "forward" in vars(module) or not (type(module) in _FOLLOWED or is_conv1d(module)):
        return False
    owner = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    return bool(vars(owner)["forward"].__module__ == owner.__module__)


def embedding_scale(module: nn.Module) -> float | None:
    """Find the factor by which an embedding multiplies its rows; None if it does anything else."""
    if type(module) is nn.Embedding:
        return 1.0
    scale = getattr(module, "embed_scale", None)
    if not isinstance(module, nn.Embedding) or scale is None or hasattr(module.weight, "device_mesh"):
        return None
    with torch.no_grad():
        tokens = torch.arange(min(len(module.weight), 2), device=module.weight.device)
        found, rows = module.forward(tokens), module.weight[tokens]
    return float(scale) if found.shape == rows.shape and torch.allclose(found, rows * float(scale)) else None


def is_matrix(module: nn.Module) -> bool:
    """Return whether the module's output is its input times its weight, and a bias."""
    return type(module) in _MATRICES or is_conv1d(module)


def is_whole(name: str, module: nn.Module, whole: Collection[str]) -> bool:
    """Return whether one of the trainable modules runs sample by sample: it must be, or it or the model is named."""
    return not is_followed(module) or name in whole or "" in whole


def has_parameters(module: nn.Module) -> bool:
    """Return whether there are trainable parameters that no layer inside has too."""
    if is_renaming(module):
        return False
    own = {parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad}
    parts = (part for part in module.modules() if own and part is not module and is_followed(part))
    return bool(own.difference(*(part.parameters(recurse=False) for part in parts)))


def is_renaming(module: nn.Module) -> bool:
    """Return whether the module holds its parts' parameters by other names, as Opacus' recurrent layers do."""
    return isinstance(module, RenameParamsMixin)


def is_container(module: nn.Module) -> bool:
    """Return whether the module is never called."""
    return isinstance(module, _CONTAINERS)


def is_sequence_first(module: nn.Module) -> bool:
    """Return whether torch's layer of several parts has the sample as second axis, so that its parts do."""
    return isinstance(module, _SEQUENCE_LAYERS) and not module.self_attn.batch_first


def _is_replayable(module: nn.Module) -> bool:
    """Return whether functorch can replay the module on one sample: a custom layer with one input and no parts.

    Torch's other layers keep a state, have several inputs or another first axis.
    """
    if type(module).__module__.startswith("torch.nn") or list(module.children()) or list(module.buffers()):
        return False
    taken = list(inspect.signature(module.forward).parameters.values())
    return len(taken) == 1 and taken[0].kind in (taken[0].POSITIONAL_ONLY, taken[0].POSITIONAL_OR_KEYWORD)


def _is_opaque(module: nn.Module) -> bool:
    if is_sequence_first(module):
        return any(parameter.requires_grad for parameter in module.parameters())
    return has_parameters(module) and not is_followed(module)


def _caller(modules: dict[str, nn.Module], name: str) -> str:
    """Find the innermost of the module and those around it that is called, or that uses its parts' parameters
    directly.
    """
    around = [name, *_ancestors(name)]
    users = [other for other in around if _uses_its_parts(modules[other])]
    return next(iter(users), None) or next((other for other in around if not is_container(modules[other])), name)


def _uses_its_parts(module: nn.Module) -> bool:
    adapter = any(kind.__name__ == "BaseTunerLayer" for kind in type(module).__mro__)  # of PEFT, which may be missing
    return adapter or isinstance(module, nn.MultiheadAttention)


def _ancestors(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition(".")[0]
        yield name
