"""Time of Hutch++ over time of Hutchinson for the norm of one layer, and of exact norms beside them."""

from __future__ import annotations

from pathlib import Path

from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items._layer_norms import PROBES, TOKENS, least_times, norms

PAPER = published("latency")
SHAPES = {"small": (2048, 512), "paper": (8192, 2048)}


def measure(scale: Scale, folder: Path) -> Found:
    import torch

    shape = SHAPES[scale]
    seconds = least_times(norms(*shape))
    ratio = seconds["hutchpp"] / seconds["hutchinson"]
    size = "×".join(map(str, shape))
    return Found(
        [
            Row(f"{size}: time of Hutchinson", 1e3 * seconds["hutchinson"], unit="ms"),
            Row(f"{size}: time of exact norms over Hutchinson", seconds["exact"] / seconds["hutchinson"]),
            Row(
                f"{size}: time of Hutch++ over Hutchinson",
                ratio,
                PAPER.number("value", quantity="time of Hutch++ over time of Hutchinson"),
                tolerance=1.5,
            ),
        ],
        differs="The norm alone on one CPU thread, the least of a few times; the paper times an A100.",
        data=f"one sample of Gaussian factors, T = {TOKENS}, k = {PROBES}, torch {torch.__version__}",
    )


ITEM = Item("latency", "Latency of Hutch++ against Hutchinson", measure, scales=("small", "paper"), form_only=True)
