"""From the slope along all that was done, and the change of the objective, to a sentence on the learning rate (T6)."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from dprmt.spectra import Estimate, displacement_factor

FAILURE = 0.05  # probability that any statement of a reading is false
EARLIEST = 20  # first step with advice: earlier the best factor means little
_NOTICED = 1.1  # factors nearer to 1 gain less than one part in a hundred of the decrease
_WIDEST = 2.0  # widest interval around "about right", as a factor on either side


def advice(slope: float, deviation: float, change: Estimate, failure: float) -> dict[str, Any]:
    """Advise on the learning rate; ``failure`` belongs to the slope's interval."""
    half = -NormalDist().inv_cdf(failure / 2) * deviation
    factor = displacement_factor(Estimate(slope, slope - half, slope + half), change)
    value, low, high = float(factor.value), float(factor.low), float(factor.high)
    rate = "unknown"
    if low > 1 and value >= _NOTICED:
        rate = "too low"
    elif high < 1 and value <= 1 / _NOTICED:
        rate = "too high"
    elif low >= 1 / _WIDEST and high <= _WIDEST:
        rate = "about right"
    silent = abs(slope) <= half and change.low <= 0 <= change.high
    return {
        "rate": rate,
        "factor": {"value": value, "low": low, "high": high},
        "says": _sentence(rate, value, low, high, silent=bool(silent)),
    }


def _sentence(rate: str, value: float, low: float, high: float, *, silent: bool) -> str:
    span = f"{_factor(low)} to {_factor(high)} ×"
    if rate == "too low":
        at = f"about {_factor(value)} ×" if value < 100 else "many times"
        return f"rate too low: all that was done should have been {at} as long ({span})"
    if rate == "too high":
        return f"rate too high: all that was done should have been about {_factor(value)} × as long ({span})"
    if rate == "about right":
        return f"rate about right: all that was done is as long as it should be, give or take ({span})"
    if silent:
        return "too little signal to set a rate"
    return f"cannot tell whether the rate is right: all that was done should have been {span} as long"


def _factor(value: float) -> str:
    return "∞" if value >= 1e4 else f"{value:.2g}" if value < 99.5 else f"{value:.0f}"
