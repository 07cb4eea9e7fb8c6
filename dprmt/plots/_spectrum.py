"""Plots of the singular values of one matrix, or of many, against the noise in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt.plots import _style as draw
from dprmt.spectra import MarchenkoPastur, NoisySpectrum, bulk_edge, detection_threshold, kappa_for, spike_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    curves = {name: draw.descending(name, x) for name, x in given.items() if x is not None or name == "noisy"}
    ax = draw.axes_or_new(ax)
    appearances = {"clean": (draw.ink(ax), ":", "o"), "noisy": (draw.BLUE, "-", "s"), "denoised": (draw.RED, "--", "^")}
    for name, heights in curves.items():
        color, line, marker = appearances[name]
        kwargs = {"color": color, "linestyle": line, "marker": marker, "markersize": 4.5, "linewidth": 1.3, **style}
        ax.plot(np.arange(1, len(heights) + 1), heights, markevery=0.04, label=name, **kwargs)
    _edge_and_gate(ax, edge, gate, "bulk edge (of noisy values)", false_alarm)
    draw.level(ax, threshold, "detection threshold (of clean values)")
    ax.set(xscale="log", xlabel="index")
    ax.set_xlim(0.9, 1.1 * max(2, *map(len, curves.values())), auto=True)
    draw.log_ticks(ax.xaxis)
    ax.minorticks_off()
    top = max(values[0] for values in curves.values())
    lowest = min(float(values[values > 0].min(initial=edge or top)) for values in curves.values())
    highest, is_far = max(top, gate) or 1.0, top > _FAR * edge > 0
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
    values = draw.descending("noisy", noisy)
    gate = kappa_for(shape, false_alarm) * edge
    spikes = values[values > gate]
    clean = np.zeros(0) if signals is None else draw.descending("signals", signals)
    visible = clean[clean > detection_threshold(shape, sigma)]
    predicted = spike_map(visible, shape, sigma)
    ax = draw.axes_or_new(ax)
    # Bins of equal width, one boundary at the edge, over all values, or up to the edge if some are far above.
    width = (edge - low) / np.clip(round(1.5 * len(values) ** 0.5), 6, 40)
    below = np.ceil((edge - min(low, values[-1])) / width)
    above = np.ceil(max(0.0, (values[0] if values[0] <= _FAR * edge else edge) - edge) / width)
    bins = edge + width * np.arange(-below, above + 1)
    weights = np.full(len(values), 1 / (len(values) * (bins[1] - bins[0])))
    bars: dict[str, Any] = {"color": draw.ink(ax, 0.18), "edgecolor": draw.ink(ax, 0.45), "linewidth": 0.5}
    counts, *_ = ax.hist(values, bins.tolist(), weights=weights, label="singular values", **bars)
    grid = low + (edge - low) * (1 - np.cos(np.linspace(0.0, np.pi, 301))) / 2  # denser at both ends
    density = (1 - len(spikes) / len(values)) * law.pdf(grid)
    ax.plot(grid, density, **{"color": draw.BLUE, "linewidth": 1.8, "label": "Marchenko–Pastur density", **style})
    _edge_and_gate(ax, edge, gate, "bulk edge", false_alarm, upright=True)
    heights = ax.get_xaxis_transform()
    if len(predicted):
        ax.vlines(predicted, 0, 0.25, draw.ink(ax), ":", linewidth=1.8, transform=heights, label="predicted spikes")
    if len(spikes):
        filled = {"markersize": 7, "markerfacecolor": draw.RED, "transform": heights}
        draw.points(ax, spikes, np.full(len(spikes), 0.03), draw.RED, "v", "values above the gate", **filled)
    top, words, space = max(gate, values[0], *predicted), "singular value", 1.06
    if top > _FAR * edge:
        ax.set_xscale("symlog", linthresh=edge, linscale=2.0)
        words, space = "singular value (logarithmic above the edge)", 1.5
    ax.set_xlabel(words)
    ax.set_xlim(0.0, space * top, auto=True)
    return _finished(ax, "density", (0.0, 1.05 * (max(float(np.max(density)), np.max(counts)) or 1.0)), shape, sigma)


def _finished(ax: Axes, ylabel: str, ends: tuple[float, float], shape: tuple[int, int], sigma: float) -> Axes:
    # Limits stay automatic, so that a scale that is chosen afterwards finds its own.
    ax.set_ylim(ends, auto=True)
    ax.set_title(f"{shape[0]} × {shape[1]}, σ = {sigma:.4g}", loc="right", fontsize="small")
    draw.legend_below(ax)
    return draw.finish(ax, ylabel=ylabel)


def _edge_and_gate(ax: Axes, edge: float, gate: float, label: str, rate: float, *, upright: bool = False) -> None:
    draw.level(ax, edge, label, upright=upright, style=draw.DASHES)
    words = f"gate, {100 * rate:.3g} % false alarms"
    draw.level(ax, gate, words, upright=upright, style=":", color=draw.RED, linewidth=1.8)


def plot_spectra(spectra: Mapping[str, NoisySpectrum], *, ax: Axes | None = None, **style: Any) -> Axes:
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
        If there is no spectrum, or something else.

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
    draw.by_label("spectra", spectra, "a NoisySpectrum", NoisySpectrum)
    count = len(spectra)
    ax = draw.axes_or_new(ax, width=9.0, height=min(2.0 + 0.2 * count, 40.0))
    names, own, above, below = [], np.zeros(count), [], []
    for place, (name, spectrum) in enumerate(spectra.items()):
        values, spikes, sigma = spectrum.singular_values, len(spectrum.spikes), spectrum.sigma
        unit = spectrum.bulk_edge or float(values[0])
        above += [(value / unit, place) for value in values[:spikes]]
        name = str(name) if len(str(name)) <= 60 else "…" + str(name)[-59:]  # longer ones would leave no room
        names.append(name if sigma > 0 else f"{name}\nno noise: over its largest")
        if sigma > 0:  # else the other values are rounding
            own[place] = spectrum.fit.sigma / sigma
            if spikes < len(values):
                below.append((place, float(values[-1]) / unit, float(values[spikes]) / unit))
    floor = 0.7 * min([1.0, *own[own > 0], *(value for value, _ in above), *(max(low, 0.1) for _, low, _ in below)])
    rows = np.reshape([(place, max(low, floor), high) for place, low, high in below], (-1, 3)).T
    grey: dict[str, Any] = {"color": draw.ink(ax, 0.45), "linewidth": 3.0, "capstyle": "round"}
    ax.hlines(*rows, label="values below the gate", **grey)
    if above:
        kwargs = {"color": draw.RED, "marker": "|", "markersize": 8, "label": "values above the gate", **style}
        draw.points(ax, *np.transpose(above), **kwargs)
    draw.level(ax, 1.0, "bulk edge", upright=True, style=draw.DASHES)
    (places,) = np.nonzero(own > floor)
    draw.points(ax, own[places], places, draw.BLUE, "d", "edge by the estimated σ", markersize=5)
    ax.set_xscale("log")
    every = -(-count // 200)  # matrices for a name on the axis
    ax.set_yticks(np.arange(count)[::every], names[::every], fontsize="x-small", parse_math=False)
    draw.legend_below(ax)
    ylim = (count - 0.4, -0.6)
    return draw.finish(ax, xlim=(floor, None), ylim=ylim, xlabel="singular value over bulk edge", ylabel="matrix")
