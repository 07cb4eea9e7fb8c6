"""Rows of measured values with their intervals: exact ones, means over seeds, shares of trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paper_figures._reproduction import Row
from paper_figures._verdict import mean_interval, share_interval

ABOVE_ZERO = (math.ulp(0.0), math.inf)
BELOW_ZERO = (-math.inf, -math.ulp(0.0))
"""Ranges of statements about a sign."""


def exact_row(label: str, value: float, **against: Any) -> Row:
    """Of what is computed, not estimated; ``against`` are a row's ``published`` and ``margin``, or claim and range."""
    return Row(label, float(value), interval=(float(value), float(value)), **against)


def mean_row(label: str, values: Sequence[float] | np.ndarray, **against: Any) -> Row:
    """Of independent values, a seed each, with Student's interval of 95 %."""
    interval = mean_interval(values)
    return Row(label, float(np.mean(values)), interval=(interval.low, interval.high), **against)


def share_row(label: str, hits: Sequence[bool] | np.ndarray, **against: Any) -> Row:
    """Of trials, with the exact interval of 95 %; of none nothing is known."""
    interval = share_interval(int(np.sum(hits)), len(hits))
    share = float(np.mean(hits)) if len(hits) else math.nan
    return Row(label, share, interval=(interval.low, interval.high), **against)
