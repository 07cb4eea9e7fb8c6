"""Pictures of what denoising does to the layers of a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import check_real
from dprmt.plots._style import axes_or_new, finish, level, look, points, shade
from dprmt.plots._values import finite_values, matching, shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_kappa_sweep(
    kappas: ArrayLike,
    improved: Mapping[str, ArrayLike],
    *,
    passed: Mapping[str, ArrayLike] | None = None,
    kappa: float | None = 1.02,
    what: str = "layers",
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Plot the share of denoised matrices that gain alignment against the gate κ.

    Parameters
    ----------
    kappas : array, shape (k,)
        Gates, in units of the bulk edge.
    improved : mapping of label to array, shape (k,)
        Share in [0, 1], among the layers that pass the gate, of those whose cosine with the clean gradient
        grew; NaN where no layer passes. Not private.
    passed : mapping of label to array, shape (k,), optional
        Share in [0, 1] of the layers that pass the gate: the price of a high one. Thin lines in the colours of
        the same labels.
    kappa : float, optional
        The chosen gate, marked.
    what : str
        Unit of the shares, for the axis: "layers", "matrices", "steps", "draws".
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Options of matplotlib's lines for all curves, such as ``linewidth`` or ``alpha``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, in per cent.

    Raises
    ------
    ParameterError
        If lengths do not match, ``kappas`` or ``kappa`` is not finite, or a share is outside [0, 1].

    References
    ----------
    Figures 4 and 6–8 of arXiv:2510.01137v3.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_kappa_sweep([1.0, 1.02, 1.05], {"16 × 768": [0.75, 1.0, 1.0]}, ax=Figure().subplots())
    >>> ax.lines[0].get_ydata().tolist()
    [75.0, 100.0, 100.0]
    """
    gates = np.ravel(finite_values("kappas", kappas))
    labels = list(improved)
    curves: list[tuple[str, str, Any, float]]
    curves = [(label, f"{label}, improved", shares("improved", improved[label], len(gates)), 1.8) for label in labels]
    for label, values in (passed or {}).items():
        curves.append((label, f"{label}, passing the gate", shares("passed", values, len(gates)), 0.8))
    gate = _gate(kappa)
    ax = axes_or_new(ax)
    for label, text, values, width in curves:
        kwargs = look(ax, labels.index(label) if label in labels else len(labels))
        kwargs |= {"markersize": 5, "linewidth": width, "label": text}
        kwargs["markerfacecolor"] = kwargs["color"] if width > 1 else ax.get_facecolor()
        ax.plot(gates, 100 * values, **{**kwargs, **style})
    _mark_gate(ax, gate)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="gate κ, in units of the bulk edge", ylabel=f"{what} (%)", ylim=(0.0, 104.0))
    return finish(ax, legend={"handlelength": 3.5})


def plot_layer_improvement(
    layers: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    kappa: float | None = 1.02,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Plot one point per layer: the change of its cosine by denoising, against its top singular value over the bulk
    edge.

    A good gate has few points to its lower right (denoised and worse) and few to its upper left (missed).

    Parameters
    ----------
    layers : mapping of label to (top_over_edge, improvement)
        Two arrays of shape (k,) per group of layers. The first has the top noisy singular value in units of the bulk
        edge. The second has the change of the cosine with the clean gradient by denoising, in [-2, 2], as if there
        were no gate. Not private.
    kappa : float, optional
        The chosen gate, marked.
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
        If the two arrays of a group differ in length, a value is out of range or not finite.

    References
    ----------
    Figure 9 of arXiv:2510.01137v3.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_layer_improvement({"16 × 768": ([0.99, 1.3], [-0.1, 0.2])}, ax=Figure().subplots())
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['16 × 768', 'gate κ = 1.02']
    """
    groups = {}
    for label, (ratios, improvements) in layers.items():
        x = np.ravel(finite_values("top_over_edge", ratios, low=0.0))
        y = finite_values("improvement", improvements, low=-2.0, high=2.0)
        groups[label] = x, matching("improvement", y, "top_over_edge", x)
    gate = _gate(kappa)
    ax = axes_or_new(ax)
    level(ax, 0.0, style="-")
    for number, (label, (x, y)) in enumerate(groups.items()):
        kwargs = look(ax, number) | {"alpha": 0.8, "markersize": 5, "linestyle": "none", "label": label, **style}
        points(ax, x, y, **kwargs)
    _mark_gate(ax, gate)
    ax.set(xlabel="top singular value, in units of the bulk edge", ylabel="gain in cosine with the clean gradient")
    return finish(ax, legend={})


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
        checked[label] = np.atleast_2d(matching("improvements", values, "steps", x, draws=True))
    ax = axes_or_new(ax)
    level(ax, 0.0, style="-")
    for number, (label, runs) in enumerate(checked.items()):
        kwargs = look(ax, number, shift=1)
        ax.plot(x, runs.mean(0), markersize=5, linewidth=1.8, label=label, **kwargs)
        if len(runs) > 1:
            shade(ax, x, runs.min(0), runs.max(0), kwargs["color"])
    ax.locator_params(axis="x", integer=True)
    return finish(ax, legend={}, xlabel="step t", ylabel="Improvement(t)")


def _gate(kappa: float | None) -> float | None:
    return None if kappa is None else check_real("kappa", kappa, low=0.0)


def _mark_gate(ax: Axes, gate: float | None) -> None:
    if gate is not None:
        level(ax, gate, f"gate κ = {gate:g}", upright=True)
