"""Which parameters are trained: adapters (PEFT), a head, or all."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, load_model, save_model
from transformers.pytorch_utils import Conv1D

from dprmt._validation import ParameterError
from dprmt.training.models._sources import MeanPooledClassifier
from dprmt.training.recipes import LoraRecipe, ModelRecipe

_HEAD = "classifier.safetensors"
_HEADS = ("classifier", "score")
_ADAPTED = (torch.nn.Linear, Conv1D)


# Classes whose samples have to run one by one where one of these parts is trained (all: ""), and why.
_APART = {
    "DebertaEncoder": ("rel_embeddings", "_proj"),  # a table of relative positions that all samples share
    "DebertaV2Encoder": ("rel_embeddings", "_proj"),
    "LongformerSelfAttention": ("",),  # computes with the sequence first
    "OPTDecoderLayer": ("fc1", "fc2", "final_layer_norm"),  # puts samples and tokens into one axis
}


def whole_modules(network: torch.nn.Module) -> list[str]:
    """Find the modules of a Transformers model whose samples must run one by one.

    Pass them to `make_private` as ``whole``. Most architectures have none. Others share a value between samples, such
    as T5's relative positions, or order the axes differently, as Longformer does.

    Parameters
    ----------
    network : Module
        A Transformers model with its adapters, and with ``requires_grad`` set as for training.

    Returns
    -------
    list of str
        Names of modules, none inside another.

    Examples
    --------
    >>> from transformers import T5Config, T5ForConditionalGeneration
    >>> sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    >>> whole_modules(T5ForConditionalGeneration(T5Config(**sizes)))
    ['encoder.block.0.layer.0.SelfAttention', 'decoder.block.0.layer.0.SelfAttention']
    """
    found: list[str] = []
    for name, module in network.named_modules():
        kind = type(module).__name__
        parts = ("relative_attention_bias",) if hasattr(module, "relative_attention_bias") else _APART.get(kind, ())
        trained = [inside for inside, value in module.named_parameters() if value.requires_grad]
        own = any(part in inside for part in parts for inside in trained)
        if own and not any(name.startswith(f"{other}.") for other in found):
            found.append(name)
    return found


def make_trainable(network: torch.nn.Module, model: ModelRecipe) -> torch.nn.Module:
    """Mark what is trained, and freeze the rest."""
    heads = [name for name in _HEADS if hasattr(network, name)] if model.task == "classification" else []
    if model.dtype != "float32" and (model.finetune != "lora" or heads or (model.lora and model.lora.also_train)):
        raise ParameterError("model.dtype", model.dtype, "'float32' unless LoRA adapters alone are trained")
    if model.finetune == "full":
        return network.requires_grad_(True)
    if model.finetune == "head":
        network.requires_grad_(False)
        for head in heads:
            getattr(network, head).requires_grad_(True)
        return network
    assert model.lora is not None
    if isinstance(network, MeanPooledClassifier):  # so that PEFT and Transformers alone can read the encoder
        network.encoder = _adapted(network.encoder, model.lora, [])
        return network
    return _adapted(network, model.lora, heads)


def adapter_of(network: torch.nn.Module) -> PeftModel | None:
    """Return the model with adapters in a network."""
    return next((module for module in network.modules() if isinstance(module, PeftModel)), None)


def save_adapter(network: torch.nn.Module, folder: Path) -> None:
    """Write adapters, and further trained modules, for PEFT to read; a linear layer on a mean goes to a file next to
    them.
    """
    adapter = adapter_of(network)
    assert adapter is not None
    adapter.save_pretrained(str(folder), save_embedding_layers=False)
    if isinstance(network, MeanPooledClassifier):
        save_model(network.classifier, str(folder / _HEAD))


def load_adapter(network: torch.nn.Module, folder: Path) -> None:
    """Read what `save_adapter` wrote into a model of the same recipe, in place."""
    if isinstance(network, MeanPooledClassifier) and not (folder / _HEAD).is_file():
        raise ParameterError("folder", str(folder), f"one with the classifier of the run, {_HEAD}")
    adapter, values = adapter_of(network), load_file(folder / "adapter_model.safetensors")
    own = get_peft_model_state_dict(adapter, save_embedding_layers=False)
    if {name: value.shape for name, value in values.items()} != {name: value.shape for name, value in own.items()}:
        raise ParameterError("folder", str(folder), "adapters of the names and shapes of this model")
    set_peft_model_state_dict(adapter, values)
    if isinstance(network, MeanPooledClassifier):
        load_model(network.classifier, str(folder / _HEAD))


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
