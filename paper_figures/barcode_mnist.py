"""Figures 4 and 5 of the paper on DP-AdamBC: a small convolutional network on digits with barcodes.

Usage: ``python paper_figures/barcode_mnist.py OUT.png [--images IDX --labels IDX] [--steps T] [--folder FOLDER] …``

Without idx files of MNIST (plain or .gz) the digits of scikit-learn stand in. Learning rates are tuned on the
half-power grid of the paper. The runs stay in FOLDER, if one is named, and go on from there when called again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from _tuned import add_training_options, panel, settings, show, tuned_runs
from barcode import barcode_data, barcode_network, digits_images, mnist_images
from dprmt.plots import plot_class_sizes, plot_metric_against_epsilon, save_picture
from studies import GroupRecord, train_privately

RANGES = {"gd": (1.0, 10.0), "gdm": (0.1, 1.0), "adam": (1e-2, 1e-1), "adambc": (5e-3, 5e-2)}
DIGITS_PLAN = [(10, 100), (20, 20), (40, 5)]
MNIST_PLAN = [(10, 800), (20, 150), (100, 40), (200, 10)]  # 330 classes; the paper does not print its own plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--images")
    parser.add_argument("--labels")
    add_training_options(parser, steps=40)
    options = parser.parse_args()
    if (options.images is None) != (options.labels is None):
        parser.error("--images and --labels belong together")
    source = mnist_images(options.images, options.labels) if options.images else digits_images()
    data = barcode_data(*source, MNIST_PLAN if options.images else DIGITS_PLAN, seed=0)

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> list[GroupRecord]:
        chosen = settings(options, data.size, optimizer, rate, seed, micro_batch=25)
        network = barcode_network(data.classes, seed=seed)
        return train_privately(network, data, chosen, options.steps, folder, record_every=options.record_every)

    runs = tuned_runs(options, RANGES, train)
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
    privacy = f"σ = {options.sigma:g}, q = {options.sample_rate:g}, C = {options.clip:g}, δ = 1e-5"
    print(f"n = {data.size}, {data.classes} classes, {privacy}")
    show(runs, data.group_names)


if __name__ == "__main__":
    main()
