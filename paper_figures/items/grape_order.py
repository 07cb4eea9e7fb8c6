"""Project before the noise or after it (section 5.1, Table 6): DP-GRAPE and naive DP-GaLore against DP-Adam.

On MNIST's files where they are, on scikit-learn's digits otherwise. Every method has its own learning rate, tuned on a
seed that is not reported. At long scale a control besides: four times the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._needs import data_file
from paper_figures._picture import STYLES, picture
from paper_figures._pieces import Pieces
from paper_figures._published import Cell, published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason

if TYPE_CHECKING:
    from paper_figures.items._projected_runs import Images

PAPER = published("grape-order")
EPSILONS, RANK, STEPS, TUNED_ON, MARGIN = (1.0, 8.0), 16, 40, 1000, 3.0
SEEDS = {"small": (0, 1), "long": (0, 1, 2, 3, 4)}
RATES = (6e-3, 2e-2, 6e-2, 2e-1)
CONTROLS = {"": (STEPS, RANK), "rank 64": (STEPS, 4 * RANK)}
"""Steps and rank; the first is the setting itself."""
METHODS: dict[str, dict[str, Any] | None] = {
    "DP-Adam": None,
    "DP-GRAPE": {},
    "noise, then Gaussian projection": {"order": "privatize-then-project"},
    "naive DP-GaLore": {"order": "privatize-then-project", "projector": "svd"},
}
FILES = ("mnist/t10k-images-idx3-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz")


def images() -> Images:
    """A part of MNIST's test file; or the digits."""
    import torch

    from paper_figures.barcode import mnist_images
    from paper_figures.items._projected_runs import Images, digits

    paths = [data_file(name) for name in FILES]
    if not all(path.exists() for path in paths):
        return digits()
    x, y = mnist_images(*map(str, paths))
    x = torch.nn.functional.avg_pool2d(x[:, None], 2).flatten(1)  # 14 × 14: whole per-sample gradients fit
    name = "MNIST's test file at 14 × 14, 3,000 images to train on and 1,000 to test"
    return Images(name, (x[:3000], y[:3000]), (x[9000:], y[9000:]))


Accuracies = dict[str, np.ndarray]
"""By method: test accuracy in percent, shape (levels of ε, seeds)."""


def measure(scale: Scale, folder: Path) -> Found:
    source, pieces = images(), Pieces(folder, "grape-order", scale)
    controls = CONTROLS if scale == "long" else {"": CONTROLS[""]}
    found = {name: _accuracies(pieces, source, name, SEEDS[scale]) for name in controls}
    accuracy = found[""]

    def draw(ax: Any) -> None:
        for method, values in accuracy.items():
            spread = values.std(1, ddof=1)
            ax.errorbar(EPSILONS, values.mean(1), spread, marker="o", markersize=4, label=method, **STYLES[method])
        ax.set(xscale="log", xlabel="ε", ylabel="test accuracy, %")
        ax.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        ax.minorticks_off()
        ax.legend(frameon=False)

    return Found(
        [*_rows(accuracy), *(row for name in list(controls)[1:] for row in _control_rows(name, found[name]))],
        differs=f"A perceptron, r = {RANK}, {STEPS} steps; the paper's network, steps, rank and ε are unknown.",
        reasons=_reasons(found),
        model="perceptron of three layers",
        data=source.name,
        seeds=len(SEEDS[scale]),
        pictures=[picture(folder / "grape-order.png", draw)],
        earlier_seconds=pieces.earlier_seconds,
    )


def _accuracies(pieces: Pieces, source: Images, control: str, seeds: Sequence[int]) -> Accuracies:
    settings = [(method, epsilon) for method in METHODS for epsilon in EPSILONS]

    def runs(keys: Sequence[tuple[str, float, float, int]]) -> dict[tuple[str, float, float, int], float]:
        values = pieces.measure({_name(control, *key): _run(source, control, *key) for key in keys})
        return {key: values[_name(control, *key)] for key in keys}

    tried = runs([(*setting, rate, TUNED_ON) for setting in settings for rate in RATES])
    best = {s: max(RATES, key=lambda rate: tried[*s, rate, TUNED_ON]) for s in settings}
    found = runs([(*setting, best[setting], seed) for setting in settings for seed in seeds])
    return {
        method: np.array([[found[method, e, best[method, e], seed] for seed in seeds] for e in EPSILONS])
        for method in METHODS
    }


