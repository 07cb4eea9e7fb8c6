"""What randomized clipping costs in privacy, against products per layer, and beside it what it saves.

ε at σ = 1 with q = 2000/67349, T = 400, and the noise for ε = 0.7 with the paper's q = 16/1225, T = 3480; δ = 1e-5.
Time and memory of one step on a 4,096 × 4,096 layer are stored, by ``benchmarks.wide_layer`` of commit da72f65, in
``paper_figures/results/raw/wide-layer.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dprmt.accounting import DPSGD, Hutchinson, HutchPlusPlus, Norms, calibrate
from paper_figures._picture import STYLES, picture
from paper_figures._pieces import Pieces
from paper_figures._reproduction import RESULTS, Found, Item, Row, Scale

DELTA = 1e-5
ONE_SIGMA = DPSGD(1.0, 2000 / 67349)
STEPS = 400
TARGET: dict[str, Any] = {"target_epsilon": 0.7, "delta": DELTA, "steps": 3480}
QUIET = DPSGD(1.0, 16 / 1225)
PRODUCTS, FEWER = (24, 32, 48, 64, 96, 128), (32, 64, 128)
SAVED = RESULTS / "raw" / "wide-layer.json"
CURVES: dict[str, Callable[[int], Norms]] = {
    "published analysis": lambda products: Hutchinson(products, secret=False, analysis="envelope"),
    "probes, public": lambda products: Hutchinson(products, secret=False),
    "probes, secret": lambda products: Hutchinson(products, secret=True),
    "Hutch++, public": lambda products: split(products),
    "Hutch++, secret": lambda products: split(products, secret=True),
}
"""How norms are taken with so many products per layer."""
COLORS = {name: STYLES[key]["color"] for name, key in (("pub", "published"), ("pro", "hutchinson"), ("Hut", "hutch++"))}
BARS = {
    "plain": "lightgray",
    "exact": "black",
    "ghost": "dimgray",
    "Hutchinson": COLORS["pro"],
    "Hutch++, one pass": STYLES["hutch++ secret"]["color"],
    "Hutch++": COLORS["Hut"],
}


def split(products: int, *, secret: bool = False) -> HutchPlusPlus:
    """Sketch and probes for so many products: near what ``choose_probes`` finds best."""
    sketch = max(3, round(0.19 * products))
    return HutchPlusPlus(products - 3 * sketch, sketch, power_iteration=True, secret=secret)


def measured() -> dict[str, Any]:
    """ε and the ratio of noise multipliers to that of exact norms, upper bounds, for every curve."""
    exact = calibrate(QUIET, **TARGET).noise_multiplier
    found: dict[str, Any] = {
        "products": PRODUCTS,
        "fewer": FEWER,
        "exact epsilon": ONE_SIGMA.epsilon(steps=STEPS, delta=DELTA).upper,
    }
    for name, norms in CURVES.items():
        runs = [replace(ONE_SIGMA, norms=norms(products)) for products in PRODUCTS]
        quiet = [calibrate(replace(QUIET, norms=norms(products)), **TARGET) for products in FEWER]
        found[name] = {
            "epsilon": [run.epsilon(steps=STEPS, delta=DELTA).upper for run in runs],
            "noise ratio": [run.noise_multiplier / exact for run in quiet],
        }
    return found


def draw(found: dict[str, Any], axes: np.ndarray) -> None:
    """Both panels above, and what is saved below."""
    left, right, *below = axes
    left.axhline(found["exact epsilon"], color="black", lw=1, label="exact norms")
    right.axhline(1.0, color="black", lw=1)
    styles = {"public": "-", "secret": "--", "analysis": ":"}
    for curve in CURVES:
        style = {"color": COLORS[curve[:3]], "ls": styles[curve.split()[-1]], "marker": "o", "ms": 3}
        left.plot(found["products"], found[curve]["epsilon"], label=curve, **style)
        right.plot(found["fewer"], found[curve]["noise ratio"], **style)
    left.set(ylabel="ε at σ = 1", ylim=(3.75, 5.6))
    right.set(ylabel="noise for ε = 0.7, over that of exact norms", ylim=(0.995, 1.08))
    for ax in (left, right):
        ax.set(xlabel="products per layer and sample", xscale="log", xticks=found["products"])
        ax.set_xticklabels(map(str, found["products"]))
        ax.minorticks_off()
    left.legend(frameon=False)
    draw_savings(json.loads(SAVED.read_text(encoding="utf-8")), below)


def draw_savings(found: dict[str, Any], axes: Any) -> None:
    """Bars of time and of memory, one group for each length, over those of exact norms."""
    place, size = f"{found['width']:,} × {found['width']:,} layer, {found['batch']} samples", 0.8
    units = {"seconds": "CPU seconds of a step", "mebibytes": "MiB more than before the first step"}
    for panel, (unit, label) in zip(axes, units.items(), strict=True):
        for group, cases in enumerate(found["cases"].values()):
            width = size / len(cases)
            for number, (method, case) in enumerate(cases.items()):
                color = BARS[method]
                at = group - size / 2 + (number + 0.5) * width
                bar = panel.bar(at, case[unit], 0.9 * width, color=color, label=method if group == 0 else None)
                panel.bar_label(bar, fmt="{:,.0f}" if unit == "mebibytes" else "{:.1f}", fontsize=7)
        panel.set(xticks=range(len(found["cases"])), ylabel=label, title=place)
        panel.set_xticklabels([f"T = {int(tokens):,}" for tokens in found["cases"]])
        panel.grid(axis="y", alpha=0.3)
    axes[0].legend(frameon=False, fontsize=8)


def measure(scale: Scale, folder: Path) -> Found:
    pieces = Pieces(folder, "hutchpp-price", scale)
    found = pieces.measure({"prices": measured})["prices"]
    rows = [Row("exact norms at σ = 1", found["exact epsilon"], unit="ε")]
    for name in CURVES:
        rows += [
            Row(f"σ = 1, {name}, {products} products", value, unit="ε")
            for products, value in zip(found["products"], found[name]["epsilon"], strict=True)
        ]
        rows += [
            Row(f"ε = 0.7, {name}, {products} products: noise over that of exact norms", value)
            for products, value in zip(found["fewer"], found[name]["noise ratio"], strict=True)
        ]
    return Found(
        rows,
        differs="Not in a paper. Certified upper bounds.",
        pictures=[picture(folder / "hutchpp-price.png", lambda axes: draw(found, axes), panels=2, rows=2)],
        earlier_seconds=pieces.earlier_seconds,
    )


ITEM = Item("hutchpp-price", "Price of randomized clipping, by products", measure, scales=("paper",))
