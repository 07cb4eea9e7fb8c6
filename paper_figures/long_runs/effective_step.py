"""What sets DP-GD, DP-GDM, DP-Adam and DP-AdamBC apart in the heavy-tail study, once their steps are equally long.

Usage: ``python -m paper_figures study effective-step FOLDER OUT.png [--seeds N] [--steps T] [--exponents A B]``

Trains a small instance to the ε of the paper (640 samples, 31 classes, σ = 2.5) on a fine grid of effective steps
2^{A/2} … 2^{B/2} (`Trial.effective_step`), every optimizer on the same one, and draws the final loss and accuracy by
group against it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dprmt.plots import plot_metric_against_step, save_picture
from paper_figures._tuner import LABELS
from paper_figures.heavy_tail import Curve, Trial, run_trials

STABILITY = {"gd": 0.1, "gdm": 0.1, "adam": 1e-3, "adambc": 0.1}
LIMIT = 8.0  # nats: what oscillates above is not worth the axis


def trials(optimizer: str, steps: Sequence[float], seeds: int) -> list[Trial]:
    """One trial per effective step and seed."""
    chosen = []
    for seed in range(seeds):
        unit = Trial(
            optimizer, 1.0, stability=STABILITY[optimizer], groups=5, samples=128, noise_multiplier=2.5, seed=seed
        )
        chosen += [replace(unit, learning_rate=step / unit.effective_step) for step in steps]
    return chosen


def final(curves: Sequence[Curve], kind: str, group: int, seeds: int) -> np.ndarray:
    """Last values, shape (seeds, steps); NaN where the loss left the axis."""
    values = [
        np.nan if curve.diverged or curve.loss[-1] > LIMIT else getattr(curve, f"group_{kind}")[-1][group]
        for curve in curves
    ]
    return np.array(values).reshape(seeds, -1)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures study effective-step", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=122)
    parser.add_argument("--exponents", type=int, nargs=2, default=(-2, 13))
    options = parser.parse_args(arguments)
    steps = [2.0 ** (k / 2) for k in range(options.exponents[0], options.exponents[1] + 1)]
    curves = {}
    for optimizer in LABELS:
        planned = trials(optimizer, steps, options.seeds)
        curves[optimizer] = run_trials(planned, options.folder, options.steps, record_every=options.steps)
    sizes = curves["gd"][0].class_sizes
    shown = (0, len(sizes) // 2, len(sizes) - 1)

    def draw(axes: np.ndarray) -> None:
        for row, kind in zip(axes, ("loss", "accuracy"), strict=True):
            for ax, group in zip(row, shown, strict=True):
                panel = {
                    LABELS[name]: (steps, final(runs, kind, group, options.seeds)) for name, runs in curves.items()
                }
                plot_metric_against_step(panel, metric=f"training {kind}", title=f"classes of {sizes[group]}", ax=ax)
                if kind == "loss":
                    ax.set_ylim(0.0, LIMIT)

    save_picture(options.out, draw, size=(13.0, 7.4), panels=(2, 3))
    print(f"at ε = {curves['gd'][0].epsilon()[-1]:.1f}, at the effective step h of the lowest loss over all samples")
    lowest = {}
    for name, runs in curves.items():
        losses = np.array([np.inf if run.diverged else run.loss[-1] for run in runs]).reshape(options.seeds, -1)
        best = int(losses.mean(0).argmin())
        lowest[name] = losses[:, best]
        groups = "  ".join(
            f"{sizes[g]}: {final(runs, 'loss', g, options.seeds)[:, best].mean():.2f}"
            f" {100 * final(runs, 'accuracy', g, options.seeds)[:, best].mean():.1f} %"
            for g in range(len(sizes))
        )
        spread = losses[:, best].std(ddof=1) if options.seeds > 1 else np.nan
        print(f"{LABELS[name]:<10} h {steps[best]:5.2f}  loss {losses[:, best].mean():.3f} ± {spread:.3f}  {groups}")
    for name in ("adam", "adambc") if options.seeds > 1 else ():
        more = lowest[name] - lowest["gdm"]
        error = more.std(ddof=1) / options.seeds**0.5
        print(f"{LABELS[name]} less DP-GDM, paired by seed: {more.mean():+.3f}, standard error {error:.3f}")
