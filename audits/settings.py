"""The games that the code must win: clippings, probes, canaries, rates."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from audits.canaries import Parallel, Sample, bias_only, rank_one, small_random, spread
from audits.game import Factory, Game
from audits.steps import make_private
from dprmt.training.clipping import Units
from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator, ProbeGenerator

PROBES = 4
ESTIMATORS: dict[str, Any] = {"hutchinson": HutchinsonEstimator, "hutch++": HutchPlusPlusEstimator}
_OF_THE_STEP = ("tokens", "units")
LONG = 50.0  # a gradient so much longer than C = 1 is clipped, whatever its norm's estimate


def parallel(
    clipping: str,
    widths: tuple[int, ...] = (6,),
    *,
    bias: bool = False,
    size: float = 1.0,
    generator: Callable[[], ProbeGenerator] = lambda: ProbeGenerator(seed=1),
    noise_seed: int = 7,
    **options: Any,
) -> Factory:
    """Linear layers side by side, made private by ``make_private``."""

    def make(noise_multiplier: float) -> tuple[torch.nn.Module, Any]:
        model = Parallel(widths, bias=bias).double()
        with torch.no_grad():
            for value in model.parameters():
                value.zero_()
        return model, _private(model, clipping, noise_multiplier, size, generator, noise_seed, options)

    return make


def lora(clipping: str, width: int = 8, *, noise_seed: int = 7, **options: Any) -> Factory:
    """One linear layer with PEFT's adapters of rank 2, both factors away from 0."""

    def make(noise_multiplier: float) -> tuple[torch.nn.Module, Any]:
        model = torch.nn.Sequential(_adapted(width)).double().train()
        generator = torch.Generator().manual_seed(5)
        for value in model.parameters():
            if value.requires_grad:
                value.data = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        seeds: Callable[[], ProbeGenerator] = lambda: ProbeGenerator(seed=1)  # noqa: E731
        return model, _private(model, clipping, noise_multiplier, 1.0, seeds, noise_seed, options)

    return make


def _private(
    model: torch.nn.Module,
    clipping: str,
    noise_multiplier: float,
    size: float,
    generator: Callable[[], ProbeGenerator],
    noise_seed: int,
    options: dict[str, Any],
) -> Any:
    trained = [value for value in model.parameters() if value.requires_grad]
    norms: Any = clipping
    if clipping in ESTIMATORS:
        own = {name: value for name, value in options.items() if name not in _OF_THE_STEP}
        options = {name: value for name, value in options.items() if name in _OF_THE_STEP}
        norms = ESTIMATORS[clipping](PROBES, generator=generator(), **own)
    return make_private(
        model,
        torch.optim.SGD(trained, lr=1.0),
        norms=norms,
        clipping_norm=1.0,
        noise_multiplier=noise_multiplier,
        expected_batch_size=size,
        noise_generator=torch.Generator().manual_seed(noise_seed),
        **options,
    )


def _adapted(width: int) -> torch.nn.Module:
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(0)
    holder = torch.nn.Sequential(torch.nn.Linear(width, width, bias=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted: torch.nn.Module = inject_adapter_in_model(LoraConfig(r=2, lora_alpha=2, target_modules=["0"]), holder)
    return adapted


def chi_square_law(dof: int) -> Callable[[NDArray[np.float64]], float]:
    """Of Z = X^{-1/2} where X·dof is χ²(dof): dof = k for each singular value, all of them equal."""

    def p_value(lengths: NDArray[np.float64]) -> float:
        return float(stats.kstest(dof / lengths**2, stats.chi2(dof).cdf).pvalue)

    return p_value


def all_games(steps: int) -> list[Game]:
    """Every game, of so many steps, with noise that grows with √steps: the claim on all steps stays about the same."""
    sigma = math.sqrt(steps)
    everything = {"everything": True, "tokens": 6}
    double, one = (6, 6), (6,)
    mixed = [small_random(one, 1, seed) for seed in range(3)]

    def game(name: str, factory: Factory, canary: Sample, **keys: Any) -> Game:
        return Game(name, factory, canary, **{"noise_multiplier": sigma, "steps": steps, **keys})

    return [
        game("exact, clipped", parallel("exact"), rank_one(one, LONG)),
        game("exact, spread", parallel("exact"), spread(one, LONG)),
        game("exact, not clipped", parallel("exact"), rank_one(one, 0.9 / 6)),
        game("exact, bias", parallel("exact", bias=True), bias_only(6, LONG)),
        game(
            "exact, q = 0.3, others",
            parallel("exact", size=1.2),
            rank_one(one, LONG),
            others=mixed,
            sample_rate=round(0.3 * 2**24) / 2**24,
            expected_batch_size=1.2,
            noise_multiplier=0.5 * sigma,
            micro_batch=2,
        ),
        game("ghost, clipped", parallel("ghost", double), rank_one(double, LONG)),
        game(
            "hutchinson, public probes",
            parallel("hutchinson", secret=False, **everything),
            rank_one(one, LONG),
            law=chi_square_law(PROBES),
        ),
        game(
            "hutchinson, public probes, two layers, others",
            parallel("hutchinson", double, secret=False, **everything),
            rank_one(double, LONG),
            others=[small_random(double, 1, seed) for seed in range(3)],
            micro_batch=2,
            canary_first=True,
            law=chi_square_law(2 * PROBES),
        ),
        game(
            "hutchinson, public probes, spread",
            parallel("hutchinson", secret=False, **everything),
            spread(one, LONG),
            law=chi_square_law(6 * PROBES),
        ),
        game(
            "hutchinson, secret probes",
            parallel("hutchinson", secret=True, **everything),
            rank_one(one, LONG),
            probes_are_public=False,
            law=chi_square_law(PROBES),
        ),
        game(
            "hutch++, public probes",
            parallel("hutch++", sketch=1, secret=False, tokens=6),
            spread(one, LONG),
        ),
        game("exact, LoRA", lora("exact"), rank_one((8,), LONG)),
        game("hutchinson, LoRA", lora("hutchinson", secret=False, **everything), rank_one((8,), LONG)),
        *_replaced(sigma, steps),
        *_persons(sigma, steps),
    ]


def _replaced(sigma: float, steps: int) -> list[Game]:
    """The worst replacement: the opposite gradient."""
    one, keys = (6,), {"noise_multiplier": 2.0 * sigma, "steps": steps, "replacement": rank_one((6,), -LONG)}
    secret = parallel("hutchinson", secret=True, everything=True, tokens=6)
    return [
        Game("exact, replaced", parallel("exact"), rank_one(one, LONG), **keys),
        Game("hutchinson, secret probes, replaced", secret, rank_one(one, LONG), probes_are_public=False, **keys),
    ]


def _persons(sigma: float, steps: int) -> list[Game]:
    """Every sample a unit of four rows, each of them long enough to be clipped by itself."""
    one, keys = (6,), {"noise_multiplier": sigma, "steps": steps, "rows": 4}
    others = [small_random(one, 1, seed) for seed in range(2)]
    beside = parallel("exact", units=Units(4, regime="together"))
    alone = parallel("exact", units=Units(4, regime="alone"))
    own = {"everything": True, "tokens": 6, "units": Units(4, regime="together")}
    known = parallel("hutchinson", secret=False, **own)
    return [
        Game("exact, persons side by side, others", beside, rank_one(one, LONG), others=others, **keys),
        Game("exact, persons one at a time, others", alone, rank_one(one, LONG), others=others, **keys),
        Game("hutchinson, public probes, persons", known, rank_one(one, LONG), law=chi_square_law(PROBES), **keys),
    ]
