"""Texts as the means of what a frozen MiniLM makes of their tokens: computed once, in pieces that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paper_figures._needs import data_file
from paper_figures.denoising._stored import kept
from paper_figures.telemetry._tasks import SST2

_MOST = {"train": 6000, "validation": 1500}


def pooled(name: str, folder: Path, most: Mapping[str, int] = _MOST) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Features of length 1 and labels, of the training and the validation texts of a recipe.

    ``most``: of which splits, and how many texts of each at most.
    """
    from dprmt.training.data import load_data
    from dprmt.training.models import load_model, load_tokenizer
    from dprmt.training.recipes import load_recipe

    files = {key: [str(data_file(file))] for key, file in SST2.items()} if name.endswith("sst2") else {}
    made = load_recipe(name).with_changes(files)
    tokenizer = load_tokenizer(made.model)
    data: Any = load_data(made.data, tokenizer, made.model.task)
    model = load_model(made.model, labels=len(data.labels), seed=0, tokenizer=tokenizer).model.eval()
    seen: list[torch.Tensor] = []
    head = next(module for name, module in model.named_modules() if name.endswith("classifier"))
    head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    splits = []
    for part, few in most.items():
        split = getattr(data, part)
        items = [split[i] for i in range(min(few, len(split)))]
        rows = kept(folder / name, part, items, partial(_means, model, data.collate, seen))
        labels = torch.tensor([item["labels"] for item in items])
        splits.append((torch.stack(rows), labels))
    return splits


def _means(model: torch.nn.Module, collate: Any, seen: list[torch.Tensor], items: Sequence[Any]) -> list[torch.Tensor]:
    # What goes into the head, at unit length.
    for start in range(0, len(items), 32):
        batch = collate(items[start : start + 32])
        with torch.no_grad():
            model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    rows = torch.nn.functional.normalize(torch.cat(seen), dim=1)
    seen.clear()
    return [row.clone() for row in rows]
