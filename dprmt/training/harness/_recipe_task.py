"""From a recipe to model, data and device."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.clipping import PrivateStep, Units
from dprmt.training.data import TaskData, load_data, per_sample_losses
from dprmt.training.evaluation import evaluate_classification, evaluate_generation, generation_loss
from dprmt.training.harness._guard import check_gradients_arrive
from dprmt.training.harness._prepare import Prepared, prepare
from dprmt.training.harness._task import Plan, Task
from dprmt.training.harness._units import UnitBatches, UnitTable, unit_table
from dprmt.training.models import LoadedModel, load_model, load_tokenizer
from dprmt.training.private_run._randomness import Randomness
from dprmt.training.recipes import EvaluationRecipe, Recipe


@dataclass
class RecipeTask(Task):
    """The data of a recipe, for its model."""

    loaded: LoadedModel
    data: TaskData
    evaluation: EvaluationRecipe
    device: torch.device

    def __post_init__(self) -> None:
        self.size = len(self.data.train)
        self.class_names, self.unit = self.data.labels, self.data.summary["unit_of_privacy"]
        if self.data.task == "classification" and len(self.data.validation):
            rows = len(self.data.validation)
            self.scored_rows = rows if self.evaluation.limit is None else min(rows, self.evaluation.limit)
        # Texts of similar length go together, so that little of a micro-batch is padding.
        self.length_at = self._length

    def _length(self, position: int) -> int:
        return len(self.data.train[position]["input_ids"])

    def collate(self, items: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return a micro-batch on the device of the model, ``sample_id`` included."""
        return {name: value.to(self.device) for name, value in self.data.collate(items).items()}

    def accumulate(self, private: PrivateStep, positions: Sequence[int], step: int) -> torch.Tensor:
        """See `Task`."""
        inputs = self.collate([self.data.train[position] for position in positions])
        samples = inputs.pop("sample_id")
        private.model.train()  # scores leave it in evaluation mode
        losses = partial(per_sample_losses, private.model)
        return private.accumulate(losses, samples=samples, step=step, batch=inputs)

    def digest(self) -> str:
        """Digest all items in order, with their owners."""
        digest = hashlib.blake2b(digest_size=16)
        for item, row in zip(self.data.train, self.data.train.rows, strict=True):
            whose = {} if row.unit is None else {"unit": row.unit}
            digest.update(json.dumps(item | whose, sort_keys=True).encode() + b"\n")
        return digest.hexdigest()

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


class RecipeUnitsTask(RecipeTask):
    """The same where all rows of a unit are one sample."""

    def __init__(self, table: UnitTable, recipe: Recipe, *data: Any) -> None:
        super().__init__(*data)
        wanted = Units(recipe.data.rows_per_unit, recipe.training.micro_batch_size, recipe.data.unit_regime)
        self._batches = UnitBatches(table, wanted, self._length)
        self.size, self.length_at = len(table.names), None

    def clipping_plan(self, model: torch.nn.Module, **options: Any) -> Plan:
        """See `Task`."""
        return self._batches.plan(model, **options)

    def pieces(self, batch: Sequence[int], largest: int) -> list[Sequence[int]]:
        """Split into micro-batches, see `Task`; positions count units."""
        return self._batches.pieces(batch, largest)

    def accumulate(self, private: PrivateStep, positions: Sequence[int], step: int) -> torch.Tensor:
        """Add gradients, see `Task`; positions count units."""
        private.model.train()
        found = []
        for rows in self._batches.parts(positions, step):
            inputs = self.collate([self.data.train[row] for row, _ in rows])
            samples = inputs.pop("sample_id")
            found.append(self._batches.accumulate(private, per_sample_losses, inputs, rows, samples, step))
        return torch.cat(found)


def recipe_task(recipe: Recipe, loaded: LoadedModel, data: TaskData, device: torch.device) -> RecipeTask:
    """Return rows as samples, or units of several."""
    if recipe.data.unit is None:
        return RecipeTask(loaded, data, recipe.evaluation, device)
    averages = recipe.data.unit_gradient == "mean"
    units = [row.unit for row in data.train.rows if row.unit is not None]
    table = unit_table(units, most=recipe.data.rows_per_unit, averages=averages, seed=recipe.training.seed)
    return RecipeUnitsTask(table, recipe, loaded, data, recipe.evaluation, device)


def prepare_recipe(
    recipe: Recipe,
    loaded: LoadedModel,
    data: TaskData,
    device: torch.device,
    randomness: Randomness,
    **options: Any,
) -> Prepared:
    """Return a recipe's run before its first step, once it is known that every trainable parameter gets a gradient."""
    loaded.model.to(device)
    check_gradients_arrive(loaded.model, lambda: _made_up_losses(loaded, data, device))
    return prepare(
        loaded.model,
        recipe_task(recipe, loaded, data, device),
        recipe.settings,
        randomness,
        tokens=recipe.data.max_tokens,
        **options,
    )


def check_draws_kept(recipe: Recipe, *, repeatable: bool) -> None:
    """Raise where a checkpoint does not hold all that a run draws, and it is to go on as if it had not stopped."""
    lora = recipe.model.lora
    if repeatable and lora is not None and lora.dropout:
        raise ParameterError("repeatable", True, f"False with model.lora.dropout = {lora.dropout:g}")


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


def made_up_batch(loaded: LoadedModel, data: TaskData, samples: int, tokens: int) -> dict[str, torch.Tensor]:
    """Return a batch of random tokens: looking at it costs no privacy."""
    generator = torch.Generator().manual_seed(0)
    shape = (samples, tokens)
    vocabulary = int(loaded.model.config.vocab_size)
    batch = {
        "input_ids": torch.randint(vocabulary, shape, generator=generator),
        "attention_mask": torch.ones(shape, dtype=torch.long),
    }
    if data.pair_types:
        batch["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    if data.labels is None:
        return batch | {"labels": batch["input_ids"]}
    return batch | {"labels": torch.randint(len(data.labels), (samples,), generator=generator)}


def _made_up_losses(loaded: LoadedModel, data: TaskData, device: torch.device) -> torch.Tensor:
    batch = made_up_batch(loaded, data, samples=4, tokens=min(16, data.max_tokens))
    return per_sample_losses(loaded.model, {name: value.to(device) for name, value in batch.items()})