def _behind(accuracy: Accuracies, method: str, other: str = "DP-Adam") -> np.ndarray:
    """Points, mean over the levels of ε, by seed."""
    gaps: np.ndarray = (accuracy[other] - accuracy[method]).mean(0)
    return gaps


def _rows(accuracy: Accuracies) -> list[Row]:
    rows = [
        mean_row(f"DP-Adam, ε = {epsilon:g}: accuracy", values, unit="%")
        for epsilon, values in zip(EPSILONS, accuracy["DP-Adam"], strict=True)
    ]
    for method in [name for name in METHODS if name != "DP-Adam"]:
        rows += [
            mean_row(f"{method}, ε = {epsilon:g}: behind DP-Adam, paired", gaps, unit="points")
            for epsilon, gaps in zip(EPSILONS, accuracy["DP-Adam"] - accuracy[method], strict=True)
        ]
    printed, least, most = _printed()
    naive = _behind(accuracy, "naive DP-GaLore")
    label = "naive DP-GaLore: behind DP-Adam, mean over ε"
    rows.append(mean_row(label, naive, published=printed, margin=MARGIN, unit="points"))
    rows.append(mean_row("DP-GRAPE: behind DP-Adam, mean over ε", _behind(accuracy, "DP-GRAPE"), unit="points"))
    behind = _behind(accuracy, "naive DP-GaLore", "DP-GRAPE")
    label = "naive DP-GaLore: behind DP-GRAPE, mean over ε"
    rows.append(mean_row(label, behind, unit="points", claim="> 0", within=ABOVE_ZERO))
    claim, cells = f"{least:g} to {most:g}, after Table 6", (least.key, most.key)
    rows.append(mean_row(label, behind, unit="points", claim=claim, within=(least, most), cells=cells))
    return rows


def _control_rows(name: str, accuracy: Accuracies) -> list[Row]:
    return [
        mean_row(f"{name}, {method}: behind DP-Adam, mean over ε", _behind(accuracy, method), unit="points")
        for method in ("DP-GRAPE", "naive DP-GaLore")
    ]


def _printed() -> tuple[Cell, Cell, Cell]:
    text = published("text-grape")
    least, most = (
        text.number("value", quantity=f"naive DP-GaLore behind DP-GRAPE, {end} points") for end in ("least", "most")
    )
    return PAPER.number("value", quantity="points"), least, most


def _reasons(found: dict[str, Accuracies]) -> list[Reason]:
    if len(found) == 1:
        return [Reason("open", "network, steps, rank and levels of ε; the long scale tries a higher rank.")]
    gaps = {name: float(_behind(accuracy, "naive DP-GaLore").mean()) for name, accuracy in found.items()}
    text = ", ".join(f"{gap:.1f} points with {name or f'rank {RANK}'}" for name, gap in gaps.items())
    command = "python -m paper_figures run grape-order --scale long"
    return [
        Reason(
            "tested", f"how far the naive order is behind depends on the rank, which is not known: {text}.", command
        ),
        Reason("open", "network, number of steps and levels of ε."),
    ]


def _name(control: str, method: str, epsilon: float, rate: float, seed: int) -> str:
    where = f"{control}, " if control else ""
    return f"{where}{method}, ε = {epsilon:g}, lr = {rate:g}, seed {seed}"


def _run(source: Images, control: str, method: str, epsilon: float, rate: float, seed: int) -> Callable[[], float]:
    from paper_figures.items._projected_runs import perceptron, train_once

    steps, rank = CONTROLS[control]
    options = METHODS[method]
    projection = None if options is None else {"rank": rank, **options}
    return lambda: train_once(
        perceptron(source.train[0].shape[1], 10, seed),
        source,
        optimizer={"name": "adam", "learning_rate": rate},
        privacy={"target_epsilon": epsilon},
        steps=steps,
        batch=len(source.train[1]) // 20,
        seed=seed,
        projection=projection,
    )


ITEM = Item("grape-order", "Projecting before and after the noise", measure, ("small", "long"), form_only=True)
