r"""δ after many numbers of equal steps from a few frequencies of one step's loss: (F4) of the theory, §6.

After tilting, the loss of T steps is smooth on the FFT's window, so all but some dozen of its frequencies vanish.
Those are powers of one step's, and δ(ε) is a sum of them with weights in closed form: no inverse transform.
"""

from __future__ import annotations

import numpy as np

from dprmt.accounting._composition import log_kappa, tilted_transform, window_of
from dprmt.accounting._discretization import LossPMF
from dprmt.accounting._types import Array

_EPS = float(np.finfo(np.float64).eps)
_MOST_POINTS = 2**21
_MOST_FREQUENCIES = 2**12
_LOG_NOTHING = -48.0
_NEWTON = 12
_CLOSE = 1e-13
_MARGINS = (1e-12, 1e-10, 1e-8)  # of ε; tried in turn until the bound holds where it is evaluated


class TooManyFrequenciesError(ValueError):
    """The loss of the fewest steps is too rough for a sum of frequencies."""


class FewFrequencies:
    """Bounds on δ(ε) of a discrete loss composed with itself, for many numbers of steps at once.

    ``counts``: numbers of steps, a float array; ``tilt`` > 0.
    """

    def __init__(self, pmf: LossPMF, counts: Array, tilt: float) -> None:
        self.counts, self.tilt, self.mesh = counts, tilt, pmf.mesh
        self.first, self.size = window_of(pmf, int(counts.min()), int(counts.max()), tilt)
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
        modulus = np.abs(transform) + unit
        log_power = float(self.counts.min()) * np.log(modulus)
        seen = log_power > _LOG_NOTHING
        if np.count_nonzero(seen) > _MOST_FREQUENCIES:
            raise TooManyFrequenciesError
        every = np.arange(transform.size)
        frequency = every[seen]
        twice = np.where((frequency == 0) | (2 * frequency == self.size), 1.0, 2.0)
        self.frequency, self.share = frequency, twice / self.size
        self.unit, self.modulus = unit, modulus[seen]
        with np.errstate(divide="ignore"):
            self.log_transform = np.log(transform[seen])
        self.plain, self.weighted = (self._one_less(tilt, frequency) for tilt in (self.tilt, 1.0 + self.tilt))
        rest = every[~seen]
        sizes = sum(1.0 / np.abs(self._one_less(tilt, rest)) for tilt in (self.tilt, 1.0 + self.tilt))
        self.left_out = 4.0 / self.size * float(np.sum(np.exp(log_power[~seen]) * sizes)) if rest.size else 0.0

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

    def epsilon_bound(self, delta: float, upper: bool) -> Array:
        """For every number of steps an ε ≥ 0 that bounds the one at ``delta`` from above, or below.

        Returns: ∞, or 0, where none is found.
        """
        sign = 1.0 if upper else -1.0
        nothing = np.inf if upper else 0.0
        rows = np.flatnonzero(self.infinite < delta)
        found = np.full(self.counts.size, nothing)
        chunk = max(2**18 // self.frequency.size, 1)
        for start in range(0, rows.size, chunk):
            part = rows[start : start + chunk]
            found[part] = self._certified(part, delta, sign, nothing)
        return found

    def _certified(self, rows: Array, delta: float, sign: float, nothing: float) -> Array:
        powers = self.powers(rows)
        # From below, infinite losses are none: what falls beyond the nodes was moved down.
        room = np.log(delta - self.infinite[rows]) if sign > 0 else np.full(rows.size, np.log(delta))
        root = self._root(rows, powers, room, sign)
        answer = np.full(rows.size, nothing)
        for margin in _MARGINS:
            at = np.maximum(root + sign * margin * np.maximum(1.0, root), 0.0)
            holds = sign * (self._log_delta(rows, powers, at, sign)[0] - room) <= 0
            better = holds & ~(sign * answer <= sign * at) if sign > 0 else holds & (answer < at)
            answer = np.where(better, at, answer)
        return answer

    def _log_delta(self, rows: Array, powers: Array, epsilon: Array, sign: float) -> tuple[Array, Array]:
        """Logarithm of a bound on δ(ε) without infinite losses, and its slope."""
        plain, weighted = self.parts(powers, epsilon)
        value = np.maximum(plain - weighted, 0.0) + sign * self.error[rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.where(value > 0, np.log(np.maximum(value, 1e-300)), -np.inf)
            slope = -np.maximum(weighted, 0.0) / value
        return log + self.log_scale[rows] - self.tilt * epsilon, slope

    def _root(self, rows: Array, powers: Array, room: Array, sign: float) -> Array:
        """Newton's method on log δ, from Chernoff's bound down; any result will do, for it is checked."""
        kappa = float(log_kappa(np.asarray(self.tilt)))
        top = max((self.first + self.size) * self.mesh, 0.0)
        epsilon = np.clip((self.log_scale[rows] + kappa - room) / self.tilt, 0.0, top)
        for _ in range(_NEWTON):
            log, slope = self._log_delta(rows, powers, epsilon, sign)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = (log - room) / slope
            step = np.where(np.isfinite(step), step, 1.0 / self.tilt)
            epsilon = np.clip(epsilon - step, 0.0, top)
            if np.all(np.abs(step) <= _CLOSE * np.maximum(epsilon, 1.0)):
                break
        return epsilon
