"""A small convolutional network on digits with barcodes (Figures 4 and 5), for two σ and several C.

On MNIST's files where they are, on scikit-learn's digits otherwise. As in the paper, what is reported for a σ is the C
with the lowest loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paper_figures._needs import data_file
from paper_figures._picture import picture
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._tuned_runs import LABELS, Train, Tuned, draw_groups, tuned

PAPER = published("barcode")
SIGMAS, CLIPPING = (1.0, 10.0), (0.1, 1.0, 10.0)
RATES = {"gd": (5.0,), "gdm": (0.5,), "adam": (5e-2,), "adambc": (1e-2,)}
STEPS, RECORD_EVERY, SAMPLE_RATE = 12, 6, 0.05
PLANS = {"digits": [(10, 100), (20, 20), (40, 5)], "mnist": [(10, 800), (20, 150), (100, 40), (200, 10)]}
FILES = ("mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz")


def measure(scale: Scale, folder: Path) -> Found:
    from barcode import barcode_data, digits_images, mnist_images

    paths = [data_file(name) for name in FILES]
    real = scale == "paper" and all(path.exists() for path in paths)
    if scale == "paper" and not real:
        return Found([], "", missing=f"the files {' and '.join(FILES)} (--data names their folder)")
    source = mnist_images(*map(str, paths)) if real else digits_images()
    data = barcode_data(*source, PLANS["mnist" if real else "digits"], seed=0)
    pieces = Pieces(folder, "barcode", scale)
    runs = {
        (sigma, clip): tuned(pieces, _train(data, sigma, clip), RATES, (0,), f"σ = {sigma:g}, C = {clip:g}, ")
        for sigma in SIGMAS
        for clip in CLIPPING
    }
    best = {sigma: _best(runs, sigma) for sigma in SIGMAS}
    groups = dict(enumerate(data.group_names))
    shown = best[SIGMAS[0]]

    def draw(axes: np.ndarray) -> None:
        top, bottom = np.split(axes, 2)
        draw_groups(top, shown, "loss", groups)
        draw_groups(bottom, shown, "accuracy", groups)

    return Found(
        _rows(best, data.group_names),
        differs=f"{data.size} images in {data.classes} classes (the paper: {PAPER.setting['samples']} in"
        f" {PAPER.setting['classes']}), {STEPS} steps of a twentieth of them, one rate an optimizer, tuned at"
        " σ = C = 1.",
        why="scale: after so few steps all methods are near 0 % on the rare classes, where the paper has"
        " DP-AdamBC ahead.",
        model="two convolutions and two linear layers",
        data=("MNIST's test file" if real else "scikit-learn's digits") + " with barcodes",
        pictures=[picture(folder / "barcode.png", draw, panels=1 + len(groups), rows=2)],
        earlier_seconds=pieces.earlier_seconds,
    )


def _best(runs: Mapping[tuple[float, float], Mapping[str, Tuned]], sigma: float) -> dict[str, Tuned]:
    # The C with the lowest last loss, for each optimizer.
    return {
        optimizer: min((runs[sigma, clip][optimizer] for clip in CLIPPING), key=lambda found: found.last("loss"))
        for optimizer in RATES
    }


def _rows(best: Mapping[float, Mapping[str, Tuned]], names: tuple[str, ...]) -> list[Row]:
    printed = {0: "accuracy, most frequent", len(names) - 1: "accuracy, least frequent"}
    rows = []
    for sigma, runs in best.items():
        for group, quantity in printed.items():
            for optimizer, found in runs.items():
                theirs = PAPER.number(optimizer, quantity=quantity) if sigma == SIGMAS[0] else None
                label = f"σ = {sigma:g}, {LABELS[optimizer]}: {quantity} ({names[group]})"
                rows.append(Row(label, 100 * found.last("group_accuracy", group), theirs, unit="%"))
    runs = best[SIGMAS[0]]
    lead = min(runs[name].last("loss") for name in ("gd", "gdm")) - runs["adambc"].last("loss")
    label = f"σ = {SIGMAS[0]:g}: loss of the better of DP-GD and DP-GDM, less that of DP-AdamBC"
    rows.append(Row(label, lead, claim="> 0", holds=lead > 0))
    return rows


def _train(data: Any, sigma: float, clip: float) -> Train:
    from barcode import barcode_network
    from studies import private_settings, train_privately

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> Any:
        settings = private_settings(
            optimizer,
            rate,
            size=data.size,
            clipping_norm=clip,
            noise_multiplier=sigma,
            sample_rate=SAMPLE_RATE,
            stability=1e-3 if optimizer == "adam" else 0.1,
            micro_batch=100,
            seed=seed,
        )
        network = barcode_network(data.classes, seed=seed)
        return train_privately(network, data, settings, STEPS, folder, record_every=RECORD_EVERY, progress=False)

    return train


ITEM = Item("barcode", "Digits with barcodes", measure, scales=("small", "paper"), form_only=True)
