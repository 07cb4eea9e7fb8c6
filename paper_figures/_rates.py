"""Grids of learning rates, and the one rule by which a rate is chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from dprmt._validation import ParameterError, check_real

Choice = TypeVar("Choice")


def lowest(losses: Mapping[Choice, float | None]) -> Choice:
    """What ends with the lowest loss; one that is not finite counts as infinite, and of equal ones the first is taken.

    Raises
    ------
    ParameterError
        If there is nothing to choose from.

    Formal guarantees
    -----------------
    None: the choice reads private losses, and no accountant has counted it, here or in the papers.

    Examples
    --------
    >>> lowest({0.1: 2.0, 0.5: 1.5, 1.0: math.nan})
    0.5
    """
    if not losses:
        raise ParameterError("losses", {}, "of at least one choice")
    return min(losses, key=lambda choice: _finite(losses[choice]))


def _finite(loss: float | None) -> float:
    return loss if loss is not None and math.isfinite(loss) else math.inf


def half_power_grid(low: float, high: float) -> list[float]:
    """The numbers 1·10^k and 5·10^k in [low, high]: the paper's grid of learning rates.

    Parameters
    ----------
    low, high : float
        0 < low <= high.

    Returns
    -------
    list of float
        Increasing.

    Raises
    ------
    ParameterError
        If the range is empty.

    References
    ----------
    Section 3 of the heavy-tail class imbalance paper on DP-AdamBC ("1e2, 5e2, 1e3, …").

    Examples
    --------
    >>> half_power_grid(0.1, 10)
    [0.1, 0.5, 1.0, 5.0, 10.0]
    """
    low = check_real("low", low, low=0.0, low_open=True)
    high = check_real("high", high, low=low)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    grid = [float(f"{digit}e{power}") for power in powers for digit in (1, 5)]
    chosen = [rate for rate in grid if low <= rate <= high]
    if not chosen:
        raise ParameterError("high", high, f"such that 1eK or 5eK lies between it and {low:g}")
    return chosen
