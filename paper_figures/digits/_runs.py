"""Private runs of one method, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from dprmt.spectra import detection_threshold
from paper_figures.digits._images import Images
from paper_figures.digits._methods import METHODS, Rule
from paper_figures.digits._networks import MATRICES, Weights, accuracy, clipped_sum, start
from paper_figures.digits._settings import Setting

CLIP = 1.0
LOOKS = 4
"""How many of the largest singular values of a clean gradient are kept."""


class Run(NamedTuple):
    """One run: ``seed`` of weights and draws, ``noise`` of the noise; both common to all methods and rates."""

    rate: float
    seed: int
    noise: int


class Ended(NamedTuple):
    """What is left of a run; all **private**, except for ε: ``over`` by matrix are clean values over the threshold."""

    tune: float
    tune_loss: float
    test: float
    over: dict[str, list[list[float]]]


def train(setting: Setting, method: str, runs: Sequence[Run], images: Images, look: bool = False) -> list[Ended]:
    """Train as many networks as there are runs, each with its own seed, noise and rate.

    ``look``: whether singular values of the clean gradients are taken at the start, the middle and the end.
    """
    x, y = images.train
    sigma = setting.noise_multiplier(len(y)) * CLIP / setting.batch
    weights = start(images.pixels, setting.hidden, [run.seed for run in runs])
    rule = Rule(METHODS[method], torch.tensor([run.rate for run in runs], dtype=x.dtype), sigma)
    seeds = sorted({run.seed for run in runs})
    of_seed = torch.tensor([seeds.index(run.seed) for run in runs])
    draws = [torch.Generator().manual_seed(10_000 + seed) for seed in seeds]
    noises = sorted({run.noise for run in runs})
    of_noise = torch.tensor([noises.index(run.noise) for run in runs])
    sources = [torch.Generator().manual_seed(20_000 + noise) for noise in noises]
    over: list[dict[str, list[list[float]]]] = [{name: [] for name in MATRICES} for _ in runs]
    for step in range(setting.steps):
        rows, present = _drawn(draws, len(y), setting.batch / len(y))
        rows, present = rows[of_seed], present[of_seed]
        clean = clipped_sum(rule.point(weights), x[rows], y[rows], present, CLIP)
        clean = {name: value / setting.batch for name, value in clean.items()}
        if look and step in (0, setting.steps // 2, setting.steps - 1):
            _keep(over, clean, sigma)
        noisy = {name: value + sigma * _noise(sources, value.shape[1:])[of_noise] for name, value in clean.items()}
        weights = rule.move(weights, noisy)
    tested = rule.tested(weights)
    (tune, loss), (test, _) = accuracy(tested, images.tune), accuracy(tested, images.test)
    return [Ended(*values) for values in zip(tune.tolist(), loss.tolist(), test.tolist(), over, strict=True)]


def _drawn(generators: list[torch.Generator], size: int, rate: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that each generator's coins draw, filled up to the same number, and which of them are no filling."""
    drawn = [torch.nonzero(torch.rand(size, generator=one) < rate)[:, 0] for one in generators]
    longest = max(len(rows) for rows in drawn)
    rows = torch.stack([torch.nn.functional.pad(rows, (0, longest - len(rows))) for rows in drawn])
    present = torch.stack([torch.arange(longest) < len(rows) for rows in drawn])
    return rows, present.float()


def _noise(generators: list[torch.Generator], shape: torch.Size) -> torch.Tensor:
    return torch.stack([torch.randn(shape, generator=one) for one in generators])


def _keep(over: list[dict[str, list[list[float]]]], clean: Weights, sigma: float) -> None:
    for name in MATRICES:
        threshold = detection_threshold(tuple(clean[name].shape[1:]), sigma)
        values = torch.linalg.svdvals(clean[name])[:, :LOOKS] / threshold
        for kept, found in zip(over, values.tolist(), strict=True):
            kept[name].append([round(value, 3) for value in found])
