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
from dprmt.training.data import load_data, per_sample_losses
from dprmt.training.evaluation import evaluate_classification, evaluate_generation, generation_loss
from dprmt.training.harness._privacy_cost import norms_sentence, wanted_releases
from dprmt.training.harness._run import Run, Start, plan_step
from dprmt.training.harness._run_folder import RunFolder, read_run, save_trained
from dprmt.training.harness._task import ItemTask
from dprmt.training.models import load_model, load_tokenizer
from dprmt.training.norms import ProbeGenerator
from dprmt.training.private_run._batches import scheme
from dprmt.training.private_run._ledger import Mechanism, SpentEpsilon, named_relation, whole_epochs
from dprmt.training.private_run._randomness import fresh_randomness
from dprmt.training.recipes import NormsRecipe, Recipe


class RecipeTask(ItemTask):
    """Model and data of a recipe, loaded, with rows as samples or units of several.

    Raises
    ------
    ParameterError
        If something cannot be loaded, or the model cannot read texts as long as the recipe's.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        def collate(items: list[Any]) -> dict[str, torch.Tensor]:
            return {name: value.to(device) for name, value in data.collate(items).items()}

        wanted, seed = recipe.data, recipe.training.seed
        tokenizer = load_tokenizer(recipe.model)
        data = load_data(wanted, tokenizer, recipe.model.task)
        labels = None if data.labels is None else len(data.labels)
        self.recipe, self.data = recipe, data
        self.loaded = load_model(recipe.model, labels=labels, seed=seed, tokenizer=tokenizer)
        self.model = self.loaded.model.to(device).train()
        longest = self.loaded.longest_input
        if longest is not None and wanted.max_tokens > longest:
            raise ParameterError("data.max_tokens", wanted.max_tokens, f"at most {longest}, the model's longest input")
        units: dict[str, Any] = {}
        if wanted.unit is not None:
            units = {
                "owners": [row.unit for row in data.train.rows],
                "units": Units(wanted.rows_per_unit, recipe.training.micro_batch_size),
                "averages": wanted.unit_gradient == "mean",
                "seed": seed,
            }
        # Texts of similar length go together, so that little of a micro-batch is padding.
        super().__init__(data.train, collate, per_sample_losses, lambda item: len(item["input_ids"]), **units)
        self.class_names, self.unit = data.labels, data.unit_of_privacy
        if data.task == "classification" and len(data.validation):
            self.scored_rows = min(len(data.validation), recipe.evaluation.limit or len(data.validation))

    def run(self, start: Start, former: str | None = None) -> Run:
        """Return a run, once it is known that every trainable parameter gets a gradient.

        ``former``: the norm method of earlier starts.
        """
        tokens = self.recipe.data.max_tokens
        check_gradients_arrive(self.model, lambda: self.made_up_losses(4, min(16, tokens)))
        return Run(self.model, self, self.with_norms(former, start.processes), start, tokens=tokens)

    def with_norms(self, former: str | None = None, processes: int = 1) -> Recipe:
        """Return the recipe with the method that ``"auto"`` stands for: the ``former`` one, or the recommended.

        Where steps are not measured (units, subspaces, several processes, which could disagree) it is ``"ghost"``.
        """
        recipe = self.recipe
        if recipe.privacy.norms.kind != "auto":
            return recipe
        measures = processes == 1 and recipe.data.unit is None and recipe.optimizer.name != "grape"
        kind = former or (self.costs().recommended.way if measures else "ghost")
        return replace(recipe, privacy=replace(recipe.privacy, norms=NormsRecipe(kind)))

    def costs(self) -> StepCosts:
        """Measure steps of one micro-batch of random tokens by every norm method."""
        training, tokens = self.recipe.training, self.recipe.data.max_tokens
        start = Start(fresh_randomness(None, 1))
        plan, mechanism = plan_step(self.model, self, self.recipe, start, ProbeGenerator(), tokens)
        samples = min(training.micro_batch_size, training.batch_size)
        return plan.costs(
            lambda: self.made_up_losses(samples, tokens),
            noise_multiplier=mechanism.noise_multiplier or 1.0,
            sampling=scheme(self.recipe.privacy.sampling, training.batch_size, self.size),
            steps=whole_epochs(training.steps, mechanism.steps_per_epoch),
            delta=self.recipe.privacy.delta,
        )

    def made_up_losses(self, samples: int, tokens: int) -> torch.Tensor:
        """Compute losses of random tokens: looking at them costs no privacy."""
        generator, shape = torch.Generator().manual_seed(0), (samples, tokens)
        ids = torch.randint(int(self.model.config.vocab_size), shape, generator=generator)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        if self.data.pair_types:
            batch["token_type_ids"] = torch.zeros_like(ids)
        if self.data.labels is not None:
            batch["labels"] = torch.randint(len(self.data.labels), (samples,), generator=generator)
        device = next(self.model.parameters()).device
        return per_sample_losses(self.model, {name: value.to(device) for name, value in batch.items()})

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
        wanted, model = self.recipe.evaluation, self.model
        if self.data.task == "classification":
            return {**evaluate_classification(model, self.data, settings=wanted)}
        result = evaluate_generation(model, self.loaded.tokenizer, self.data, "validation", settings=wanted)
        skipped = {"skipped": result.skipped} if result.skipped else {}
        return {"loss": generation_loss(model, self.data, settings=wanted), **result.scores, **skipped}


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
        found = torch.autograd.grad(losses().sum(), list(trainable.values()), allow_unused=True)
    finally:
        with torch.no_grad():
            for value in zeros:
                value.zero_()
    gradients = zip(trainable, found, strict=True)
    if silent := [name for name, gradient in gradients if gradient is None or not gradient.any()]:
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
    norms : str
        Norm method, with the number of layers. Norms are exact where that is cheaper than the requested estimate.
    neighbours : str or None
        Neighbouring relation of every ε: "zero-out"; None with ``privacy.clip_only``.
    """

    mechanism: dict[str, Any]
    noise_std: float
    epsilon_after: dict[int, float]
    samples: int
    sample_rate: float
    trainable: dict[str, tuple[int, ...]]
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
    """Set up a run and preview it.

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
    run = RecipeTask(recipe, place).run(Start(fresh_randomness(None, 1)), former)
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
        norms=norms_sentence(run.plan),
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
    return RecipeTask(recipe, usable_device(device)).costs()
