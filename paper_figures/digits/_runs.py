"""Private runs of one method, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from dprmt.spectra import detection_threshold
from paper_figures.digits._methods import ALSO, METHODS, Rule
from paper_figures.digits._networks import Weights, is_matrix
from paper_figures.digits._samples import Samples
from paper_figures.digits._settings import Setting

CLIP = 1.0
LOOKS = 5
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


def train(setting: Setting, method: str, runs: Sequence[Run], samples: Samples, look: bool = False) -> list[Ended]:
    """Train as many networks as there are runs, each with its own seed, noise and rate.

    ``look``: whether singular values of the clean gradients are taken at the start, the middle and the end.
    """
    size = samples.size
    sigma = setting.noise_multiplier(size) * CLIP / setting.batch
    weights = samples.start(setting.hidden, [run.seed for run in runs])
    rule = Rule({**METHODS, **ALSO}[method], torch.tensor([run.rate for run in runs]), sigma)
    seeds = sorted({run.seed for run in runs})
    of_seed = torch.tensor([seeds.index(run.seed) for run in runs])
    draws = [torch.Generator().manual_seed(10_000 + seed) for seed in seeds]
    noises = sorted({run.noise for run in runs})
    of_noise = torch.tensor([noises.index(run.noise) for run in runs])
    sources = [torch.Generator().manual_seed(20_000 + noise) for noise in noises]
    over: list[dict[str, list[list[float]]]] = [{name: [] for name in filter(is_matrix, weights)} for _ in runs]
    for step in range(setting.steps):
        rows = _drawn(draws, size, setting.batch / size)
        clean = _clean(samples, rule.point(weights), [rows[place] for place in of_seed], setting.batch)
        if look and step in (0, setting.steps // 2, setting.steps - 1):
            _keep(over, clean, sigma)
        noisy = {name: value + sigma * _noise(sources, value.shape[1:])[of_noise] for name, value in clean.items()}
        weights = rule.move(weights, noisy)
    tested = rule.tested(weights)
    (tune, loss), (test, _) = samples.accuracy(tested, "tune"), samples.accuracy(tested, "test")
    return [Ended(*values) for values in zip(tune.tolist(), loss.tolist(), test.tolist(), over, strict=True)]


def _drawn(generators: list[torch.Generator], size: int, rate: float) -> list[torch.Tensor]:
    """Rows that each generator's coins draw."""
    return [torch.nonzero(torch.rand(size, generator=one) < rate)[:, 0] for one in generators]


def _clean(samples: Samples, weights: Weights, rows: Sequence[torch.Tensor], batch: int) -> Weights:
    # Run by run: what one run needs stays in the processor's cache.
    sums = [
        samples.clipped_sum({name: value[run : run + 1] for name, value in weights.items()}, drawn, CLIP)
        for run, drawn in enumerate(rows)
    ]
    return {name: torch.cat([one[name] for one in sums]) / batch for name in weights}


def _noise(generators: list[torch.Generator], shape: torch.Size) -> torch.Tensor:
    return torch.stack([torch.randn(shape, generator=one) for one in generators])


def _keep(over: list[dict[str, list[list[float]]]], clean: Weights, sigma: float) -> None:
    for name in filter(is_matrix, clean):
        threshold = detection_threshold(tuple(clean[name].shape[1:]), sigma)
        values = torch.linalg.svdvals(clean[name])[:, :LOOKS] / threshold
        for kept, found in zip(over, values.tolist(), strict=True):
            kept[name].append([round(value, 3) for value in found])
