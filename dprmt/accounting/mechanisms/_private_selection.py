"""The best of a random number of runs: what choosing by scores costs, from the certified curve of one run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.mechanisms._composition import Composition
from dprmt.accounting.mechanisms._dpsgd import DPSGD

_CELLS = 2000  # of levels
_ROUNDING = 1e-9

NumberOfRuns = Literal["geometric", "poisson"]


@dataclass(frozen=True)
class PrivateSelection:
    """The best of K runs, with K random and secret; made by :func:`private_selection`.

    Attributes
    ----------
    run : Composition
        One of the runs.
    expected_runs : float
        E K, the expected number of runs.
    number : {"geometric", "poisson"}
        The distribution of K.
    excess : float
        c, a bound on how far the loss of the chosen run can exceed the loss of one run.
    """

    run: Composition
    expected_runs: float
    number: NumberOfRuns
    excess: float

    def epsilon(self, delta: float) -> float:
        """Bound ε of the best run at ``delta``.

        Parameters
        ----------
        delta : float
            The δ of the guarantee, in (1e-290·E K, 1).

        Returns
        -------
        float
            An upper bound, at least the ε of one run.

        Raises
        ------
        ParameterError
            If ``delta`` lies outside its range.
        """
        delta = check_real("delta", delta, low=1e-290 * self.expected_runs, high=1.0, high_open=True)
        one = self.run.epsilon(delta / self.expected_runs).upper
        return max((self.excess + one) * (1.0 + _ROUNDING), self.run.epsilon(delta).upper)

    def delta(self, epsilon: float) -> float:
        """Bound δ of the best run at ``epsilon``.

        Parameters
        ----------
        epsilon : float
            The ε of the guarantee, in [0, 1e17].

        Returns
        -------
        float
            An upper bound, at least the δ of one run.

        Raises
        ------
        ParameterError
            If ``epsilon`` lies outside its range.
        """
        epsilon = check_real("epsilon", epsilon, low=0.0, high=1e17)
        left = epsilon - self.excess
        one = self.run.delta(abs(left)).upper
        if left < 0.0:  # what a hockey stick below 1 is by the other direction's
            one = -math.expm1(left) + math.exp(left) * one
        return min(1.0, max(self.expected_runs * one * (1.0 + _ROUNDING), self.run.delta(epsilon).upper))


def private_selection(
    run: Composition | DPSGD,
    *,
    expected_runs: float,
    number: NumberOfRuns = "geometric",
    steps: int | None = None,
    epochs: int | None = None,
) -> PrivateSelection:
    """Bound ε for publishing only the best of a random number of runs.

    Parameters
    ----------
    run : Composition or DPSGD
        Everything that one run releases, including its score. A mechanism also needs its length, below. If runs draw
        different public options at random, this must bound the runs of every option.
    expected_runs : float
        Expected number of runs, from 1 to 1e6.
    number : {"geometric", "poisson"}
        Distribution of K: K = 1, 2, … with probability (1 - 1/E K)^(K-1)/E K, or Poisson, which may be 0: then nothing
        is released.
    steps, epochs : int, optional
        Length of the run, if it is a mechanism.

    Returns
    -------
    PrivateSelection
        Its ``epsilon(delta)`` and ``delta(epsilon)`` return upper bounds.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Formal guarantees
    -----------------
    Holds if: K is drawn in secret before training, runs use independent randomness, and ties are broken at random. The
    score must depend only on released values and public data: compose a score on private data into ``run``. Covers:
    releasing the best run, but neither K nor the other runs. Does not cover: a fixed K. Proof: N8 in
    ``docs/theory/neighbours.md``.

    Examples
    --------
    >>> best = private_selection(DPSGD(1.0, 2000 / 67349), steps=400, expected_runs=10)
    >>> best.run.epsilon(1e-5).upper < 3.82, 5.73 < best.epsilon(1e-5) < 5.74
    (True, True)
    """
    if not isinstance(run, DPSGD | Composition):
        raise ParameterError("run", run, "a composition, or a DPSGD with steps or epochs")
    run = cast("Composition", run.run(steps=steps, epochs=epochs))
    mean = check_real("expected_runs", expected_runs, low=1.0, high=1e6)
    check_choice("number", number, ("geometric", "poisson"))
    if number == "poisson":
        return PrivateSelection(run, mean, number, mean * run.advantage().upper)
    return PrivateSelection(run, mean, number, _geometric_excess(run, mean))


def _geometric_excess(run: Composition, mean: float) -> float:
    """Maximize 2·log (γ + (1-γ)b(p))/(γ + (1-γ)p) over p, with γ = 1/E K and b a certified bound on the power at level
    p.

    On a cell of levels the ratio with a single line of b is monotone, so its larger end bounds it.
    """
    if mean == 1.0:
        return 0.0
    last = run.epsilon(1e-12).upper
    epsilon = np.linspace(0.0, min(max(last, 1e-3), 700.0), 241)
    intercept = np.append(run.delta(epsilon.tolist()).upper, 1.0)
    slope = np.append(np.exp(epsilon), 0.0)
    level = np.concatenate([[0.0], np.geomspace(1e-15, 1.0, _CELLS)])
    largest = np.full(_CELLS, np.inf)
    for at, rising in zip(intercept, slope, strict=True):
        ratio: Array = (1.0 + (mean - 1.0) * (at + rising * level)) / (1.0 + (mean - 1.0) * level)
        largest = np.minimum(largest, np.maximum(ratio[:-1], ratio[1:]))
    return 2.0 * math.log(float(largest.max()) * (1.0 + _ROUNDING))
