"""What randomized clipping costs in privacy, against products per layer, and beside it what it saves.

``python -m paper_figures.hutchpp_price`` computes ε at σ = 1 and the noise for ε = 0.7, and writes
``results/hutchpp_price.json``; with the name of a picture it draws what is stored there, with time and memory of one
step on a 4,096 × 4,096 layer from ``results/wide_layer.json``, which ``python -m benchmarks.wide_layer --out
paper_figures/results/wide_layer.json`` writes. Settings: q = 2000/67349, T = 400, and the paper's q = 16/1225,
T = 3480, both at δ = 1e-5.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dprmt.accounting import DPSGD, RandomizedClipping, calibrate_noise_multiplier
from paper_figures._picture import STYLES

DELTA = 1e-5
ONE_SIGMA = {"noise_multiplier": 1.0, "sample_rate": 2000 / 67349}
STEPS = 400
TARGET = {"target_epsilon": 0.7, "delta": DELTA, "sample_rate": 16 / 1225, "steps": 3480}
PRODUCTS, FEWER = (24, 32, 48, 64, 96, 128), (32, 64, 128)
STORED = Path(__file__).parent / "results" / "hutchpp_price.json"
SAVED = STORED.with_name("wide_layer.json")
CURVES: dict[str, dict[str, Any]] = {
    "published analysis": {"analysis": "envelope"},
    "probes, revealed": {},
    "probes, secret": {"probe_sharing": "sample"},
    "Hutch++, revealed": {"power_iteration": True},
    "Hutch++, secret": {"power_iteration": True, "probe_sharing": "sample"},
}
COLORS = {name: STYLES[key]["color"] for name, key in (("pub", "published"), ("pro", "hutchinson"), ("Hut", "hutch++"))}
BARS = {
    "plain": "lightgray",
    "exact": "black",
    "ghost": "dimgray",
    "Hutchinson": COLORS["pro"],
    "Hutch++, one pass": STYLES["hutch++ secret"]["color"],
    "Hutch++": COLORS["Hut"],
}


def split(products: int, options: dict[str, Any]) -> dict[str, Any]:
    """Sketch and probes for so many products: near what ``choose_probes`` finds best."""
    if "power_iteration" not in options:
        return {"probes": products, **options}
    sketch = max(3, round(0.19 * products))
    return {"probes": products - 3 * sketch, "sketch": sketch, **options}


def measure() -> dict[str, Any]:
    """ε and the ratio of noise multipliers to that of exact norms, upper bounds, for every curve."""
    exact = calibrate_noise_multiplier(**TARGET)
    found: dict[str, Any] = {
        "products": PRODUCTS,
        "fewer": FEWER,
        "exact epsilon": DPSGD(**ONE_SIGMA).epsilon(STEPS, DELTA).upper,
    }
    for name, options in CURVES.items():
        runs = [RandomizedClipping(**ONE_SIGMA, **split(products, options)) for products in PRODUCTS]
        noises = [calibrate_noise_multiplier(**TARGET, **split(products, options)) for products in FEWER]
        found[name] = {
            "epsilon": [run.epsilon(STEPS, DELTA).upper for run in runs],
            "noise ratio": [noise / exact for noise in noises],
        }
    return found


def draw(found: dict[str, Any], name: str) -> None:
    """Both panels."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, ((left, right), below) = pyplot.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
    left.axhline(found["exact epsilon"], color="black", lw=1, label="exact norms")
    right.axhline(1.0, color="black", lw=1)
    styles = {"revealed": "-", "secret": "--", "analysis": ":"}
    for curve in CURVES:
        style = {"color": COLORS[curve[:3]], "ls": styles[curve.split()[-1]], "marker": "o", "ms": 3}
        left.plot(found["products"], found[curve]["epsilon"], label=curve, **style)
        right.plot(found["fewer"], found[curve]["noise ratio"], **style)
    left.set(ylabel="ε at σ = 1", ylim=(3.75, 5.6))
    right.set(ylabel="noise for ε = 0.7, over that of exact norms", ylim=(0.995, 1.08))
    for axes in (left, right):
        axes.set(xlabel="products per layer and sample", xscale="log", xticks=found["products"])
        axes.set_xticklabels(map(str, found["products"]))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    left.legend(frameon=False)
    draw_savings(json.loads(SAVED.read_text(encoding="utf-8")), below)
    figure.savefig(name, dpi=120)
    pyplot.close(figure)


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


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", nargs="?", help="file to draw the stored numbers to")
    name = parser.parse_args().picture
    if name is not None:
        draw(json.loads(STORED.read_text(encoding="utf-8")), name)
        return
    found = measure()
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"exact norms: epsilon {found['exact epsilon']:.4f}")
    for unit, numbers in (("epsilon", PRODUCTS), ("noise ratio", FEWER)):
        print(f"{unit:<20}" + "".join(f"{number:>10}" for number in numbers))
        for curve in CURVES:
            print(f"{curve:<20}" + "".join(f"{value:>10.4f}" for value in found[curve][unit]))


if __name__ == "__main__":
    main()
