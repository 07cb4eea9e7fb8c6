"""The best of a random number of runs: what choosing by scores costs, from the certified curve of one run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dprmt._validation import ParameterError, check_choice, check_real
from dprmt.accounting.basics import Array
from dprmt.accounting.mechanisms._composition import Composition, compose
from dprmt.accounting.mechanisms._dpsgd import DPSGD

_POINTS, _CELLS = 241, 2000
_LEAST_LEVEL = 1e-15
_LARGEST_EPSILON = 700.0  # e^ε is a number below it
_ROUNDING = 1e-9

NumberOfRuns = Literal["geometric", "poisson"]


@dataclass(frozen=True)
class PrivateSelection:
    """The best of K runs, K random and kept secret; from :func:`private_selection`.

    Attributes
    ----------
    run : Composition
        One of the runs.
    expected_runs : float
        E K.
    number : {"geometric", "poisson"}
        The law of K.
    excess : float
        c, the most that the loss of the chosen run can exceed that of a run.
    """

    run: Composition
    expected_runs: float
    number: NumberOfRuns
    excess: float

    def epsilon(self, delta: float) -> float:
        """ε of the best run at ``delta``.

        Parameters
        ----------
        delta : float
            In (1e-290·E K, 1).

        Returns
        -------
        float
            An upper bound alone, and at least that of one run.

        Raises
        ------
        ParameterError
            If ``delta`` lies outside its range.
        """
        delta = check_real("delta", delta, low=1e-290 * self.expected_runs, high=1.0, high_open=True)
        one = self.run.epsilon(delta / self.expected_runs).upper
        return max((self.excess + one) * (1.0 + _ROUNDING), self.run.epsilon(delta).upper)

    def delta(self, epsilon: float) -> float:
        """δ of the best run at ``epsilon``.

        Parameters
        ----------
        epsilon : float
            In [0, 1e17].

        Returns
        -------
        float
            An upper bound alone, and at least that of one run.

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
    """Cost of running a random number of times and keeping the best run alone.

    Parameters
    ----------
    run : Composition or DPSGD
        All that one run releases, its score included; a mechanism's length is given beside it. Runs with options of
        their own, drawn at random for each from public ones, are runs as well, if this is a bound for every option.
    expected_runs : float
        E K >= 1, at most 1e6.
    number : {"geometric", "poisson"}
        K = 1, 2, … with probability (1 - 1/E K)^(K-1)/E K, or Poisson's, which may be 0: then nothing is released.
    steps, epochs : int, optional
        Of a mechanism.

    Returns
    -------
    PrivateSelection
        Whose ``epsilon(delta)`` and ``delta(epsilon)`` are upper bounds.

    Raises
    ------
    ParameterError
        If an argument lies outside its range.

    Formal guarantees
    -----------------
    (N8, ``docs/theory/neighbours.md``) ε and δ are those of releasing the run with the best score and nothing else,
    neither K nor the other runs, where K is drawn beforehand from the stated law by secret coins, runs have randomness
    of their own, and the score is a function of what a run releases and of public data: a score on private data is a
    release of its own, to be composed into ``run``. Ties are broken at random. K fixed beforehand has no such claim.

    Examples
    --------
    >>> best = private_selection(DPSGD(1.0, 2000 / 67349), steps=400, expected_runs=10)
    >>> best.run.epsilon(1e-5).upper < 3.82, 5.73 < best.epsilon(1e-5) < 5.74
    (True, True)
    """
    if isinstance(run, DPSGD):
        run = compose([(run, run.sampling.run_length(steps, epochs))])
    elif not isinstance(run, Composition):
        raise ParameterError("run", run, "a composition, or a DPSGD with steps or epochs beside it")
    elif steps is not None or epochs is not None:
        raise ParameterError("steps", steps or epochs, "left out of a composition, whose phases have theirs")
    mean = check_real("expected_runs", expected_runs, low=1.0, high=1e6)
    check_choice("number", number, ("geometric", "poisson"))
    if number == "poisson":
        return PrivateSelection(run, mean, number, mean * run.advantage().upper)
    return PrivateSelection(run, mean, number, _geometric_excess(run, mean))


def _geometric_excess(run: Composition, mean: float) -> float:
    """2·sup over p of log (γ + (1-γ)b(p))/(γ + (1-γ)p), γ = 1/E K, b a certified bound of the power at level p.

    On a cell of levels the ratio with one line of b in place of b is monotone, so its larger end bounds it.
    """
    if mean == 1.0:
        return 0.0
    last = run.epsilon(1e-12).upper
    epsilon = np.linspace(0.0, min(max(last, 1e-3), _LARGEST_EPSILON), _POINTS)
    intercept = np.append(run.delta(epsilon.tolist()).upper, 1.0)
    slope = np.append(np.exp(epsilon), 0.0)
    level = np.concatenate([[0.0], np.geomspace(_LEAST_LEVEL, 1.0, _CELLS)])
    largest = np.full(_CELLS, np.inf)
    for at, rising in zip(intercept, slope, strict=True):
        ratio: Array = (1.0 + (mean - 1.0) * (at + rising * level)) / (1.0 + (mean - 1.0) * level)
        largest = np.minimum(largest, np.maximum(ratio[:-1], ratio[1:]))
    return 2.0 * math.log(float(largest.max()) * (1.0 + _ROUNDING))
