"""Pictures of the phase transition: a singular value and its vectors in noise, in theory and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt.plots import _style as draw
from dprmt.spectra import MarchenkoPastur, bulk_edge, detection_threshold, spike_map, vector_overlaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST = 0.03  # where logarithmic axes begin, in units of the detection threshold; smaller signals are drawn there
_PAIRED = "line: predicted, marker: measured"


def plot_spike_map(
    shape: tuple[int, int],
    sigma: float,
    *,
    simulated: tuple[ArrayLike, ArrayLike] | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Plot the top singular value of the noisy matrix against the clean one: the phase transition.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, > 0, in the units of the matrix.
    simulated : (signals, observed), optional
        Points to compare with: clean values of shape (k,) and noisy ones of shape (k,) or (draws, k).
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Options of matplotlib's lines for all curves, such as ``linewidth`` or ``alpha``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ParameterError
        If ``shape`` or ``sigma`` is out of range, or simulated values are negative, not finite or of other
        shapes.

    References
    ----------
    Eq. 3 of arXiv:2510.01137v3; Baik, Ben Arous & Péché (2005).

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_spike_map((16, 81), sigma=1.0, simulated=([3.0, 10.0], [12.8, 14.6]), ax=Figure().subplots())
    >>> ax.get_xlabel()
    'clean singular value λ'
    """
    law = MarchenkoPastur(shape, sigma)
    signals, *observed = _simulated(simulated, ["signals", "observed"], np.inf)
    ax = draw.axes_or_new(ax)
    grid = _grid(shape, sigma, signals)
    ax.axhspan(*law.support, color=draw.ink(ax, 0.1), linewidth=0, label="bulk of the noise")
    ax.plot(grid, grid, color=draw.ink(ax, 0.55), linestyle=draw.DASHES, linewidth=1.2, label="without noise")
    curves = [(spike_map(grid, shape, sigma), "predicted", "-", draw.BLUE)]
    marks = [(values, "simulated", "o", draw.RED) for values in observed]
    ax.set(ylabel="noisy singular value")
    return _against_signal(ax, shape, sigma, (grid, curves), (signals, marks), (0.0, None), style)


