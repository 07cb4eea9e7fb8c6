"""One seed of one cell: all rules and rates on the same batches and the same noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from paper_figures.automatic_rate._problems import EXPECTED, Problem, noise, poisson
from paper_figures.automatic_rate._rules import Rule, State

Make = Callable[..., Rule]


def simulate(
    problem: Problem,
    optimizer: str,
    noise_multiplier: float,
    steps: int,
    seed: int,
    lanes: Mapping[str, tuple[Make, Sequence[float]]],
) -> dict[str, Any]:
    """Scores of every rate of every rule, and of the start."""
    generator = torch.Generator().manual_seed(seed)
    sigma = noise_multiplier / EXPECTED
    total = sum(len(rates) for _, rates in lanes.values())
    x = problem.start(total, generator)
    start = [part.clone() for part in x]
    rules = [make(optimizer, sigma, rates) for make, rates in lanes.values()]
    counts = [len(rates) for _, rates in lanes.values()]
    for step in range(1, steps + 1):
        problem.begin(step - 1, generator)
        gradient = problem.clipped(x, poisson(problem.size, generator))
        drawn = noise([g.shape for g in gradient], generator)
        released = [g + sigma * part for g, part in zip(gradient, drawn, strict=True)]
        parts = [_split(values, counts) for values in (x, start, released)]
        moved = [
            rule.move(State(here, first, g, sigma, step, steps, problem))
            for rule, here, first, g in zip(rules, *parts, strict=True)
        ]
        x = [torch.cat(group) for group in zip(*moved, strict=True)]
    first = {name: float(value[0]) for name, value in problem.scores([part[:1] for part in start]).items()}
    found: dict[str, Any] = {"start": first}
    scores = {name: value.split(counts) for name, value in problem.scores(x).items()}
    for place, (name, (_, rates)) in enumerate(lanes.items()):
        says = rules[place].says()
        values = {key: pieces[place] for key, pieces in scores.items()} | says
        found[name] = {"rates": list(rates), **{key: _short(value) for key, value in values.items()}}
    return found


def _split(values: Sequence[torch.Tensor], counts: Sequence[int]) -> list[list[torch.Tensor]]:
    pieces = [value.split(list(counts)) for value in values]
    return [list(group) for group in zip(*pieces, strict=True)]


def _short(values: torch.Tensor) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]
