"""What is captured as one: layers that hooks can follow, and modules that must run sample by sample."""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from opacus.grad_sample.gsm_base import AbstractGradSampleModule
from opacus.layers.dp_rnn import RNNLinear
from opacus.layers.param_rename import RenameParamsMixin
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from dprmt._validation import ParameterError
from dprmt.training.norms._clipping import is_conv1d

Kind: TypeAlias = Literal["matrix", "embedding", "formed", "whole"]
"""How samples' gradients of a module's own parameters are obtained.

"matrix": from inputs and output gradients, as the output is the input times the weight, and a bias. "embedding": from
output gradients by token, as the output is rows of a table, times a number. "formed": from inputs and output gradients
by a formula, or by running the module again. "whole": these do not suffice, so the module runs sample by sample.
"""

_KINDS: dict[type[nn.Module], Kind] = {
    **dict.fromkeys((nn.Linear, RNNLinear), "matrix"),  # and the Conv1D of Transformers
    nn.Embedding: "embedding",
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm), "formed"),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), "formed"),
}
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


class Trained(NamedTuple):
    """A module in which gradients of trainable parameters are formed, and how."""

    module: nn.Module
    kind: Kind


def trainable_modules(model: nn.Module, whole: Iterable[str] = ()) -> dict[str, Trained]:
    """Map names to the modules in which the trainable parameters' gradients are formed, none inside another.

    A layer that hooks can follow is such a module. For any other module with direct parameters, the smallest enclosing
    module is used that is called and that contains all their uses. Modules in ``whole`` are such modules too.

    Modules are in the model's order; the model itself is named "model".
    """
    modules, kinds = dict(model.named_modules()), _kinds(model)
    taken = set(whole)
    for name, module in modules.items():
        is_trained = any(value.requires_grad for value in module.parameters())
        if kinds.get(module) == "whole" or (is_trained and is_sequence_first(module)):
            taken.add(_caller(modules, name))
    for name in taken:
        if name not in modules or not any(value.requires_grad for value in modules[name].parameters()):
            raise ParameterError("whole", name, "names of the model's trainable modules, '' being the model itself")
    return {
        name or "model": Trained(module, "whole" if name in taken else kinds[module])
        for name, module in modules.items()
        if not taken.intersection(_ancestors(name)) and (name in taken or module in kinds)
    }


def _kinds(model: nn.Module) -> dict[nn.Module, Kind]:
    """Return the kinds of modules with trainable parameters that no layer inside them has too."""
    own = {}
    for module in model.modules():
        parameters = {value for value in module.parameters(recurse=False) if value.requires_grad}
        if parameters and not isinstance(module, RenameParamsMixin):  # whose parts have them: Opacus' recurrent layers
            own[module] = parameters
    kinds = {module: kind_of(module) for module in own}
    found = {}
    for module, kind in kinds.items():
        layers = [part for part in module.modules() if part is not module and kinds.get(part, "whole") != "whole"]
        if own[module].difference(*(own[part] for part in layers)):
            found[module] = kind
    return found


def kind_of(module: nn.Module) -> Kind:
    """Return the kind of a module by its type, its forward pass, its parts and its buffers."""
    is_replaced = "forward" in vars(module)
    if isinstance(module, nn.Embedding) and _scales_rows(module):
        return "whole" if is_replaced else "embedding"
    if list(module.buffers()):
        return "whole"
    known = known_kind(module)
    if known is None:
        return "formed" if _is_replayable(module) else "whole"
    owner = next(base for base in type(module).__mro__ if "forward" in vars(base))
    return "whole" if is_replaced or vars(owner)["forward"].__module__ != owner.__module__ else known


def known_kind(module: nn.Module) -> Kind | None:
    """Return the kind of torch's own layers, and of Transformers' Conv1D, by their types; None for other modules."""
    return _KINDS.get(type(module)) or ("matrix" if is_conv1d(module) else None)


def _scales_rows(module: nn.Embedding) -> bool:
    """Return whether an embedding of another class multiplies rows by its ``embed_scale``, and does nothing else."""
    scale = getattr(module, "embed_scale", None)
    if type(module) is nn.Embedding or scale is None or hasattr(module.weight, "device_mesh"):
        return False
    with torch.no_grad():
        tokens = torch.arange(min(len(module.weight), 2), device=module.weight.device)
        found, rows = module.forward(tokens), module.weight[tokens]
    return found.shape == rows.shape and torch.allclose(found, rows * float(scale))


def _is_replayable(module: nn.Module) -> bool:
    """Return whether functorch can replay the module on one sample: a custom layer with one input and no parts.

    Torch's other layers keep a state, have several inputs or another first axis.
    """
    if type(module).__module__.startswith("torch.nn") or list(module.children()):
        return False
    taken = list(inspect.signature(module.forward).parameters.values())
    return len(taken) == 1 and taken[0].kind in (taken[0].POSITIONAL_ONLY, taken[0].POSITIONAL_OR_KEYWORD)


