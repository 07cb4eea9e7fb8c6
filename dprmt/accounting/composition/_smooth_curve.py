"""δ(ε) of many equal steps as a sum of a few frequencies (F4): the composed loss itself is never formed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dprmt.accounting.basics import Side
from dprmt.accounting.composition._composed_loss import Window
from dprmt.accounting.composition._few_frequencies import FewFrequencies, TooManyFrequenciesError
from dprmt.accounting.pairs import LossPMF

_ROUNDING = 1e-15  # relative, of adding an offset


class SmoothCurve:
    """The same questions as to a :class:`DeltaCurve`; the side that was not asked for is trivial.

    ``offset``: what has to be added to the loss of all steps.
    """

    def __init__(self, loss: FewFrequencies, offset: float, side: Side) -> None:
        self.loss, self.offset, self.side = loss, offset, side
        self.terms = loss.terms(np.zeros(1, dtype=np.int64))
        self.infinite = float(loss.infinite[0])

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """As :meth:`DeltaCurve.delta_bounds`."""
        sign = 1.0 if self.side == "upper" else -1.0
        at = epsilon - self.offset - sign * _ROUNDING * (abs(epsilon) + abs(self.offset))
        log = float(self.loss.log_delta(self.terms, np.array([at]), sign)[0][0])
        value = math.exp(min(log, 0.0))
        return (0.0, min(value + self.infinite, 1.0)) if self.side == "upper" else (value, 1.0)

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


def smooth_curve(
    laws: Sequence[tuple[LossPMF, int]], tilt: float, window: Window, offset: float, side: Side
) -> SmoothCurve | None:
    """None where the loss of all steps is too rough for a sum of few frequencies, or the steps are not all equal."""
    if len(laws) > 1:
        return None
    ((law, steps),) = laws
    try:
        return SmoothCurve(FewFrequencies(law, np.array([float(steps)]), tilt, window), offset, side)
    except TooManyFrequenciesError:
        return None
