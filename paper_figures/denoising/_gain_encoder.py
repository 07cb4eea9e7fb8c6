"""The matrices of MiniLM's last layer and its head as functions to logits, of a batch of docstrings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from paper_figures.denoising._gains import Curvature

TEXTS = 48
MATRICES = ("attention.self.value", "attention.output.dense", "output.dense", "head")


def curvatures(texts: int = TEXTS) -> Iterator[tuple[str, Curvature]]:
    """Every matrix by its name, at the pretrained weights and a head that is not trained yet."""
    model, labels, inputs = _last_layer(texts)
    for matrix in MATRICES:
        name = "classifier.weight" if matrix == "head" else f"encoder.encoder.layer.0.{matrix}.weight"
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no forward derivative
            yield matrix, Curvature(partial(_logits, model, inputs, name), model.get_parameter(name), labels)


def _logits(model: torch.nn.Module, inputs: dict[str, torch.Tensor], name: str, weight: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = torch.func.functional_call(model, {name: weight}, (), inputs).logits
    return logits


def _last_layer(texts: int) -> tuple[torch.nn.Module, torch.Tensor, dict[str, torch.Tensor]]:
    # A model of its last layer alone, whose embeddings are what went into that.
    from dprmt.training.data import load_data
    from dprmt.training.models import load_model, load_tokenizer
    from dprmt.training.recipes import load_recipe

    made = load_recipe("minilm-docstrings").with_changes({"model.finetune": "full", "model.lora": None})
    tokenizer = load_tokenizer(made.model)
    data: Any = load_data(made.data, tokenizer, made.model.task)
    model = load_model(made.model, labels=len(data.labels), seed=0, tokenizer=tokenizer).model.eval()
    batch = data.collate([data.train[i] for i in range(0, len(data.train), len(data.train) // texts)][:texts])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    seen: list[torch.Tensor] = []
    layers = model.encoder.encoder.layer
    handle = layers[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        model(**inputs)
    handle.remove()
    model.encoder.encoder.layer = layers[-1:]
    model.encoder.embeddings = _Given(seen[0])
    return model, batch["labels"], inputs


class _Given(torch.nn.Module):  # type: ignore[misc]
    """In the place of the embeddings: their values are known."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.value