def is_sequence_first(module: nn.Module) -> bool:
    """Return whether torch's layer of several parts has the sample as second axis, so that its parts do."""
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    return isinstance(module, kinds) and not module.self_attn.batch_first


def _caller(modules: dict[str, nn.Module], name: str) -> str:
    """Find the innermost of the module and those around it that is called, or that uses its parts' parameters
    directly.
    """
    around = [name, *_ancestors(name)]
    for other in around:
        kinds = {kind.__name__ for kind in type(modules[other]).__mro__}
        if kinds & {"BaseTunerLayer", "MultiheadAttention"}:  # the former of PEFT, which may be missing
            return other
    return next((other for other in around if not isinstance(modules[other], _CONTAINERS)), name)


def _ancestors(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition(".")[0]
        yield name


class Body(nn.Module):  # type: ignore[misc]  # torch is skipped by mypy
    """The module under its own forward pass, for ``functional_call`` without its hooks."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self._run = module, module.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)


# Models and optimizers that would break the guarantee, refused before the first step.

_ONE_GROUP = (
    "sharded along rows by torch's fully_shard over all processes, and by nothing else: tensor, pipeline and hybrid "
    "parallelism are not covered"
)
_AROUND = "sharded as part of a block: call fully_shard on a module around it, or on the model"
_NOT_FOLLOWED = "of layers that hooks can follow, where parameters are sharded: this one has no gradients of samples"
_UNSHARDED = (
    "without FullyShardedDataParallel, whose flat parameters hide which layer they are of: shard with "
    "torch.distributed.fsdp.fully_shard, or hold the model in every process"
)
_ONE_PLACE = (
    "without trainable parameters in several places, other than a table of torch.nn.Embedding layers that one "
    "torch.nn.Linear may share: freeze the parameter (LoRA does), or run the model with regime='alone'"
)


def is_sharded(model: nn.Module) -> bool:
    """Return whether some parameter is a shard."""
    return any(isinstance(value, DTensor) for value in model.parameters())


def check_shards(model: nn.Module) -> None:
    """Raise unless every shard is of rows, in a group of all processes, and every trainable layer is in a block."""
    processes = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    for name, value in model.named_parameters():
        if not isinstance(value, DTensor):
            if value.requires_grad:
                raise ParameterError(
                    "model", f"{name}: {type(value).__name__}", f"{_ONE_GROUP}; freeze it, or shard it"
                )
        elif value.placements != (Shard(0),) or value.device_mesh.size() != processes:
            raise ParameterError("model", f"{name}: {value.placements}", _ONE_GROUP)
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ParameterError("model", type(model).__name__, _ONE_GROUP)
    for name, (module, kind) in trainable_modules(model).items():
        if isinstance(module, FSDPModule) and not list(module.children()):
            raise ParameterError("model", f"{name}: {type(module).__name__}", _AROUND)
        if kind == "whole":
            raise ParameterError("model", f"{name}: {type(module).__name__}", _NOT_FOLLOWED)


def check_any_model(model: nn.Module) -> None:
    """Raise unless gradients of the model can be taken and clipped whole: what is run one unit at a time needs."""
    if not isinstance(model, nn.Module):
        raise ParameterError("model", type(model).__name__, "a torch.nn.Module")
    if isinstance(model, AbstractGradSampleModule) or hasattr(model, "autograd_grad_sample_hooks"):
        raise ParameterError("model", type(model).__name__, "a model without Opacus' hooks; remove them first")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ParameterError("model", type(model).__name__, "a model with a trainable parameter")
    for name, module in model.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
            raise ParameterError("model", f"{name or 'model'}: {type(module).__name__}", _UNSHARDED)
    if is_sharded(model):
        check_shards(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
            fix = "freeze it, or change the released gradient in optimizer.register_step_pre_hook"
            raise ParameterError(
                "hooks on a parameter's gradient", name, "none: a private step calls no such hook", fix
            )
        if parameter.requires_grad and parameter.is_complex():
            allowed = "without trainable complex parameters: hold real and imaginary parts as real ones"
            raise ParameterError("model", f"{name}: {parameter.dtype}", allowed)


def check_modules(model: nn.Module, modules: Mapping[str, Trained]) -> None:
    """Raise unless every sample's gradient is its own and can be computed; ``modules``: the trainable ones."""
    _check_shared(model, modules)
    for name, module in model.named_modules():
        _check_samples_apart(name, module)
    for name, (module, _) in modules.items():
        kind = f"{name}: {type(module).__name__}"
        if any(isinstance(part, nn.EmbeddingBag) for part in module.modules()):
            raise ParameterError("model", kind, "without EmbeddingBag, whose bags have no sample axis: freeze it")
        if isinstance(module, _CONTAINERS):
            raise ParameterError("model", kind, "a module with a forward pass around its parameters")


def _check_shared(model: nn.Module, modules: Mapping[str, Trained]) -> None:
    names, users = defaultdict(list), defaultdict(set)
    for prefix, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, RenameParamsMixin):
            continue  # its parts have the same parameters under other names
        around = (name or "model" for name in (prefix, *_ancestors(prefix)))
        user = next((modules[name] for name in around if name in modules), None)
        for name, parameter in module.named_parameters(recurse=False):
            names[parameter].append(f"{prefix}.{name}" if prefix else name)
            users[parameter].add(user)
    for parameter, shared in names.items():
        # A module around the layer may hold the parameter too: BERT's head has the bias of its last layer.
        layers = [user for user in users[parameter] if user is not None]
        if any(kind == "whole" for _, kind in layers):
            is_covered = len(users[parameter]) == 1
        else:
            is_covered = len(layers) == 1 or _is_table(parameter, layers)
        if parameter.requires_grad and len(shared) > 1 and not is_covered:
            raise ParameterError("model", " = ".join(shared), _ONE_PLACE)


