"""A small convolutional network on digits with barcodes (Figures 4 and 5), every optimizer on one grid of step sizes.

The grid is of *effective* steps h: what a parameter moves by, in units of gradient descent's rate, where noise
outweighs the gradient. At small scale scikit-learn's digits, at long scale longer on them, at paper scale MNIST's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._needs import data_file, missing_files
from paper_figures._picture import picture
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._tuner import LABELS, Train, Tuned, draw_groups, tuned
from paper_figures._verdict import Reason

PAPER = published("barcode")
FILES = ("mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz")
DIGITS = ((10, 100), (20, 20), (40, 5))
MNIST = ((10, 800), (20, 150), (100, 40), (200, 10))  # 330 classes; the paper does not print its own plan


LARGER = (
    f" `--scale paper` makes {sum(classes * images for classes, images in MNIST)} images in as many classes as the"
    " paper of MNIST's test file, in pieces that go on after a stop. More ask for MNIST's training file, which is not"
    " read."
)
ORDER = ("adambc", "adam", "gd", "gdm")
"""Of the runs: DP-AdamBC, which the others are compared with, first, so that a run that is stopped has an answer."""
STABILITY = {"gd": 0.1, "gdm": 0.1, "adam": 1e-3, "adambc": 0.1}
SIGMA, CLIPPING, TUNED_ON = 1.0, 1.0, 1000
MARGINS = {"loss": 0.35, "accuracy": 5.0}
"""In nats and points."""


NOTHING = 0.01
"""Accuracy up to which a class counts as not learnt."""


@dataclass(frozen=True)
class Extent:
    """How much of the figure is made."""

    plan: Sequence[tuple[int, int]]
    """Classes, and images of each."""
    steps: int
    record_every: int
    sample_rate: float
    grid: Sequence[float]
    """Effective steps."""
    seeds: Sequence[int] = (0, 1, 2)


EXTENTS: dict[Scale, Extent] = {
    "small": Extent(DIGITS, 12, 6, 0.05, tuple(2.0**k for k in range(-1, 6))),
    "long": Extent(DIGITS, 30, 5, 1.0, tuple(2.0**k for k in range(-1, 7))),
    "paper": Extent(MNIST, 40, 8, 0.1, tuple(2.0**k for k in range(-1, 8))),
}


def rate_of(optimizer: str, step: float, batch: float) -> float:
    """The learning rate whose effective step is ``step``, with batches of ``batch`` on average.

    See `heavy_tail.Trial.effective_step`.

    Examples
    --------
    >>> [round(rate_of(name, 2.0, 100.0), 6) for name in ("gd", "gdm", "adam", "adambc")]
    [2.0, 0.2, 0.02002, 0.006325]
    """
    from paper_figures.heavy_tail import Trial

    unit: Any = {"stability": STABILITY[optimizer], "groups": 1, "samples": batch}
    return float(f"{step / Trial(optimizer, 1.0, CLIPPING, SIGMA, **unit).effective_step:.6g}")


def measure(scale: Scale, folder: Path) -> Found:
    absent = missing_files(*FILES) if scale == "paper" else ""
    if absent:
        return Found([], "", missing=absent)
    extent = EXTENTS[scale]
    data, pieces = _data(scale), Pieces(folder, "barcode", scale)
    batch = extent.sample_rate * data.size
    steps = {name: {rate_of(name, step, batch): step for step in extent.grid} for name in LABELS}
    train = _train(data, extent)
    shown, equal, stopped = _until_stopped(pieces, train, steps, batch, extent.seeds)
    chosen = {name: steps[name][found.rate] for name, found in shown.items()}
    groups = dict(enumerate(data.group_names))

    def draw(axes: np.ndarray) -> None:
        top, bottom = np.split(axes, 2)
        draw_groups(top, shown, "loss", groups)
        draw_groups(bottom, shown, "accuracy", groups)

    return Found(
        _rows(scale, shown, chosen, data.group_names) + _leads(shown, equal, chosen, data.group_names),
        differs=f"{data.size} images in {data.classes} classes (the paper: {PAPER.setting['samples']} in"
        f" {PAPER.setting['classes']}), {extent.steps} steps of a share of {extent.sample_rate:g} of them"
        + f", σ = C = 1, effective steps {extent.grid[0]:g} to {extent.grid[-1]:g} for every optimizer."
        + ("" if scale == "paper" else LARGER)
        + _at_ends(shown)
        + (f" So far {_named(shown)}: the same command goes on." if stopped else ""),
        reasons=[
            *_nobody_learns(scale, extent.steps, shown, equal, len(data.group_names) - 1),
            Reason(
                "open",
                "how many classes have how many images, rates, steps and the C of each printed number are not printed.",
            ),
        ],
        model="two convolutions and two linear layers",
        data=("MNIST's test file" if scale == "paper" else "scikit-learn's digits") + " with barcodes",
        seeds=len(extent.seeds),
        pictures=[picture(folder / "barcode.png", draw, panels=1 + len(groups), rows=2)],
        earlier_seconds=pieces.earlier_seconds,
        stopped=stopped,
    )


def _until_stopped(
    pieces: Pieces, train: Train, steps: Mapping[str, Mapping[float, float]], batch: float, seeds: Sequence[int]
) -> tuple[dict[str, Tuned], dict[str, Tuned], str]:
    """Each at its best step, all at DP-AdamBC's, and what stopped it before all of them were measured."""
    shown: dict[str, Tuned] = {}
    equal: dict[str, Tuned] = {}
    stopped = ""
    try:
        for name in ORDER:
            shown |= tuned(pieces, train, {name: list(steps[name])}, seeds, tuning_seed=TUNED_ON)
            common = steps["adambc"][shown["adambc"].rate]
            equal |= tuned(pieces, train, {name: [rate_of(name, common, batch)]}, seeds)
    except KeyboardInterrupt as stop:
        if len(shown) < 2:
            raise
        stopped = str(stop) or "stopped"
    shown, equal = ({name: found[name] for name in LABELS if name in found} for found in (shown, equal))
    return shown, equal, stopped


