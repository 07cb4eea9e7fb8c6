"""δ(ε) of many equal steps as a sum of a few frequencies (F4): the composed loss itself is never formed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dprmt.accounting._composition import Window
from dprmt.accounting._discretization import LossPMF
from dprmt.accounting._few_frequencies import FewFrequencies, TooManyFrequenciesError
from dprmt.accounting._types import Array

_ROUNDING = 1e-15  # relative, of adding an offset
_ONLY = np.zeros(1, dtype=np.int64)


class SmoothCurve:
    """The same questions as to a :class:`DeltaCurve`.

    ``offset``: what has to be added to the loss of all steps.
    """

    def __init__(self, loss: FewFrequencies, offset: float) -> None:
        self.loss, self.offset = loss, offset
        self.powers = loss.powers(_ONLY)
        self.infinite = float(loss.infinite[0])

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """As :meth:`DeltaCurve.delta_bounds`."""
        at = np.array([epsilon - self.offset])
        rounding = _ROUNDING * (abs(epsilon) + abs(self.offset))
        low, high = self._delta(at + rounding, -1.0), self._delta(at - rounding, 1.0)
        return low, min(high + self.infinite, 1.0)

    def _delta(self, epsilon: Array, sign: float) -> float:
        return math.exp(min(float(self.loss.log_delta(_ONLY, self.powers, epsilon, sign)[0][0]), 0.0))

    def epsilon_above(self, delta: float) -> float:
        """As :meth:`DeltaCurve.epsilon_above`."""
        return self._epsilon(delta, 1.0)

    def epsilon_below(self, delta: float) -> float:
        """As :meth:`DeltaCurve.epsilon_below`."""
        return self._epsilon(delta, -1.0)

    def _epsilon(self, delta: float, sign: float) -> float:
        floor = -self.offset
        found = float(self.loss.epsilon_bound(delta, sign > 0, floor)[0])
        if found <= floor:
            return 0.0
        return max(found + self.offset + sign * _ROUNDING * (abs(found) + abs(self.offset)), 0.0)


def smooth_curve(laws: Sequence[tuple[LossPMF, int]], tilt: float, window: Window, offset: float) -> SmoothCurve | None:
    """None where the loss of all steps is too rough for a sum of few frequencies, or the steps are not all equal."""
    if len(laws) > 1:
        return None
    ((law, steps),) = laws
    try:
        return SmoothCurve(FewFrequencies(law, np.array([float(steps)]), tilt, window), offset)
    except TooManyFrequenciesError:
        return None
