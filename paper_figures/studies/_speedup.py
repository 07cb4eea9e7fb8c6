"""How many steps, and how much ε, a method saves until it is where a baseline was at a milestone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dprmt._validation import ParameterError
from paper_figures.studies._metric import ACCURACY, Metric


@dataclass(frozen=True)
class MetricCurve:
    """A score of several runs at the same steps.

    Attributes
    ----------
    steps : array, shape (n,)
        Increasing.
    epsilon : array, shape (n,)
        ε after them.
    values : array, shape (runs, n)
        Of the metric.
    metric : Metric
        Which; accuracy by default.

    Raises
    ------
    ParameterError
        If the shapes do not fit or the steps do not increase.

    Examples
    --------
    >>> MetricCurve([10, 20], [1.0, 1.5], [[0.5, 0.7], [0.6, 0.8]]).mean.tolist()
    [0.55, 0.75]
    """

    steps: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    values: NDArray[np.float64]
    metric: Metric

    def __init__(self, steps: ArrayLike, epsilon: ArrayLike, values: ArrayLike, metric: Metric = ACCURACY) -> None:
        for name, value in (("steps", steps), ("epsilon", epsilon), ("values", values)):
            object.__setattr__(self, name, np.asarray(value, dtype=np.float64))
        object.__setattr__(self, "metric", metric)
        if self.steps.ndim != 1 or len(self.steps) < 2 or not (np.diff(self.steps) > 0).all():
            raise ParameterError("steps", list(self.steps), "at least two increasing numbers")
        if self.epsilon.shape != self.steps.shape:
            raise ParameterError("epsilon", self.epsilon.shape, f"of shape {self.steps.shape}")
        if self.values.ndim != 2 or self.values.shape[1:] != self.steps.shape or not len(self.values):
            raise ParameterError("values", self.values.shape, f"of shape (runs, {len(self.steps)})")

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean over the runs."""
        return np.asarray(self.values.mean(0))

    @property
    def spread(self) -> NDArray[np.float64]:
        """Standard deviation over the runs, with n - 1 in the denominator; 0 for one run."""
        return np.asarray(self.values.std(0, ddof=1)) if len(self.values) > 1 else np.zeros(len(self.steps))

    @property
    def shown(self) -> NDArray[np.float64]:
        """The values as the metric shows them: shares in per cent."""
        return self.metric.factor * self.values

    def reaches(self, target: float) -> float | None:
        """Where the mean, linear between the steps, is first as good as the target; None if it never is."""
        sign = 1.0 if self.metric.larger_is_better else -1.0
        return first_crossing(self.steps, sign * self.mean, sign * target)


@dataclass(frozen=True)
class Speedup:
    """One row of the table.

    Attributes
    ----------
    step : int
        The milestone T.
    baseline, method : (float, float)
        Mean score at T, and its standard deviation over runs.
    steps_needed : float or None
        Step at which the method's mean, linear between evaluations, first is as good as the baseline's at T; None if
        it does not.
    speedup : float or None
        Share of the steps saved, 1 - steps_needed/T.
    epsilon_saved : float or None
        Δε: the baseline's ε at T less the method's at ``steps_needed``, linear between evaluations.
    """

    step: int
    baseline: tuple[float, float]
    method: tuple[float, float]
    steps_needed: float | None
    speedup: float | None
    epsilon_saved: float | None


def speedups(baseline: MetricCurve, method: MetricCurve, milestones: Sequence[int]) -> list[Speedup]:
    """The form of Table 1 of arXiv:2510.01137v3.

    Parameters
    ----------
    baseline, method : MetricCurve
        At the same steps.
    milestones : sequence of int
        Steps T out of these.

    Returns
    -------
    list of Speedup
        One for each milestone. A method that never gets there has None, not the last step: the paper does not say
        what it does then.

    Raises
    ------
    ParameterError
        If the steps differ or a milestone is none of them.

    Examples
    --------
    >>> slow = MetricCurve([10, 20], [1.0, 1.4], [[0.5, 0.7]])
    >>> fast = MetricCurve([10, 20], [1.0, 1.4], [[0.6, 0.8]])
    >>> (row,) = speedups(slow, fast, [20])
    >>> round(row.steps_needed, 2), round(row.speedup, 3), round(row.epsilon_saved, 3)
    (15.0, 0.25, 0.2)
    """
    if not np.array_equal(baseline.steps, method.steps):
        raise ParameterError("method.steps", method.steps.tolist(), "the steps of the baseline")
    rows = []
    for milestone in milestones:
        (place,) = np.nonzero(baseline.steps == milestone)
        if not len(place):
            raise ParameterError("milestones", milestone, f"out of {baseline.steps.astype(int).tolist()}")
        rows.append(_row(baseline, method, int(place[0])))
    return rows


