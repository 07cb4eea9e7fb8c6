"""What every analysis of randomized clipping charges, by probes and noise; not in any paper as one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from dprmt.accounting import DPSGD, Hutchinson, HutchPlusPlus, Norms
from paper_figures._picture import STYLES, picture
from paper_figures._reproduction import Found, Item, Row, Scale

RATE, STEPS, DELTA = 2000 / 67349, 400, 1e-5
PROBES = (8, 16, 32, 64, 128)
NOISE = (0.779078, 1.0, 2.0)


ANALYSES: dict[str, Callable[[int], Norms]] = {
    "published": lambda k: Hutchinson(k, secret=False, analysis="envelope"),
    "hutchinson": lambda k: Hutchinson(k, secret=False),
    "secret": lambda k: Hutchinson(k, secret=True),
    "hutch++": lambda k: HutchPlusPlus(k, k, power_iteration=True, secret=False),
    "hutch++ secret": lambda k: HutchPlusPlus(k, k, power_iteration=True, secret=True),
}
"""How norms are taken, by the number of probes."""
NAMES = {
    "published": "published analysis",
    "hutchinson": "tight analysis",
    "secret": "tight, secret probes",
    "hutch++": "Hutch++",
    "hutch++ secret": "Hutch++, secret probes",
}


def measure(scale: Scale, folder: Path) -> Found:
    exact = {sigma: DPSGD(sigma, RATE).epsilon(steps=STEPS, delta=DELTA).upper for sigma in NOISE}
    epsilon = {
        (sigma, method): [DPSGD(sigma, RATE, norms(k)).epsilon(steps=STEPS, delta=DELTA).upper for k in PROBES]
        for sigma in NOISE
        for method, norms in ANALYSES.items()
    }

    def draw(axes: np.ndarray) -> None:
        for ax, sigma in zip(axes, NOISE, strict=True):
            for method in ANALYSES:
                excess = 100 * (np.array(epsilon[sigma, method]) / exact[sigma] - 1)
                ax.plot(PROBES, excess, marker="o", markersize=4, label=NAMES[method], **STYLES[method])
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_ylim(top=2e4)  # room for the legend
            ax.set_xticks(PROBES, [str(k) for k in PROBES])
            ax.set(title=f"σ = {sigma:.3g}, exact ε = {exact[sigma]:.2f}", xlabel="probes k")
        axes[0].set_ylabel("ε above that of exact norms, %")
        axes[2].legend(frameon=False)

    rows = [Row(f"σ = {sigma:g}: exact norms", exact[sigma], unit="ε") for sigma in NOISE]
    rows += [
        Row(f"σ = {sigma:g}: k = {k}, {NAMES[method]}", value, unit="ε")
        for (sigma, method), values in epsilon.items()
        for k, value in zip(PROBES, values, strict=True)
    ]
    return Found(
        rows,
        differs=f"Not in a paper. q = 2000/67349, T = {STEPS}, δ = {DELTA:g}; certified upper bounds. Hutch++ has,"
        " besides its k probes, a sketch of k columns with a power iteration: 4k products.",
        pictures=[picture(folder / "overhead-by-probes.png", draw, panels=3)],
    )


ITEM = Item("overhead-by-probes", "ε of randomized clipping by analysis, probes and noise", measure, scales=("paper",))
