"""Pictures of privacy: ε along a run, and trade-off curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dprmt.accounting import PrivacyBounds, TradeOff, gdp_trade_off
from dprmt.plots._style import LINES, PALETTE, axes_or_new, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        look = {"color": color, "linestyle": line, "linewidth": 1.8, "label": label, **style}
        ax.plot(band.alpha, band.lower, **look)
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
