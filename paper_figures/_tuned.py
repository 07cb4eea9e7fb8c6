"""What the figures that compare optimizers by frequency group share: options, panels, the printed table."""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dprmt.training.recipes import Settings
from heavy_tail import half_power_grid
from studies import GroupRecord, TunedRuns, compare_optimizers, private_settings

LABELS = {"gd": "DP-GD", "gdm": "DP-GDM", "adam": "DP-Adam", "adambc": "DP-AdamBC"}


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
    train: Callable[[str, float, int, Path], list[GroupRecord]],
) -> dict[str, TunedRuns]:
    """Tune on the half-power grid and train, in the named folder or in one that goes away."""
    grids = rate_grids(options.rates, ranges)
    with tempfile.TemporaryDirectory() as scratch:
        return compare_optimizers(train, grids, range(options.seeds), options.folder or scratch)


def panel(runs: Mapping[str, TunedRuns], kind: str, group: int | None) -> dict[str, tuple[list[float], list[float]]]:
    """ε and values of one panel."""
    name = kind if group is None else f"group_{kind}"
    return {LABELS[optimizer]: tuned.curve(name, group) for optimizer, tuned in runs.items()}


def show(runs: Mapping[str, TunedRuns], group_names: Sequence[str]) -> None:
    """One line per optimizer: its rate, and loss and accuracy at the end by group."""
    for optimizer, tuned in runs.items():
        loss, spread = map(float, tuned.final("loss"))
        last, edge = tuned.runs[0][-1], " (edge of the grid)" if tuned.at_edge else ""
        groups = zip(group_names, tuned.final("group_loss")[0], *tuned.final("group_accuracy"), strict=True)
        cells = "  ".join(f"{name}: {x:.2f} {_with_spread(100 * hits, 100 * s, 1)} %" for name, x, hits, s in groups)
        print(
            f"{LABELS[optimizer]:<10} lr {tuned.learning_rate:g}{edge}, {len(tuned.runs)} seeds, step {last.step},"
            f" ε {last.epsilon:.3g}, loss {_with_spread(loss, spread, 3)}  {cells}"
        )


def _with_spread(mean: float, spread: float, digits: int) -> str:
    return f"{mean:.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")
