"""Pictures of training under heavy-tailed class imbalance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError
from dprmt.plots._style import LINES, MARKERS, PALETTE, axes_or_new, finish
from dprmt.plots._values import Floats, as_floats, finite_values, matching

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_metric_against_epsilon(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    metric: str = "training loss",
    title: str | None = None,
    reference: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot loss or accuracy of one frequency group against the spent ε, one curve per optimizer.

    Parameters
    ----------
    curves : mapping of label to (epsilon, values)
        Two arrays of shape (k,). Several seeds: values of shape (seeds, k), drawn as their mean in a band from the
        smallest to the largest. Values may be NaN where a group had no samples. Not private.
    metric : str
        Label of the second axis. "accuracy" in it: values in [0, 1], shown in per cent.
    title : str, optional
        Title, for example the frequency group.
    reference : float, optional
        A level to mark, such as the loss of a uniform guess.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ParameterError
        If lengths do not match or a number is infinite.

    References
    ----------
    Figures 2 to 12 of the heavy-tail class imbalance article on DP-AdamBC.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_metric_against_epsilon({"DP-GD": ([0.0, 1.0], [5.5, 4.0])}, ax=Figure().subplots())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('ε spent', 'training loss')
    """
    ax = _drawn_curves("epsilon", curves, metric, reference, ax)
    ax.set_xlabel("ε spent")
    ax.set_xlim(left=0.0)
    return finish(ax, title)


def plot_metric_against_step(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    metric: str = "training loss",
    title: str | None = None,
    reference: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot final loss or accuracy of one frequency group against the effective step, one curve per optimizer.

    Parameters
    ----------
    curves : mapping of label to (step, values)
        As in `plot_metric_against_epsilon`, with `heavy_tail.Trial.effective_step` > 0.
    metric, title, reference, ax
        As in `plot_metric_against_epsilon`.

    Returns
    -------
    matplotlib.axes.Axes
        The axes; the first is logarithmic.

    Raises
    ------
    ParameterError
        If lengths do not match or a number is infinite.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_metric_against_step({"DP-GD": ([0.5, 1.0], [5.5, 4.0])}, ax=Figure().subplots())
    >>> ax.get_xlabel(), ax.get_xscale()
    ('effective step', 'log')
    """
    ax = _drawn_curves("step", curves, metric, reference, ax)
    ax.set_xscale("log")
    ax.set_xlabel("effective step")
    return finish(ax, title)


def _drawn_curves(
    name: str,
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    metric: str,
    reference: float | None,
    ax: Axes | None,
) -> Axes:
    share = "accuracy" in metric
    drawn = {}
    for label, (spent, values) in curves.items():
        x = np.ravel(finite_values(name, spent, low=0.0))
        drawn[label] = x, matching("values", _or_nan("values", values, share), name, x, draws=True)
    ax = axes_or_new(ax)
    if reference is not None:
        ax.axhline(reference, color="0.5", linewidth=1.0)
    for number, (label, (x, y)) in enumerate(drawn.items()):
        color, line, marker = (cycle[number % len(cycle)] for cycle in (PALETTE, LINES, MARKERS))
        y = (100 if share else 1) * np.atleast_2d(y)
        every = max(1, len(x) // 8)
        ax.plot(
            x, y.mean(0), color=color, linestyle=line, linewidth=1.6, marker=marker, markersize=4, markevery=every,
            label=label,
        )  # fmt: skip
        if len(y) > 1:
            ax.fill_between(x, y.min(0), y.max(0), color=color, alpha=0.2, linewidth=0)
    ax.set_ylabel(f"{metric} (%)" if share else metric)
    if share:
        ax.set_ylim(-2.0, 104.0)
    ax.legend(frameon=False, fontsize="small", handlelength=3.0)
    return ax


def plot_gradient_cosines(cosines: ArrayLike, labels: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Plot the cosines of all pairs of per-sample gradients as a map; lines separate the classes.

    Parameters
    ----------
    cosines : array, shape (n, n)
        Cosines in [-1, 1]. Not private.
    labels : array of int, shape (n,)
        Classes, with samples of one class next to each other. Borders of classes with less than 2 % of the
        samples are left out.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, with a colour bar on the right.

    Raises
    ------
    ParameterError
        If shapes do not match or a cosine is out of range.

    References
    ----------
    Figure 1 of the heavy-tail class imbalance article on DP-AdamBC.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_gradient_cosines([[1.0, 0.2], [0.2, 1.0]], [0, 1], ax=Figure().subplots())
    >>> ax.images[0].get_clim()
    (-1.0, 1.0)
    """
    table = finite_values("cosines", cosines, low=-1.0 - 1e-9, high=1.0 + 1e-9)
    classes = np.asarray(labels)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ParameterError("cosines", table.shape, "of shape (n, n)")
    if classes.shape != table.shape[:1]:
        raise ParameterError("labels", classes.shape, f"of shape ({len(table)},), one class per sample")
    ax = axes_or_new(ax)
    image = ax.imshow(table, cmap="PuOr", vmin=-1.0, vmax=1.0, interpolation="nearest")
    borders = np.flatnonzero(classes[1:] != classes[:-1]) + 1
    edges = np.concatenate([[0], borders, [len(table)]])
    for border in borders:
        at = int(np.searchsorted(edges, border))
        if min(edges[at] - edges[at - 1], edges[at + 1] - edges[at]) >= 0.02 * len(table):
            ax.axhline(border - 0.5, color="0.3", linewidth=0.5)
            ax.axvline(border - 0.5, color="0.3", linewidth=0.5)
    ax.set_xlabel("sample, by class")
    ax.set_ylabel("sample, by class")
    ax.figure.colorbar(image, ax=ax, label="cosine of per-sample gradients", shrink=0.85)
    return ax


def _or_nan(name: str, values: ArrayLike, share: bool) -> Floats:
    array = as_floats(values)
    known = np.where(np.isnan(array), 0.0, array)
    finite_values(name, known, **({"low": 0.0, "high": 1.0} if share else {}))
    return array
