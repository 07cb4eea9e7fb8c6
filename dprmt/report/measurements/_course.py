"""The course of the loss with noise, with clipping alone, and with neither."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dprmt.report.measurements._demo import RecipeExperiment
from dprmt.training.harness import run_in_memory

_CLIP_ONLY: dict[str, Any] = {
    "privacy.noise_multiplier": None,
    "privacy.clip_only": True,
    "denoising": {"method": "none"},
    "evaluation.every": None,
}
NOT_CLIPPED = 1e9
"""Clipping norm at which nothing is clipped."""


def losses_without_noise(
    setting: RecipeExperiment,
    start: Mapping[str, torch.Tensor],
    *,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Measure the mean loss of each step's batch in runs without noise, for comparison with `private_gradients`.

    The model is trained in place, from ``start`` each time, on the batches of the run with noise.

    Parameters
    ----------
    setting : RecipeExperiment
        Recipe and number of steps.
    start : mapping of str to Tensor
        Initial values of the trained parameters.
    seed : int
        Seed of the batches.
    advance : callable
        Called after each step.

    Returns
    -------
    dict of list
        "clipping alone" and "neither", NaN where a batch was empty. **Private.**

    Raises
    ------
    ParameterError
        If the settings do not fit.

    Formal guarantees
    -----------------
    None, because no noise is added.

    References
    ----------
    Figures 1 and 5 of arXiv:2510.01137v3.

    Examples
    --------
    >>> from dprmt.report.measurements import recipe_experiment
    >>> from dprmt.training.recipes import load_recipe
    >>> changes = {"data.limit": 40, "training.batch_size": 8}
    >>> setting = recipe_experiment(load_recipe("roberta-tiny-docstrings").with_changes(changes), steps=2)
    >>> start = {name: p.detach().clone() for name, p in setting.experiment.model.named_parameters()}
    >>> losses = losses_without_noise(setting, start)
    >>> [(name, len(values)) for name, values in losses.items()]
    [('clipping alone', 2), ('neither', 2)]
    """
    variants = {"clipping alone": _CLIP_ONLY, "neither": {**_CLIP_ONLY, "privacy.clipping_norm": NOT_CLIPPED}}
    return {name: _losses(setting, start, changes, seed, advance) for name, changes in variants.items()}


def _losses(
    setting: RecipeExperiment,
    start: Mapping[str, torch.Tensor],
    changes: Mapping[str, Any],
    seed: int,
    advance: Callable[[], None],
) -> list[float]:
    experiment, losses = setting.experiment, []
    experiment.model.load_state_dict(dict(start), strict=False)
    with run_in_memory(
        experiment.model, experiment.task, setting.settings.with_changes(changes), noise_seed=seed
    ) as run:
        for record in itertools.islice(run.steps(), setting.steps):
            losses.append(math.nan if record.loss is None else record.loss)
            advance()
    return losses
