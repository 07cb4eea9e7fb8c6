"""Plots of a private run: its ε and trade-off, its estimated norms and its telemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError
from dprmt.accounting import PrivacyBounds, TradeOff, gdp_trade_off
from dprmt.plots._style import PALETTE, axes_or_new, finish, ink, level, look, shade
from dprmt.plots._values import Floats, as_floats, finite_values, matching

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
    ends = [np.clip(end, float(shown.min()) - span / 20, float(shown.max()) + span / 20) for end in ends]
    _estimate(ax, x, y, ends, known, {"label": "estimate, band of 95 % for all steps", **style})
    level(ax, 0.0, style="-")
    return finish(ax, legend={}, ylabel="change of the objective")


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
    given = {"factor": factor, "low": low, "high": high, "truth": truth}
    rows = [_ends(name, values, x) for name, values in given.items() if values is not None]
    least = min(float(row.min()) for row in rows)
    if least < 0:
        raise ParameterError("factor", least, "numbers >= 0")
    furthest = 16.0
    rows = [np.clip(row, 1 / furthest, furthest) for row in rows]
    ax = axes_or_new(ax)
    known = None if truth is None else rows[3]
    _estimate(ax, x, rows[0], rows[1:3], known, {"label": "estimate, interval of 95 %", **style})
    level(ax, 1.0, style="-")
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{round(1 / value)}")
    for height, words in ((0.75, "rate too low"), (0.25, "rate too high")):
        ax.text(1.01, height, words, transform=ax.transAxes, va="center", rotation=-90)
    limits = (0.9 / furthest, furthest / 0.9)
    return finish(ax, legend={"loc": "lower right"}, ylim=limits, ylabel="factor that all that was done lacks")


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
    for name in curves.keys() - first.keys():
        ax.plot(x, curves[name], color=ink(ax, 0.3), linewidth=0.8)
    for number, name in enumerate(sorted(curves.keys() & first.keys(), key=lambda name: first[name]), start=1):
        kwargs = look(ax, number)
        color, marker = kwargs["color"], kwargs.pop("marker")
        label = f"{name}: from step {first[name]:g}" if number <= 6 else "_"
        ax.plot(x, curves[name], **{**kwargs, "label": label, **style})
        seen = x >= first[name]
        ax.plot(x[seen][:1], curves[name][seen][:1], color=color, marker=marker, linestyle="none")
        when = (predicted or {}).get(name, np.inf)
        if x.min() <= when <= x.max():
            ax.plot([when], [1.0], color=color, marker="|", markersize=16, markeredgewidth=2, linestyle="none")
    level(ax, 1.0, "edge of the noise")
    _whole_steps(ax, "step" if not predicted else "step (bars on the edge: when it was expected)")
    ylabel = "largest singular value of the\ndisplacement, over the edge of its noise"
    return finish(ax, legend={"fontsize": 7}, ylabel=ylabel)


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


def _whole_steps(ax: Axes, label: str = "step") -> None:
    """Place ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel(label)


def _with_band(ax: Axes, number: int, label: str, x: Any, y: Any, other: Any, style: dict[str, Any]) -> None:
    # A certified curve, and the space up to its other bound.
    kwargs = look(ax, number) | {"marker": None, "linewidth": 1.8, "label": label, **style}
    ax.plot(x, y, **kwargs)
    shade(ax, x, other, y, kwargs["color"])


def _estimate(ax: Axes, x: Floats, y: Floats, ends: list[Floats], truth: Floats | None, style: Any) -> None:
    # Telemetry's estimate over steps with its band, and the truth where it is known.
    shade(ax, x, ends[0], ends[1], PALETTE[1])
    ax.plot(x, y, **{"color": PALETTE[1], "marker": ".", **style})
    if truth is not None:
        ax.plot(x, truth, **_TRUTH)
    _whole_steps(ax)


def _ends(name: str, values: ArrayLike, steps: Floats) -> Floats:
    # May be infinite, but are numbers.
    array = np.ravel(as_floats(values))
    if np.isnan(array).any():
        raise ParameterError(name, "NaN", "numbers, which may be infinite")
    return matching(name, array, "steps", steps)
