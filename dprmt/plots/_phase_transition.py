"""Pictures of the phase transition: a singular value and its vectors in noise, in theory and measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError
from dprmt.plots._style import PALETTE, axes_or_new, finish, ink, legend_below, level, look, points
from dprmt.plots._values import Floats, finite_values, matching
from dprmt.spectra import MarchenkoPastur, bulk_edge, detection_threshold, spike_map, vector_overlaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_, _BLUE, _RED = PALETTE[:3]
_REACH, _LEAST = 3.0, 0.03  # ends of the curves, in units of the detection threshold; smaller signals are drawn there
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
    signals, observed = _simulation(simulated, observed=np.inf)
    ax = axes_or_new(ax)
    grid = _grid(shape, sigma, signals)
    ax.axhspan(*law.support, color=ink(ax, 0.1), linewidth=0, label="bulk of the noise")
    ax.plot(grid, grid, color=ink(ax, 0.55), linestyle=(0, (6, 2)), linewidth=1.2, label="without noise")
    kwargs = {"color": _BLUE, "linewidth": 2.0, "label": "predicted", **style}
    ax.plot(grid, spike_map(grid, shape, sigma), **kwargs)
    for values in observed:
        _simulated(ax, signals, values, _RED, "o", "simulated")
    return _against_signal(ax, shape, sigma, grid, "noisy singular value", (0.0, None))


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
    signals, observed = _simulation(simulated, left=1.0, right=1.0)
    ax = axes_or_new(ax)
    grid = _grid(shape, sigma, signals)
    sides = (_BLUE, "-", "o", "left", m), (_RED, "--", "^", "right", n)
    for curve, (color, line, _, side, length) in zip(vector_overlaps(grid, shape, sigma), sides, strict=True):
        label = f"{side} vector, length {length}"
        ax.plot(grid, curve, **{"color": color, "linestyle": line, "linewidth": 2.0, "label": label, **style})
    for values, (color, _, marker, side, _) in zip(observed, sides, strict=False):
        _simulated(ax, signals, values, color, marker, f"{side}, simulated")
    return _against_signal(ax, shape, sigma, grid, "squared overlap with the clean vector", (-0.02, 1.02))


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
    if not points:
        raise ParameterError("points", {}, "of at least one shape")
    groups = {shape: _columns(x, {"observed": (y, 0.0, np.inf)}) for shape, (x, y) in points.items()}
    grid = _log_grid(groups)
    ax = axes_or_new(ax)
    for number, (shape, (signals, observed)) in enumerate(groups.items()):
        predicted = spike_map(grid * detection_threshold(shape, 1.0), shape, 1.0) / bulk_edge(shape, 1.0)
        _measured(ax, number, _name(shape), (grid, predicted), (signals, observed))
    ax.set_yscale("log")
    _plain_log_ticks(ax.yaxis)
    _against_log_signal(ax, "noisy top singular value / bulk edge")
    ax.legend(
        loc="upper left", framealpha=0.9, edgecolor="none", fontsize="small", title=_PAIRED, title_fontsize="small"
    )
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
    if not points:
        raise ParameterError("points", {}, "of at least one shape")
    merged: dict[tuple[int, int], list[list[Floats]]] = {}
    for shape, (signals, left, right) in points.items():
        columns = _columns(signals, {"left": (left, 0.0, 1.0 + 1e-9), "right": (right, 0.0, 1.0 + 1e-9)})
        columns = columns if shape[0] <= shape[1] else [columns[0], columns[2], columns[1]]
        merged.setdefault((min(shape), max(shape)), []).append(columns)
    groups = {shape: [np.concatenate(column) for column in zip(*rows, strict=True)] for shape, rows in merged.items()}
    grid = _log_grid(groups)
    ax = axes_or_new(ax)
    number = 0
    for shape, (signals, *sides) in groups.items():
        curves = vector_overlaps(grid * detection_threshold(shape, 1.0), shape, 1.0)
        for length, curve, measured in zip(shape, curves, sides, strict=True):
            _measured(ax, number, f"{length} of {_name(shape)}", (grid, curve), (signals, measured))
            number += 1
    _against_log_signal(ax, "squared overlap", ylim=(-0.02, 1.02))
    legend_below(ax, 3, title=f"vector's length, of shape; {_PAIRED}", title_fontsize="small")
    return ax


def _columns(signals: ArrayLike, others: Mapping[str, Any], draws: bool = False) -> list[Floats]:
    # Signals of shape (k,), and for each name values between two limits, of this shape or, with draws, (draws, k).
    x = np.ravel(finite_values("signals", signals, low=0.0))
    given = ((name, finite_values(name, values, low=low, high=high)) for name, (values, low, high) in others.items())
    return [x, *(matching(name, values, "signals", x, draws=draws) for name, values in given)]


def _simulation(simulated: tuple[ArrayLike, ...] | None, **highest: float) -> tuple[Floats | None, list[Floats]]:
    if simulated is None:
        return None, []
    names = {name: (values, 0.0, highest[name]) for name, values in zip(highest, simulated[1:], strict=True)}
    signals, *checked = _columns(simulated[0], names, draws=True)
    return signals, checked


def _grid(shape: tuple[int, int], sigma: float, signals: Floats | None) -> Floats:
    # From 0 to beyond the transition and the signals, with the kink at the threshold among the points.
    threshold = detection_threshold(shape, sigma)
    top = _REACH * threshold if signals is None else max(_REACH * threshold, 1.04 * float(signals.max()))
    return np.unique(np.append(np.linspace(0.0, top, 401), threshold))


def _log_grid(groups: Mapping[Any, list[Floats]]) -> Floats:
    # The same in units of the threshold, on a logarithmic axis.
    top = max(_REACH, *(1.1 * float(columns[0].max()) for columns in groups.values()))
    return np.union1d(np.geomspace(_LEAST, top, 301), [1.0])


def _name(shape: tuple[int, int]) -> str:
    return f"{shape[0]} × {shape[1]}"


def _simulated(ax: Axes, signals: Any, values: Floats, color: str, marker: str, label: str) -> None:
    x = np.broadcast_to(signals, values.shape).ravel()
    points(ax, x, values.ravel(), color, marker, label, markerfacecolor=ax.get_facecolor())


def _measured(ax: Axes, number: int, name: str, predicted: tuple[Any, Any], measured: tuple[Any, Any]) -> None:
    # A line, and markers of the same look with the name.
    kwargs = look(ax, number, shift=1)
    ax.plot(*predicted, **{**kwargs, "marker": None, "linewidth": 1.8, "label": f"_{name}, predicted"})
    signals, values = measured
    points(ax, np.maximum(signals, _LEAST), values, **{**kwargs, "linestyle": "none", "label": name, "alpha": 0.7})


def _against_signal(ax: Axes, shape: tuple[int, int], sigma: float, grid: Floats, ylabel: str, ylim: Any) -> Axes:
    level(ax, detection_threshold(shape, sigma), "detection threshold", upright=True)
    legend = {"loc": "lower right", "frameon": True, "framealpha": 1.0, "edgecolor": "none"}
    finish(ax, legend=legend, xlabel="clean singular value λ", ylabel=ylabel)
    ax.set_xlim(0.0, grid[-1], auto=True)  # so that a scale that is chosen afterwards finds its own
    ax.set_ylim(ylim, auto=True)
    return ax


def _against_log_signal(ax: Axes, ylabel: str, **settings: Any) -> None:
    level(ax, 1.0, "detection threshold", upright=True)
    ax.set_xscale("log")
    _plain_log_ticks(ax.xaxis)
    finish(ax, xlabel="clean top singular value / detection threshold", ylabel=ylabel, **settings)


def _plain_log_ticks(axis: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
