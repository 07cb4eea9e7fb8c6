"""Texts as what a frozen model makes of them: a row for a head, one for every token for an adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paper_figures.digits._adapted import AdaptedEncoder, Norm, Texts
from paper_figures.digits._adapted_decoder import AdaptedDecoder
from paper_figures.digits._images import Images
from paper_figures.digits._samples import Samples

_MOST = {"train": 6000, "validation": 1500, "test": 1500}


def docstring_features(folder: Path) -> Images:
    """All docstrings by their split, as means over tokens at unit length; ``folder`` keeps them."""
    from paper_figures.automatic_rate._features import pooled

    return Images(*pooled("minilm-docstrings", folder, _MOST))


def adapted(name: str, data: Path, folder: Path, few: bool = False) -> Samples:
    """The texts of a setting for an adapter.

    ``data``: where ``sst2`` and ``e2e`` lie; ``folder``: where what a decoder makes of texts is kept; ``few``: whether
    a batch of a decoder's texts is enough.
    """
    makes: dict[str, Callable[[], Samples]] = {
        "adapter, docstrings": docstring_tokens,
        "adapter, SST-2": partial(sst2_tokens, data),
        "adapter, E2E": partial(e2e_states, data, folder, (640, 8, 8) if few else (8192, 256, 512)),
    }
    return makes[name]()


def docstring_tokens() -> AdaptedEncoder:
    """All docstrings by their split, for an adapter in the last matrix."""
    return _tokens("minilm-docstrings", {}, [("train", 0, None), ("validation", 0, None), ("test", 0, None)])


def sst2_tokens(data: Path) -> AdaptedEncoder:
    """Sentences of SST-2, for an adapter in the last matrix: 8,192, and of the development file 1,000 and 4,000.

    ``data``: where ``sst2`` lies.
    """
    names = {"data.train": "train.tsv", "data.validation": "dev.tsv", "data.test": "test.tsv"}
    files = {key: [str(data / "sst2" / name)] for key, name in names.items()}
    parts = [("train", 0, 8192), ("validation", 0, 1000), ("validation", 1000, 5000)]
    return _tokens("minilm-sst2", files, parts)


def _tokens(recipe: str, changes: Mapping[str, Any], parts: Sequence[tuple[str, int, int | None]]) -> AdaptedEncoder:
    from dprmt.training.data import load_data
    from dprmt.training.models import load_model, load_tokenizer
    from dprmt.training.recipes import load_recipe

    made = load_recipe(recipe).with_changes({**changes, "model.lora.targets": ["layer.5.output.dense"]})
    tokenizer = load_tokenizer(made.model)
    data: Any = load_data(made.data, tokenizer, made.model.task)
    model = load_model(made.model, labels=len(data.labels), seed=0, tokenizer=tokenizer).model.eval()
    layer = next(module for name, module in model.named_modules() if name.endswith("encoder.layer.5.output"))
    weight, bias = (value.detach() for value in layer.LayerNorm.parameters())
    norm = Norm(weight, bias, layer.LayerNorm.eps)
    texts = []
    for part, first, last in parts:
        split = getattr(data, part)
        items = [split[i] for i in range(first, len(split) if last is None else last)]
        texts.append(_texts(model, layer, items))
    return AdaptedEncoder(norm, *texts)


def _texts(model: torch.nn.Module, layer: Any, items: list[Any]) -> Texts:
    from paper_figures.denoising._last_layer import features

    (drawn,) = (module.weight.detach() for module in layer.dense.lora_A.values())
    fixed, inputs = [], []
    for start in range(0, len(items), 512):  # the hidden states are large
        for text in features(model, [item["input_ids"] for item in items[start : start + 512]]):
            fixed.append(text.product + text.residual)
            inputs.append(text.hidden @ drawn.T)
    return Texts(fixed, inputs, torch.tensor([item["labels"] for item in items]))


def e2e_states(data: Path, folder: Path, most: Sequence[int]) -> AdaptedDecoder:
    """Rows of E2E as what goes into SmolLM2's last layer, for an adapter on its values; frozen weights in 16 bits.

    ``most``: rows to train on, and of the development file to tune and to test on.
    """
    from dprmt.training.data import load_data
    from dprmt.training.models import load_model, load_tokenizer
    from dprmt.training.recipes import load_recipe
    from paper_figures.denoising._last_decoder import LastDecoder, states
    from paper_figures.denoising._stored import kept

    names = {"data.train": "trainset.csv", "data.validation": "devset.csv", "data.test": "devset.csv"}
    files = {key: [str(data / "e2e" / name)] for key, name in names.items()}
    changes = {
        **files,
        "data.max_tokens": 96,
        "model.dtype": "bfloat16",
        "model.lora.targets": ["layers.29.self_attn.v_proj"],
    }
    made = load_recipe("smollm2-e2e").with_changes(changes)
    tokenizer = load_tokenizer(made.model)
    loaded: Any = load_data(made.data, tokenizer, made.model.task)
    model = load_model(made.model, seed=0, tokenizer=tokenizer).model.eval().requires_grad_(False)
    train, tune, test = most
    texts = []
    for part, first, last in (("train", 0, train), ("validation", 0, tune), ("validation", tune, tune + test)):
        items = [getattr(loaded, part)[i] for i in range(first, last)]
        ids = [item["input_ids"] for item in items]
        found = kept(folder / "e2e", f"{part}-{first}-{last}", ids, lambda some: list(states(model, some)))
        texts.append([(hidden, item["labels"]) for hidden, item in zip(found, items, strict=True)])
    return AdaptedDecoder(LastDecoder(model), *texts)
