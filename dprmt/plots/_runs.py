"""Plots of a private run: its ε and trade-off, its estimated norms and its telemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt.accounting import PrivacyBounds, TradeOff, gdp_trade_off
from dprmt.plots._style import PALETTE, axes_or_new, finish, ink, look, shade
from dprmt.plots._values import finite_values, matching

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRUTH: dict[str, Any] = {"color": PALETTE[2], "linestyle": "none", "marker": "x", "label": "from clean gradients"}


def plot_epsilon_against_steps(
    steps: Sequence[int],
    curves: Mapping[str, Sequence[PrivacyBounds]],
    *,
    delta: float,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Plot certified upper bounds on ε along a run, one curve per analysis; bands reach down to the lower bounds.

    Parameters
    ----------
    steps : sequence of int
        Step numbers at which the curves were computed.
    curves : mapping of label to sequence of PrivacyBounds
        One bound per entry of ``steps``.
    delta : float
        The δ for the axis label.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Options of matplotlib's lines for all curves, such as ``linewidth`` or ``alpha``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> bounds = [PrivacyBounds(0.9, 0.95, 1.0), PrivacyBounds(1.8, 1.9, 2.0)]
    >>> ax = plot_epsilon_against_steps([10, 20], {"exact norms": bounds}, delta=1e-5, ax=Figure().subplots())
    >>> ax.get_xlabel()
    'steps'
    """
    ax = axes_or_new(ax)
    for number, (label, bounds) in enumerate(curves.items()):
        _with_band(ax, number, label, steps, [b.upper for b in bounds], [b.lower for b in bounds], style)
    ylabel = f"ε at δ = {delta:g} (certified upper bound)"
    return finish(ax, legend={}, xlabel="steps", ylabel=ylabel, xlim=(0.0, None), ylim=(0.0, None))


def plot_trade_off(
    bands: TradeOff | Mapping[str, TradeOff],
    *,
    gaussian_mu: float | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Plot trade-off curves: the smallest false-negative rate against the false-positive rate.

    Parameters
    ----------
    bands : TradeOff, or mapping of label to TradeOff
        Drawn at their lower (safe) side, shaded up to the upper side.
    gaussian_mu : float, optional
        Adds the curve of μ-Gaussian DP, labelled as an approximation.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Options of matplotlib's lines for all curves, such as ``linewidth`` or ``alpha``.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from dprmt.accounting import DPSGD
    >>> band = DPSGD(1.0, 0.1).trade_off(steps=10, alpha=[0.0, 0.5, 1.0])
    >>> plot_trade_off({"exact norms": band}, ax=Figure().subplots()).get_ylabel()
    'false negative rate β'
    """
    ax = axes_or_new(ax)
    ax.plot([0, 1], [1, 0], color=ink(ax, 0.4), linewidth=1.0, label="perfect privacy")
    named = {"certified": bands} if isinstance(bands, TradeOff) else bands
    for number, (label, curve) in enumerate(named.items()):
        _with_band(ax, number, label, curve.alpha, curve.lower, curve.upper, style)
    if gaussian_mu is not None:
        grid = np.linspace(0.0, 1.0, 401)
        label = f"{gaussian_mu:.2f}-GDP (approximation that under-reports)"
        ax.plot(grid, gdp_trade_off(gaussian_mu, grid), color=ink(ax, 0.65), linestyle=":", linewidth=1.5, label=label)
    ax.set_aspect("equal")
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    legend = {"loc": "upper right", "fontsize": "small"}
    return finish(ax, legend=legend, xlabel="false positive rate α", ylabel="false negative rate β")


def plot_signal_shares(
    layers: Mapping[str, tuple[float, float, float]],
    *,
    truth: Mapping[str, float] | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Plot the share of signal in each layer's noisy gradient, and mark the layers that are noise.

    Parameters
    ----------
    layers : mapping of label to (value, low, high)
        Share of the signal in the squared norm, estimated, with its interval, from the top down.
    truth : mapping of label to float, optional
        Values from the clean gradients. Private.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Options of matplotlib's error bars.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, in per cent. Layers in which no signal is seen, whose interval reaches 0, are grey.

    Raises
    ------
    ParameterError
        If there is no layer or a number is not finite.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_signal_shares({"head": (0.3, 0.2, 0.4), "layer 0": (0.01, 0.0, 0.05)}, ax=Figure().subplots())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['head', 'layer 0']
    """
    values = finite_values("layers", [list(numbers) for numbers in layers.values()])
    ax = axes_or_new(ax)
    places = np.arange(len(layers))
    for place, (value, low, high) in zip(places, 100 * values, strict=True):
        shown = float(np.clip(value, low, high))  # an estimate of a square may be negative
        seen = {"color": PALETTE[1], "marker": "o"} if low > 0 else {"color": ink(ax, 0.4), "marker": "|"}
        kwargs: dict[str, Any] = {**seen, "capsize": 2, "markersize": 4, **style}
        ax.errorbar([shown], [place], xerr=[[shown - low], [high - shown]], **kwargs)
    if truth is not None:
        ax.plot(100 * finite_values("truth", [truth[name] for name in layers]), places, **_TRUTH)
    ax.set_yticks(places, list(layers), fontsize=7 if len(layers) > 8 else 9)
    above = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.0}
    xlabel = "signal in it (%); grey: none seen"
    return finish(ax, legend=above if truth else None, xlabel=xlabel, xlim=(0.0, None), ylim=(len(layers) - 0.4, -0.6))


def plot_norm_ratios(
    points: ArrayLike,
    empirical: ArrayLike,
    *,
    predicted: ArrayLike,
    envelope: ArrayLike,
    band: float,
    ax: Axes | None = None,
) -> Axes:
    """Plot the distribution of estimated over true squared norms, its exact law, and the envelope of all laws.

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
    shade(ax, x, lower, upper, PALETTE[1], "confidence band")
    ax.plot(x, y["empirical"], color=PALETTE[1], linewidth=1.8, label="measured")
    ax.plot(x, y["predicted"], color=ink(ax), linestyle="--", linewidth=1.4, label="exact law, predicted")
    ax.plot(x, y["envelope"], color=PALETTE[2], linestyle="-.", linewidth=1.8, label="envelope of all spectra")
    ax.set(ylim=(-0.02, 1.04), xlabel="estimated / true squared norm, n̂/n")
    legend = {"loc": "lower right", "frameon": True, "framealpha": 1.0, "edgecolor": "none"}
    return finish(ax, legend=legend, ylabel="probability of at most this ratio")


def _with_band(ax: Axes, number: int, label: str, x: Any, y: Any, other: Any, style: dict[str, Any]) -> None:
    # A certified curve, and the space up to its other bound.
    kwargs = look(ax, number) | {"marker": None, "linewidth": 1.8, "label": label, **style}
    ax.plot(x, y, **kwargs)
    shade(ax, x, other, y, kwargs["color"])
