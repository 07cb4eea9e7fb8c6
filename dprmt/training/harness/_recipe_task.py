"""From a recipe to model, data and device."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.clipping import Units
from dprmt.training.data import TaskData, load_data, per_sample_losses
from dprmt.training.evaluation import evaluate_classification, evaluate_generation, generation_loss
from dprmt.training.harness._prepare import NEW, Prepared, check_gradients_arrive, prepare
from dprmt.training.harness._run_folder import save_trained
from dprmt.training.harness._task import ItemTask
from dprmt.training.models import LoadedModel, load_model, load_tokenizer
from dprmt.training.private_run._randomness import Randomness
from dprmt.training.recipes import Recipe


class RecipeTask(ItemTask):
    """The data of a recipe, for its model, with rows as samples or units of several."""

    def __init__(self, recipe: Recipe, loaded: LoadedModel, data: TaskData, device: torch.device) -> None:
        def collate(items: list[Any]) -> dict[str, torch.Tensor]:
            return {name: value.to(device) for name, value in data.collate(items).items() if name != "sample_id"}

        self.loaded, self.data, self.evaluation = loaded, data, recipe.evaluation
        wanted = recipe.data
        units: dict[str, Any] = {}
        if wanted.unit is not None:
            units = {
                "owners": [row.unit for row in data.train.rows],
                "units": Units(wanted.rows_per_unit, recipe.training.micro_batch_size),
                "averages": wanted.unit_gradient == "mean",
                "seed": recipe.training.seed,
            }
        # Texts of similar length go together, so that little of a micro-batch is padding.
        super().__init__(data.train, collate, per_sample_losses, lambda item: len(item["input_ids"]), **units)
        self.class_names, self.unit = data.labels, data.unit_of_privacy
        if data.task == "classification" and len(data.validation):
            rows, limit = len(data.validation), self.evaluation.limit
            self.scored_rows = rows if limit is None else min(rows, limit)

    def digest(self) -> str:
        """Digest all items in order, with their owners."""
        digest = hashlib.blake2b(digest_size=16)
        for item, row in zip(self.data.train, self.data.train.rows, strict=True):
            whose = {} if row.unit is None else {"unit": row.unit}
            digest.update(json.dumps(item | whose, sort_keys=True).encode() + b"\n")
        return digest.hexdigest()

    def save(self, folder: Path, weights: dict[str, torch.Tensor] | None) -> None:
        """See `Task`."""
        save_trained(self.loaded, folder, weights)

    def score(self) -> dict[str, Any]:
        """Score the validation set. For generation, ``"skipped"`` has the reason for each metric that could not be
        computed.
        """
        if not len(self.data.validation):
            return {}
        wanted, model = self.evaluation, self.loaded.model
        sizes: dict[str, Any] = {"batch_size": wanted.batch_size, "limit": wanted.limit}
        if self.data.task == "classification":
            metrics = wanted.metrics or ("accuracy",)
            return {**evaluate_classification(model, self.data, metrics=metrics, **sizes)}
        result = evaluate_generation(model, self.loaded.tokenizer, self.data, "validation", settings=wanted)
        skipped = {"skipped": result.skipped} if result.skipped else {}
        return {"loss": generation_loss(model, self.data, **sizes), **result.scores, **skipped}


def prepare_recipe(
    recipe: Recipe,
    loaded: LoadedModel,
    data: TaskData,
    device: torch.device,
    randomness: Randomness,
    former: Mapping[str, Any] = NEW,
    processes: int = 1,
) -> Prepared:
    """Return a recipe's run before its first step, once it is known that every trainable parameter gets a gradient."""
    loaded.model.to(device).train()
    check_gradients_arrive(loaded.model, lambda: made_up_losses(loaded, data, 4, min(16, data.max_tokens)))
    task = RecipeTask(recipe, loaded, data, device)
    return prepare(loaded.model, task, recipe.settings, randomness, former, processes, tokens=recipe.data.max_tokens)


def load(recipe: Recipe) -> tuple[LoadedModel, TaskData]:
    """Load model, tokenizer and data of a recipe; raise an error if the model cannot read texts as long as the
    recipe's.
    """
    tokenizer = load_tokenizer(recipe.model)
    data = load_data(recipe.data, tokenizer, recipe.model.task)
    labels = len(data.labels) if data.labels is not None else None
    loaded = load_model(recipe.model, labels=labels, seed=recipe.training.seed, tokenizer=tokenizer)
    longest = loaded.longest_input
    if longest is not None and recipe.data.max_tokens > longest:
        raise ParameterError("data.max_tokens", recipe.data.max_tokens, f"at most {longest}, the model's longest input")
    return loaded, data


def usable_device(name: str | torch.device | None) -> torch.device:
    """Return the device to train on; under ``torchrun``, this process' own GPU."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "cuda":
            own = int(os.environ.get("LOCAL_RANK", torch.cuda.current_device()))
            device = torch.device("cuda", own if device.index is None else device.index)
            torch.cuda.set_device(device)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise ParameterError("device", str(name), f"a device that computes here ({reason})") from None
    return device


def made_up_losses(loaded: LoadedModel, data: TaskData, samples: int, tokens: int) -> torch.Tensor:
    """Compute losses of random tokens: looking at them costs no privacy."""
    generator, shape = torch.Generator().manual_seed(0), (samples, tokens)
    ids = torch.randint(int(loaded.model.config.vocab_size), shape, generator=generator)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    if data.pair_types:
        batch["token_type_ids"] = torch.zeros_like(ids)
    if data.labels is not None:
        batch["labels"] = torch.randint(len(data.labels), (samples,), generator=generator)
    device = next(loaded.model.parameters()).device
    return per_sample_losses(loaded.model, {name: value.to(device) for name, value in batch.items()})
