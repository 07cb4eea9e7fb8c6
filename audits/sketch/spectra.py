"""Spectra to attack with: shares of the squared norm, in families that might hide a direction from a sketch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ITEMS = 4


def families(sketch: int, *, thin: int = 1) -> dict[str, Floats]:
    """Spectra by name, each summing to 1; every ``thin``-th of each family."""
    found: dict[str, Floats] = {}
    for family in (_flat, _powers, _geometric, _spikes, _two_levels, _edges, _single_direction, _random):
        for number, (name, values) in enumerate(family(sketch)):
            if number % thin == 0:
                found[name] = values / values.sum()
    return found


def _flat(s: int) -> Iterator[tuple[str, Floats]]:
    for n in sorted({2, max(s // 2, 2), s + 1, s + 2, 3 * s // 2, 2 * s - 1, 2 * s, 2 * s + 1, 3 * s, 4 * s}):
        yield f"flat {n}", np.ones(n)


def _powers(s: int) -> Iterator[tuple[str, Floats]]:
    for power in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0):
        for n in (s + 1, 2 * s, 3 * s):
            yield f"power {power:g} of {n}", np.arange(1.0, n + 1) ** -power


def _geometric(s: int) -> Iterator[tuple[str, Floats]]:
    for ratio in (0.2, 0.5, 0.7, 0.85, 0.95):
        yield f"geometric {ratio:g}", np.maximum(ratio ** np.arange(2 * s), 1e-12)


def _spikes(s: int) -> Iterator[tuple[str, Floats]]:
    for number in (1, 2, 3):
        for share in (0.3, 0.5, 0.6, 0.7, 0.9, 0.97):
            for n in (s, 2 * s):
                spikes, rest = np.full(number, share / number), np.full(n, (1 - share) / n)
                yield f"{number} spikes {share:g} over {n}", np.append(spikes, rest)


def _two_levels(s: int) -> Iterator[tuple[str, Floats]]:
    for high in (max(s // 2, 2), s - 1, s, 3 * s // 2):
        for low, height in ((s, 0.1), (s, 0.5), (2 * s, 0.5), (s, 0.9), (2 * s, 0.02)):
            yield f"{high} of 1, {low} of {height:g}", np.append(np.ones(high), np.full(low, height))


def _edges(s: int) -> Iterator[tuple[str, Floats]]:
    """Some shares just above a threshold, others just below: what (H3) finds worst."""
    for above in (1, 2, s // 2 + 1, s - 1):
        for below in (1, 3, s):
            yield f"edge {above}, {below}", np.append(np.full(above, 1.05), np.full(below, 0.95))


def _single_direction(s: int) -> Iterator[tuple[str, Floats]]:
    """One value over s equal ones: a sketch leaves exactly one direction."""
    for rest in (0.5, 0.2, 0.05, 0.01, 1e-3):
        yield f"1 - {rest:g} over {s} equal", np.append(1 - rest, np.full(s, rest / s))


def _random(s: int) -> Iterator[tuple[str, Floats]]:
    rng = np.random.default_rng(s)
    for concentration in (0.05, 0.2, 0.5, 1.0, 4.0):
        for n in (s + 1, 3 * s // 2, 2 * s, 3 * s):
            for number in range(3):
                values = rng.dirichlet(np.full(n, concentration)) + 1e-12
                yield f"Dirichlet {concentration:g} of {n}, draw {number}", values


def gradients(name: str = "roberta-tiny-docstrings", items: int = ITEMS) -> dict[str, Floats]:
    """Spectra of single samples' gradients, of every linear layer of a recipe that needs no network."""
    import torch

    from dprmt.report.measurements import recipe_experiment
    from dprmt.training.recipes import load_recipe

    experiment = recipe_experiment(load_recipe(name)).experiment
    model, task = experiment.model, experiment.task
    layers = {key: part.weight for key, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    layers = {key: weight for key, weight in layers.items() if weight.requires_grad}
    found = {}
    for number in range(items):
        model.zero_grad()
        position = number * task.size // items
        task.losses(model, task.collate([task.items[position]])).sum().backward()
        for key, weight in layers.items():
            if weight.grad is not None:
                shares = np.linalg.svd(weight.grad.numpy().astype(float), compute_uv=False) ** 2
                if shares.sum() > 0:
                    found[f"gradient {number} of {key}"] = shares / shares.sum()
    return found
