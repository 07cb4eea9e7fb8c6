"""Proposition I.1 as printed, at vectors where it fails, beside the corrected bound."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from dprmt.spectra import adam_improvement_bound
from paper_figures._measured import exact_row
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason

STEP_SIZE, CURVATURE = 0.01, 1.0
GRADIENT, DIRECTION, PRECONDITIONER = np.array([2.0, -1.0]), np.array([1.0, 1.0]), np.array([1.0, 10.0])
DRAWS, SIZE = 2000, 16


def measure(scale: Scale, folder: Path) -> Found:
    step = adam_improvement_bound(GRADIENT, DIRECTION, PRECONDITIONER, CURVATURE * np.eye(2), STEP_SIZE)
    printed, corrected = _violations()
    return Found(
        [
            Row("decrease at P = diag(1, 10), g = (2, -1), s = (1, 1)", step.improvement),
            exact_row(
                "printed lower bound there, minus the decrease",
                step.printed_bound - step.improvement,
                claim="Proposition I.1: not above 0",
                within=(-math.inf, 0.0),
            ),
            Row("corrected lower bound there", step.bound),
            Row(f"random steps of {DRAWS} that violate the printed bound", printed),
            exact_row(
                f"random steps of {DRAWS} that violate the corrected one", corrected, claim="none", within=(0, 0)
            ),
        ],
        differs="A counter-example and random steps; the module that computes the bound has the corrected one.",
        reasons=[
            Reason(
                "tested",
                "the proof replaces gᵀPs by p_min gᵀs, which needs a premise that is not stated; the counter-example"
                " has two dimensions.",
                "python -m paper_figures run adam-bound",
            )
        ],
        seeds=1,
    )


def _violations() -> tuple[int, int]:
    rng = np.random.default_rng(0)
    printed = corrected = 0
    for _ in range(DRAWS):
        gradient, noise = rng.standard_normal((2, SIZE))
        scales = np.exp(rng.uniform(-2, 2, SIZE))
        step = adam_improvement_bound(gradient, 0.3 * gradient + noise, scales, CURVATURE * np.eye(SIZE), STEP_SIZE)
        printed += step.printed_bound > step.improvement
        corrected += step.bound > step.improvement
    return printed, corrected


ITEM = Item("adam-bound", "The bound of Proposition I.1", measure, scales=("paper",))