def plot_overlaps(
    shape: tuple[int, int],
    sigma: float,
    *,
    simulated: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Plot squared overlaps of noisy with clean singular vectors against the clean singular value.

    Parameters
    ----------
    shape : tuple of int
        ``(m, n)`` of the matrix; the transpose swaps left and right.
    sigma : float
        Standard deviation of one entry of the noise, > 0, in the units of the matrix.
    simulated : (signals, left, right), optional
        Points to compare with: clean values of shape (k,), and squared overlaps of shape (k,) or (draws, k).
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Options of matplotlib's lines for all curves, such as ``linewidth`` or ``alpha``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ParameterError
        If ``shape`` or ``sigma`` is out of range, or simulated values are negative, not finite, overlaps above
        1, or of other shapes.

    References
    ----------
    Eqs. 4–6 of arXiv:2510.01137v3; Benaych-Georges & Nadakuditi (2012).

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> plot_overlaps((16, 81), sigma=1.0, ax=Figure().subplots()).get_ylabel()
    'squared overlap with the clean vector'
    """
    m, n = MarchenkoPastur(shape, sigma).shape
    signals, *observed = _simulated(simulated, ["signals", "left", "right"], 1.0)
    ax = draw.axes_or_new(ax)
    grid = _grid(shape, sigma, signals)
    left, right = vector_overlaps(grid, shape, sigma)
    curves = (left, f"left vector, length {m}", "-", draw.BLUE), (right, f"right vector, length {n}", "--", draw.RED)
    looks = ("left, simulated", "o", draw.BLUE), ("right, simulated", "^", draw.RED)
    marks = [(values, *look) for values, look in zip(observed, looks, strict=False)]
    ax.set(ylabel="squared overlap with the clean vector")
    return _against_signal(ax, shape, sigma, (grid, curves), (signals, marks), (-0.02, 1.02), style)


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
    groups = _by_shape(points, ["signals", "observed"], np.inf)

    def predicted(shape: tuple[int, int], λ: draw.Floats) -> Any:
        return [("{} × {}".format(*shape), spike_map(λ, shape, 1.0) / bulk_edge(shape, 1.0))]

    ax = _against_log_signal(ax, groups, predicted, ylabel="noisy top singular value / bulk edge")
    ax.set_yscale("log")
    draw.log_ticks(ax.yaxis)
    small = {"fontsize": "small", "title_fontsize": "small"}
    ax.legend(loc="upper left", framealpha=0.9, edgecolor="none", title=_PAIRED, **small)
    return ax


def plot_measured_overlaps(
    points: Mapping[tuple[int, int], tuple[ArrayLike, ArrayLike, ArrayLike]], *, ax: Axes | None = None
) -> Axes:
    """Plot squared overlaps of the noisy with the clean top singular vectors, measured and predicted.

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
    groups: dict[tuple[int, int], list[draw.Floats]] = {}
    for (m, n), (signals, left, right) in _by_shape(points, ["signals", "left", "right"], 1.0).items():
        columns = [signals, left, right] if m <= n else [signals, right, left]
        earlier = groups.get((min(m, n), max(m, n)), 3 * [signals[:0]])
        groups[min(m, n), max(m, n)] = [np.concatenate(both) for both in zip(earlier, columns, strict=True)]

    def predicted(shape: tuple[int, int], λ: draw.Floats) -> Any:
        names = ("{} of {} × {}".format(length, *shape) for length in shape)
        return zip(names, vector_overlaps(λ, shape, 1.0), strict=True)

    ax = _against_log_signal(ax, groups, predicted, ylabel="squared overlap", ylim=(-0.02, 1.02))
    draw.legend_below(ax, 3, title=f"vector's length, of shape; {_PAIRED}", title_fontsize="small")
    return ax


def _simulated(given: object, names: list[str], high: float) -> list[draw.Floats]:
    # Signals and values; without any given, no signal.
    return [np.zeros(0)] if given is None else draw.columns("simulated", given, names, 0.0, high, allow="draws")


def _by_shape(points: object, names: list[str], high: float) -> dict[tuple[int, int], list[draw.Floats]]:
    given = draw.by_label("points", points, f"({', '.join(names)})").items()
    return {MarchenkoPastur(at, 1.0).shape: draw.columns("points", xy, names, 0.0, high) for at, xy in given}


def _grid(shape: tuple[int, int], sigma: float, signals: draw.Floats) -> draw.Floats:
    # From 0 to beyond the transition and the signals, with the kink at the threshold among the points.
    threshold = detection_threshold(shape, sigma)
    top = max(3 * threshold, 1.04 * float(signals.max(initial=0.0)))
    return np.unique(np.append(np.linspace(0.0, top, 401), threshold))


def _against_signal(
    ax: Axes, shape: tuple[int, int], sigma: float, curves: Any, marks: Any, ylim: Any, style: dict[str, Any]
) -> Axes:
    # ``curves`` and ``marks``: where on the axis of signals, and rows of heights, label, line or marker, and colour.
    grid, rows = curves
    for heights, label, line, color in rows:
        ax.plot(grid, heights, **{"color": color, "linestyle": line, "linewidth": 2.0, "label": label, **style})
    signals, rows = marks
    for heights, label, marker, color in rows:
        x = np.broadcast_to(signals, heights.shape).ravel()
        draw.points(ax, x, heights.ravel(), color, marker, label, markerfacecolor=ax.get_facecolor())
    draw.level(ax, detection_threshold(shape, sigma), "detection threshold", upright=True)
    ax.set_xlim(0.0, grid[-1], auto=True)  # so that a scale that is chosen afterwards finds its own
    ax.set_ylim(ylim, auto=True)
    return draw.finish(ax, draw.OPAQUE, xlabel="clean singular value λ")


def _against_log_signal(
    ax: Axes | None, groups: Mapping[tuple[int, int], Sequence[draw.Floats]], predicted: Any, **settings: Any
) -> Axes:
    # ``groups``: by shape, signals and heights for each line. ``predicted``: names and heights of a shape's lines.
    top = max(3.0, *(1.1 * float(signals.max()) for signals, *_ in groups.values()))
    grid = np.union1d(np.geomspace(_LEAST, top, 301), [1.0])
    ax, number = draw.axes_or_new(ax), 0
    for shape, (signals, *sides) in groups.items():
        for (name, line), values in zip(predicted(shape, grid * detection_threshold(shape, 1.0)), sides, strict=True):
            kwargs = draw.look(ax, number, shift=1)
            ax.plot(grid, line, **{**kwargs, "marker": None, "linewidth": 1.8, "label": f"_{name}, predicted"})
            kwargs |= {"linestyle": "none", "label": name, "alpha": 0.7}
            draw.points(ax, np.maximum(signals, _LEAST), values, **kwargs)
            number += 1
    draw.level(ax, 1.0, "detection threshold", upright=True)
    ax.set_xscale("log")
    draw.log_ticks(ax.xaxis)
    return draw.finish(ax, xlabel="clean top singular value / detection threshold", **settings)
