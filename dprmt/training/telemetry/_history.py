"""From numbers of single steps to readings of a window, with intervals, and to advice on the learning rate."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dprmt._validation import ParameterError
from dprmt.spectra import (
    Estimate,
    UpdateProducts,
    best_rate_factor,
    displacement_factor,
    objective_change,
    signal_energy_over_steps,
    update_curvature,
)

WHOLE = "*"
ROWS = (
    "before",
    "after",
    "noise_before",
    "variance_before",
    "variance_after",
    "squared_response",
    "largest_response",
    "link",
    "squared_update",
)
_WARM_UP = 3  # steps after which the response of Adam has a finite variance
_CROSS = ROWS.index("link")


class History:
    """Statistics of the last steps by layer, and of the whole run so far.

    ``sizes``: number of entries of each layer, until the first gradient has its own. ``window``: steps of a reading.
    ``horizon``: approximate number of steps of the run. ``memory``: β of the optimizer's momentum.
    """

    def __init__(self, names: Sequence[str], sizes: Sequence[int], window: int, horizon: int, memory: float) -> None:
        self.names, self.sizes = list(names), list(sizes)
        self.horizon, self._memory = horizon, memory
        self.energies: deque[NDArray[np.float64]] = deque(maxlen=window)
        self.records: deque[NDArray[np.float64]] = deque(maxlen=window)
        self.zs: deque[float] = deque(maxlen=window)
        self._pilot: NDArray[np.float64] | None = None  # of the step before the window
        self.steps = 0  # records so far
        self._sums: NDArray[np.float64] | None = None  # of all steps of the curve
        self._first: NDArray[np.float64] | None = None  # the step before the curve

    def add_energy(self, squared_norms: NDArray[np.float64], sigma: float, sizes: Sequence[int]) -> None:
        """Count a noisy gradient of so many entries a layer; where these change, a window begins."""
        if list(sizes) != self.sizes:
            self.sizes = list(sizes)
            self.energies.clear()
        self.energies.append(squared_norms / sigma**2)

    def add_record(self, rows: NDArray[np.float64]) -> None:
        """Count an update whose next gradient has been seen: shape (rows, layers)."""
        if len(self.records) == self.records.maxlen:
            self._pilot = self.records[0]
        self.records.append(rows)
        self.steps += 1
        if self.steps < _WARM_UP:
            return
        if self._first is None:
            self._first = rows
            return
        self._sums = rows if self._sums is None else _joined(self._sums, rows)

    @property
    def begins(self) -> bool:
        """Whether the objective's curve begins where the parameters are now."""
        return self.steps == _WARM_UP and self._sums is None

    def signal_share(self, by_layer: bool) -> dict[str, Estimate]:
        """Estimate ‖g‖²/(‖g‖² + ds²) over the window."""
        S, n = np.sum(list(self.energies), axis=0), len(self.energies)
        S, d = np.append(S, S.sum()), np.array([*self.sizes, sum(self.sizes)], dtype=np.float64)
        found = signal_energy_over_steps(S, d, n)
        value, low, high = (_share(end, n * d) for end in (found.value, found.low, found.high))
        places = range(len(d)) if by_layer else [len(d) - 1]
        names = [*self.names, WHOLE]
        return {names[i]: Estimate(float(value[i]), float(low[i]), float(high[i])) for i in places}

    def rate(self) -> dict[str, Estimate]:
        """Return the factor by which updates of the window were too short, and the curvature they met, over ‖U‖²."""
        if len(self.records) < 2:
            return {}
        window = list(self.records)
        total = _whole(_sum(window))
        expected = _scaled(self._pilot if self._pilot is not None else window[0], len(window), self._memory)
        found = {"rate_factor": best_rate_factor(total, expected=expected)}
        length = float(sum(rows[ROWS.index("squared_update")].sum() for rows in window))
        if length > 0:
            found["curvature"] = update_curvature(total, expected=expected).scaled(1 / length)
        return found

    def change(self, failure: float = 0.05) -> Estimate | None:
        """Bound the change of the objective since the curve began, by a band that holds at all times simultaneously."""
        if self._sums is None or self._first is None:
            return None
        expected = _scaled(self._first, max(self.horizon - _WARM_UP, 1), self._memory)
        return objective_change(_whole(self._sums), failure=failure, expected=expected)

    def mean_z(self) -> float:
        """Sum of the window's z over the root of their number: standard normal where nothing falls or rises."""
        return math.nan if not self.zs else math.fsum(self.zs) / math.sqrt(len(self.zs))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints."""
        return {
            "sizes": _tensor(self.sizes),
            "energies": _tensor(list(self.energies)),
            "records": _tensor(list(self.records)),
            "zs": _tensor(list(self.zs)),
            "singles": {k: _tensor(v) for k, v in self._singles().items() if v is not None},
            "steps": self.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for name in ("energies", "records"):
            values = state[name].numpy()
            if len(values) and values.shape[-1] != len(self.names):
                raise ParameterError("state", values.shape[-1], f"a state of telemetry of {len(self.names)} parameters")
            kept: deque[Any] = getattr(self, name)
            kept.clear()
            kept.extend(values)
        if "sizes" in state:
            self.sizes = [int(size) for size in state["sizes"]]
        self.zs.clear()
        self.zs.extend(state["zs"].tolist())
        self.steps = int(state["steps"])
        singles = {name: value.numpy() for name, value in state["singles"].items()}
        self._pilot, self._sums, self._first = (singles.get(name) for name in ("pilot", "sums", "first"))

    def _singles(self) -> dict[str, NDArray[np.float64] | None]:
        return {"pilot": self._pilot, "sums": self._sums, "first": self._first}


def _share(energy: Any, noise: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(energy / (energy + noise), -1.0, 1.0)


def _joined(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    # Sums of consecutive steps; in the place of the link, all links but the first one's.
    total = first + second
    largest = ROWS.index("largest_response")
    total[largest] = np.maximum(first[largest], second[largest])
    return total


def _sum(window: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    # The link of the first step leads out of the window.
    total = np.sum(window, axis=0)
    total[ROWS.index("largest_response")] = np.max([rows[ROWS.index("largest_response")] for rows in window], axis=0)
    total[_CROSS] -= window[0][_CROSS]
    return total


def _whole(rows: NDArray[np.float64]) -> UpdateProducts:
    # All layers together; rows hold inner links in the place of the link.
    values = dict(zip(ROWS, rows.sum(1).tolist(), strict=True))
    return UpdateProducts(
        steps=0,
        before=values["before"],
        after=values["after"],
        noise_before=values["noise_before"],
        variance_before=values["variance_before"],
        variance_after=values["variance_after"],
        squared_response=values["squared_response"],
        largest_response=float(rows[ROWS.index("largest_response")].max()),
        cross=values["link"],
    )


def _scaled(rows: NDArray[np.float64], steps: int, memory: float) -> UpdateProducts:
    """Sum this many steps like the present one, for updates that are noise with momentum or of the present length."""
    one = _whole(rows)
    variance = steps * max(float(one.variance_before), float(one.squared_response) / (1 - memory**2))
    return UpdateProducts(
        steps=steps,
        before=0.0,
        after=0.0,
        noise_before=0.0,
        variance_before=variance,
        variance_after=variance,
        squared_response=steps * one.squared_response,
        largest_response=one.largest_response,
        cross=memory * variance,
    )


def _tensor(values: Any) -> torch.Tensor:
    return torch.tensor(np.array(values, dtype=np.float64))


def advice(slope: float, deviation: float, change: Estimate, failure: float) -> dict[str, Any]:
    """Advise on the learning rate from the slope along all that was done and the objective's change (T6).

    ``failure`` belongs to the slope's interval. Factors within 10 % of 1 gain less than one part in a hundred of the
    decrease; a rate is about right if all of the interval is within a factor of 2.
    """
    half = -NormalDist().inv_cdf(failure / 2) * deviation
    factor = displacement_factor(Estimate(slope, slope - half, slope + half), change)
    value, low, high = float(factor.value), float(factor.low), float(factor.high)
    rate = "unknown"
    if low > 1 and value >= 1.1:
        rate = "too low"
    elif high < 1 and value <= 1 / 1.1:
        rate = "too high"
    elif low >= 0.5 and high <= 2:
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
