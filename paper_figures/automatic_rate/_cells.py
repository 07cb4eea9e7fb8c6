"""Which problems, under which optimizers and noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from paper_figures._needs import data_file
from paper_figures.automatic_rate._features import pooled
from paper_figures.automatic_rate._problems import Adapted, Logistic, Nothing, Perceptron, Problem, Quadratic

Split = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Cell:
    """A problem, an optimizer, a noise multiplier, and how many steps."""

    task: str
    optimizer: str
    noise_multiplier: float
    steps: int = 100

    @property
    def name(self) -> str:
        """Of the pieces."""
        return f"{self.task}; {self.optimizer}; {self.noise_multiplier:g}; {self.steps}"


_OPTIMIZERS = {
    "quadratic": ("gd", "gdm", "adam"),
    "MNIST, logistic": ("gd", "gdm", "adam", "adambc"),
    "MNIST, perceptron": ("gdm", "adam"),
    "MNIST, perceptron, DP-GRAPE": ("adam",),
    "SST-2, logistic": ("gdm", "adam"),
    "SST-2, LoRA": ("gdm", "adam"),
    "docstrings, logistic": ("gdm", "adam"),
    "docstrings, LoRA": ("gdm", "adam"),
    "docstrings, perceptron": ("adam",),
}
_SHORT = ("MNIST, logistic", "MNIST, perceptron", "SST-2, logistic", "docstrings, logistic")
CELLS = tuple(
    Cell(task, optimizer, sigma)
    for task, optimizers in _OPTIMIZERS.items()
    for optimizer in optimizers
    for sigma in (0.5, 4.0)
)
"""Those of the goal."""
SHORT = tuple(Cell(task, "adam", sigma, 25) for task in _SHORT for sigma in (0.5, 4.0))
"""Runs of 25 steps."""
NOTHING = tuple(Cell("nothing", optimizer, 1.0) for optimizer in ("gd", "gdm", "adam"))
"""Noise alone."""


@cache
def problem(task: str, folder: Path) -> Problem:
    """The problem of a task; features of texts are kept in ``folder``."""
    if task == "nothing":
        return Nothing()
    if task == "quadratic":
        return Quadratic()
    data, _, kind = task.partition(", ")
    train, validation = _data(data, folder)
    if kind == "logistic":
        return Logistic(train, validation)
    if kind == "LoRA":
        return Adapted(train, validation)
    return Perceptron(train, validation, rank=16 if kind.endswith("DP-GRAPE") else None)


@cache
def _data(name: str, folder: Path) -> list[Split]:
    if name == "MNIST":
        return _mnist()
    return pooled({"SST-2": "minilm-sst2", "docstrings": "minilm-docstrings"}[name], folder)


def _mnist() -> list[Split]:
    import gzip

    with gzip.open(data_file("mnist/t10k-images-idx3-ubyte.gz")) as file:
        images = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8).view(-1, 784).float() / 255
    with gzip.open(data_file("mnist/t10k-labels-idx1-ubyte.gz")) as file:
        labels = torch.frombuffer(bytearray(file.read()[8:]), dtype=torch.uint8).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, validation = order[:8000], order[8000:]
    return [(images[train], labels[train]), (images[validation], labels[validation])]
