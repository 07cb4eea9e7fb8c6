"""Small and pretrained models with their data; labels as they are, shuffled, or no data at all."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from dprmt.training.harness import ItemTask, Task
from paper_figures._needs import data_file


class Shuffled(Sequence[Any]):
    """Items with each other's labels: nothing that the inputs say of them can be learnt."""

    def __init__(self, items: Sequence[Any], seed: int) -> None:
        self._items, self._order = items, list(range(len(items)))
        random.Random(seed).shuffle(self._order)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, place: Any) -> Any:
        own, other = self._items[place], self._items[self._order[place]]
        if isinstance(own["labels"], int):
            return {**own, "labels": other["labels"]}
        return {**own, **_continued(own, other)}


def _continued(own: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[int]]:
    # What is read of one text, what is to be written of another.
    prompt = own["input_ids"][: own["labels"].count(UNSCORED)]
    target = other["labels"][other["labels"].count(UNSCORED) :]
    return {"input_ids": [*prompt, *target], "labels": [UNSCORED] * len(prompt) + [*target]}


class NoData(Task):
    """A task of the same size of which no sample ever reaches the model: all that is released is noise."""

    def __init__(self, size: int) -> None:
        self.size = size

    def pieces(self, batch: Sequence[int], largest: int) -> list[Sequence[int]]:
        """None of them."""
        return []

    def accumulate(self, private: Any, positions: Sequence[int], step: int) -> torch.Tensor:
        """See `Task`; it is never called."""
        raise AssertionError("there are no pieces")


def digits(width: int | None, seed: int) -> tuple[torch.nn.Module, ItemTask]:
    """Scikit-learn's 8 × 8 digits, by logistic regression or with a hidden layer."""
    from sklearn.datasets import load_digits

    known = load_digits()
    inputs = torch.tensor(known.data, dtype=torch.float32) / 16
    items = [{"inputs": x, "labels": int(y)} for x, y in zip(inputs, known.target, strict=True)]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if width is None:
            model: torch.nn.Module = torch.nn.Linear(64, 10)
        else:
            model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
    return model, ItemTask(items, _digits_batch, _digits_losses)


def _digits_batch(items: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    inputs = torch.stack([item["inputs"] for item in items])
    return {"inputs": inputs, "labels": torch.tensor([item["labels"] for item in items])}


def _digits_losses(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"], reduction="none")


SST2 = {"data.train": "sst2/train.tsv", "data.validation": "sst2/dev.tsv", "data.test": "sst2/test.tsv"}
UNSCORED = -100
"""Label of a token that no loss is taken of."""
E2E = {"data.train": "e2e/trainset.csv", "data.validation": "e2e/devset.csv", "data.test": "e2e/testset_w_refs.csv"}
_FILES = {"minilm-sst2": SST2, "smollm2-e2e": E2E}


def recipe(name: str, changes: Mapping[str, Any]) -> Any:
    """A recipe of the package with its files where `data_file` finds them: model, task and settings."""
    from dprmt.report.measurements import recipe_experiment
    from dprmt.training.recipes import load_recipe

    files = {key: [str(data_file(file))] for key, file in _FILES.get(name, {}).items()}
    return recipe_experiment(load_recipe(name).with_changes({**files, **changes}))
