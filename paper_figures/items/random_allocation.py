"""ε of random allocation beside Poisson sampling at q = 1/t: over σ, t, the epochs, and with estimated norms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, Norms, RandomAllocation
from paper_figures._picture import COLORS, STYLES, picture
from paper_figures._reproduction import Found, Item, Row, Scale

DELTA, STEPS, EPOCHS = 1e-5, 100, 10
TOLERANCE = 3e-3
NOISE = (0.5, 0.7, 1.0, 2.0, 4.0)
RUNS = (1, 3, 10, 100)  # epochs
NORMS = {
    "exact": ExactNorms(),
    "hutchinson": Hutchinson(32, secret=False),
    "hutch++": HutchPlusPlus(32, 32, secret=False),
}


def both(sigma: float, steps: int = STEPS, epochs: int = EPOCHS, norms: Norms = ExactNorms()) -> tuple[float, float]:
    """Upper bounds of ε: random allocation, and Poisson sampling with the same expected batches."""
    allocated, sampled = DPSGD(sigma, RandomAllocation(steps), norms), DPSGD(sigma, 1 / steps, norms)
    return (
        allocated.epsilon(epochs=epochs, delta=DELTA, tolerance=TOLERANCE).upper,
        sampled.epsilon(steps=epochs * steps, delta=DELTA, tolerance=TOLERANCE).upper,
    )


def measure(scale: Scale, folder: Path) -> Found:
    by_length = {steps: np.array([both(sigma, steps) for sigma in NOISE]) for steps in (10, 100, 1000)}
    by_epochs = {sigma: np.array([both(sigma, epochs=epochs) for epochs in RUNS]) for sigma in (0.5, 1.0, 2.0)}
    loud = [sigma for sigma in NOISE if sigma >= 0.7]
    by_clipping = {name: np.array([both(sigma, norms=norms) for sigma in loud]) for name, norms in NORMS.items()}
    ratios = [curve[:, 0] / curve[:, 1] for curve in (*by_length.values(), *by_epochs.values(), *by_clipping.values())]

    def draw(axes: np.ndarray) -> None:
        _ratios(axes[0], NOISE, {f"t = {steps}": curve for steps, curve in by_length.items()})
        axes[0].set(xlabel="noise multiplier σ", title=f"{EPOCHS} epochs of t steps")
        _ratios(axes[1], RUNS, {f"σ = {sigma:g}": curve for sigma, curve in by_epochs.items()})
        axes[1].set(xlabel="epochs", title=f"t = {STEPS}")
        for name, curve in by_clipping.items():
            axes[2].plot(loud, curve[:, 0], "o", markersize=3, **_solid(name), label=f"{name}, allocation")
            axes[2].plot(loud, curve[:, 1], **STYLES[name], label=f"{name}, Poisson")
        axes[2].set(xscale="log", yscale="log", xlabel="noise multiplier σ", ylabel="ε", title=f"t = {STEPS}, k = 32")
        axes[2].legend(frameon=False, fontsize=7)
        axes[2].set_yticks((0.3, 0.5, 1, 2, 4, 6))
        axes[2].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes[2].yaxis.set_minor_formatter(lambda value, _: "")
        _plain_ticks(axes[2], (0.7, 1, 2, 4))

    shown = [(0.5, 10), (1.0, 10), (2.0, 10), (0.5, 1000), (1.0, 1000), (2.0, 1000)]
    rows = [
        Row(f"{name}, σ = {sigma:g}, t = {steps}", by_length[steps][NOISE.index(sigma)][place], unit="ε")
        for sigma, steps in shown
        for place, name in enumerate(("allocation", "Poisson"))
    ]
    rows += [
        Row(f"{clipping}, {name}, σ = {sigma:g}, t = {STEPS}", curve[loud.index(sigma)][place], unit="ε")
        for clipping, curve in by_clipping.items()
        for sigma in (0.7, 1.0, 2.0)
        for place, name in enumerate(("allocation", "Poisson"))
    ]
    rows += [
        Row(f"adding alone, {name}, σ = 0.5, t = 10", value, unit="ε")
        for name, value in zip(("allocation", "Poisson"), _adding(0.5, 10), strict=True)
    ]
    return Found(
        [*rows, Row("largest ratio of both ε on all curves", float(max(map(np.max, ratios))))],
        differs=f"Not of a paper: ε at δ = {DELTA:g}, {EPOCHS} epochs of t steps, against Poisson sampling at 1/t.",
        pictures=[picture(folder / "random-allocation.png", draw, panels=3)],
    )


def _adding(sigma: float, steps: int) -> tuple[float, float]:
    # The one place where Poisson sampling wins: without a sample its loss is bounded, by -log(1 - q) a step.
    allocated = DPSGD(sigma, RandomAllocation(steps))
    sampled = DPSGD(sigma, 1 / steps)
    return (
        allocated.epsilon_by_direction(epochs=EPOCHS, delta=DELTA, tolerance=TOLERANCE)["add"].upper,
        sampled.epsilon_by_direction(steps=EPOCHS * steps, delta=DELTA, tolerance=TOLERANCE)["add"].upper,
    )


def _solid(name: str) -> dict[str, Any]:
    return {"color": STYLES[name]["color"], "linestyle": "none"}


def _ratios(ax: Any, x: Any, curves: dict[str, np.ndarray]) -> None:
    for (label, curve), color in zip(curves.items(), COLORS, strict=False):
        ax.plot(x, curve[:, 0] / curve[:, 1], "o-", markersize=3, color=color, label=label)
    ax.axhline(1.0, color="0.5", linewidth=0.8)
    ax.set(xscale="log", ylabel="ε of allocation / ε of Poisson")
    ax.legend(frameon=False)
    _plain_ticks(ax, (0.5, 1, 2, 4) if min(x) < 1 else (1, 10, 100))


def _plain_ticks(ax: Any, at: tuple[float, ...]) -> None:
    plain: Callable[[float, Any], str] = lambda value, _: f"{value:g}"  # noqa: E731
    ax.set_xticks(at)
    ax.xaxis.set_major_formatter(plain)
    ax.xaxis.set_minor_formatter(lambda value, _: "")


ITEM = Item("random-allocation", "Random allocation against Poisson sampling", measure, scales=("paper",))
