"""Pictures of one matrix's singular values against the noise in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt.plots._style import PALETTE, axes_or_new, finish, legend_below
from dprmt.plots._values import Floats, descending
from dprmt.spectra import MarchenkoPastur, bulk_edge, detection_threshold, kappa_for, spike_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLACK, _BLUE, _RED = PALETTE[:3]
_EACH_MARKED = 16  # leading values with a marker each; those of a long bulk would merge
_VISIBLE = 1e-3  # share of the largest value below which a value cannot be told from 0
_FAR = 4.0  # top singular value, in units of the bulk edge, from which the axis is logarithmic beyond the edge


def plot_singular_values(
    noisy: ArrayLike,
    shape: tuple[int, int],
    sigma: float,
    *,
    clean: ArrayLike | None = None,
    denoised: ArrayLike | None = None,
    false_alarm: float = 0.01,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Sorted singular values of a noisy matrix, with the bulk edge, the gate and the detection threshold.

    A noisy value above the gate shows a signal, except at the stated rate of false alarms; a clean value below the
    detection threshold leaves no trace.

    Parameters
    ----------
    noisy : array, shape (k,)
        Singular values of the noisy matrix, in any order.
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, >= 0, in the units of the matrix.
    clean, denoised : array, shape (j,), optional
        Singular values of the clean and of the denoised matrix. The clean ones are not private.
    false_alarm : float
        Probability in [1e-30, 1 - 1e-6] that the largest value of noise alone is above the gate (`kappa_for`).
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Of matplotlib's lines, such as ``linewidth`` or ``alpha``; for all curves, in place of the usual.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, with the index on a logarithmic scale.

    Raises
    ------
    ParameterError
        If values are not finite numbers >= 0 along one axis, or ``shape`` or ``sigma`` is out of range.

    References
    ----------
    Figure 3 of arXiv:2510.01137v3.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_singular_values([9.0, 5.5, 4.0], (3, 12), sigma=1.0, clean=[8.0], ax=Figure().subplots())
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['clean', 'noisy', 'bulk edge (of noisy values)', 'gate, 1 % false alarms', 'detection threshold (of clean values)']
    """
    edge, threshold = bulk_edge(shape, sigma), detection_threshold(shape, sigma)
    gate = kappa_for(shape, false_alarm) * edge
    given = {"clean": clean, "noisy": noisy, "denoised": denoised}
    curves = {name: descending(name, values) for name, values in given.items() if values is not None}
    looks = {"clean": (_BLACK, ":", "o"), "noisy": (_BLUE, "-", "s"), "denoised": (_RED, "--", "^")}
    ax = axes_or_new(ax)
    top = max(values[0] for values in curves.values())
    for name, heights in curves.items():
        color, line, marker = looks[name]
        look = {"color": color, "linestyle": line, "marker": marker, "markersize": 4.5, "linewidth": 1.3, **style}
        index = np.arange(1, len(heights) + 1)
        ax.plot(index, heights, markevery=_marked(heights, _VISIBLE * top), label=name, **look)
    ax.axhline(edge, color="0.3", linestyle=(0, (6, 2)), linewidth=1.0, label="bulk edge (of noisy values)")
    ax.axhline(gate, color=_RED, linestyle=":", linewidth=1.0, label=_gate_label(false_alarm))
    ax.axhline(threshold, color="0.3", linestyle="-.", linewidth=1.0, label="detection threshold (of clean values)")
    _index_axis(ax, max(map(len, curves.values())))
    ax.set_ylim(0.0, 1.06 * max(top, gate) or 1.0)
    ax.set_ylabel("singular value")
    legend_below(ax)
    return finish(ax)


