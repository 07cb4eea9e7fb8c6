"""Plots of a private run: its ε and trade-off, its estimated norms, its telemetry, and what denoising does to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dprmt._validation import ParameterError, check_real
from dprmt.accounting import PrivacyBounds, PrivacyCurve, TradeOff, gdp_trade_off
from dprmt.plots import _style as draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_epsilon_against_steps(
    steps: Sequence[int],
    curves: Mapping[str, PrivacyCurve | Sequence[PrivacyBounds]],
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
    curves : mapping of label to PrivacyCurve or sequence of PrivacyBounds
        One bound per entry of ``steps``, at these steps.
    delta : float
        The δ of the curves, in [0, 1), for the axis label.
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
        If there is no curve, or a curve is for other steps, of another length, at another δ, or not of bounds on ε.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> bounds = [PrivacyBounds(0.9, 0.95, 1.0), PrivacyBounds(1.8, 1.9, 2.0)]
    >>> ax = plot_epsilon_against_steps([10, 20], {"exact norms": bounds}, delta=1e-5, ax=Figure().subplots())
    >>> ax.get_xlabel()
    'steps'
    """
    level = check_real("delta", delta, low=0.0, high=1.0, high_open=True)
    named = draw.by_label("curves", curves, "a PrivacyCurve, or PrivacyBounds per step", (PrivacyCurve, Sequence))
    checked = {label: _epsilons(f"curves[{label!r}]", curve, steps, level) for label, curve in named.items()}
    ax = draw.axes_or_new(ax)
    for number, (label, lines) in enumerate(checked.items()):
        _with_band(ax, number, label, *lines, style)
    ylabel = f"ε at δ = {delta:g} (certified upper bound)"
    return draw.finish(ax, legend={}, xlabel="steps", ylabel=ylabel, xlim=(0.0, None), ylim=(0.0, None))


