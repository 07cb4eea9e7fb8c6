"""Adapters on disk, for PEFT and Transformers alone to read."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file

from dprmt._validation import ParameterError
from dprmt.training.models._sources import MeanPooledClassifier

_ADAPTER, _HEAD, _CARD = "adapter_model.safetensors", "classifier.safetensors", "README.md"
_BASE, _ENCODER, _CLASSIFIER = "base_model.model.", "encoder.", "classifier."


def save_adapter(network: Any, folder: str | Path) -> None:
    """Write adapters and further trained modules with PEFT (``adapter_model.safetensors``, ``adapter_config.json``).

    A classifier with mean pooling is a class of dprmt. For it, the adapters of the Transformers encoder inside are
    written, with the linear layer in ``classifier.safetensors`` (``weight``, ``bias``). ``README.md`` shows how to
    combine the two without dprmt.

    Parameters
    ----------
    network : PeftModel
        The PEFT model, not an Opacus module around it.
    folder : str or Path
        Folder for the files, created if missing.

    Raises
    ------
    ParameterError
        If the model has no adapters.

    Examples
    --------
    >>> import tempfile
    >>> from dprmt.training.models import load_model
    >>> from dprmt.training.recipes import LoraRecipe, ModelRecipe
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> lora = LoraRecipe(rank=2, alpha=4.0, targets=("query",))
    >>> recipe = ModelRecipe("classification", architecture="bert", tokenizer="bytes", config=sizes, lora=lora)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_adapter(load_model(recipe, labels=2).model, folder)
    ...     sorted(path.name for path in Path(folder).glob("adapter*"))
    ['adapter_config.json', 'adapter_model.safetensors']
    """
    if not isinstance(network, PeftModel):
        raise ParameterError("network", type(network).__name__, "a model with adapters")
    if isinstance(network.get_base_model(), MeanPooledClassifier):
        _save_mean_pooled(network, Path(folder))
    else:
        network.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)


def load_adapter(network: Any, folder: str | Path) -> None:
    """Read what `save_adapter` wrote into a model of the same recipe, in place.

    Parameters
    ----------
    network : PeftModel
        The model.
    folder : str or Path
        What `save_adapter` wrote.

    Raises
    ------
    ParameterError
        If there is no such file, or it does not fit the model, which is then unchanged.

    Examples
    --------
    >>> import tempfile
    >>> from dprmt.training.models import load_model
    >>> from dprmt.training.recipes import LoraRecipe, ModelRecipe
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> lora = LoraRecipe(rank=2, alpha=4.0, targets=("query",))
    >>> recipe = ModelRecipe("classification", architecture="bert", tokenizer="bytes", config=sizes, lora=lora)
    >>> model, other = (load_model(recipe, labels=2, seed=seed).model for seed in (0, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_adapter(model, folder)
    ...     load_adapter(other, folder)
    >>> trained = [(p, dict(other.named_parameters())[n]) for n, p in model.named_parameters() if p.requires_grad]
    >>> all(torch.equal(mine, read) for mine, read in trained)
    True
    """
    path = Path(folder) / _ADAPTER
    if not isinstance(network, PeftModel) or not path.is_file():
        raise ParameterError("folder", str(folder), "the folder of save_adapter, for a model with adapters")
    values = load_file(path)
    if isinstance(network.get_base_model(), MeanPooledClassifier):
        values = _joined(values, path.with_name(_HEAD))
    own = get_peft_model_state_dict(network, save_embedding_layers=False)
    shapes = {name: tuple(value.shape) for name, value in values.items()}
    if shapes != {name: tuple(value.shape) for name, value in own.items()}:
        raise ParameterError("folder", str(folder), "adapters of the names and shapes of this model")
    set_peft_model_state_dict(network, values)


def _save_mean_pooled(network: PeftModel, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values = get_peft_model_state_dict(network, save_embedding_layers=False)
    encoder, head = _BASE + _ENCODER, _BASE + _CLASSIFIER
    adapters = {_BASE + name.removeprefix(encoder): v for name, v in values.items() if name.startswith(encoder)}
    linear = {name.removeprefix(head): value for name, value in values.items() if name.startswith(head)}
    for file, tensors in ((_ADAPTER, adapters), (_HEAD, linear)):
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        save_file(tensors, folder / file, metadata={"format": "pt"})
    config = _encoder_config(network)
    config.save_pretrained(str(folder))
    (folder / _CARD).write_text(_card(config.base_model_name_or_path), encoding="utf-8")


def _encoder_config(network: PeftModel) -> Any:
    whole = network.get_base_model()
    names = {name for name, _ in whole.named_modules()}
    config = copy.deepcopy(network.peft_config["default"])

    def inside(name: str) -> str:
        # Names are ends of names; only one written out from the start knows that it is inside a classifier.
        return name.removeprefix(_ENCODER) if name in names else name

    config.target_modules = sorted(inside(name) for name in config.target_modules)
    also = [inside(name) for name in config.modules_to_save or () if name != _CLASSIFIER[:-1]]
    config.modules_to_save = also or None
    kind = type(whole.encoder)
    config.auto_mapping = {"base_model_class": kind.__name__, "parent_library": kind.__module__}
    config.base_model_name_or_path = getattr(whole.config, "_name_or_path", "") or None
    config.inference_mode = True
    return config


def _joined(adapters: dict[str, torch.Tensor], head: Path) -> dict[str, torch.Tensor]:
    linear = load_file(head) if head.is_file() else {}
    values = {_BASE + _ENCODER + name.removeprefix(_BASE): value for name, value in adapters.items()}
    return values | {_BASE + _CLASSIFIER + name: value for name, value in linear.items()}


def _card(base: str | None) -> str:
    return f"""---
library_name: peft
tags:
- lora
---
Adapters of an encoder, and a linear layer on the mean of its outputs over the tokens of a text:

```python
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModel

encoder = AutoModel.from_pretrained({base or "BASE"!r}, add_pooling_layer=False)
encoder = PeftModel.from_pretrained(encoder, FOLDER).eval()
linear = load_file(FOLDER + "/{_HEAD}")


def logits(input_ids, attention_mask):
    states = encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    weights = attention_mask.unsqueeze(-1).to(states)
    pooled = (states * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.linear(pooled, linear["weight"], linear["bias"])
```
"""
