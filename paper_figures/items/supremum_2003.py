"""A printed value of Székely and Bakirov (2003) beside the maximum itself: two spectral values, one probe, x = 1.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from dprmt.accounting import chi2_mixture_cdf
from paper_figures._picture import COLORS, STYLES, picture
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._verdict import Reason

PAPER = published("supremum-2003")
X = float(PAPER.setting["x"])
XATOL = 1e-9


def measure(scale: Scale, folder: Path) -> Found:
    (printed,) = PAPER.rows
    weight = _maximiser()
    best, theirs = _cdf(weight), _cdf(float(printed["value"]))

    def draw(ax: Any) -> None:
        weights = np.linspace(0.0, 0.5, 201)
        ax.plot(weights, [_cdf(w) for w in weights], **STYLES["exact"])
        ax.plot(weight, best, "o", color=COLORS[1], label=f"the maximum, w = {weight:.4f}")
        ax.plot(printed["value"], theirs, "s", color=COLORS[2], label=f"as printed, w = {printed['value']:g}")
        ax.set(xlabel="smaller weight w", ylabel=f"P(w Z₁² + (1 - w) Z₂² ≤ {X:g})")
        ax.legend(frameon=False)

    return Found(
        [
            Row(
                printed["quantity"],
                weight,
                PAPER.number("value"),
                interval=(weight - XATOL, weight + XATOL),
                margin=0.005,
            ),
            Row("probability at the maximum", best),
            Row(
                "that at the printed weight, less the maximum",
                theirs - best,
                claim="0, to 1e-9",
                interval=(theirs - best, theirs - best),
                within=(-1e-9, 1e-9),
            ),
        ],
        differs="Direct maximisation over the weight; two digits are printed.",
        reasons=[
            Reason(
                "tested",
                "at the printed weight the probability is below its maximum, which direct maximisation finds beside it:"
                " the second printed digit is wrong.",
                "python -m paper_figures run supremum-2003",
            )
        ],
        pictures=[picture(folder / "supremum-2003.png", draw)],
    )


def _cdf(weight: float) -> float:
    weights = [weight, 1 - weight] if weight > 0 else [1.0]
    return float(chi2_mixture_cdf(X, weights, [1.0] * len(weights)))


def _maximiser() -> float:
    found = minimize_scalar(lambda w: -_cdf(w), bounds=(1e-9, 0.5), method="bounded", options={"xatol": XATOL})
    return float(found.x)


ITEM = Item("supremum-2003", "The supremum of 2003", measure, scales=("paper",))
