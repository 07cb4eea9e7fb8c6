"""Plots of the singular values of one matrix, or of many, against the noise in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError
from dprmt.plots._style import PALETTE, axes_or_new, finish, ink, legend_below, level
from dprmt.plots._values import Floats, descending
from dprmt.spectra import MarchenkoPastur, NoisySpectrum, bulk_edge, detection_threshold, kappa_for, spike_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_, _BLUE, _RED = PALETTE[:3]
_EACH_MARKED = 16  # leading values with separate markers; markers of a long bulk would merge
_DASHES = (0, (6, 2))
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
    """Plot sorted singular values of a noisy matrix with the bulk edge, the gate and the detection threshold.

    A noisy value above the gate shows a signal, except at the stated rate of false alarms. A clean value below the
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
        Options of matplotlib's lines for all curves, such as ``linewidth`` or ``alpha``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, with the index on a logarithmic scale; also the values, if one is more than four times the bulk edge.

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
    ax = axes_or_new(ax)
    appearances = {"clean": (ink(ax), ":", "o"), "noisy": (_BLUE, "-", "s"), "denoised": (_RED, "--", "^")}
    top = max(values[0] for values in curves.values())
    for name, heights in curves.items():
        color, line, marker = appearances[name]
        kwargs = {"color": color, "linestyle": line, "marker": marker, "markersize": 4.5, "linewidth": 1.3, **style}
        index = np.arange(1, len(heights) + 1)
        ax.plot(index, heights, markevery=_marked(heights, 1e-3 * top), label=name, **kwargs)
    _edge_and_gate(ax, edge, gate, "bulk edge (of noisy values)", false_alarm)
    level(ax, threshold, "detection threshold (of clean values)")
    _index_axis(ax, max(map(len, curves.values())))
    lowest = min(float(values[values > 0].min(initial=edge or top)) for values in curves.values())
    highest = max(top, gate) or 1.0
    is_far = top > _FAR * edge > 0
    ax.set_yscale("log" if is_far else "linear")
    ends = (max(0.7 * lowest, 1e-4 * highest), 1.3 * highest) if is_far else (0.0, 1.06 * highest)
    return _finished(ax, "singular value", ends, shape, sigma)


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
    """Plot a histogram of singular values with the Marchenko–Pastur density, and mark the values above the gate.

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
        Options of matplotlib's lines for all curves, such as ``linewidth`` or ``alpha``.

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
    bars: dict[str, Any] = {"color": ink(ax, 0.18), "edgecolor": ink(ax, 0.45), "linewidth": 0.5}
    counts, *_ = ax.hist(values, bins.tolist(), weights=weights, label="singular values", **bars)
    grid = low + (edge - low) * (1 - np.cos(np.linspace(0.0, np.pi, 301))) / 2  # denser at both ends
    density = (1 - len(spikes) / len(values)) * law.pdf(grid)
    ax.plot(grid, density, **{"color": _BLUE, "linewidth": 1.8, "label": "Marchenko–Pastur density", **style})
    _edge_and_gate(ax, edge, gate, "bulk edge", false_alarm, upright=True)
    heights = ax.get_xaxis_transform()
    if len(predicted):
        ax.vlines(predicted, 0, 0.25, ink(ax), ":", linewidth=1.8, transform=heights, label="predicted spikes")
    if len(spikes):
        marks: dict[str, Any] = {"marker": "v", "markersize": 7, "linestyle": "none", "transform": heights}
        ax.plot(spikes, np.full(len(spikes), 0.03), color=_RED, label="values above the gate", **marks)
    top = max(gate, values[0], *predicted)
    if top <= _FAR * edge:
        ax.set_xlabel("singular value")
        ax.set_xlim(0.0, 1.06 * top, auto=True)
    else:
        ax.set_xscale("symlog", linthresh=edge, linscale=2.0)
        ax.set_xlabel("singular value (logarithmic above the edge)")
        ax.set_xlim(0.0, 1.5 * top, auto=True)
    return _finished(ax, "density", (0.0, 1.05 * (max(float(np.max(density)), np.max(counts)) or 1.0)), shape, sigma)


def _finished(ax: Axes, ylabel: str, ends: tuple[float, float], shape: tuple[int, int], sigma: float) -> Axes:
    # Limits stay automatic, so that a scale that is chosen afterwards finds its own.
    ax.set_ylim(ends, auto=True)
    ax.set_title(f"{shape[0]} × {shape[1]}, σ = {sigma:.4g}", loc="right", fontsize="small")
    legend_below(ax)
    return finish(ax, ylabel=ylabel)


def _edge_and_gate(
    ax: Axes, edge: float, gate: float, label: str, false_alarm: float, *, upright: bool = False
) -> None:
    level(ax, edge, label, upright=upright, style=_DASHES)
    words = f"gate, {100 * false_alarm:.3g} % false alarms"
    level(ax, gate, words, upright=upright, style=":", color=_RED, linewidth=1.8)


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
    ax.set_xlim(0.9, 1.1 * max(count, 2), auto=True)
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


def plot_spectra(
    spectra: Mapping[str, NoisySpectrum],
    *,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw the singular values of many matrices below each other, in units of their bulk edges.

    Use it to see which matrices of a checkpoint stand out. The first matrix is at the top. A matrix without noise, such
    as the product of an adapter, has its largest value as unit, and its name says so.

    Parameters
    ----------
    spectra : mapping of str to NoisySpectrum
        By name, such as from `dprmt.spectra.spectra_of`.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise, as high as the matrices need.
    **style
        Options of matplotlib's lines for the values above the gate, such as ``markersize`` or ``alpha``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ParameterError
        If there is no spectrum.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from dprmt.spectra import spectra_of
    >>> found = spectra_of({"query": np.eye(4, 9), "value": 5 * np.eye(6)}, sigma=0.5)
    >>> ax = plot_spectra(found, ax=Figure().subplots())
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['values below the gate', 'values above the gate', 'bulk edge', 'edge by the estimated σ']
    """
    if not spectra:
        raise ParameterError("spectra", {}, "at least one spectrum")
    count = len(spectra)
    ax = axes_or_new(ax, width=9.0, height=min(2.0 + 0.2 * count, 40.0))
    places = np.arange(count)
    below, above = [], []
    for place, spectrum in enumerate(spectra.values()):
        unit, spikes = spectrum.bulk_edge or float(spectrum.singular_values[0]), len(spectrum.spikes)
        above += [(value / unit, place) for value in spectrum.singular_values[:spikes]]
        rest = spectrum.singular_values[spikes:] / unit
        if len(rest) and spectrum.sigma > 0:  # else they are rounding
            below.append((place, float(np.max(rest)), float(np.min(rest))))
    own = np.array([spectrum.fit.sigma / spectrum.sigma if spectrum.sigma > 0 else 0 for spectrum in spectra.values()])
    seen = [*own[own > 0], *(value for value, _ in above), *(max(low, 0.1) for _, _, low in below), 1.0]
    floor = 0.7 * min(seen)
    rows = [(place, max(low, floor), high) for place, high, low in below]
    grey: dict[str, Any] = {"color": ink(ax, 0.45), "linewidth": 3.0, "capstyle": "round"}
    ax.hlines(*(np.transpose(rows) if rows else ([], [], [])), label="values below the gate", **grey)
    if above:
        kwargs = {"color": _RED, "marker": "|", "markersize": 8, "linestyle": "none", "label": "values above the gate"}
        ax.plot(*np.transpose(above), **{**kwargs, **style})
    level(ax, 1.0, "bulk edge", upright=True, style=_DASHES)
    marks: dict[str, Any] = {"marker": "d", "markersize": 5, "markerfacecolor": "none", "linestyle": "none"}
    ax.plot(own[own > floor], places[own > floor], color=_BLUE, label="edge by the estimated σ", **marks)
    ax.set_xscale("log")
    every, longest = -(-count // 200), 60  # matrices for a name on the axis, and characters of one
    names = [name if len(name) <= longest else "…" + name[1 - longest :] for name in spectra]
    silent = [spectrum.sigma == 0 for spectrum in spectra.values()]
    names = [f"{name}\nno noise: over its largest" if none else name for name, none in zip(names, silent, strict=True)]
    ax.set_yticks(places[::every], names[::every], fontsize="x-small", parse_math=False)
    legend_below(ax)
    ylim = (count - 0.4, -0.6)
    return finish(ax, xlim=(floor, None), ylim=ylim, xlabel="singular value over bulk edge", ylabel="matrix")
