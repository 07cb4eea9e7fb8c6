"""Pictures that only figures of papers show; those of the package are in `dprmt.plots`. Nothing is private here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt.plots._style import LINES, MARKERS, PALETTE, axes_or_new, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKED = 12  # markers per curve, evenly spread along its logarithmic index


def _look(number: int, **more: Any) -> dict[str, Any]:
    color, line, marker = (cycle[number % len(cycle)] for cycle in (PALETTE, LINES, MARKERS))
    return {"color": color, "linestyle": line, "marker": marker, "markersize": 4, **more}


def plot_accuracy_over_steps(
    steps: ArrayLike, accuracy: Mapping[str, ArrayLike], *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Mean accuracy over runs, by method arrays of shape (runs, steps); a band of one standard deviation."""
    ax = axes_or_new(ax)
    for number, (label, values) in enumerate(accuracy.items()):
        runs, look = np.asarray(values), _look(number)
        mean = runs.mean(0)
        ax.plot(np.asarray(steps), mean, label=label, **look)
        if len(runs) > 1:
            spread = runs.std(0, ddof=1)
            ax.fill_between(
                np.asarray(steps), mean - spread, mean + spread, color=look["color"], alpha=0.15, linewidth=0
            )
    ax.set_xlabel("step")
    ax.set_ylabel("accuracy")
    ax.legend(frameon=False)
    return finish(ax, title)


def plot_metric_against_epsilon(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    metric: str = "training loss",
    title: str | None = None,
    reference: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Loss or accuracy along the ε that was spent: (ε, values of shape (k,) or (seeds, k)) by optimizer.

    Several seeds are their mean in a band from the smallest to the largest; "accuracy" in the metric is in per cent.
    """
    share = "accuracy" in metric
    ax = axes_or_new(ax)
    if reference is not None:
        ax.axhline(reference, color="0.5", linewidth=1.0)
    for number, (label, (spent, values)) in enumerate(curves.items()):
        x, y = np.ravel(spent), (100 if share else 1) * np.atleast_2d(values)
        look = _look(number, linewidth=1.6, markevery=max(1, len(x) // 8))
        ax.plot(x, y.mean(0), label=label, **look)
        if len(y) > 1:
            ax.fill_between(x, y.min(0), y.max(0), color=look["color"], alpha=0.2, linewidth=0)
    ax.set_ylabel(f"{metric} (%)" if share else metric)
    if share:
        ax.set_ylim(-2.0, 104.0)
    ax.legend(frameon=False, fontsize="small", handlelength=3.0)
    ax.set_xlabel("ε spent")
    ax.set_xlim(left=0.0)
    return finish(ax, title)


def plot_gradient_cosines(cosines: ArrayLike, labels: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Cosines of all pairs of per-sample gradients, as a map; lines separate classes of at least 2 % of the samples."""
    table, classes = np.asarray(cosines), np.asarray(labels)
    ax = axes_or_new(ax)
    image = ax.imshow(table, cmap="PuOr", vmin=-1.0, vmax=1.0, interpolation="nearest")
    edges = np.concatenate([[0], np.flatnonzero(classes[1:] != classes[:-1]) + 1, [len(table)]])
    for at in range(1, len(edges) - 1):
        if min(edges[at] - edges[at - 1], edges[at + 1] - edges[at]) >= 0.02 * len(table):
            ax.axhline(edges[at] - 0.5, color="0.3", linewidth=0.5)
            ax.axvline(edges[at] - 0.5, color="0.3", linewidth=0.5)
    ax.set_xlabel("sample, by class")
    ax.set_ylabel("sample, by class")
    ax.figure.colorbar(image, ax=ax, label="cosine of per-sample gradients", shrink=0.85)
    return ax


def plot_spectrum_flattening(
    clean: ArrayLike, privatised: Mapping[str, ArrayLike], *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Sorted singular values of a gradient, in units of the largest: clean, and after clipping and noise."""
    curves = {"clean": clean, **privatised}
    heights = {
        label: np.sort(np.asarray(values))[::-1] / np.max(np.asarray(values)) for label, values in curves.items()
    }
    ax = axes_or_new(ax)
    for number, (label, values) in enumerate(heights.items()):
        marked = np.unique(np.geomspace(1, len(values), _MARKED).round().astype(int) - 1).tolist()
        ax.plot(np.arange(1, len(values) + 1), values, linewidth=1.4, markevery=marked, label=label, **_look(number))
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(max(1e-4, 0.7 * min(float(values[values > 0].min()) for values in heights.values())), 1.4)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("index")
    ax.set_ylabel("singular value, in units of the largest")
    ax.legend(frameon=False, handlelength=3.5)
    return finish(ax, title)


def plot_step_improvement(methods: Mapping[str, Mapping[str, ArrayLike]], *, ax: Axes | None = None) -> Axes:
    """Decrease of the loss in one step against the cosine of its direction, with the lower bounds.

    By method, arrays "cosine", "improvement", "bound" and "printed_bound" (Proposition I.1 of arXiv:2510.01137v3, which
    is not always true), all in one unit.
    """
    ax = axes_or_new(ax)
    ax.axhline(0.0, color="0.5", linewidth=1.0)
    for number, (label, columns) in enumerate(methods.items()):
        color, marker = (cycle[number % len(cycle)] for cycle in (PALETTE[1:], MARKERS))
        looks: tuple[tuple[str, str, dict[str, Any]], ...] = (
            (label, "improvement", {"marker": marker, "markersize": 5, "markerfacecolor": "none"}),
            (f"{label}, bound", "bound", {"marker": "_", "markersize": 9, "markeredgewidth": 1.6}),
            (f"{label}, bound as printed", "printed_bound", {"marker": "x", "markersize": 4, "markeredgewidth": 0.8}),
        )
        for text, name, look in looks:
            ax.plot(columns["cosine"], columns[name], color=color, linestyle="none", label=text, **look)
    ax.set_xlabel("cosine of the direction with the gradient")
    ax.set_ylabel("decrease of the loss in one step,\nin units of ‖g‖²/(2λ_max)")
    ax.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(methods))
    return finish(ax)
