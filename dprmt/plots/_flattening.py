"""Picture of what clipping and noise do to the spectrum of a layer's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError
from dprmt.plots._style import LINES, MARKERS, PALETTE, axes_or_new, finish
from dprmt.plots._values import descending

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKED = 12  # markers per curve, evenly spread along its logarithmic index


def plot_spectrum_flattening(
    clean: ArrayLike, privatised: Mapping[str, ArrayLike], *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Plot sorted singular values of a layer's gradient, each in units of its largest: clean, and after clipping and
    noise.

    A steep curve is a gradient of low rank. Noise lifts the tail until the curve is flat, and no subspace is better
    than a random one.

    Parameters
    ----------
    clean : array, shape (k,)
        Singular values of the clean gradient, in any order. Not private.
    privatised : mapping of label to array, shape (j,)
        Singular values of privatised gradients of the same layer, for example by noise multiplier.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    title : str, optional
        Title above the axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, both scales logarithmic; values below 1e-4 of the largest are cut off.

    Raises
    ------
    ParameterError
        If there is nothing to compare with, values are not finite numbers >= 0 along one axis, or all are 0.

    References
    ----------
    Figure 1 of arXiv:2506.15588.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_spectrum_flattening([8.0, 2.0, 1.0], {"σ = 1": [9.0, 6.0, 4.5]}, ax=Figure().subplots())
    >>> ax.lines[1].get_ydata().tolist()[-1]
    0.5
    """
    if not privatised:
        raise ParameterError("privatised", dict(privatised), "at least one spectrum")
    curves = {"clean": _relative("clean", clean)}
    curves |= {label: _relative(f"privatised[{label!r}]", values) for label, values in privatised.items()}
    ax = axes_or_new(ax)
    for number, (label, heights) in enumerate(curves.items()):
        color, line, marker = (cycle[number % len(cycle)] for cycle in (PALETTE, LINES, MARKERS))
        index = np.arange(1, len(heights) + 1)
        marked = np.unique(np.geomspace(1, len(heights), _MARKED).round().astype(int) - 1).tolist()
        style: dict[str, Any] = {"color": color, "linestyle": line, "marker": marker, "markersize": 4.5}
        ax.plot(index, heights, linewidth=1.4, markevery=marked, label=label, **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(max(1e-4, 0.7 * min(float(heights[heights > 0].min()) for heights in curves.values())), 1.4)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("index")
    ax.set_ylabel("singular value, in units of the largest")
    ax.legend(frameon=False, handlelength=3.5)
    return finish(ax, title)


def _relative(name: str, values: ArrayLike) -> np.ndarray:
    heights = descending(name, values)
    if heights[0] == 0:
        raise ParameterError(name, heights.tolist(), "singular values that are not all 0")
    return np.asarray(heights / heights[0])
