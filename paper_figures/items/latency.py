"""Time of Hutch++ over time of Hutchinson for the norm of one layer, and of exact norms beside them."""

from __future__ import annotations

import time
from pathlib import Path

from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures.items.efficiency import PROBES, TOKENS, norms

PAPER = published("latency")
REPEATS = 5
SHAPES = {"small": (2048, 512), "paper": (8192, 2048)}


def measure(scale: Scale, folder: Path) -> Found:
    import torch

    shape = SHAPES[scale]
    seconds = _best_times(*shape)
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


def _best_times(d: int, p: int) -> dict[str, float]:
    # Interleaved, so that a busy spell hits all of them.
    functions = norms(d, p)
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(REPEATS):
        for name, norm in functions.items():
            start = time.perf_counter()
            norm()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


ITEM = Item("latency", "Latency of Hutch++ against Hutchinson", measure, scales=("small", "paper"), form_only=True)
