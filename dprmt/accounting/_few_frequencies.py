r"""δ after many numbers of equal steps from a few frequencies of one step's loss: (F4) of the theory, §6.

After tilting, the loss of T steps is smooth on the FFT's window, so all but some dozen of its frequencies vanish.
Those are powers of one step's, and δ(ε) is a sum of them with weights in closed form: no inverse transform.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting._composition import Window, log_kappa, tilted_transform, window_of
from dprmt.accounting._discretization import LossPMF
from dprmt.accounting._types import Array

_EPS = float(np.finfo(np.float64).eps)
_MOST_POINTS = 2**21
_MOST_FREQUENCIES = 2**12
_LOG_NOTHING = -48.0
_NEWTON, _DOUBLINGS, _BISECTIONS = 12, 16, 48
_CLOSE, _AT_REST = 1e-13, 1e-9
_MARGINS = (1e-12, 1e-10, 1e-8)  # of ε; tried in turn until the bound holds where it is evaluated


class TooManyFrequenciesError(ValueError):
    """The loss of the fewest steps is too rough for a sum of frequencies."""


class FewFrequencies:
    """Bounds on δ(ε) of a discrete loss composed with itself, for many numbers of steps at once.

    ``counts``: numbers of steps, a float array; ``tilt`` > 0. ``window``: that of the FFT, if known.
    """

    def __init__(self, pmf: LossPMF, counts: Array, tilt: float, window: Window | None = None) -> None:
        self.counts, self.tilt, self.mesh = counts, tilt, pmf.mesh
        window = window or Window(*window_of(pmf, int(counts.min()), int(counts.max()), tilt))
        self.first, self.size = window.first, window.size
        if self.size > _MOST_POINTS:
            raise TooManyFrequenciesError
        one = tilted_transform(pmf, tilt, self.size)
        self.log_scale = counts * one.log_scale
        self.infinite = -np.expm1(counts * np.log1p(-min(pmf.infinite, 1.0 - _EPS)))
        self._choose(one.values)
        kappa = float(np.exp(log_kappa(np.asarray(tilt))))
        self.error = kappa * one.misplaced(counts) + self._rounding() + self.left_out

    def _choose(self, transform: Array) -> None:
        """Keep the frequencies that matter for the fewest steps, and bound what the others add (F4)."""
        unit = 8 * _EPS * float(np.log2(self.size))
        fewest = float(self.counts.min())
        least = np.exp(_LOG_NOTHING / fewest)
        seen = transform.real**2 + transform.imag**2 > (least - unit) ** 2 * (1.0 - 8 * _EPS)
        seen |= least <= unit
        frequency = np.flatnonzero(seen)
        if frequency.size > _MOST_FREQUENCIES:
            raise TooManyFrequenciesError
        twice = np.where((frequency == 0) | (2 * frequency == self.size), 1.0, 2.0)
        self.frequency, self.share = frequency, twice / self.size
        self.unit, self.modulus = unit, np.abs(transform[seen]) + unit
        with np.errstate(divide="ignore"):
            self.log_transform = np.log(transform[seen])
        self.plain, self.weighted = (self._one_less(tilt, frequency) for tilt in (self.tilt, 1.0 + self.tilt))
        rest = int(np.argmin(seen))
        self.left_out = 0.0 if seen[rest] else 2.5 * np.exp(_LOG_NOTHING) * self._largest_weight(rest)

    def _largest_weight(self, lowest: int) -> float:
        """Bound on Σ 1/|1 - e^{-τ·mesh + iω}| over both τ = tilt, 1 + tilt at any frequency from ``lowest`` on."""
        rates = self.mesh * np.array([self.tilt, 1.0 + self.tilt])
        apart = 2.0 * np.exp(-rates / 2) * np.sin(np.pi * lowest / self.size)  # |1 - e^{-a + iω}|² = (1 - e^{-a})² + …
        return float(np.sum(1.0 / np.maximum(-np.expm1(-rates), apart)))

    def _one_less(self, tilt: float, frequency: Array) -> Array:
        """1 - e^{-tilt·mesh + iω}, without cancellation."""
        value: Array = -np.expm1(-tilt * self.mesh + 2j * np.pi * frequency / self.size)
        return value

    def _rounding(self) -> Array:
        """Bound on the error of transform, powers and sums, at each number of steps (F4)."""
        sizes = self.share * (1.0 / np.abs(self.plain) + 1.0 / np.abs(self.weighted))
        counts = self.counts[:, None]
        log_modulus = np.log(self.modulus)
        relative = 2 * counts * self.unit / self.modulus + 8 * _EPS * (10.0 + counts * np.abs(self.log_transform))
        value: Array = 2.0 * np.sum(np.exp(counts * log_modulus) * relative * sizes, axis=1)
        return value

    def powers(self, rows: Array) -> Array:
        """The transforms of the loss after ``counts[rows]`` steps, with the frequencies' shares of a mass."""
        value: Array = np.exp(self.counts[rows, None] * self.log_transform) * self.share
        return value

    def parts(self, powers: Array, epsilon: Array) -> tuple[Array, Array]:
        """δ(ε) = e^{log_scale - tilt·ε}(A - B) of the finite losses; A and B = -(its slope), row by row."""
        index = np.maximum(np.floor(epsilon / self.mesh).astype(np.int64) + 1, self.first)
        place = (index[:, None] * self.frequency) % self.size
        turned = powers * np.exp(2j * np.pi / self.size * place)
        folded = powers * np.exp(2j * np.pi / self.size * ((self.first * self.frequency) % self.size))
        near = index * self.mesh - epsilon
        far = (self.first + self.size) * self.mesh - epsilon
        inside = index < self.first + self.size
        sums = []
        for tilt, one_less in ((self.tilt, self.plain), (1.0 + self.tilt, self.weighted)):
            above = np.exp(-tilt * near) * (turned / one_less).real.sum(axis=1)
            beyond = np.exp(-tilt * np.maximum(far, 0.0)) * (folded / one_less).real.sum(axis=1)
            sums.append(np.where(inside, above - beyond, 0.0))
        return sums[0], sums[1]

    def epsilon_bound(self, delta: float, upper: bool, floor: float = 0.0) -> Array:
        """For every number of steps an ε ≥ ``floor`` that bounds the one at ``delta`` from above, or below.

        Returns: ∞, or the floor, where none is found.
        """
        sign = 1.0 if upper else -1.0
        rows = np.flatnonzero(self.infinite < delta)
        found = np.full(self.counts.size, np.inf if upper else floor)
        chunk = max(2**18 // self.frequency.size, 1)
        for start in range(0, rows.size, chunk):
            part = rows[start : start + chunk]
            found[part] = self._certified(part, delta, sign, floor)
        return found

    def _certified(self, rows: Array, delta: float, sign: float, floor: float) -> Array:
        powers = self.powers(rows)
        # From below, infinite losses are none: what falls beyond the nodes was moved down.
        room = np.log(delta - self.infinite[rows]) if sign > 0 else np.full(rows.size, np.log(delta))
        answer = np.full(rows.size, np.inf if sign > 0 else floor)
        root, rough = self._root(rows, powers, room, sign, floor)
        todo = np.flatnonzero(~rough)
        for margin in _MARGINS:
            moved = root[todo] + sign * margin * np.maximum(1.0, np.abs(root[todo]))
            at = np.where(root[todo] <= floor, floor, np.maximum(moved, floor))
            holds = self._holds(rows[todo], powers[todo], room[todo], at, sign)
            answer[todo[holds]] = at[holds]
            todo = todo[~holds]
            if not todo.size:
                break
        rough[todo] = True
        if np.any(rough):
            answer[rough] = self._bisected(rows[rough], powers[rough], room[rough], sign, floor)
        return answer

    def _holds(self, rows: Array, powers: Array, room: Array, epsilon: Array, sign: float) -> NDArray[np.bool_]:
        """Whether the bound on log δ is on the safe side of ``room`` for certain."""
        value: NDArray[np.bool_] = sign * (self.log_delta(rows, powers, epsilon, sign)[0] - room) <= 0
        return value

    def _bisected(self, rows: Array, powers: Array, room: Array, sign: float, floor: float) -> Array:
        """Where Newton's method fails: slower, from Chernoff's bound on, for far from there the error is too large."""
        start = self._chernoff(rows, room, floor)
        at_start = self._holds(rows, powers, room, start, sign)
        direction = np.where(at_start, -sign, sign)
        near, far, turned = start, start, np.zeros(rows.size, dtype=np.bool_)
        for exponent in range(-1, _DOUBLINGS):
            next_one = np.clip(start + direction * 2.0**exponent / self.tilt, floor, self._top(floor))
            near, far = np.where(turned, near, far), np.where(turned, far, next_one)
            turned |= self._holds(rows, powers, room, far, sign) != at_start
            if np.all(turned):
                break
        good, bad = np.where(at_start, near, far), np.where(at_start, far, near)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (good + bad)
            holds = self._holds(rows, powers, room, middle, sign)
            good, bad = np.where(holds, middle, good), np.where(holds, bad, middle)
        found = self._holds(rows, powers, room, good, sign)
        return np.where(found, good, np.inf if sign > 0 else floor)

    def _top(self, floor: float) -> float:
        return max((self.first + self.size) * self.mesh, floor)

    def _chernoff(self, rows: Array, room: Array, floor: float) -> Array:
        """Chernoff's bound on ε."""
        kappa = float(log_kappa(np.asarray(self.tilt)))
        value: Array = np.clip((self.log_scale[rows] + kappa - room) / self.tilt, floor, self._top(floor))
        return value

    def log_delta(self, rows: Array, powers: Array, epsilon: Array, sign: float) -> tuple[Array, Array]:
        """Logarithm of a bound on δ(ε) without infinite losses, and its slope."""
        plain, weighted = self.parts(powers, epsilon)
        value = np.maximum(plain - weighted, 0.0) + sign * self.error[rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.where(value > 0, np.log(np.maximum(value, 1e-300)), -np.inf)
            slope = -np.maximum(weighted, 0.0) / value
        return log + self.log_scale[rows] - self.tilt * epsilon, slope

    def _root(
        self, rows: Array, powers: Array, room: Array, sign: float, floor: float
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Newton's method on log δ, from Chernoff's bound down, and where it did not come to rest."""
        top = self._top(floor)
        epsilon = self._chernoff(rows, room, floor)
        for _ in range(_NEWTON):
            log, slope = self.log_delta(rows, powers, epsilon, sign)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = (log - room) / slope
            step = np.where(np.isfinite(step), step, 1.0 / self.tilt)
            moved = np.clip(epsilon - step, floor, top)
            distance, epsilon = np.abs(moved - epsilon), moved
            if np.all(distance <= _CLOSE * np.maximum(np.abs(epsilon), 1.0)):
                break
        return epsilon, distance > _AT_REST * np.maximum(np.abs(epsilon), 1.0)
