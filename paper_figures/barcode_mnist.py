"""Figures 4 and 5 of the paper on DP-AdamBC: a small convolutional network on digits with barcodes.

Usage: ``python paper_figures/barcode_mnist.py OUT.png [--images IDX --labels IDX] [--steps T] [--folder FOLDER]``

Without idx files of MNIST (plain or .gz) the digits of scikit-learn stand in, which takes minutes on a CPU. The runs
stay in FOLDER, if one is named, and go on from there when called again with more steps.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from dprmt._pictures import save_picture
from dprmt.plots import plot_class_sizes, plot_metric_against_epsilon
from dprmt.training.studies import GroupRecord, PrivateSettings, train_privately
from dprmt.training.studies.barcode import barcode_data, barcode_network, digits_images, mnist_images

LABELS = {"gd": "DP-GD", "gdm": "DP-GDM", "adam": "DP-Adam", "adambc": "DP-AdamBC"}
RATES = {"gd": 2.0, "gdm": 0.5, "adam": 5e-3, "adambc": 5e-3}
DIGITS_PLAN = [(10, 100), (20, 20), (40, 5)]
MNIST_PLAN = [(10, 800), (20, 150), (100, 40), (200, 10)]  # 330 classes; the paper does not print its own plan


def panel(
    runs: dict[str, list[GroupRecord]], kind: str, group: int | None
) -> dict[str, tuple[list[float], list[float]]]:
    """ε and values of one panel."""
    name = kind if group is None else f"group_{kind}"
    values = {
        label: [getattr(record, name) if group is None else getattr(record, name)[group] for record in records]
        for label, records in runs.items()
    }
    return {label: ([record.epsilon for record in runs[label]], values[label]) for label in runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--images")
    parser.add_argument("--labels")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder")
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if (options.images is None) != (options.labels is None):
        parser.error("--images and --labels belong together")
    source = mnist_images(options.images, options.labels) if options.images else digits_images()
    data = barcode_data(*source, MNIST_PLAN if options.images else DIGITS_PLAN, seed=options.seed)
    runs = {}
    with tempfile.TemporaryDirectory() as scratch:
        for optimizer, rate in RATES.items():
            settings = PrivateSettings(
                optimizer,
                rate,
                clipping_norm=options.clip,
                noise_multiplier=options.sigma,
                stability=1e-3 if optimizer == "adam" else 0.1,
                micro_batch=100,
                seed=options.seed,
            )
            folder = Path(options.folder or scratch) / optimizer
            network = barcode_network(data.classes, seed=options.seed)
            runs[LABELS[optimizer]] = train_privately(network, data, settings, options.steps, folder)
    for kind in ("loss", "accuracy"):
        path = options.out
        if kind == "accuracy":
            path = str(Path(path).with_stem(Path(path).stem + "-accuracy"))

        def draw(axes: np.ndarray, metric: str = kind) -> None:
            first, second, *rest = np.ravel(axes)
            plot_class_sizes([samples for _, samples in data.plan], [classes for classes, _ in data.plan], ax=first)
            plot_metric_against_epsilon(
                panel(runs, metric, None), metric=f"training {metric}", title="all samples", ax=second
            )
            for group, ax in enumerate(rest[: len(data.plan)]):
                curves = panel(runs, metric, group)
                plot_metric_against_epsilon(curves, metric=f"training {metric}", title=data.group_names[group], ax=ax)
            for ax in rest[len(data.plan) :]:
                ax.set_axis_off()

        save_picture(path, draw, size=(14.0, 7.6), panels=(2, 3))
    print(f"n = {data.size}, {data.classes} classes, σ = {options.sigma:g}, C = {options.clip:g}, δ = 1e-5")
    for label, records in runs.items():
        last = records[-1]
        cells = "  ".join(
            f"{name}: {loss:.2f} {100 * accuracy:.1f} %"
            for name, loss, accuracy in zip(data.group_names, last.group_loss, last.group_accuracy, strict=True)
        )
        print(f"{label:<10} step {last.step}, ε {last.epsilon:.1f}, loss {last.loss:.3f}  {cells}")


if __name__ == "__main__":
    main()
