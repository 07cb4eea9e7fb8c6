"""Pictures of theory against measurement on real gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError
from dprmt.plots._style import LINES, MARKERS, PALETTE, axes_or_new, finish, legend_below
from dprmt.plots._values import Floats, finite_values, matching
from dprmt.spectra import bulk_edge, detection_threshold, spike_map, vector_overlaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLACK, _BLUE, _RED = PALETTE[:3]
_PAIRED = "line: predicted, marker: measured"
_LEAST = 0.03  # start of a logarithmic axis; smaller signals are drawn there


def plot_measured_spikes(
    points: Mapping[tuple[int, int], tuple[ArrayLike, ArrayLike]], *, ax: Axes | None = None
) -> Axes:
    """Plot top singular values of noisy matrices against the clean ones, and the phase transition.

    Both axes are logarithmic and in units in which matrices of one shape and all noise levels share a curve.

    Parameters
    ----------
    points : mapping of shape to (signals, observed)
        Per shape ``(m, n)`` two arrays of shape (k,): clean top singular values >= 0 in units of the detection
        threshold, and noisy ones > 0 in units of the bulk edge. Signals below 0.03 are drawn there.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ParameterError
        If there is no shape, two arrays differ in length, or a value is negative or not finite.

    References
    ----------
    Eq. 3 of arXiv:2510.01137v3; Baik, Ben Arous & Péché (2005).

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_measured_spikes({(16, 384): ([0.5, 2.0], [0.99, 1.3])}, ax=Figure().subplots())
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['16 × 384', 'detection threshold']
    """
    groups = _groups(points, "observed")
    ax = axes_or_new(ax)
    grid, pairs = _grid(groups), []
    for number, (shape, (signals, observed)) in enumerate(groups.items()):
        predicted = spike_map(grid * detection_threshold(shape, 1.0), shape, 1.0) / bulk_edge(shape, 1.0)
        pairs.append(_pair(ax, _name(shape), number, (grid, predicted), (signals, observed)))
    ax.set_yscale("log")
    threshold = _finish_against_signal(ax, "noisy top singular value / bulk edge")
    _plain_log_ticks(ax.yaxis)
    entries = _entries(list(map(_name, groups)), pairs, threshold, _PAIRED)
    ax.legend(loc="upper left", framealpha=0.9, edgecolor="none", fontsize="small", **entries)
    return ax


def plot_prediction_errors(
    points: Mapping[tuple[int, int], tuple[ArrayLike, ArrayLike]], *, tolerance: float = 0.05, ax: Axes | None = None
) -> Axes:
    """Plot the relative error of predicted top singular values against the clean ones.

    Parameters
    ----------
    points : mapping of shape to (signals, errors)
        Per shape two arrays of shape (k,): clean top singular values in units of the detection threshold, and
        measured over predicted minus 1.
    tolerance : float
        Half the width of the band that is marked.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, in per cent.

    Raises
    ------
    ParameterError
        As `plot_measured_spikes`.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> plot_prediction_errors({(16, 384): ([0.5, 2.0], [-0.02, 0.01])}, ax=Figure().subplots()).get_ylabel()
    'measured / predicted − 1 (%)'
    """
    groups = _groups(points, "errors", low=-1.0)
    ax = axes_or_new(ax)
    ax.axhspan(-100 * tolerance, 100 * tolerance, color="0.92", linewidth=0, label=f"within {100 * tolerance:g} %")
    ax.axhline(0.0, color="0.3", linewidth=1.0)
    for number, (shape, (signals, errors)) in enumerate(groups.items()):
        color, _, marker = _look(number)
        _scatter(ax, signals, 100 * errors, color, marker, _name(shape))
    _finish_against_signal(ax, "measured / predicted − 1 (%)")
    legend_below(ax, 4)
    return ax


def plot_measured_overlaps(
    points: Mapping[tuple[int, int], tuple[ArrayLike, ArrayLike, ArrayLike]], *, ax: Axes | None = None
) -> Axes:
    """Return squared overlaps of the noisy with the clean top singular vectors, measured and predicted.

    Parameters
    ----------
    points : mapping of shape to (signals, left, right)
        Per shape three arrays of shape (k,): clean top singular values in units of the detection threshold, and
        squared overlaps in [0, 1] of the left and the right vector.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.

    Returns
    -------
    matplotlib.axes.Axes
        The axes. Shapes that are each other's transpose share their curves, by the length of the vector.

    Raises
    ------
    ParameterError
        As `plot_measured_spikes`.

    References
    ----------
    Eqs. 4-5 of arXiv:2510.01137v3.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_measured_overlaps({(16, 384): ([0.5, 2.0], [0.1, 0.8], [0.0, 0.5])}, ax=Figure().subplots())
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['16 of 16 × 384', '384 of 16 × 384', 'detection threshold']
    """
    merged: dict[tuple[int, int], list[list[Floats]]] = {}
    for shape, (signals, left, right) in points.items():
        x = np.ravel(finite_values("signals", signals, low=0.0))
        sides = [
            matching(name, finite_values(name, values, low=0.0, high=1.0 + 1e-9), "signals", x)
            for name, values in (("left", left), ("right", right))
        ]
        short_first = sides if shape[0] <= shape[1] else sides[::-1]
        merged.setdefault((min(shape), max(shape)), []).append([x, *short_first])
    if not merged:
        raise ParameterError("points", {}, "of at least one shape")
    groups = {shape: [np.concatenate(column) for column in zip(*rows, strict=True)] for shape, rows in merged.items()}
    ax = axes_or_new(ax)
    grid = _grid({shape: (columns[0], columns[1]) for shape, columns in groups.items()})
    names: list[str] = []
    pairs: list[tuple[Any, Any]] = []
    for shape, (signals, *sides) in groups.items():
        curves = vector_overlaps(grid * detection_threshold(shape, 1.0), shape, 1.0)
        for length, curve, measured in zip(shape, curves, sides, strict=True):
            names.append(f"{length} of {_name(shape)}")
            pairs.append(_pair(ax, f"length {names[-1]}", len(pairs), (grid, curve), (signals, measured)))
    threshold = _finish_against_signal(ax, "squared overlap")
    ax.set_ylim(-0.02, 1.02)
    legend_below(ax, 3, **_entries(names, pairs, threshold, f"vector's length, of shape; {_PAIRED}"))
    return ax


def plot_improvement_over_steps(
    steps: Sequence[int], improvements: Mapping[str, ArrayLike], *, ax: Axes | None = None
) -> Axes:
    """Plot Improvement(t) of the alignment with the clean gradient along a run.

    Parameters
    ----------
    steps : sequence of int
        Numbers of the steps.
    improvements : mapping of label to array, shape (k,) or (runs, k)
        Cosine with the clean gradient after denoising minus before, in [-2, 2], one per step. Not private. For several
        runs the mean is drawn, with a band from the lowest to the highest.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ParameterError
        If lengths do not match, or a value is out of range or not finite.

    References
    ----------
    Figure 2 of arXiv:2510.01137v3.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_improvement_over_steps([1, 2], {"with norm correction": [0.02, 0.03]}, ax=Figure().subplots())
    >>> ax.get_ylabel()
    'Improvement(t)'
    """
    x = np.ravel(finite_values("steps", steps))
    checked = {}
    for label, given in improvements.items():
        values = finite_values("improvements", given, low=-2.0, high=2.0)
        checked[label] = matching("improvements", values, "steps", x, draws=True)
    ax = axes_or_new(ax)
    ax.axhline(0.0, color="0.3", linewidth=1.0)
    for number, (label, values) in enumerate(checked.items()):
        color, line, marker = _look(number)
        runs = np.atleast_2d(values)
        ax.plot(x, runs.mean(0), color=color, linestyle=line, marker=marker, markersize=5, linewidth=1.8, label=label)
        if len(runs) > 1:
            ax.fill_between(x, runs.min(0), runs.max(0), color=color, alpha=0.2, linewidth=0)
    ax.set_xlabel("step t")
    ax.set_ylabel("Improvement(t)")
    ax.locator_params(axis="x", integer=True)
    ax.legend(frameon=False)
    return finish(ax)


def plot_norm_ratios(
    points: ArrayLike,
    empirical: ArrayLike,
    *,
    predicted: ArrayLike,
    envelope: ArrayLike,
    band: float,
    ax: Axes | None = None,
) -> Axes:
    """Return the distribution of estimated over true squared norms, its exact law, and the envelope of all laws.

    Parameters
    ----------
    points : array, shape (k,)
        Values of n̂/n, increasing.
    empirical, predicted, envelope : array, shape (k,)
        Distribution functions there, in [0, 1].
    band : float
        Half the width of the confidence band around the empirical one.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ParameterError
        If lengths do not match or a value is out of range.

    References
    ----------
    ``docs/theory/randomized_clipping.md`` for the envelope.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> curves = {"predicted": [0.2, 0.6], "envelope": [0.3, 1.0]}
    >>> ax = plot_norm_ratios([0.9, 1.1], [0.21, 0.6], band=0.02, **curves, ax=Figure().subplots())
    >>> ax.get_ylabel()
    'probability of at most this ratio'
    """
    x = np.ravel(finite_values("points", points, low=0.0))
    given = {"empirical": empirical, "predicted": predicted, "envelope": envelope}
    y = {
        name: matching(name, finite_values(name, values, low=0.0, high=1.0 + 1e-9), "points", x)
        for name, values in given.items()
    }
    (width,) = finite_values("band", [band], low=0.0)
    ax = axes_or_new(ax)
    lower, upper = np.clip(y["empirical"] - width, 0, 1), np.clip(y["empirical"] + width, 0, 1)
    ax.fill_between(x, lower, upper, color=_BLUE, alpha=0.25, linewidth=0, label="confidence band")
    ax.plot(x, y["empirical"], color=_BLUE, linewidth=1.8, label="measured")
    ax.plot(x, y["predicted"], color=_BLACK, linestyle="--", linewidth=1.4, label="exact law, predicted")
    ax.plot(x, y["envelope"], color=_RED, linestyle="-.", linewidth=1.8, label="envelope of all spectra")
    ax.set_xlabel("estimated / true squared norm, n̂/n")
    ax.set_ylabel("probability of at most this ratio")
    ax.set_ylim(-0.02, 1.04)
    ax.legend(loc="lower right", framealpha=1.0, edgecolor="none")
    return finish(ax)


def _groups(points: Mapping[tuple[int, int], Any], name: str, low: float = 0.0) -> dict[Any, tuple[Floats, Floats]]:
    if not points:
        raise ParameterError("points", {}, "of at least one shape")
    groups = {}
    for shape, (signals, values) in points.items():
        x = np.ravel(finite_values("signals", signals, low=0.0))
        groups[shape] = x, matching(name, finite_values(name, values, low=low), "signals", x)
    return groups


def _grid(groups: Mapping[Any, tuple[Floats, Floats]]) -> Floats:
    # Logarithmic, with the kink at the threshold among the points.
    top = max(3.0, *(1.1 * float(signals.max()) for signals, _ in groups.values()))
    return np.union1d(np.geomspace(_LEAST, top, 301), [1.0])


def _look(number: int) -> tuple[Any, Any, str]:
    color, line, marker = (cycle[number % len(cycle)] for cycle in (PALETTE[1:], LINES, MARKERS))
    return color, line, str(marker)


def _name(shape: tuple[int, int]) -> str:
    return f"{shape[0]} × {shape[1]}"


def _pair(ax: Axes, name: str, number: int, predicted: tuple[Any, Any], measured: tuple[Any, Any]) -> tuple[Any, Any]:
    # A line and markers of one look, which share an entry of the legend.
    color, line, marker = _look(number)
    (curve,) = ax.plot(*predicted, color=color, linestyle=line, linewidth=1.8, label=f"{name}, predicted")
    return curve, _scatter(ax, *measured, color, marker, f"{name}, measured")


def _entries(names: list[str], pairs: list[tuple[Any, Any]], threshold: Any, title: str) -> dict[str, Any]:
    labels = [*names, str(threshold.get_label())]
    return {"handles": [*pairs, threshold], "labels": labels, "title": title, "title_fontsize": "small"}


def _scatter(ax: Axes, signals: Floats, values: Floats, color: Any, marker: str, label: str) -> Any:
    style: dict[str, Any] = {"markersize": 4.0, "markerfacecolor": "none", "markeredgewidth": 0.8, "alpha": 0.7}
    style |= {"color": color, "marker": marker, "linestyle": "none", "label": label}
    return ax.plot(np.maximum(signals, _LEAST), values, **style)[0]


def _finish_against_signal(ax: Axes, ylabel: str) -> Any:
    threshold = ax.axvline(1.0, color="0.3", linestyle="-.", linewidth=1.0, label="detection threshold")
    ax.set_xscale("log")
    _plain_log_ticks(ax.xaxis)
    ax.set_xlabel("clean top singular value / detection threshold")
    ax.set_ylabel(ylabel)
    finish(ax)
    return threshold


def _plain_log_ticks(axis: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
