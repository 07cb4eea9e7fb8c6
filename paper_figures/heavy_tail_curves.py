"""Figures 2, 3 and 9 to 12 of the paper on DP-AdamBC: loss and accuracy by class frequency, against ε.

Usage: ``python paper_figures/heavy_tail_curves.py OUT.png [RESULTS.json]``

Draws ``results/heavy_tail.json`` beside this file, or another file of ``heavy_tail_train.py --export``: one picture
for losses (OUT) and one for accuracies (OUT with "-accuracy"), seeds as bands.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from dprmt.plots import plot_class_sizes, plot_metric_against_epsilon, save_picture
from heavy_tail import Curve, load_results

LABELS = {"gd": "DP-GD", "gdm": "DP-GDM", "adam": "DP-Adam", "adambc": "DP-AdamBC"}
# Published for C = 1, σ = 10 at ε = 28: loss of the classes of 8 samples; accuracy of those of 1024, 128 and 8.
PUBLISHED = {
    "DP-GD": (6.7, 100.0, 0.0, 0.5),
    "DP-GDM": (4.9, 92.3, 41.0, 2.5),
    "DP-Adam": (5.1, 93.0, 36.0, 1.5),
    "DP-AdamBC": (4.8, 87.5, 47.0, 9.5),
}
RESULTS = Path(__file__).parent / "results" / "heavy_tail.json"


def by_optimizer(curves: list[Curve]) -> dict[str, list[Curve]]:
    """The curves of each optimizer over its seeds, cut to their common steps."""
    found = defaultdict(list)
    for curve in curves:
        found[LABELS[curve.trial.optimizer]].append(curve)
    return found


def lines(curves: list[Curve], kind: str, group: int | None) -> dict[str, tuple[list[float], np.ndarray]]:
    """ε and values of one panel."""
    panel = {}
    for label, seeds in by_optimizer(curves).items():
        common = sorted(set.intersection(*(set(curve.steps) for curve in seeds)))
        values = []
        for curve in seeds:
            table = getattr(curve, kind) if group is None else [row[group] for row in getattr(curve, f"group_{kind}")]
            at = dict(zip(curve.steps, table, strict=True))
            values.append([at[step] for step in common])
        spent = dict(zip(seeds[0].steps, seeds[0].epsilon(), strict=True))
        panel[label] = [spent[step] for step in common], np.array(values)
    return panel


def main(out: str, results: str) -> None:
    """Draw both pictures and print the last values."""
    curves = load_results(results)
    sizes = curves[0].class_sizes
    last = len(sizes) - 1
    shown = sorted({0, last // 2, 3 * last // 4, last})  # of the paper's eight: 1024, 128, 32 and 8 samples
    for kind in ("loss", "accuracy"):
        path = out if kind == "loss" else str(Path(out).with_stem(Path(out).stem + "-accuracy"))
        metric = f"training {kind}"
        reference = math.log(2 ** len(sizes) - 1) if kind == "loss" else None

        def draw(axes: np.ndarray, kind: str = kind, metric: str = metric, reference: float | None = reference) -> None:
            first, second, *rest = np.ravel(axes)
            plot_class_sizes(sizes, [2**i for i in range(len(sizes))], ax=first)
            plot_metric_against_epsilon(lines(curves, kind, None), metric=metric, title="all samples", ax=second)
            for ax in rest[len(shown) :]:
                ax.set_axis_off()
            for ax, group in zip(rest, shown, strict=False):
                title = f"{2**group} classes of {sizes[group]} samples" if group else f"the class of {sizes[0]} samples"
                panel = lines(curves, kind, group)
                plot_metric_against_epsilon(panel, metric=metric, title=title, reference=reference, ax=ax)

        save_picture(path, draw, size=(14.0, 7.6), panels=(2, 3))
    print(f"{'':<10}{'lr':>8}{'steps':>7}{'ε':>7}{'loss':>8}   loss and accuracy (%) by samples per class")
    print(" " * 43 + "".join(f"{size:>12}" for size in sizes))
    for curve in curves:
        trial = curve.trial
        pairs = zip(curve.group_loss[-1], curve.group_accuracy[-1], strict=True)
        cells = "".join(f"{loss:>6.2f}{100 * accuracy:>6.1f}" for loss, accuracy in pairs)
        start = f"{LABELS[trial.optimizer]:<10}{trial.learning_rate:>8g}{curve.steps[-1]:>7}{curve.epsilon()[-1]:>7.1f}"
        print(f"{start}{curve.loss[-1]:>8.3f}   {cells}")
    first = curves[0].trial
    if (first.groups, first.samples, first.clipping_norm, first.noise_multiplier) == (8, 1024, 1.0, 10.0):
        print("published, at ε = 28: loss of classes of 8; accuracy (%) of classes of 1024, 128 and 8 samples")
        for label, (loss, *shares) in PUBLISHED.items():
            print(f"{label:<10}{loss:>6.1f}" + "".join(f"{share:>8.1f}" for share in shares))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit("usage: python paper_figures/heavy_tail_curves.py OUT.png [RESULTS.json]")
    main(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else str(RESULTS))
