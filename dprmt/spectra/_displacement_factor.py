"""Factor by which all that a run has done should have been longer or shorter (T6)."""

from __future__ import annotations

import itertools
import math

from dprmt._validation import ParameterError
from dprmt.spectra._estimate import Estimate


def displacement_factor(slope: Estimate, change: Estimate) -> Estimate:
    """The factor at which a displacement would have decreased the objective most, from its slope and its change.

    Along the ray from x_0 through x_t, a parabola that has changed by F at x_t and has the slope
    ``S = ⟨g(x_t), x_t - x_0⟩`` there is lowest at ``(S - 2F)/(2(S - F))`` times the way. Where it does not bend upward
    that is infinitely far or at the start, whichever way it falls at x_t.

    Parameters
    ----------
    slope : Estimate
        Of S; negative where the objective still falls along all that was done.
    change : Estimate
        Of F, from `objective_change`; both of numbers.

    Returns
    -------
    Estimate
        >= 0; 1 where the displacement is as long as it should be. Its interval is the range over both intervals:
        0 to infinity where these do not know.

    Raises
    ------
    ParameterError
        If an estimate is of several layers.

    Formal guarantees
    -----------------
    If both intervals hold, so does this one, on every ray along which the objective is a parabola. A rate that was low
    by some factor makes the displacement short by another one, in the same direction.

    References
    ----------
    (T6) of ``docs/theory/telemetry.md``.

    Examples
    --------
    f = ½x² from 1 to 0.8: the way should have been five times as long.

    >>> round(displacement_factor(Estimate(-0.16, -0.17, -0.15), Estimate(-0.18, -0.18, -0.18)).value, 9)
    5.0
    """
    ends = {"slope": slope, "change": change}
    for name, found in ends.items():
        if not all(isinstance(value, float | int) for value in (found.value, found.low, found.high)):
            raise ParameterError(name, found, "an Estimate of one number")
    if not all(math.isfinite(float(end)) for found in ends.values() for end in (found.low, found.high)):
        return Estimate(_lowest(float(slope.value), float(change.value)), 0.0, math.inf)
    # In F it is monotone, in S on either side of 0: the extremes are at ends, or at S = 0.
    places = {float(slope.low), float(slope.high)} | ({0.0} if slope.low < 0 < slope.high else set())
    values = [_lowest(S, F) for S, F in itertools.product(places, (float(change.low), float(change.high)))]
    return Estimate(_lowest(float(slope.value), float(change.value)), min(values), max(values))


def _lowest(slope: float, change: float) -> float:
    bend = 2 * (slope - change)
    if not bend > 0:
        return math.inf if slope < 0 else 0.0
    return max((slope - 2 * change) / bend, 0.0)
