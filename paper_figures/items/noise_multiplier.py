"""Noise multipliers at ε = 0.7: exact norms against 32 probes, and what the later analyses ask for."""

from __future__ import annotations

from pathlib import Path

from dprmt.accounting import calibrate_noise_multiplier
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale

PAPER = published("noise-multiplier")
RATE, STEPS = 16 / 1225, 3480  # the setting that the printed numbers belong to: batches of 16 from 1,225 samples


def measure(scale: Scale, folder: Path) -> Found:
    probes = PAPER.setting["probes"]
    setting = (PAPER.setting["epsilon"], PAPER.setting["delta"], RATE, STEPS)
    exact = calibrate_noise_multiplier(*setting)
    envelope = calibrate_noise_multiplier(*setting, probes=probes, analysis="envelope")
    tight = calibrate_noise_multiplier(*setting, probes=probes)
    secret = calibrate_noise_multiplier(*setting, probes=probes, probe_sharing="sample")
    printed = {method: PAPER.number("noise_multiplier", method=method) for method in ("exact", "hutchinson")}
    return Found(
        [
            Row("exact norms", exact, printed["exact"], tolerance=4e-3),
            Row("32 probes, published analysis", envelope, printed["hutchinson"], tolerance=4e-3),
            Row("32 probes, tight analysis", tight),
            Row("32 probes, tight analysis, secret probes", secret),
        ],
        differs="Batch size and number of steps are inferred from the printed numbers; ours are certified.",
    )


ITEM = Item("noise-multiplier", "Noise multipliers at ε = 0.7", measure, scales=("paper",))
