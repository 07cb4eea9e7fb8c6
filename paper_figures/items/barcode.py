"""A small convolutional network on digits with barcodes (Figures 4 and 5), for two σ and several C.

At small scale scikit-learn's digits for a few steps, then tuned on them at σ = C = 1, then MNIST's files. As in the
paper, what is reported for a σ is the C with the lowest loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paper_figures._needs import data_file, missing_files
from paper_figures._picture import picture
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._tuned_runs import LABELS, Train, Tuned, draw_groups, tuned

PAPER = published("barcode")
FILES = ("mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz")
DIGITS = ((10, 100), (20, 20), (40, 5))
MNIST = ((10, 800), (20, 150), (100, 40), (200, 10))  # 330 classes; the paper does not print its own plan


@dataclass(frozen=True)
class Extent:
    """How much of the figure is made."""

    plan: Sequence[tuple[int, int]]
    """Classes, and images of each."""
    steps: int
    record_every: int
    sample_rate: float
    rates: Mapping[str, tuple[float, float]]
    """Ends of the half-power grid, by optimizer."""
    sigmas: Sequence[float] = (1.0, 10.0)
    clipping: Sequence[float] = (0.1, 1.0, 10.0)
    seeds: Sequence[int] = (0,)


_TUNED = {"gd": 5.0, "gdm": 0.5, "adam": 5e-2, "adambc": 1e-2}  # at σ = C = 1 on the digits
EXTENTS: dict[Scale, Extent] = {
    "small": Extent(DIGITS, 12, 6, 0.05, {name: (rate, rate) for name, rate in _TUNED.items()}),
    "long": Extent(
        DIGITS,
        30,
        1,
        1.0,
        {"gd": (1.0, 10.0), "gdm": (0.1, 1.0), "adam": (1e-2, 1e-1), "adambc": (5e-3, 5e-2)},
        sigmas=(1.0,),
        clipping=(1.0,),
        seeds=(0, 1, 2),
    ),
    "paper": Extent(
        MNIST,
        80,
        8,
        0.1,
        {"gd": (1.0, 10.0), "gdm": (0.1, 1.0), "adam": (5e-3, 5e-2), "adambc": (1e-3, 1e-2)},
        seeds=(0, 1),
    ),
}


def measure(scale: Scale, folder: Path) -> Found:
    absent = missing_files(*FILES) if scale == "paper" else ""
    if absent:
        return Found([], "", missing=absent)
    extent = EXTENTS[scale]
    data, pieces = _data(scale), Pieces(folder, "barcode", scale)
    runs = {
        (sigma, clip): tuned(
            pieces, _train(data, extent, sigma, clip), _grids(extent), extent.seeds, f"σ = {sigma:g}, C = {clip:g}, "
        )
        for sigma in extent.sigmas
        for clip in extent.clipping
    }
    best = {sigma: _best(runs, sigma) for sigma in extent.sigmas}
    groups = dict(enumerate(data.group_names))
    shown = best[extent.sigmas[0]]

    def draw(axes: np.ndarray) -> None:
        top, bottom = np.split(axes, 2)
        draw_groups(top, shown, "loss", groups)
        draw_groups(bottom, shown, "accuracy", groups)

    return Found(
        _rows(best, data.group_names),
        differs=f"{data.size} images in {data.classes} classes (the paper: {PAPER.setting['samples']} in"
        f" {PAPER.setting['classes']}), {extent.steps} steps of a share of {extent.sample_rate:g} of them"
        + (", one rate an optimizer, tuned at σ = C = 1." if scale == "small" else "."),
        why="scale: after so few steps all methods are near 0 % on the rare classes, where the paper has"
        " DP-AdamBC ahead.",
        model="two convolutions and two linear layers",
        data=("MNIST's test file" if scale == "paper" else "scikit-learn's digits") + " with barcodes",
        seeds=len(extent.seeds),
        pictures=[picture(folder / "barcode.png", draw, panels=1 + len(groups), rows=2)],
        earlier_seconds=pieces.earlier_seconds,
    )


def _data(scale: Scale) -> Any:
    from barcode import barcode_data, digits_images, mnist_images

    source = mnist_images(*(str(data_file(name)) for name in FILES)) if scale == "paper" else digits_images()
    return barcode_data(*source, list(EXTENTS[scale].plan), seed=0)


def _grids(extent: Extent) -> dict[str, list[float]]:
    from heavy_tail import half_power_grid

    return {optimizer: half_power_grid(*ends) for optimizer, ends in extent.rates.items()}


def _best(runs: Mapping[tuple[float, float], Mapping[str, Tuned]], sigma: float) -> dict[str, Tuned]:
    # The C with the lowest last loss, for each optimizer.
    by_clipping = [found for (noise, _), found in runs.items() if noise == sigma]
    return {
        optimizer: min((found[optimizer] for found in by_clipping), key=lambda found: found.last("loss"))
        for optimizer in LABELS
    }


def _rows(best: Mapping[float, Mapping[str, Tuned]], names: tuple[str, ...]) -> list[Row]:
    printed = {0: "accuracy, most frequent", len(names) - 1: "accuracy, least frequent"}
    rows = []
    for sigma, runs in best.items():
        for group, quantity in printed.items():
            for optimizer, found in runs.items():
                theirs = PAPER.number(optimizer, quantity=quantity) if sigma == 1.0 else None
                label = f"σ = {sigma:g}, {LABELS[optimizer]}: {quantity} ({names[group]})"
                rows.append(Row(label, 100 * found.last("group_accuracy", group), theirs, unit="%"))
    runs = best[1.0]
    lead = min(runs[name].last("loss") for name in ("gd", "gdm")) - runs["adambc"].last("loss")
    label = "σ = 1: loss of the better of DP-GD and DP-GDM, less that of DP-AdamBC"
    rows.append(Row(label, lead, claim="> 0", holds=lead > 0))
    return rows


def _train(data: Any, extent: Extent, sigma: float, clip: float) -> Train:
    from barcode import barcode_network
    from studies import private_settings, train_privately

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> Any:
        settings = private_settings(
            optimizer,
            rate,
            size=data.size,
            clipping_norm=clip,
            noise_multiplier=sigma,
            sample_rate=extent.sample_rate,
            stability=1e-3 if optimizer == "adam" else 0.1,
            micro_batch=100,
            seed=seed,
        )
        network = barcode_network(data.classes, seed=seed)
        every = extent.record_every
        return train_privately(network, data, settings, extent.steps, folder, record_every=every, progress=False)

    return train


ITEM = Item("barcode", "Digits with barcodes", measure, scales=("small", "long", "paper"), form_only=True)
