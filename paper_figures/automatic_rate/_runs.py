"""What is run: every rule from every start, beside grids of rates on the same batches and noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from paper_figures.automatic_rate._cells import CELLS, NOTHING, SHORT, Cell, problem
from paper_figures.automatic_rate._rules import Corrected, DoG, Fixed, Hypergradient, Linear, Prodigy, Retroactive
from paper_figures.automatic_rate._simulation import Make, simulate

GRID = tuple(10 ** (k / 4) for k in range(-14, 8))
"""Quarter decades from 3e-4 to 56."""
STARTS = (1e-5, 1e-3, 1e-1)
SEEDS, TUNING_SEED = range(5), 1000
LANES: Mapping[str, tuple[Make, tuple[float, ...]]] = {
    "fixed": (Fixed, GRID),
    "linear": (Linear, GRID[::2]),
    "retroactive": (Retroactive, STARTS),
    "first form": (partial(Retroactive, offset=0.75, gain=4.0, cap=2.3, end=0.3), STARTS),
    "hypergradient": (Hypergradient, STARTS),
    "hypergradient, noise-corrected": (Corrected, STARTS),
    "DoG": (DoG, (1e-6,)),
    "Prodigy": (Prodigy, (1e-6,)),
}


def tasks(folder: Path) -> dict[str, Callable[[], Any]]:
    """By name, in the order of what is wanted first; features of texts are kept in ``folder``."""
    cells = (*CELLS, *SHORT, *NOTHING)
    groups = [[cell for cell in cells if _cost(cell) == cost] for cost in range(3)]
    found: dict[str, Callable[[], Any]] = {}
    for group in groups:
        for seed in (0, TUNING_SEED, *list(SEEDS)[1:]):
            lanes = {"fixed": LANES["fixed"]} if seed == TUNING_SEED else LANES
            for cell in group:
                found[piece(cell, seed)] = partial(_run, cell, seed, lanes, folder)
    return found


def _cost(cell: Cell) -> int:
    return 2 if cell.task.endswith("LoRA") else int(cell.task.startswith("MNIST, perceptron"))


def piece(cell: Cell, seed: int) -> str:
    """The name of a piece."""
    return f"{cell.name}; seed {seed}"


def _run(cell: Cell, seed: int, lanes: Mapping[str, Any], folder: Path) -> Any:
    found = problem(cell.task, folder)
    return simulate(found, cell.optimizer, cell.noise_multiplier, cell.steps, seed, lanes)