def _epsilons(
    name: str, curve: PrivacyCurve | Sequence[PrivacyBounds], steps: object, delta: float
) -> tuple[Any, Any, Any]:
    # Steps, upper and lower bounds.
    for one in curve:
        if not isinstance(one, PrivacyBounds) or one.at_epsilon is not None:
            raise ParameterError(name, one, "of PrivacyBounds on ε")
        if one.at_delta is not None and not math.isclose(one.at_delta, delta, rel_tol=1e-9):
            raise ParameterError("delta", delta, f"the δ of {name}", f"pass delta={one.at_delta:g}")
    at = draw.finite_values("steps", steps, 0.0, count=len(curve))
    if isinstance(curve, PrivacyCurve) and not np.array_equal(at, curve.at):
        raise ParameterError("steps", steps, f"the steps of {name}", "pass its field `at`")
    return at, [one.upper for one in curve], [one.lower for one in curve]


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
    given = {"certified": bands} if isinstance(bands, TradeOff) else bands
    named = draw.by_label("bands", given, "a TradeOff", TradeOff)
    if gaussian_mu is not None:
        check_real("gaussian_mu", gaussian_mu, low=0.0)
    ax = draw.axes_or_new(ax)
    ax.plot([0, 1], [1, 0], color=draw.ink(ax, 0.4), linewidth=1.0, label="perfect privacy")
    for number, (label, curve) in enumerate(named.items()):
        _with_band(ax, number, label, curve.alpha, curve.lower, curve.upper, style)
    if gaussian_mu is not None:
        grid = np.linspace(0.0, 1.0, 401)
        label = f"{gaussian_mu:.2f}-GDP (approximation that under-reports)"
        ax.plot(grid, gdp_trade_off(gaussian_mu, grid), ":", color=draw.ink(ax, 0.65), linewidth=1.5, label=label)
    ax.set(aspect="equal", xlim=(0.0, 1.0), ylim=(0.0, 1.0), xlabel="false positive rate α")
    return draw.finish(ax, {"loc": "upper right", "fontsize": "small"}, ylabel="false negative rate β")


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
        If there is no layer, a number is not finite, or an interval ends below where it begins.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> ax = plot_signal_shares({"head": (0.3, 0.2, 0.4), "layer 0": (0.01, 0.0, 0.05)}, ax=Figure().subplots())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['head', 'layer 0']
    """
    given = draw.by_label("layers", layers, "(value, low, high)")
    values = np.array([draw.finite_values(f"layers[{name!r}]", row, count=3) for name, row in given.items()])
    if (values[:, 1] > values[:, 2]).any():
        raise ParameterError("layers", values.tolist(), "(value, low, high) with low <= high")
    clean = dict.fromkeys(given, 0.0) if truth is None else draw.by_label("truth", truth, "a number per layer")
    shares = 100 * draw.finite_values("truth", [clean.get(name) for name in given])
    ax = draw.axes_or_new(ax)
    places = np.arange(len(layers))
    for place, (value, low, high) in zip(places, 100 * values, strict=True):
        shown = float(np.clip(value, low, high))  # an estimate of a square may be negative
        seen = {"color": draw.BLUE, "marker": "o"} if low > 0 else {"color": draw.ink(ax, 0.4), "marker": "|"}
        kwargs: dict[str, Any] = {**seen, "capsize": 2, "markersize": 4, **style}
        ax.errorbar([shown], [place], xerr=[[shown - low], [high - shown]], **kwargs)
    if truth is not None:
        ax.plot(shares, places, "x", color=draw.RED, label="from clean gradients")
    ax.set_yticks(places, list(layers), fontsize=7 if len(layers) > 8 else 9)
    above = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.0} if truth else None
    ax.set(xlabel="signal in it (%); grey: none seen", xlim=(0.0, None), ylim=(len(layers) - 0.4, -0.6))
    return draw.finish(ax, above)


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
    given = {"points": points, "empirical": empirical, "predicted": predicted, "envelope": envelope}
    x, measured, law, highest = draw.columns("", given.values(), [*given], 0.0, 1.0)
    width = check_real("band", band, low=0.0)
    ax = draw.axes_or_new(ax)
    lower, upper = np.clip(measured - width, 0, 1), np.clip(measured + width, 0, 1)
    ax.fill_between(x, lower, upper, color=draw.BLUE, alpha=0.2, linewidth=0, label="confidence band")
    ax.plot(x, measured, color=draw.BLUE, linewidth=1.8, label="measured")
    ax.plot(x, law, color=draw.ink(ax), linestyle="--", linewidth=1.4, label="exact law, predicted")
    ax.plot(x, highest, color=draw.RED, linestyle="-.", linewidth=1.8, label="envelope of all spectra")
    ax.set(ylim=(-0.02, 1.04), xlabel="estimated / true squared norm, n̂/n", ylabel="probability of at most this ratio")
    return draw.finish(ax, draw.OPAQUE)


def plot_kappa_sweep(
    kappas: ArrayLike,
    improved: Mapping[str, ArrayLike],
    *,
    passed: Mapping[str, ArrayLike] | None = None,
    kappa: float = 1.02,
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
    kappa : float, default 1.02
        The chosen gate, >= 0, marked.
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
    families = [("improved", "improved", 1.8, improved)]
    families += [] if passed is None else [("passed", "passing the gate", 0.8, passed)]
    checked = [
        (words, width, label, *draw.columns(name, (kappas, y), ["kappas", name], 0.0, 1.0, allow="NaN"))
        for name, words, width, family in families
        for label, y in draw.by_label(name, family, "shares").items()
    ]
    gate, labels = check_real("kappa", kappa, low=0.0), list(dict.fromkeys(label for _, _, label, *_ in checked))
    ax = draw.axes_or_new(ax)
    for words, width, label, gates, values in checked:
        kwargs = draw.look(ax, labels.index(label)) | {"markersize": 5, "linewidth": width}
        kwargs["markerfacecolor"] = kwargs["color"] if width > 1 else ax.get_facecolor()
        ax.plot(gates, 100 * values, **{**kwargs, "label": f"{label}, {words}", **style})
    draw.level(ax, gate, f"gate κ = {gate:g}", upright=True)
    ax.xaxis.set_major_formatter("{x:g}")
    settings = {"xlabel": "gate κ, in units of the bulk edge", "ylabel": f"{what} (%)", "ylim": (0.0, 104.0)}
    return draw.finish(ax, {"handlelength": 3.5}, **settings)


def plot_layer_improvement(
    layers: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    kappa: float = 1.02,
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
    kappa : float, default 1.02
        The chosen gate, >= 0, marked.
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
    names = ["top_over_edge", "improvement"]
    given = draw.by_label("layers", layers, f"({', '.join(names)})")
    groups = {label: draw.columns("layers", pair, names, -2.0, 2.0) for label, pair in given.items()}
    gate = check_real("kappa", kappa, low=0.0)
    ax = draw.axes_or_new(ax)
    draw.level(ax, 0.0, style="-")
    for number, (label, (x, y)) in enumerate(groups.items()):
        kwargs = draw.look(ax, number) | {"alpha": 0.8, "markersize": 5, "linestyle": "none", "label": label, **style}
        draw.points(ax, x, y, **kwargs)
    draw.level(ax, gate, f"gate κ = {gate:g}", upright=True)
    ax.set(xlabel="top singular value, in units of the bulk edge", ylabel="gain in cosine with the clean gradient")
    return draw.finish(ax, legend={})


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
    checked = {
        label: draw.columns("improvements", (steps, given), ["steps", "improvements"], -2.0, 2.0, allow="draws")
        for label, given in draw.by_label("improvements", improvements, "changes of a cosine").items()
    }
    ax = draw.axes_or_new(ax)
    draw.level(ax, 0.0, style="-")
    for number, (label, (x, given)) in enumerate(checked.items()):
        runs = np.atleast_2d(given)
        kwargs = draw.look(ax, number, shift=1)
        ax.plot(x, runs.mean(0), markersize=5, linewidth=1.8, label=label, **kwargs)
        if len(runs) > 1:
            ax.fill_between(x, runs.min(0), runs.max(0), color=kwargs["color"], alpha=0.2, linewidth=0)
    ax.locator_params(axis="x", integer=True)
    return draw.finish(ax, legend={}, xlabel="step t", ylabel="Improvement(t)")


def _with_band(ax: Axes, number: int, label: str, x: Any, y: Any, other: Any, style: dict[str, Any]) -> None:
    # A certified curve, and the space up to its other bound.
    kwargs = draw.look(ax, number) | {"marker": None, "linewidth": 1.8, "label": label, **style}
    ax.plot(x, y, **kwargs)
    ax.fill_between(x, other, y, color=kwargs["color"], alpha=0.2, linewidth=0)
