"""What the figures that compare optimizers by frequency group share: options, panels, the printed table."""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dprmt.statements import round_up
from dprmt.training.recipes import Settings
from paper_figures._pieces import Pieces
from paper_figures._rates import half_power_grid
from paper_figures._tuner import LABELS, Train, Tuned, tuned
from paper_figures.studies import private_settings


def summary(description: str | None) -> str:
    """The first line."""
    return (description or "").splitlines()[0]


def add_training_options(parser: argparse.ArgumentParser, steps: int, sigma: float = 1.0) -> None:
    """Length, privacy, seeds, rates."""
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--record-every", type=int, default=1)
    parser.add_argument("--folder", help="where the runs go; they go on from there when called again")
    parser.add_argument("--sigma", type=float, default=sigma)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--sample-rate", type=float, default=1.0, help="q of Poisson sampling; 1 is the full batch")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rates", nargs="+", default=[], metavar="OPTIMIZER=LOW:HIGH", help="other ranges to tune in")


def settings(
    options: argparse.Namespace, size: int, optimizer: str, rate: float, seed: int, *, micro_batch: int
) -> Settings:
    """How to train, with γ and γ' as the figures have them."""
    return private_settings(
        optimizer,
        rate,
        size=size,
        clipping_norm=options.clip,
        noise_multiplier=options.sigma,
        sample_rate=options.sample_rate,
        stability=1e-3 if optimizer == "adam" else 0.1,
        micro_batch=micro_batch,
        seed=seed,
    )


def rate_grids(items: Sequence[str], ranges: Mapping[str, tuple[float, float]]) -> dict[str, list[float]]:
    """The half-power grid of every optimizer: in its range, or in that of an item ``OPTIMIZER=LOW:HIGH``."""
    chosen = dict(ranges)
    for item in items:
        name, _, interval = item.partition("=")
        low, _, high = interval.partition(":")
        if name not in chosen:
            raise SystemExit(f"--rates {item}: the optimizer must be one of {', '.join(chosen)}")
        chosen[name] = float(low), float(high or low)
    return {name: half_power_grid(*interval) for name, interval in chosen.items()}


def tuned_runs(
    options: argparse.Namespace,
    ranges: Mapping[str, tuple[float, float]],
    train: Train,
) -> dict[str, Tuned]:
    """Tune on the half-power grid and train, in the named folder or in one that goes away."""
    grids = rate_grids(options.rates, ranges)
    with tempfile.TemporaryDirectory() as scratch:
        pieces = Pieces(Path(options.folder or scratch), "next-token", "study")
        return tuned(pieces, train, grids, range(options.seeds))


def panel(runs: Mapping[str, Tuned], kind: str, group: int | None) -> dict[str, tuple[list[float], np.ndarray]]:
    """ε and values of one panel."""
    name = kind if group is None else f"group_{kind}"
    return {LABELS[optimizer]: found.curve(name, group) for optimizer, found in runs.items()}


def show(runs: Mapping[str, Tuned], group_names: Sequence[str]) -> None:
    """One line per optimizer: its rate, and loss and accuracy at the end by group."""
    for optimizer, found in runs.items():
        cells = "  ".join(_cell(found, group, name) for group, name in enumerate(group_names))
        end, edge = found.runs[0], " (edge of the grid)" if found.at_edge else ""
        print(
            f"{LABELS[optimizer]:<10} lr {found.rate:g}{edge}, {len(found.runs)} seeds, step {end['step'][-1]},"
            f" ε {round_up(end['epsilon'][-1], 3)},"
            f" loss {_with_spread(found.last('loss'), found.spread('loss'), 3)}  {cells}"
        )


def _cell(found: Tuned, group: int, name: str) -> str:
    hits, spread = (100 * value("group_accuracy", group) for value in (found.last, found.spread))
    return f"{name}: {found.last('group_loss', group):.2f} {_with_spread(hits, spread, 1)} %"


def _with_spread(mean: float, spread: float, digits: int) -> str:
    return f"{mean:.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")
