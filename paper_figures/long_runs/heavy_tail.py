"""Runs of the heavy-tail study (section 3 of the paper on DP-AdamBC), resumable, and their numbers in one JSON file.

Usage: ``python -m paper_figures study heavy-tail FOLDER [--export JSON] [--small] [--steps T] [--seeds N] …``

Without options the paper's instance is tuned on the first seed and trained on all: days on a CPU, so use a GPU or
choose. On a CPU, --precision int8 or bfloat16 takes a half to a third of the time, depending on its instructions. With
--small, an instance of 640 samples and 31 classes whose noise is as large against the largest class as in the paper
(σ/s): a minute on two cores. A run that is stopped, in whatever way, goes on where it was when called again.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from paper_figures._rates import lowest
from paper_figures._tuner import LABELS
from paper_figures.heavy_tail import Curve, Trial, run_trials, save_results
from paper_figures.long_runs._options import rate_grids

RATES = {"gd": (0.1, 1.0), "gdm": (0.05, 0.5), "adam": (5e-4, 5e-3), "adambc": (1e-4, 1e-3)}
SMALL_RATES = {"gd": (0.5, 10.0), "gdm": (0.1, 5.0), "adam": (5e-3, 1e-1), "adambc": (5e-3, 5e-2)}
STABILITIES = {"gd": (0.1,), "gdm": (0.1,), "adam": (1e-3,), "adambc": (0.01, 0.1, 0.5)}


def trials(options: argparse.Namespace, optimizer: str) -> Iterator[Trial]:
    """The grid of one optimizer, on the first seed."""
    small: dict[str, Any] = {"groups": 5, "samples": 128} if options.small else {}
    rates = rate_grids(options.rates, SMALL_RATES if options.small else RATES)[optimizer]
    for stability in stabilities(options.stability)[optimizer]:
        for rate in rates:
            yield Trial(
                optimizer,
                rate,
                clipping_norm=options.clip,
                noise_multiplier=options.sigma or (1.25 if options.small else 10.0),
                stability=stability,
                precision=options.precision,
                **small,
            )


def stabilities(items: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """γ or γ' to try, by optimizer."""
    chosen = dict(STABILITIES)
    for item in items:
        name, _, values = item.partition("=")
        if name not in chosen:
            raise SystemExit(f"--stability {item}: the optimizer must be one of {', '.join(chosen)}")
        chosen[name] = tuple(float(value) for value in values.split(","))
    return chosen


def show(curve: Curve) -> None:
    """One line: the choice, and how it did in the last group and in that of 128 samples."""
    sizes, loss, accuracy = curve.class_sizes, curve.group_loss[-1], curve.group_accuracy[-1]
    middle = sizes.index(128) if 128 in sizes else len(sizes) // 2
    trial = curve.trial
    print(
        f"{LABELS[trial.optimizer]:<10} seed {trial.seed}  lr {trial.learning_rate:<7g} step {curve.steps[-1]:<5}"
        f" ε {curve.epsilon()[-1]:6.1f}  loss {curve.loss[-1]:.3f}, classes of {sizes[-1]}: {loss[-1]:.2f}"
        f"  accuracy of {sizes[middle]}: {100 * accuracy[middle]:5.1f} %, of {sizes[-1]}: {100 * accuracy[-1]:5.1f} %"
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures study heavy-tail", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder")
    parser.add_argument("--export", help="write the chosen curves to this JSON file")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, help="default: ε = 28 at δ = 1e-5, for σ = 10 after 1950; 100 if small")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--optimizers", nargs="+", default=list(LABELS), choices=list(LABELS))
    parser.add_argument("--rates", nargs="+", default=[], metavar="OPTIMIZER=LOW:HIGH", help="other ranges to tune in")
    parser.add_argument(
        "--stability",
        nargs="+",
        default=[],
        metavar="OPTIMIZER=A,B",
        help="other γ or γ' to try, in units of the noise",
    )
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--sigma", type=float)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16", "int8"])
    options = parser.parse_args(arguments)
    steps = options.steps or (100 if options.small else round(1950 * ((options.sigma or 10) / 10) ** 2))
    every = 5 if options.small else 25
    chosen = []
    for optimizer in options.optimizers:
        curves = run_trials(trials(options, optimizer), options.folder, steps, record_every=every)
        best = lowest({curve: curve.final_loss for curve in curves})
        others = [replace(best.trial, seed=seed) for seed in range(1, options.seeds)]
        chosen += [best, *run_trials(others, options.folder, steps, record_every=every)]
    for curve in chosen:
        show(curve)
    if options.export:
        save_results(
            options.export,
            chosen,
            command=shlex.join(["python", "-m", "paper_figures", "study", "heavy-tail", *arguments]),
        )
