"""What sets DP-GD, DP-GDM, DP-Adam and DP-AdamBC apart in the heavy-tail study, once their steps are equally long.

Usage: ``python -m paper_figures study effective-step FOLDER OUT.png [--export JSON] [--seeds N] [--steps T] …``

Trains a small instance to the ε of the paper (640 samples, 31 classes, σ = 2.5) on a fine grid of effective steps
2^{A/2} … 2^{B/2} (`Trial.effective_step`), every optimizer on the same one, and draws the final loss and accuracy by
group against it. A run that is stopped goes on where it was when called again. What is stored is
``results/raw/effective-step.json``.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprmt.plots import plot_metric_against_step, save_picture
from paper_figures._tuner import LABELS
from paper_figures.heavy_tail import Curve, Trial, run_trials, save_results

STABILITY = {"gd": 0.1, "gdm": 0.1, "adam": 1e-3, "adambc": 0.1}
LIMIT = 8.0  # nats: what oscillates above is not worth the axis


@dataclass(frozen=True)
class Sweep:
    """One optimizer on all effective steps."""

    steps: list[float]
    """Effective steps, increasing."""
    curves: list[list[Curve]]
    """By seed, then by step."""

    @property
    def losses(self) -> np.ndarray:
        """Over all samples at the end, shape (seeds, steps); infinite where the run diverged."""
        return np.array([[curve.final_loss for curve in row] for row in self.curves])

    @property
    def best(self) -> int:
        """Which step has the lowest mean loss, over the same seeds that are reported."""
        return int(self.losses.mean(0).argmin())

    def ends(self, kind: str, group: int) -> np.ndarray:
        """Loss or accuracy of a group at the end, shape (seeds, steps); NaN where the loss left the axis."""
        return np.array([[_end(curve, kind, group) for curve in row] for row in self.curves])


def sweeps(curves: Sequence[Curve]) -> dict[str, Sweep]:
    """By optimizer, of curves in any order."""
    found = {}
    for name in LABELS:
        own = [curve for curve in curves if curve.trial.optimizer == name]
        seeds = sorted({curve.trial.seed for curve in own})
        rows = [sorted((c for c in own if c.trial.seed == seed), key=_step) for seed in seeds]
        found[name] = Sweep([_step(curve) for curve in rows[0]], rows)
    return found


def _step(curve: Curve) -> float:
    return float(f"{curve.trial.effective_step:.6g}")


def _end(curve: Curve, kind: str, group: int) -> float:
    if curve.diverged or curve.loss[-1] > LIMIT:
        return np.nan
    return float(getattr(curve, f"group_{kind}")[-1][group])


def trials(optimizer: str, steps: Sequence[float], seeds: int) -> list[Trial]:
    """One trial per effective step and seed."""
    chosen = []
    for seed in range(seeds):
        unit = Trial(
            optimizer, 1.0, stability=STABILITY[optimizer], groups=5, samples=128, noise_multiplier=2.5, seed=seed
        )
        chosen += [replace(unit, learning_rate=step / unit.effective_step) for step in steps]
    return chosen


def draw(path: str, found: dict[str, Sweep]) -> None:
    """Final loss and accuracy against the effective step, in three groups of classes."""
    sizes = found["gd"].curves[0][0].class_sizes
    shown = (0, len(sizes) // 2, len(sizes) - 1)

    def panels(axes: np.ndarray) -> None:
        for row, kind in zip(axes, ("loss", "accuracy"), strict=True):
            for ax, group in zip(row, shown, strict=True):
                panel = {LABELS[name]: (sweep.steps, sweep.ends(kind, group)) for name, sweep in found.items()}
                plot_metric_against_step(panel, metric=f"training {kind}", title=f"classes of {sizes[group]}", ax=ax)
                if kind == "loss":
                    ax.set_ylim(0.0, LIMIT)

    save_picture(path, panels, size=(13.0, 7.4), panels=(2, 3), dpi=100)


def paired(found: dict[str, Sweep], optimizer: str) -> tuple[float, float]:
    """Loss of an optimizer less that of DP-GDM, each at its best step, paired by seed: mean and standard error."""
    more, less = (found[name].losses[:, found[name].best] for name in (optimizer, "gdm"))
    gaps = more - less
    return float(gaps.mean()), float(gaps.std(ddof=1) / len(gaps) ** 0.5)


def show(found: dict[str, Sweep]) -> None:
    """One line an optimizer, and the pairs."""
    first = found["gd"].curves[0][0]
    seeds = len(found["gd"].curves)
    print(f"at ε = {first.epsilon()[-1]:.1f}, at the effective step h of the lowest loss over all samples")
    for name, sweep in found.items():
        losses = sweep.losses[:, sweep.best]
        groups = "  ".join(
            f"{size}: {sweep.ends('loss', g)[:, sweep.best].mean():.2f}"
            f" {100 * sweep.ends('accuracy', g)[:, sweep.best].mean():.1f} %"
            for g, size in enumerate(first.class_sizes)
        )
        spread = losses.std(ddof=1) if seeds > 1 else np.nan
        print(f"{LABELS[name]:<10} h {sweep.steps[sweep.best]:5.2f}  loss {losses.mean():.3f} ± {spread:.3f}  {groups}")
    for name in ("adam", "adambc") if seeds > 1 else ():
        mean, error = paired(found, name)
        print(f"{LABELS[name]} less DP-GDM, paired by seed: {mean:+.3f}, standard error {error:.3f}")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures study effective-step", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--export", help="write all curves to this JSON file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=122)
    parser.add_argument("--exponents", type=int, nargs=2, default=(-2, 13))
    options = parser.parse_args(arguments)
    steps = [2.0 ** (k / 2) for k in range(options.exponents[0], options.exponents[1] + 1)]
    planned = [trial for name in LABELS for trial in trials(name, steps, options.seeds)]
    curves = run_trials(planned, options.folder, options.steps, record_every=options.steps)
    if options.export:
        command = shlex.join(["python", "-m", "paper_figures", "study", "effective-step", *arguments])
        save_results(options.export, curves, command=command)
    draw(options.out, sweeps(curves))
    show(sweeps(curves))
