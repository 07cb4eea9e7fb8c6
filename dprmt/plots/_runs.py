"""Plots of a private run: its ε and trade-off, and its telemetry, from released values alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError
from dprmt.accounting import PrivacyBounds, TradeOff, gdp_trade_off
from dprmt.plots._style import LINES, MARKERS, PALETTE, axes_or_new, finish
from dprmt.plots._values import Floats, as_floats, finite_values, matching

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FURTHEST = 16.0  # factor of the picture of the rate, on either side of 1
_TRUTH: dict[str, Any] = {"color": PALETTE[2], "linestyle": "none", "marker": "x", "markersize": 6}


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
        color, line = PALETTE[number % len(PALETTE)], LINES[number % len(LINES)]
        upper, lower = [b.upper for b in bounds], [b.lower for b in bounds]
        ax.plot(steps, upper, **{"color": color, "linestyle": line, "linewidth": 1.8, "label": label, **style})
        ax.fill_between(steps, lower, upper, color=color, alpha=0.2, linewidth=0)
    ax.set_xlabel("steps")
    ax.set_ylabel(f"ε at δ = {delta:g} (certified upper bound)")
    ax.set_ylim(bottom=0.0)
    ax.set_xlim(left=0.0)
    ax.legend(frameon=False)
    return finish(ax)


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
    ax.plot([0, 1], [1, 0], color="0.6", linewidth=1.0, label="perfect privacy")
    named = {"certified": bands} if isinstance(bands, TradeOff) else bands
    for number, (label, band) in enumerate(named.items()):
        color, line = PALETTE[number % len(PALETTE)], LINES[number % len(LINES)]
        kwargs = {"color": color, "linestyle": line, "linewidth": 1.8, "label": label, **style}
        ax.plot(band.alpha, band.lower, **kwargs)
        ax.fill_between(band.alpha, band.lower, band.upper, color=color, alpha=0.2, linewidth=0)
    if gaussian_mu is not None:
        grid = np.linspace(0.0, 1.0, 401)
        label = f"{gaussian_mu:.2f}-GDP (approximation that under-reports)"
        ax.plot(grid, gdp_trade_off(gaussian_mu, grid), color="0.35", linestyle=":", linewidth=1.5, label=label)
    ax.set_xlabel("false positive rate α")
    ax.set_ylabel("false negative rate β")
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(0.0, 1.0)
    ax.set_aspect("equal")
    ax.legend(frameon=False, loc="upper right", fontsize="small")
    return finish(ax)


def plot_objective_change(
    steps: ArrayLike,
    change: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    truth: ArrayLike | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Plot the change of the objective along a run, as estimated by its telemetry.

    Parameters
    ----------
    steps : array, shape (k,)
        Numbers of the steps of the readings.
    change, low, high : array, shape (k,)
        The estimate and its band; ends may be infinite.
    truth : array, shape (k,), optional
        Values from the clean gradients. Private.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Options of matplotlib's lines, for the estimate.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ParameterError
        If lengths differ or an estimate is not finite.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_objective_change([10, 20], [-0.2, -0.4], [-0.5, -0.8], [0.1, -0.1], ax=Figure().subplots())
    >>> ax.get_ylabel()
    'change of the objective'
    """
    x = np.ravel(finite_values("steps", steps))
    y = matching("change", np.ravel(finite_values("change", change)), "steps", x)
    ends = [_ends(name, values, x) for name, values in (("low", low), ("high", high))]
    known = None if truth is None else matching("truth", np.ravel(finite_values("truth", truth)), "steps", x)
    ax = axes_or_new(ax)
    shown = np.concatenate([y, *(end[np.isfinite(end)] for end in ends)])
    span = float(shown.max() - shown.min()) or 1.0
    floor, roof = float(shown.min()) - span / 20, float(shown.max()) + span / 20
    ax.fill_between(
        x, np.clip(ends[0], floor, roof), np.clip(ends[1], floor, roof), color=PALETTE[1], alpha=0.18, linewidth=0
    )
    ax.plot(x, y, **{"color": PALETTE[1], "marker": ".", "label": "estimate, band of 95 % for all steps", **style})
    if known is not None:
        ax.plot(x, known, **_TRUTH, label="from clean gradients")
    ax.axhline(0.0, color="0.3", linewidth=1.0)
    ax.set_xlabel("step")
    _whole_steps(ax)
    ax.set_ylabel("change of the objective")
    ax.legend(frameon=False)
    return finish(ax)


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
        seen = low > 0
        shown = float(np.clip(value, low, high))  # an estimate of a square may be negative
        kwargs = {"color": PALETTE[1] if seen else "0.6", "marker": "o" if seen else "|", "capsize": 2, "markersize": 4}
        ax.errorbar([shown], [place], xerr=[[shown - low], [high - shown]], **{**kwargs, **style})
    if truth is not None:
        known = finite_values("truth", [truth[name] for name in layers])
        ax.plot(100 * known, places, **_TRUTH, label="from clean gradients")
        ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)
    ax.set_yticks(places, list(layers), fontsize=7 if len(layers) > 8 else 9)
    ax.set_ylim(len(layers) - 0.4, -0.6)
    ax.set_xlim(left=0.0)
    ax.set_xlabel("signal in it (%); grey: none seen")
    return finish(ax)