def _nobody_learns(
    scale: Scale, steps: int, shown: Mapping[str, Tuned], equal: Mapping[str, Tuned], rare: int
) -> list[Reason]:
    """Where the rarest classes are not learnt, a lower loss on them is that of a flatter prediction."""
    best = max(float(found.ends("group_accuracy", rare).max()) for found in shown.values())
    if best > NOTHING:
        return []
    worst, found = max(equal.items(), key=lambda pair: float(pair[1].ends("loss").mean()))
    loss, right = (float(found.ends(of).mean()) for of in ("loss", "accuracy"))
    text = (
        f"after {steps} steps no run puts more than {100 * best:.2g} % of the images of the rarest classes right, so"
        f" that a lower loss on them is a flatter prediction and not learning: {LABELS[worst]} at DP-AdamBC's step is"
        f" ahead there, ends at {loss:.2f} nats on all images and puts {100 * right:.2g} % of them right."
    )
    return [Reason("tested", text, f"python -m paper_figures run barcode --scale {scale}")]


def _at_ends(shown: Mapping[str, Tuned]) -> str:
    at = {name: found for name, found in shown.items() if found.at_edge}
    return f" At an end of the grid, so that a better step may lie beyond: {_named(at)}." if at else ""


def _named(found: Mapping[str, Tuned]) -> str:
    return ", ".join(LABELS[name] for name in found)


def _data(scale: Scale) -> Any:
    from paper_figures.barcode import barcode_data, digits_images, mnist_images

    source = mnist_images(*(str(data_file(name)) for name in FILES)) if scale == "paper" else digits_images()
    return barcode_data(*source, list(EXTENTS[scale].plan), seed=0)


def _rows(scale: Scale, runs: Mapping[str, Tuned], chosen: Mapping[str, float], names: tuple[str, ...]) -> list[Row]:
    """Beside the printed numbers; with a verdict where the images are MNIST's."""
    last, rows = len(names) - 1, []
    judged = scale == "paper"
    for quantity, group in {"accuracy, most frequent": 0, "accuracy, least frequent": last}.items():
        for optimizer, found in runs.items():
            printed = PAPER.number(optimizer, quantity=quantity)
            label = f"{LABELS[optimizer]}, h = {chosen[optimizer]:g}: {quantity} ({names[group]})"
            against: dict[str, Any] = {"published": printed, "margin": MARGINS["accuracy"] if judged else None}
            rows.append(mean_row(label, 100 * found.ends("group_accuracy", group), unit="%", **against))
    return rows


def _leads(
    runs: Mapping[str, Tuned], equal: Mapping[str, Tuned], chosen: Mapping[str, float], names: tuple[str, ...]
) -> list[Row]:
    rare = len(names) - 1
    rows = []
    for where, found in (("each at its best step", runs), (f"all at h = {chosen['adambc']:g}", equal)):
        rows += [mean_row(f"{where}, {LABELS[name]}: loss", of.ends("loss"), unit="nats") for name, of in found.items()]
        losses = {name: of.ends("group_loss", rare) for name, of in found.items()}
        rows.append(mean_row(f"{where}, DP-AdamBC: loss, {names[rare]}", losses["adambc"], unit="nats"))
        for other in [name for name in found if name != "adambc"]:
            label = f"{where}: loss of {LABELS[other]} over that of DP-AdamBC, {names[rare]}"
            gaps = losses[other] - losses["adambc"]
            rows.append(mean_row(label, gaps, unit="nats", claim="> 0", within=ABOVE_ZERO))
    return rows


def _train(data: Any, extent: Extent) -> Train:
    from paper_figures.barcode import barcode_network
    from paper_figures.studies import private_settings, train_privately

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> Any:
        settings = private_settings(
            optimizer,
            rate,
            size=data.size,
            clipping_norm=CLIPPING,
            noise_multiplier=SIGMA,
            sample_rate=extent.sample_rate,
            stability=STABILITY[optimizer],
            micro_batch=100,
            seed=seed,
        )
        network = barcode_network(data.classes, seed=seed)
        every = extent.record_every
        return train_privately(network, data, settings, extent.steps, folder, record_every=every)

    return train


ITEM = Item("barcode", "Digits with barcodes", measure, scales=("small", "long", "paper"), form_only=True)
