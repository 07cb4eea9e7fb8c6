"""How often the denoised model is ahead, counted in the printed tables themselves."""

from __future__ import annotations

from collections.abc import Callable
from operator import gt
from pathlib import Path

from paper_figures._published import Published, published
from paper_figures._reproduction import Found, Item, Row, Scale

PAPER = published("generation-counts")
METRICS = ("BLEU", "ROUGE_L", "METEOR", "NIST", "CIDEr")
TABLES = {50: published("generation-50"), 400: published("generation-400")}


def ahead(table: Published, compare: Callable[[float, float], bool] = gt) -> int:
    """In how many of the 50 combinations the denoised model's number is larger."""
    baseline, denoised = ([row for row in table.rows if row["method"] == name] for name in ("baseline", "denoised"))
    pairs = zip(baseline, denoised, strict=True)
    return sum(compare(ours[metric], theirs[metric]) for theirs, ours in pairs for metric in METRICS)


def measure(scale: Scale, folder: Path) -> Found:
    return Found(
        [
            Row(f"ahead after {step} steps, of 50", ahead(table), PAPER.number("ahead", step=step), tolerance=0)
            for step, table in TABLES.items()
        ],
        differs="Counted in the tables as printed, larger being better.",
        why="the published text and tables disagree: the same tables that are printed give other counts than the text.",
        seeds=0,
    )


ITEM = Item("generation-counts", "Combinations in which the denoised model is ahead", measure, scales=("paper",))
