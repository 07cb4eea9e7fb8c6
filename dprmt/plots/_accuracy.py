"""Picture of accuracy along training: several methods, over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from dprmt._validation import ParameterError
from dprmt.plots._style import LINES, MARKERS, PALETTE, axes_or_new, finish
from dprmt.plots._values import as_floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_accuracy_over_steps(
    steps: ArrayLike, accuracy: Mapping[str, ArrayLike], *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Return the mean accuracy over runs, with a band of one standard deviation to each side.

    Parameters
    ----------
    steps : array, shape (n,)
        Where the runs were evaluated.
    accuracy : mapping of label to array, shape (runs, n)
        In [0, 1], by method.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    title : str, optional
        Above the axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ParameterError
        If there is no method, or an array does not have one column per step.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> runs = {"baseline": [[0.5, 0.7], [0.6, 0.8]], "denoised": [[0.6, 0.8], [0.6, 0.8]]}
    >>> ax = plot_accuracy_over_steps([10, 20], runs, ax=Figure().subplots())
    >>> ax.lines[0].get_ydata().round(2).tolist()
    [0.55, 0.75]
    """
    places = as_floats(steps)
    if not accuracy:
        raise ParameterError("accuracy", dict(accuracy), "at least one method")
    ax = axes_or_new(ax)
    for number, (label, values) in enumerate(accuracy.items()):
        runs = as_floats(values)
        if runs.ndim != 2 or runs.shape[1:] != places.shape:
            raise ParameterError(f"accuracy[{label!r}]", runs.shape, f"of shape (runs, {len(places)})")
        color, line, marker = (cycle[number % len(cycle)] for cycle in (PALETTE, LINES, MARKERS))
        mean = runs.mean(0)
        ax.plot(places, mean, color=color, linestyle=line, marker=marker, markersize=4, label=label)
        if len(runs) > 1:
            spread = runs.std(0, ddof=1)
            ax.fill_between(places, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
    ax.set_xlabel("step")
    ax.set_ylabel("accuracy")
    ax.legend(frameon=False)
    return finish(ax, title)
