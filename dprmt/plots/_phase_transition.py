"""Pictures of the phase transition: what becomes of a singular value and its vectors in noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt.plots._style import PALETTE, axes_or_new, finish, ink
from dprmt.plots._values import Floats, finite_values, matching
from dprmt.spectra import MarchenkoPastur, detection_threshold, spike_map, vector_overlaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_, _BLUE, _RED = PALETTE[:3]
_REACH = 3.0  # end of the curves, in units of the detection threshold


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
    if signals is not None:
        _scatter(ax, signals, observed[0], _RED, "o", "simulated")
    _finish_against_signal(ax, shape, sigma, grid, "noisy singular value")
    ax.set_ylim(bottom=0.0)
    return ax


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
    appearances = (_BLUE, "-", "o", f"left vector, length {m}"), (_RED, "--", "^", f"right vector, length {n}")
    for curve, (color, line, _, label) in zip(vector_overlaps(grid, shape, sigma), appearances, strict=True):
        ax.plot(grid, curve, **{"color": color, "linestyle": line, "linewidth": 2.0, "label": label, **style})
    if signals is not None:
        for points, side, (color, _, marker, _) in zip(observed, ("left", "right"), appearances, strict=True):
            _scatter(ax, signals, points, color, marker, f"{side}, simulated")
    _finish_against_signal(ax, shape, sigma, grid, "squared overlap with the clean vector")
    ax.set_ylim(-0.02, 1.02)
    return ax


def _simulation(simulated: tuple[ArrayLike, ...] | None, **highest: float) -> tuple[Floats | None, list[Floats]]:
    # Signals of shape (k,), and for each name in ``highest`` values up to that, of shape (k,) or (draws, k).
    if simulated is None:
        return None, []
    first, *rest = simulated
    signals = np.ravel(finite_values("signals", first, low=0.0))
    checked = []
    for (name, high), values in zip(highest.items(), rest, strict=True):
        points = finite_values(name, values, low=0.0, high=high)
        checked.append(matching(name, points, "signals", signals, draws=True))
    return signals, checked


def _grid(shape: tuple[int, int], sigma: float, signals: Floats | None) -> Floats:
    # From 0 to beyond the transition and the signals, with the kink at the threshold among the points.
    threshold = detection_threshold(shape, sigma)
    top = _REACH * threshold if signals is None else max(_REACH * threshold, 1.04 * float(signals.max()))
    return np.unique(np.append(np.linspace(0.0, top, 401), threshold))


def _scatter(ax: Axes, signals: Floats, points: Floats, color: str, marker: str, label: str) -> None:
    x = np.broadcast_to(signals, points.shape).ravel()
    style: dict[str, Any] = {"markersize": 4.5, "markerfacecolor": ax.get_facecolor(), "markeredgewidth": 1.0}
    ax.plot(x, points.ravel(), color=color, marker=marker, linestyle="none", label=label, **style)


def _finish_against_signal(ax: Axes, shape: tuple[int, int], sigma: float, grid: Floats, ylabel: str) -> None:
    threshold = detection_threshold(shape, sigma)
    ax.axvline(threshold, color=ink(ax, 0.7), linestyle="-.", linewidth=1.0, label="detection threshold")
    ax.set_xlim(0.0, grid[-1])
    ax.set_xlabel("clean singular value λ")
    ax.set_ylabel(ylabel)
    ax.legend(loc="lower right", framealpha=1.0, edgecolor="none")
    finish(ax)