def plot_spectrum_histogram(
    noisy: ArrayLike,
    shape: tuple[int, int],
    sigma: float,
    *,
    signals: ArrayLike | None = None,
    false_alarm: float = 0.01,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Histogram of singular values with the Marchenko–Pastur density, and the values above the gate marked.

    Parameters
    ----------
    noisy : array, shape (k,)
        All singular values of the noisy matrix, in any order.
    shape : tuple of int
        ``(m, n)`` of the matrix, either orientation.
    sigma : float
        Standard deviation of one entry of the noise, > 0, in the units of the matrix.
    signals : array, shape (r,), optional
        Clean singular values. Those above the detection threshold are marked where the spike map puts them. Not
        private.
    false_alarm : float
        Probability in [1e-30, 1 - 1e-6] that the largest value of noise alone is above the gate (`kappa_for`).
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Of matplotlib's lines, such as ``linewidth`` or ``alpha``; for all curves, in place of the usual.

    Returns
    -------
    matplotlib.axes.Axes
        The axes. The density is scaled to the share of the values in the bulk. If a value is more than four
        times the bulk edge, the scale is linear up to there and logarithmic beyond.

    Raises
    ------
    ParameterError
        If values are not finite numbers >= 0 along one axis, or ``shape`` or ``sigma`` is out of range.

    References
    ----------
    Marčenko & Pastur (1967); Eq. 3 of arXiv:2510.01137v3 for the spikes.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> noise = np.random.default_rng(0).standard_normal((64, 256))
    >>> ax = plot_spectrum_histogram(np.linalg.svdvals(noise), (64, 256), sigma=1.0, ax=Figure().subplots())
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['singular values', 'Marchenko–Pastur density', 'bulk edge', 'gate, 1 % false alarms']
    """
    law = MarchenkoPastur(shape, sigma)
    low, edge = law.support
    values = descending("noisy", noisy)
    gate = kappa_for(shape, false_alarm) * edge
    spikes = values[values > gate]
    predicted = _predicted_spikes(signals, shape, sigma)
    ax = axes_or_new(ax)
    bins = _bins(values, low, edge)
    weights = np.full(len(values), 1 / (len(values) * (bins[1] - bins[0])))
    bars: dict[str, Any] = {"color": "0.84", "edgecolor": "0.65", "linewidth": 0.5}
    ax.hist(values, bins.tolist(), weights=weights, label="singular values", **bars)
    grid = low + (edge - low) * (1 - np.cos(np.linspace(0.0, np.pi, 301))) / 2  # denser at both ends
    density = (1 - len(spikes) / len(values)) * law.pdf(grid)
    look = {"color": _BLUE, "linewidth": 1.8, "label": "Marchenko–Pastur density", **style}
    ax.plot(grid, density, **look)
    ax.axvline(edge, color="0.3", linestyle=(0, (6, 2)), linewidth=1.0, label="bulk edge")
    ax.axvline(gate, color=_RED, linestyle=":", linewidth=1.0, label=_gate_label(false_alarm))
    heights = ax.get_xaxis_transform()
    if len(predicted):
        ax.vlines(predicted, 0, 0.25, _BLACK, ":", linewidth=1.8, transform=heights, label="predicted spikes")
    if len(spikes):
        marks: dict[str, Any] = {"marker": "v", "markersize": 7, "linestyle": "none", "transform": heights}
        ax.plot(spikes, np.full(len(spikes), 0.03), color=_RED, label="values above the gate", **marks)
    _show_all(ax, edge, max(gate, values[0], *predicted))
    ax.set_ylim(bottom=0.0)
    ax.set_ylabel("density")
    ax.legend(loc="upper right", facecolor="white", edgecolor="none", framealpha=0.9)
    return finish(ax)


def _gate_label(false_alarm: float) -> str:
    return f"gate, {100 * false_alarm:.3g} % false alarms"


def _marked(heights: Floats, visible: float) -> list[int]:
    # Positions that get a marker: the leading ones, some of the others, none at the bottom of the picture.
    count = len(heights)
    some = np.geomspace(_EACH_MARKED, max(count, _EACH_MARKED), 16).round().astype(int)
    candidates = np.union1d(np.arange(1, _EACH_MARKED), some)
    chosen = candidates[candidates <= count] - 1
    return chosen[heights[chosen] > visible].tolist()


def _index_axis(ax: Axes, count: int) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_xscale("log")
    ax.set_xlim(0.9, 1.1 * max(count, 2))
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("index")


def _predicted_spikes(signals: ArrayLike | None, shape: tuple[int, int], sigma: float) -> Floats:
    if signals is None:
        return np.zeros(0)
    values = descending("signals", signals)
    visible = values[values > detection_threshold(shape, sigma)]
    return np.asarray(spike_map(visible, shape, sigma)) if len(visible) else visible


def _bins(values: Floats, low: float, edge: float) -> Floats:
    # Of equal width, one boundary at the edge, over all values, or up to the edge if some are far above.
    width = (edge - low) / np.clip(round(1.5 * len(values) ** 0.5), 6, 40)
    below = np.ceil((edge - min(low, values[-1])) / width)
    last = values[0] if values[0] <= _FAR * edge else edge
    above = np.ceil(max(0.0, last - edge) / width)
    return edge + width * np.arange(-below, above + 1)


def _show_all(ax: Axes, edge: float, top: float) -> None:
    # The axis of singular values, logarithmic above the edge if something is far above.
    if top <= _FAR * edge:
        ax.set_xlim(0.0, max(1.06 * top, 1.8 * edge))  # room for the legend right of the bulk
        ax.set_xlabel("singular value")
    else:
        ax.set_xscale("symlog", linthresh=edge, linscale=1.0)
        ax.set_xlim(0.0, 1.5 * top)
        ax.set_xlabel("singular value (logarithmic above the edge)")