def plot_rate_advice(
    steps: ArrayLike,
    factor: ArrayLike,
    low: ArrayLike,
    high: ArrayLike,
    *,
    truth: ArrayLike | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Plot the factor by which all updates so far should have been longer.

    Parameters
    ----------
    steps : array, shape (k,)
        Numbers of the steps of the readings.
    factor, low, high : array, shape (k,)
        Factor >= 0 with its interval; they may be infinite.
    truth : array, shape (k,), optional
        Values from the clean gradients. Private.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Options of matplotlib's lines, for the estimate.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, on a scale of powers of two that ends at 1/16 and 16.

    Raises
    ------
    ParameterError
        If lengths differ or a number is negative.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_rate_advice([20, 40], [5.0, 4.0], [2.0, 3.0], [float("inf"), 6.0], ax=Figure().subplots())
    >>> ax.get_ylabel()
    'factor that all that was done lacks'
    """
    x = np.ravel(finite_values("steps", steps))
    rows = [_ends(name, values, x) for name, values in (("factor", factor), ("low", low), ("high", high))]
    if truth is not None:
        rows.append(_ends("truth", truth, x))
    if any(np.any(row < 0) for row in rows):
        raise ParameterError("factor", min(float(row.min()) for row in rows), "numbers >= 0")
    rows = [np.clip(row, 1 / _FURTHEST, _FURTHEST) for row in rows]
    ax = axes_or_new(ax)
    ax.fill_between(x, rows[1], rows[2], color=PALETTE[1], alpha=0.18, linewidth=0)
    ax.plot(x, rows[0], **{"color": PALETTE[1], "marker": ".", "label": "estimate, interval of 95 %", **style})
    if truth is not None:
        ax.plot(x, rows[3], **_TRUTH, label="from clean gradients")
    ax.axhline(1.0, color="0.3", linewidth=1.0)
    ax.set_yscale("log", base=2)
    ax.set_ylim(0.9 / _FURTHEST, _FURTHEST / 0.9)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{round(1 / value)}")
    ax.text(1.01, 0.75, "rate too low", transform=ax.transAxes, va="center", rotation=-90)
    ax.text(1.01, 0.25, "rate too high", transform=ax.transAxes, va="center", rotation=-90)
    ax.set_xlabel("step")
    _whole_steps(ax)
    ax.set_ylabel("factor that all that was done lacks")
    ax.legend(frameon=False, loc="lower right")
    return finish(ax)


def plot_displacement_spikes(
    steps: ArrayLike,
    tops: Mapping[str, ArrayLike],
    first: Mapping[str, float],
    *,
    predicted: Mapping[str, float] | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Plot the largest singular value of every displacement against the edge of its noise.

    Parameters
    ----------
    steps : array, shape (k,)
        Numbers of the steps of the readings.
    tops : mapping of label to array, shape (k,)
        Largest singular value of each matrix over the bulk edge.
    first : mapping of label to float
        First step at which a matrix had a spike.
    predicted : mapping of label to float, optional
        Steps after which a spike was expected.
    ax : matplotlib axes, optional
        Where to draw; a new figure otherwise.
    **style
        Options of matplotlib's lines, for matrices with a spike.

    Returns
    -------
    matplotlib.axes.Axes
        The axes. Matrices without a spike are grey and have no label; at most six others have one.

    Raises
    ------
    ParameterError
        If lengths differ or a number is not finite.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> tops = {"seen": [0.99, 1.2, 1.5], "not seen": [1.0, 0.98, 1.01]}
    >>> ax = plot_displacement_spikes([10, 20, 30], tops, {"seen": 20}, ax=Figure().subplots())
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['seen: from step 20', 'edge of the noise']
    """
    x = np.ravel(finite_values("steps", steps))
    curves = {name: matching(name, finite_values(name, values, low=0.0), "steps", x) for name, values in tops.items()}
    ax = axes_or_new(ax)
    for name in [name for name in curves if name not in first]:
        ax.plot(x, curves[name], color="0.75", linewidth=0.8)
    for number, name in enumerate(sorted((name for name in curves if name in first), key=lambda name: first[name])):
        color, line, marker = (cycle[(number + 1) % len(cycle)] for cycle in (PALETTE, LINES, MARKERS))
        label = f"{name}: from step {first[name]:g}" if number < 6 else "_"
        ax.plot(x, curves[name], **{"color": color, "linestyle": line, "label": label, **style})
        seen = x >= first[name]
        ax.plot(x[seen][:1], curves[name][seen][:1], color=color, marker=marker, linestyle="none")
        when = (predicted or {}).get(name, np.inf)
        if x.min() <= when <= x.max():
            ax.plot([when], [1.0], color=color, marker="|", markersize=16, markeredgewidth=2, linestyle="none")
    ax.axhline(1.0, color="0.3", linewidth=1.0, linestyle="-.", label="edge of the noise")
    ax.set_xlabel("step" if not predicted else "step (bars on the edge: when it was expected)")
    _whole_steps(ax)
    ax.set_ylabel("largest singular value of the\ndisplacement, over the edge of its noise")
    ax.legend(frameon=False, fontsize=7)
    return finish(ax)


def _whole_steps(ax: Axes) -> None:
    """Place ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _ends(name: str, values: ArrayLike, steps: Floats) -> Floats:
    # May be infinite, but are numbers.
    array = np.ravel(as_floats(values))
    if np.isnan(array).any():
        raise ParameterError(name, "NaN", "numbers, which may be infinite")
    return matching(name, array, "steps", steps)