@dataclass(frozen=True)
class NullSpeedup:
    """What `speedups` says of a method compared with itself.

    Attributes
    ----------
    step : int
        The milestone.
    mean, spread : float
        Of the speedups of one half of the runs over the other half; nan if neither half ever gets there.
    never : float
        Share of the comparisons in which the one half does not get to where the other was.
    """

    step: int
    mean: float
    spread: float
    never: float


def null_speedups(baseline: MetricCurve, milestones: Sequence[int]) -> list[NullSpeedup]:
    """The scale on which to read `speedups`: runs of the baseline against other runs of it.

    The first crossing of a curve that is noisy comes early, and one half of the runs may have been lucky. A speedup
    that does not stand out from these has shown nothing.

    Parameters
    ----------
    baseline : MetricCurve
        Of at least two runs; with an odd number, halves differ by one run.
    milestones : sequence of int
        As for `speedups`.

    Returns
    -------
    list of NullSpeedup
        One for each milestone, over all ways to halve the runs, either half first.

    Raises
    ------
    ParameterError
        If there is one run only, or a milestone is no step.

    Examples
    --------
    >>> curve = MetricCurve([10, 20], [1.0, 1.4], [[0.5, 0.7], [0.6, 0.8]])
    >>> (row,) = null_speedups(curve, [20])
    >>> round(row.mean, 3), row.never  # one is 5 steps ahead of the other, which never gets there
    (0.25, 0.5)
    """
    runs = range(len(baseline.values))
    if len(runs) < 2:
        raise ParameterError("baseline", len(runs), "a curve of at least two runs; runs")
    rows: dict[int, list[float | None]] = {milestone: [] for milestone in milestones}
    for chosen in combinations(runs, len(runs) // 2):
        halves = [list(chosen), [run for run in runs if run not in chosen]]
        first, other = (
            MetricCurve(baseline.steps, baseline.epsilon, baseline.values[half], baseline.metric) for half in halves
        )
        for one, two in ((first, other), (other, first)):
            for row in speedups(one, two, milestones):
                rows[row.step].append(row.speedup)
    return [_null_row(milestone, values) for milestone, values in rows.items()]


def _null_row(step: int, values: list[float | None]) -> NullSpeedup:
    reached = [value for value in values if value is not None]
    mean = float(np.mean(reached)) if reached else math.nan
    spread = float(np.std(reached)) if reached else math.nan
    return NullSpeedup(step, mean, spread, 1 - len(reached) / len(values))


def _row(baseline: MetricCurve, method: MetricCurve, place: int) -> Speedup:
    milestone = float(baseline.steps[place])
    needed = method.reaches(float(baseline.mean[place]))
    saved = None
    if needed is not None:
        saved = float(baseline.epsilon[place] - np.interp(needed, method.steps, method.epsilon))
    return Speedup(
        step=int(milestone),
        baseline=(float(baseline.mean[place]), float(baseline.spread[place])),
        method=(float(method.mean[place]), float(method.spread[place])),
        steps_needed=needed,
        speedup=None if needed is None else 1 - needed / milestone,
        epsilon_saved=saved,
    )


def first_crossing(steps: NDArray[np.float64], values: NDArray[np.float64], target: float) -> float | None:
    """Where the piecewise linear curve through the values first reaches the target.

    Returns
    -------
    float or None
        A step; the first one if the curve starts above the target. None if it never gets there.
    """
    (above,) = np.nonzero(values >= target)
    if not len(above):
        return None
    place = int(above[0])
    if place == 0:
        return float(steps[0])
    share = (target - values[place - 1]) / (values[place] - values[place - 1])
    return float(steps[place - 1] + share * (steps[place] - steps[place - 1]))
