"""Which parameters are trained: adapters (PEFT), a head, or all."""

from __future__ import annotations

import warnings

import torch
from peft import LoraConfig, get_peft_model
from transformers.pytorch_utils import Conv1D

from dprmt._validation import ParameterError
from dprmt.training.recipes import LoraRecipe, ModelRecipe

_HEADS = ("classifier", "score")
_ADAPTED = (torch.nn.Linear, Conv1D)


def make_trainable(network: torch.nn.Module, model: ModelRecipe) -> torch.nn.Module:
    """Mark what is trained, and freeze the rest."""
    heads = [name for name in _HEADS if hasattr(network, name)] if model.task == "classification" else []
    if model.dtype != "float32" and (model.finetune != "lora" or heads or (model.lora and model.lora.also_train)):
        raise ParameterError("model.dtype", model.dtype, "'float32' unless LoRA adapters alone are trained")
    if model.finetune == "full":
        _check_untied(network)
        return network.requires_grad_(True)
    if model.finetune == "head":
        network.requires_grad_(False)
        for head in heads:
            getattr(network, head).requires_grad_(True)
        return network
    assert model.lora is not None
    return _adapted(network, model.lora, heads)


def _adapted(network: torch.nn.Module, lora: LoraRecipe, heads: list[str]) -> torch.nn.Module:
    kinds = {name: type(module) for name, module in network.named_modules()}
    for key, names in (("targets", lora.targets), ("also_train", lora.also_train)):
        for target in names:
            if not any(_is_at_the_end(target, name) for name in kinds):
                last = sorted({name.rpartition(".")[2] for name, kind in kinds.items() if issubclass(kind, _ADAPTED)})
                raise ParameterError(
                    f"model.lora.{key}", target, "the end of a module's name, such as " + ", ".join(last)
                )
    targeted = [name for name in kinds if any(_is_at_the_end(target, name) for target in lora.targets)]
    for name in targeted:
        if not issubclass(kinds[name], _ADAPTED):
            raise ParameterError("model.lora.targets", name, "linear modules, not a " + kinds[name].__name__)
    tied = _tied_names(network)
    if tied and any(name in tied for name in (*targeted, *lora.also_train)):
        raise ParameterError("model.lora.targets", sorted(tied), "other modules: these share one parameter")
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        modules_to_save=[*dict.fromkeys((*heads, *lora.also_train))] or None,
        fan_in_fan_out=any(issubclass(kinds[name], Conv1D) for name in targeted),
        bias="none",
    )
    with warnings.catch_warnings():
        # PEFT 0.21 asks Transformers 5.23 for an attribute under its old name.
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        return get_peft_model(network, settings)


def _is_at_the_end(target: str, name: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _tied_names(network: torch.nn.Module) -> set[str]:
    inputs, outputs = network.get_input_embeddings(), network.get_output_embeddings()
    if outputs is None or outputs.weight is not inputs.weight:
        return set()
    return {name for name, module in network.named_modules() if module is inputs or module is outputs}


def _check_untied(network: torch.nn.Module) -> None:
    tied = _tied_names(network)
    if tied:
        raise ParameterError(
            "model.untie", False, f"true for full fine-tuning: {' and '.join(sorted(tied))} share one parameter"
        )
