"""Time of Hutch++ over time of Hutchinson for the norm of one layer, and of exact norms beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason
from paper_figures.items._layer_norms import PROBES, TOKENS, norms, times

PAPER = published("latency")
SHAPES = ((2048, 512), (8192, 2048))
ROUNDS, WARM_UP = 15, 2
MARGIN = 0.5
"""What rounding to the printed 3 leaves."""


def measure(scale: Scale, folder: Path) -> Found:
    import torch

    return Found(
        [row for shape in SHAPES for row in _rows(*shape)],
        differs=f"The norm alone on one CPU thread, the middle half of {ROUNDS} calls; the paper times an A100.",
        reasons=[
            Reason(
                "tested",
                "Hutch++ takes four products where Hutchinson takes one, in the paper's FLOPs too; what a GPU hides of"
                " that is not seen on a CPU.",
                "python -m paper_figures forensics flops",
            )
        ],
        data=f"one sample of Gaussian factors, T = {TOKENS}, k = {PROBES}, torch {torch.__version__}",
    )


def _rows(d: int, p: int) -> list[Row]:
    functions = norms(d, p)
    exact = np.median(times({"exact": functions.pop("exact")}, 3)["exact"])
    seconds = times(functions, WARM_UP + ROUNDS)
    plain, plus = (np.array(seconds[name][WARM_UP:]) for name in ("hutchinson", "hutchpp"))
    ratios = plus / plain
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    printed = PAPER.number("value", quantity="time of Hutch++ over time of Hutchinson")
    title = f"{d}×{p}: time of Hutch++ over Hutchinson"
    return [
        Row(f"{d}×{p}: time of Hutchinson", 1e3 * float(np.median(plain)), unit="ms"),
        Row(f"{d}×{p}: time of exact norms over Hutchinson", float(exact / np.median(plain))),
        Row(title, float(middle), printed, interval=(float(low), float(high)), margin=MARGIN),
    ]


ITEM = Item("latency", "Latency of Hutch++ against Hutchinson", measure, form_only=True)
