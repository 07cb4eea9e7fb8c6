"""Pictures of single steps on a quadratic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt.plots._style import MARKERS, PALETTE, axes_or_new, finish
from dprmt.plots._values import finite_values, matching

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_step_improvement(
    methods: Mapping[str, Mapping[str, ArrayLike]], *, printed: bool = True, ax: Axes | None = None
) -> Axes:
    """Decrease of the loss in one step against the cosine of its direction, with the lower bounds.

    Parameters
    ----------
    methods : mapping of label to mapping
        By method, arrays of shape (k,): "cosine" in [-1, 1], "improvement", "bound", "printed_bound" and, if it is to
        be drawn, "weighted_bound", all in one unit. Not private.
    printed : bool
        Whether to draw the printed bound too. It is not always true.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.

    Returns
    -------
    matplotlib.axes.Axes
        At each cosine an open mark for the step, a dash for the valid bound, a cross for the printed one and a point
        for the P-weighted one.

    Raises
    ------
    ParameterError
        If lengths do not match or a number is out of range.

    References
    ----------
    Proposition I.1 of arXiv:2510.01137v3 and its correction in `dprmt.spectra.adam_improvement_bound`.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> steps = {"cosine": [0.1, 0.5], "improvement": [0.1, 0.3], "bound": [-0.2, 0.1], "printed_bound": [0.0, 0.2]}
    >>> ax = plot_step_improvement({"DP-Adam": steps}, ax=Figure().subplots())
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['DP-Adam', 'DP-Adam, bound', 'DP-Adam, bound as printed']
    """
    drawn = {}
    for label, columns in methods.items():
        x = np.ravel(finite_values("cosine", columns["cosine"], low=-1.0, high=1.0))
        names = ["improvement", "bound", "printed_bound", *(["weighted_bound"] if "weighted_bound" in columns else [])]
        drawn[label] = x, [matching(name, finite_values(name, columns[name]), "cosine", x) for name in names]
    ax = axes_or_new(ax)
    ax.axhline(0.0, color="0.5", linewidth=1.0)
    for number, (label, (x, (decrease, bound, as_printed, *weighted))) in enumerate(drawn.items()):
        color, marker = (cycle[number % len(cycle)] for cycle in (PALETTE[1:], MARKERS))
        looks: list[tuple[str, Any, dict[str, Any]]] = [
            (label, decrease, {"marker": marker, "markersize": 5, "markerfacecolor": "none"}),
            (f"{label}, bound", bound, {"marker": "_", "markersize": 9, "markeredgewidth": 1.6}),
            (f"{label}, bound as printed", as_printed, {"marker": "x", "markersize": 4, "markeredgewidth": 0.8}),
        ]
        looks = looks if printed else looks[:2]
        looks += [(f"{label}, P-weighted bound", values, {"marker": ".", "markersize": 5}) for values in weighted]
        for text, values, look in looks:
            ax.plot(x, values, color=color, linestyle="none", label=text, **look)
    ax.set_xlabel("cosine of the direction with the gradient")
    ax.set_ylabel("decrease of the loss in one step,\nin units of ‖g‖²/(2λ_max)")
    ax.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(drawn))
    return finish(ax)