def _is_table(parameter: nn.Parameter, layers: Sequence[Trained]) -> bool:
    """Return whether parts of the gradient can be added: the weight of embeddings, and of at most one linear layer."""
    heads = [type(module) for module, kind in layers if kind != "embedding"]
    return len(heads) < len(layers) and heads in ([], [nn.Linear]) and not isinstance(parameter, DTensor)


def _check_samples_apart(name: str, module: nn.Module) -> None:
    """Raise if what a layer does to one sample depends on the others, trained or not."""
    kind = f"{name}: {type(module).__name__}"
    is_trained = any(value.requires_grad for value in module.parameters())
    prompts = [f"peft.tuners.{method}.model" for method in ("prompt_tuning", "p_tuning", "multitask_prompt_tuning")]
    if type(module).__module__ in prompts and is_trained:
        allowed = (
            "without prompts of which one row is repeated for all samples, so that a sample's gradient is nowhere: "
            "peft.PrefixTuningConfig, or units=Units(1, regime='alone'), which runs each row alone"
        )
        raise ParameterError("model", kind, allowed)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        if module.running_mean is not None and not module.training and not is_trained:
            return  # a fixed map: `Capture` sees to it that it stays one
        allowed = (
            "without batch normalization, which mixes samples: opacus.validators.ModuleValidator.fix replaces it; or "
            "freeze it and call its eval()"
        )
        raise ParameterError("model", kind, allowed)
    if getattr(module, "track_running_stats", False):
        allowed = "without running statistics, which are not private: set track_running_stats=False"
        raise ParameterError("model", kind, allowed)
    if isinstance(module, nn.Embedding):
        for option in ("max_norm", "scale_grad_by_freq", "sparse") if is_trained else ("max_norm",):
            if getattr(module, option):
                raise ParameterError("model", kind, f"without {option}, which depends on the batch")


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise unless the optimizer moves the model's trainable parameters and no others."""
    if isinstance(optimizer, DPOptimizer) or not isinstance(optimizer, torch.optim.Optimizer):
        raise ParameterError("optimizer", type(optimizer).__name__, "a torch optimizer, not yet a private one")
    options = [*inspect.signature(type(optimizer).step).parameters.values()][1:]
    if any(option.kind is option.POSITIONAL_OR_KEYWORD and option.default is option.empty for option in options):
        allowed = "one whose step() needs no closure: a private step computes each gradient once"
        raise ParameterError("optimizer", type(optimizer).__name__, allowed)
    moved = {parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad}
    trained = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for parameter, name in trained.items():
        if parameter not in moved:
            allowed = f"given all trainable parameters, {name} too: add or freeze it"
            raise ParameterError("optimizer", type(optimizer).__name__, allowed)
    for parameter in moved - trained.keys():
        allowed = f"given parameters of this model only, not one of shape {tuple(parameter.shape)}"
        raise ParameterError("optimizer", type(optimizer).__name__, allowed)


def padding_rows(model: nn.Module) -> dict[nn.Parameter, int]:
    """Find the rows of tables that no sample trains: those of padding, unless something else uses the table, too.

    Of a shard, where the row is among those that this process has.
    """
    uses = Counter(value for part in model.modules() for value in part.parameters(recurse=False))
    found = {}
    for part in model.modules():
        if isinstance(part, nn.Embedding) and part.padding_idx is not None and uses[part.weight] == 1:
            mesh, process, row = getattr(part.weight, "device_mesh", None), 0, part.padding_idx
            if mesh is not None:  # each process has as many rows, the last one fewer
                process, row = divmod(row, -(-len(part.weight) // mesh.size()))
            if mesh is None or process == mesh.get_local_rank():
                found[part.weight] = row
    return found


def changed_buffer(name: str) -> str:
    """Explain the error if a forward pass changes a buffer, and its fix."""
    todo = "a sample run alone must give what it gives in the batch: freeze it"
    if name.endswith(("_u", "_v")) and ".parametrizations." in f".{name}":
        todo = (
            "spectral norm iterates once in each forward pass, and how many there are is private; call "
            "layer.parametrizations.weight[0].eval() after model.train()"
        )
    return f"a forward pass changes buffer {name}, a state of many samples: {todo}"
