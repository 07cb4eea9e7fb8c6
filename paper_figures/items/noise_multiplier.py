"""Noise multipliers at ε = 0.7: exact norms against 32 probes, and what the later analyses ask for."""

from __future__ import annotations

from pathlib import Path

from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, calibrate
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale

PAPER = published("noise-multiplier")
RATE, STEPS = 16 / 1225, 3480  # the setting that the printed numbers belong to: batches of 16 from 1,225 samples


def measure(scale: Scale, folder: Path) -> Found:
    probes = PAPER.setting["probes"]
    target = {"steps": STEPS, "target_epsilon": PAPER.setting["epsilon"], "delta": PAPER.setting["delta"]}
    ways = (
        ExactNorms(),
        Hutchinson(probes, secret=False, analysis="envelope"),
        Hutchinson(probes, secret=False),
        Hutchinson(probes, secret=True),
    )
    runs = [calibrate(DPSGD(1.0, RATE, norms), **target) for norms in ways]
    exact, envelope, tight, secret = (run.noise_multiplier for run in runs)
    printed = {method: PAPER.number("noise_multiplier", method=method) for method in ("exact", "hutchinson")}
    return Found(
        [
            Row("exact norms", exact, printed["exact"], interval=(exact, exact), margin=4e-3),
            Row(
                "32 probes, published analysis",
                envelope,
                printed["hutchinson"],
                interval=(envelope, envelope),
                margin=4e-3,
            ),
            Row("32 probes, tight analysis", tight),
            Row("32 probes, tight analysis, secret probes", secret),
        ],
        differs="Batch size and number of steps are inferred from the first printed number, so that it is no test;"
        " that the second follows from it at any batch size is checked among what follows from print.",
    )


ITEM = Item("noise-multiplier", "Noise multipliers at ε = 0.7", measure, scales=("paper",))
