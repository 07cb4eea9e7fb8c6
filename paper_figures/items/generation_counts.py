"""How often the denoised model is ahead, counted in the printed tables themselves."""

from __future__ import annotations

from pathlib import Path

from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Scale
from paper_figures.forensics import CHECKS

CHECK = CHECKS["counts"]


def measure(scale: Scale, folder: Path) -> Found:
    return Found(CHECK.rows(published), differs=CHECK.how, reasons=CHECK.reasons, seeds=0)


ITEM = Item("generation-counts", "Combinations in which the denoised model is ahead", measure, scales=("paper",))
