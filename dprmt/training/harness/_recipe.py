"""From a recipe to model, data and run, and what it would do and cost before it runs; nothing private is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dprmt._validation import ParameterError
from dprmt.training.clipping import StepCosts, Units
from dprmt.training.data import TaskData, load_data, per_sample_losses
from dprmt.training.evaluation import evaluate_classification, evaluate_generation, generation_loss
from dprmt.training.harness._privacy_cost import norms_sentence, wanted_releases
from dprmt.training.harness._run import Run, Start, plan_step
from dprmt.training.harness._run_folder import RunFolder, read_run, save_trained
from dprmt.training.harness._task import ItemTask
from dprmt.training.models import LoadedModel, load_model, load_tokenizer
from dprmt.training.norms import ProbeGenerator
from dprmt.training.private_run._batches import scheme
from dprmt.training.private_run._ledger import Mechanism, SpentEpsilon, named_relation, whole_epochs
from dprmt.training.private_run._randomness import fresh_randomness
from dprmt.training.recipes import NormsRecipe, Recipe


class RecipeTask(ItemTask):
    """The data of a recipe, for its model, with rows as samples or units of several."""

    def __init__(self, recipe: Recipe, loaded: LoadedModel, data: TaskData, device: torch.device) -> None:
        def collate(items: list[Any]) -> dict[str, torch.Tensor]:
            return {name: value.to(device) for name, value in data.collate(items).items()}

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


def recipe_run(recipe: Recipe, loaded: LoadedModel, data: TaskData, device: torch.device, start: Start) -> Run:
    """Return a recipe's run, once it is known that every trainable parameter gets a gradient."""
    loaded.model.to(device).train()
    check_gradients_arrive(loaded.model, lambda: made_up_losses(loaded, data, 4, min(16, data.max_tokens)))
    task = RecipeTask(recipe, loaded, data, device)
    return Run(loaded.model, task, recipe, start, tokens=recipe.data.max_tokens)


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


def check_gradients_arrive(model: torch.nn.Module, losses: Callable[[], torch.Tensor]) -> None:
    """Raise unless every trainable parameter has a gradient that is not 0, on made-up input.

    With noise every parameter moves, also one that is not connected to the loss: the noise hides it. So this is
    checked beforehand, on random input, which costs no privacy. Parameters that are all 0 (LoRA's B, whose zeros stop
    the gradient of A) are replaced for the check.

    ``model``: without per-sample hooks. Its parameters and gradients are as before afterwards.
    """
    trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
    if not trainable:
        raise ParameterError("model", type(model).__name__, "a model with trainable parameters")
    zeros = [value for value in trainable.values() if not value.any()]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for value in zeros:
                value.copy_(0.02 * torch.randn(value.shape, generator=generator).to(value))
        model.zero_grad(set_to_none=True)
        losses().sum().backward()
        silent = [name for name, value in trainable.items() if value.grad is None or not value.grad.any()]
    finally:
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for value in zeros:
                value.zero_()
    if silent:
        shown = ", ".join(silent[:5]) + (f", … ({len(silent)} in all)" if len(silent) > 5 else "")
        raise ParameterError("model", shown, "one whose trainable parameters all get a gradient")


@dataclass(frozen=True)
class DryRun:
    """Preview of a run.

    Attributes
    ----------
    mechanism : dict
        One step, as the accountant receives it.
    noise_std : float
        Standard deviation σC/L of the noise in one entry of the optimizer's gradient.
    epsilon_after : dict of int to float
        Upper bounds of ε after some numbers of steps, and after the last one, with a released score.
    samples, sample_rate
        Size of the training set, and the inclusion probability of a sample.
    trainable : dict of str to tuple of int
        Shapes of the trainable parameters.
    layers : list of dict
        Norm method of each layer.
    norms : str
        The same in a sentence, which mentions if all norms are exact although an estimate was requested.
    neighbours : str or None
        Neighbouring relation of every ε: "zero-out"; None with ``privacy.clip_only``.
    """

    mechanism: dict[str, Any]
    noise_std: float
    epsilon_after: dict[int, float]
    samples: int
    sample_rate: float
    trainable: dict[str, tuple[int, ...]]
    layers: list[dict[str, Any]]
    norms: str
    neighbours: str | None


def dry_run(
    recipe: Recipe,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    noise_seed: int | None = None,
    device: str | None = None,
) -> DryRun:
    """Set up a run on the CPU and preview it.

    Parameters
    ----------
    recipe : Recipe
        Recipe to preview.
    out, resume, noise_seed, device
        Options of :func:`dprmt.training.harness.train`, which are checked in the same way; no folder is
        created.

    Returns
    -------
    DryRun
        The output of ``dprmt train --dry-run``.

    Raises
    ------
    ParameterError
        If the recipe or an option cannot be used, as for :func:`dprmt.training.harness.train`.

    Formal guarantees
    -----------------
    Nothing is trained and no sample's gradient is computed. The result follows from recipe, model, number of training
    items and names of the labels, which are public. With ``norms.kind = "auto"`` it also depends on the time of steps
    on synthetic texts. It costs no privacy.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> few = {"data.limit": 30, "training.batch_size": 10, "training.steps": 2, "model.tokenizer": "bytes"}
    >>> recipe = load_recipe("qwen3-tiny-docstrings").with_changes(few)
    >>> planned = dry_run(recipe)
    >>> planned.samples, round(planned.sample_rate, 3), round(planned.noise_std, 3)
    (30, 0.333, 0.072)
    >>> {steps: round(epsilon, 1) for steps, epsilon in planned.epsilon_after.items()}
    {1: 5.0, 2: 6.7}
    """
    place, former = usable_device(device), None
    fresh_randomness(noise_seed, 1, recipe.privacy.secure)
    if out is not None:
        RunFolder(out, resume=resume, config=recipe).close()
        former = read_run(Path(out)).get("norms")
    elif resume:
        raise ParameterError("resume", True, "False without a folder")
    loaded, data = load(recipe)
    recipe = with_norms(recipe, loaded, data, place, former=former)
    run = recipe_run(recipe, loaded, data, torch.device("cpu"), Start(fresh_randomness(None, 1)))
    run.private.close()
    steps = recipe.training.steps
    marks = sorted({1, *(max(1, steps * part // 5) for part in range(1, 6))})
    mechanism: Mechanism = run.private.mechanism
    delta, releases = recipe.privacy.delta, wanted_releases(recipe)
    spent = {mark: SpentEpsilon(mechanism, delta, releases=releases if mark == steps else ()) for mark in marks}
    return DryRun(
        mechanism=run.record["step"],
        noise_std=mechanism.noise_multiplier * recipe.privacy.clipping_norm / recipe.training.batch_size,
        epsilon_after={mark: bound.after(mark, exactly=True) for mark, bound in spent.items()},
        samples=run.task.size,
        sample_rate=mechanism.sample_rate,
        trainable={name: tuple(value.shape) for name, value in run.parameters.items()},
        layers=[
            {"layer": layer.layer, **({"kind": "unknown"} if layer.norms is None else layer.norms.as_dict())}
            for layer in run.plan.record.layers
        ],
        norms=norms_sentence(recipe.privacy.norms.kind, run.plan),
        neighbours=named_relation(mechanism),
    )


def recipe_costs(recipe: Recipe, *, device: str | torch.device | None = None) -> StepCosts:
    """Measure time, memory and ε of a recipe's steps by every norm method.

    A few steps of each method run on one micro-batch of synthetic texts of ``max_tokens`` tokens. Nothing is trained
    and nothing counts towards ε.

    Parameters
    ----------
    recipe : Recipe
        Recipe to measure. Every ε uses its σ, or the σ calibrated for its norm method (for exact norms if that is
        ``"auto"``).
    device : str, optional
        Device to measure on; by default a GPU if there is one.

    Returns
    -------
    StepCosts
        Costs of a step of one micro-batch.

    Raises
    ------
    ParameterError
        If the recipe or the device cannot be used, or the recipe has units of several rows or trains in subspaces.

    Formal guarantees
    -----------------
    No text of the data is read: only their number, and the names of labels, which are public.

    Examples
    --------
    >>> from dprmt.training.recipes import load_recipe
    >>> few = {"data.limit": 30, "training.batch_size": 10, "training.steps": 2, "model.tokenizer": "bytes"}
    >>> few |= {"data.max_tokens": 16, "training.micro_batch_size": 2}
    >>> costs = recipe_costs(load_recipe("qwen3-tiny-docstrings").with_changes(few), device="cpu")
    >>> [way.way for way in costs.ways]
    ['exact', 'ghost', 'hutchinson', 'hutch++']
    """
    return _measured(recipe, *load(recipe), usable_device(device))


def with_norms(
    recipe: Recipe,
    loaded: LoadedModel,
    data: TaskData,
    device: torch.device,
    *,
    processes: int = 1,
    former: str | None = None,
) -> Recipe:
    """Return the recipe with the method that ``"auto"`` stands for: the ``former`` one of a resumed run, or the
    recommended.

    Where steps are not measured (units, subspaces, several processes, which could disagree) it is ``"ghost"``.
    """
    if recipe.privacy.norms.kind != "auto":
        return recipe
    measures = processes == 1 and recipe.data.unit is None and recipe.optimizer.name != "grape"
    kind = former or (_measured(recipe, loaded, data, device).recommended.way if measures else "ghost")
    return replace(recipe, privacy=replace(recipe.privacy, norms=NormsRecipe(kind)))


def _measured(recipe: Recipe, loaded: LoadedModel, data: TaskData, device: torch.device) -> StepCosts:
    model = loaded.model.to(device).train()
    task, tokens = RecipeTask(recipe, loaded, data, device), recipe.data.max_tokens
    plan, mechanism = plan_step(model, task, recipe, ProbeGenerator(), tokens=tokens)
    size = recipe.training.batch_size
    samples = min(recipe.training.micro_batch_size, size)
    return plan.costs(
        lambda: made_up_losses(loaded, data, samples, tokens),
        noise_multiplier=mechanism.noise_multiplier or 1.0,
        sampling=scheme(recipe.privacy.sampling, size, task.size),
        steps=whole_epochs(recipe.training.steps, mechanism.steps_per_epoch),
        delta=recipe.privacy.delta,
    )
