r"""δ after many numbers of equal steps from a few frequencies of one step's loss: (F4) of the theory, §6.

After tilting, the loss of T steps is smooth on the FFT's window, so all but some dozen of its frequencies vanish.
Those are powers of one step's, and δ(ε) is a sum of them with weights in closed form: no inverse transform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics import Array, Side
from dprmt.accounting.composition._composed_loss import (
    TiltedLaw,
    Window,
    log_kappa,
    tilted_law,
    window_of,
)
from dprmt.accounting.composition._long_window import low_frequencies, number_that_matters
from dprmt.accounting.pairs import LossPMF

_EPS = float(np.finfo(np.float64).eps)
_MOST_POINTS = 2**21
_LONGEST = 2**40  # points, that products with the number of frequencies are exact
_MOST_FREQUENCIES = 2**12
_LOG_NOTHING = -48.0
_NEWTON, _DOUBLINGS, _BISECTIONS = 12, 16, 48
_CLOSE, _AT_REST = 1e-13, 1e-9
_OF_AN_OFFSET = 1e-15  # relative rounding of adding one
_MARGINS = (1e-12, 1e-10, 1e-8)  # of ε; tried in turn until the bound holds where it is evaluated


class TooManyFrequenciesError(ValueError):
    """The loss of the fewest steps is too rough for a sum of frequencies."""


@dataclass(frozen=True)
class Terms:
    """Terms of the sum that is δ(ε), one row for each number of steps.

    Attributes
    ----------
    plain, weighted : ndarray of complex, shape (m, K)
        The frequencies' parts of the two geometric sums (F4).
    plain_beyond, weighted_beyond : ndarray, shape (m,)
        The same sums from the window's end on.
    log_scale, error : ndarray, shape (m,)
        The tilted mass' logarithm; what is charged, in units of that.
    """

    plain: Array
    weighted: Array
    plain_beyond: Array
    weighted_beyond: Array
    log_scale: Array
    error: Array

    def __getitem__(self, rows: NDArray[np.int64]) -> Terms:
        return Terms(*(getattr(self, part.name)[rows] for part in fields(self)))


@dataclass(frozen=True)
class Asked:
    """Which ε is asked for: the smallest one that certainly suffices (``sign`` 1), or the largest that does not (-1).

    ``room``: log δ of the finite losses, one for each row. ``floor``: no smaller ε is of interest.
    ``nothing``: what holds always.
    """

    terms: Terms
    room: Array
    sign: float
    floor: float
    nothing: float

    def __getitem__(self, rows: NDArray[np.int64]) -> Asked:
        if rows.size == self.room.size:
            return self
        return replace(self, terms=self.terms[rows], room=self.room[rows])


class FewFrequencies:
    """Bounds on δ(ε) of a discrete loss composed with itself, for many numbers of steps at once.

    ``counts``: numbers of steps, a float array; ``tilt`` > 0. ``window``: that of the FFT, if known.
    """

    def __init__(self, pmf: LossPMF, counts: Array, tilt: float, window: Window | None = None) -> None:
        self.counts, self.tilt, self.mesh = counts, tilt, pmf.mesh
        self.table: Array | None = None
        window = window or Window(*window_of(pmf, int(counts.min()), int(counts.max()), tilt))
        self.first, self.size = window.first, window.size
        self.end = (self.first + self.size) * self.mesh
        self.infinite = -np.expm1(counts * np.log1p(-min(pmf.infinite, 1.0 - _EPS)))
        self.center, self.unit = 0, np.zeros(1)
        is_long = self.size > _MOST_POINTS
        one = tilted_law(pmf, tilt, two_sided=is_long and pmf.two_sided)
        if is_long:
            self._on_a_long_window(one)
        else:
            self._choose(one.transform(self.size))
        self.log_scale = counts * one.log_scale
        # 1 - e^{-τ·mesh + iω} for τ = tilt, 1 + tilt, without cancellation.
        turn = 2j * np.pi * self.frequency / self.size
        self.plain, self.weighted = (-np.expm1(-rate * self.mesh + turn) for rate in (tilt, 1.0 + tilt))
        kappa = float(np.exp(log_kappa(np.asarray(tilt))))
        self.error = kappa * one.misplaced(counts) + self._rounding(kappa) + self.left_out

    def _on_a_long_window(self, one: TiltedLaw) -> None:
        """Frequency by frequency (F6); worth it for one number of very many steps."""
        number = self.size
        if self.counts.size == 1 and self.size < _LONGEST:
            number = number_that_matters(one.index, one.weights, self.size, _LOG_NOTHING / float(self.counts[0]))
        if number > _MOST_FREQUENCIES:
            raise TooManyFrequenciesError
        low = low_frequencies(one.index, one.weights, self.size, number)
        self.frequency = np.arange(number, dtype=np.int64)
        self.share = np.where(self.frequency == 0, 1.0, 2.0) / self.size
        self.center, self.log_transform, self.unit = low.center, low.log_transform, low.error
        self.modulus = np.exp(low.log_transform.real) + low.error
        self.left_out = 2.5 * np.exp(_LOG_NOTHING) * self._largest_weight(number)

    def _choose(self, transform: Array) -> None:
        """Keep the frequencies that matter for the fewest steps, and bound what the others add (F4)."""
        unit = 8 * _EPS * float(np.log2(self.size))
        fewest = float(self.counts.min())
        least = np.exp(_LOG_NOTHING / fewest)
        seen = transform.real**2 + transform.imag**2 > (least - unit) ** 2 * (1.0 - 8 * _EPS)
        seen |= least <= unit
        frequency = np.flatnonzero(seen).astype(np.int64)  # whose multiples 32 bits do not hold
        if frequency.size > _MOST_FREQUENCIES:
            raise TooManyFrequenciesError
        twice = np.where((frequency == 0) | (2 * frequency == self.size), 1.0, 2.0)
        self.frequency, self.share = frequency, twice / self.size
        self.unit, self.modulus = np.array([unit]), np.abs(transform[seen]) + unit
        with np.errstate(divide="ignore"):
            self.log_transform = np.log(transform[seen])
        rest = int(np.argmin(seen))
        self.left_out = 0.0 if seen[rest] else 2.5 * np.exp(_LOG_NOTHING) * self._largest_weight(rest)

    def _largest_weight(self, lowest: int) -> float:
        """Bound on Σ 1/|1 - e^{-τ·mesh + iω}| over both τ = tilt, 1 + tilt at any frequency from ``lowest`` on."""
        rates = self.mesh * np.array([self.tilt, 1.0 + self.tilt])
        apart = 2.0 * np.exp(-rates / 2) * np.sin(np.pi * lowest / self.size)  # |1 - e^{-a + iω}|² = (1 - e^{-a})² + …
        return float(np.sum(1.0 / np.maximum(-np.expm1(-rates), apart)))

    def _rounding(self, kappa: float) -> Array:
        """Bound on the error of transform, powers and sums, at each number of steps (F4)."""
        sizes = self.share * (1.0 / np.abs(self.plain) + 1.0 / np.abs(self.weighted))
        counts = self.counts[:, None]
        power = np.exp(counts * np.log(self.modulus))
        of_powers = power * counts * (2 * self.unit / self.modulus + 8 * _EPS * np.abs(self.log_transform))
        # As an error of the tilted law, in 1-norm, or of each frequency's part of δ.
        of_law = kappa * np.sqrt(np.sum(of_powers**2, axis=1))
        value: Array = 2.0 * (np.minimum(of_law, of_powers @ sizes) + 80 * _EPS * (power @ sizes))
        return value

    def terms(self, rows: NDArray[np.int64]) -> Terms:
        """The frequencies' parts of δ after ``counts[rows]`` steps."""
        powers = np.exp(self.counts[rows, None] * self.log_transform) * self.share
        if self.center:  # T times the centre, exactly
            moved = [int(count) * self.center % self.size for count in self.counts[rows].tolist()]
            place = np.array(moved, dtype=np.int64)[:, None] * self.frequency
            powers *= np.exp(-2j * np.pi / self.size * (place % self.size))
        folded = np.exp(-2j * np.pi / self.size * ((self.first % self.size * self.frequency) % self.size))
        plain, weighted = powers / self.plain, powers / self.weighted
        beyond = [part.view(np.float64) @ folded.view(np.float64) for part in (plain, weighted)]
        return Terms(plain, weighted, beyond[0], beyond[1], self.log_scale[rows], self.error[rows])

    def parts(self, terms: Terms, epsilon: Array) -> tuple[Array, Array]:
        """δ(ε) = e^{log_scale - tilt·ε}(A - B) of the finite losses; A and B = -(its slope), row by row."""
        place = np.clip(np.floor(epsilon / self.mesh) + 1, self.first, self.first + self.size)
        index = place.astype(np.int64)
        turn = (index[:, None] % self.size * self.frequency) % self.size
        if self.table is None and turn.size > self.size:
            self.table = np.exp(-2j * np.pi / self.size * np.arange(self.size, dtype=np.int64))
        turned = np.exp(-2j * np.pi / self.size * turn) if self.table is None else self.table[turn]
        near = np.maximum(index * self.mesh - epsilon, 0.0)
        far = np.maximum(self.end - epsilon, 0.0)
        inside = index < self.first + self.size
        # Re Σ part · conj(turned), row by row.
        sums = [
            np.einsum("ij,ij->i", part.view(np.float64), turned.view(np.float64))
            for part in (terms.plain, terms.weighted)
        ]
        plain = np.exp(-self.tilt * near) * sums[0]
        plain -= np.exp(-self.tilt * far) * terms.plain_beyond
        weighted = np.exp(-(1.0 + self.tilt) * near) * sums[1]
        weighted -= np.exp(-(1.0 + self.tilt) * far) * terms.weighted_beyond
        return np.where(inside, plain, 0.0), np.where(inside, weighted, 0.0)

    def epsilon_bound(self, delta: float, upper: bool, floor: float = 0.0) -> Array:
        """For every number of steps an ε ≥ ``floor`` that bounds the one at ``delta`` from above, or below.

        Returns: ∞, or the floor, where none is found.
        """
        rows = np.flatnonzero(self.infinite < delta)
        nothing = math.inf if upper else floor
        found = np.full(self.counts.size, nothing)
        chunk = max(2**16 // self.frequency.size, 1)
        for start in range(0, rows.size, chunk):
            part = rows[start : start + chunk]
            # From below, infinite losses are none: what falls beyond the nodes was moved down.
            room = np.log(delta - self.infinite[part]) if upper else np.full(part.size, np.log(delta))
            found[part] = self._certified(Asked(self.terms(part), room, 1.0 if upper else -1.0, floor, nothing))
        return found

    def _certified(self, asked: Asked) -> Array:
        root, rough = self._root(asked)
        answer, todo = np.full(root.size, asked.nothing), np.flatnonzero(~rough)
        for margin in _MARGINS:
            moved = root[todo] + asked.sign * margin * np.maximum(1.0, np.abs(root[todo]))
            at = np.where(root[todo] <= asked.floor, asked.floor, np.maximum(moved, asked.floor))
            holds = self._holds(asked[todo], at)
            answer[todo[holds]] = at[holds]
            todo = todo[~holds]
            if not todo.size:
                break
        rough[todo] = True
        if np.any(rough):
            answer[rough] = self._bisected(asked[np.flatnonzero(rough)])
        return answer

    def _holds(self, asked: Asked, epsilon: Array) -> NDArray[np.bool_]:
        """Whether the bound on log δ is on the safe side for certain."""
        log = self.log_delta(asked.terms, epsilon, asked.sign)[0]
        value: NDArray[np.bool_] = asked.sign * (log - asked.room) <= 0
        return value

    def _bisected(self, asked: Asked) -> Array:
        """Where Newton's method fails: slower, from Chernoff's bound on, for far from there the error is too large."""
        start = self._chernoff(asked)
        at_start = self._holds(asked, start)
        direction = np.where(at_start, -asked.sign, asked.sign)
        near, far, turned = start, start, np.zeros(start.size, dtype=np.bool_)
        for exponent in range(-1, _DOUBLINGS):
            next_one = np.clip(start + direction * 2.0**exponent / self.tilt, asked.floor, max(self.end, asked.floor))
            near, far = np.where(turned, near, far), np.where(turned, far, next_one)
            turned |= self._holds(asked, far) != at_start
            if np.all(turned):
                break
        good, bad = np.where(at_start, near, far), np.where(at_start, far, near)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (good + bad)
            holds = self._holds(asked, middle)
            good, bad = np.where(holds, middle, good), np.where(holds, bad, middle)
        return np.where(self._holds(asked, good), good, asked.nothing)

    def _chernoff(self, asked: Asked) -> Array:
        """Chernoff's bound on ε."""
        kappa = float(log_kappa(np.asarray(self.tilt)))
        epsilon = (asked.terms.log_scale + kappa - asked.room) / self.tilt
        value: Array = np.clip(epsilon, asked.floor, max(self.end, asked.floor))
        return value

    def log_delta(self, terms: Terms, epsilon: Array, sign: float) -> tuple[Array, Array]:
        """Logarithm of a bound on δ(ε) without infinite losses, and its slope."""
        plain, weighted = self.parts(terms, epsilon)
        value = np.maximum(plain - weighted, 0.0) + sign * terms.error
        with np.errstate(divide="ignore", invalid="ignore"):
            log = np.where(value > 0, np.log(np.maximum(value, 1e-300)), -np.inf)
            slope = -np.maximum(weighted, 0.0) / value
        return log + terms.log_scale - self.tilt * epsilon, slope

    def _root(self, asked: Asked) -> tuple[Array, NDArray[np.bool_]]:
        """Newton's method on log δ, from Chernoff's bound down, and where it did not come to rest."""
        top, root = max(self.end, asked.floor), self._chernoff(asked)
        rough = np.ones(root.size, dtype=np.bool_)
        todo, part = np.arange(root.size, dtype=np.int64), asked
        for _ in range(_NEWTON):
            log, slope = self.log_delta(part.terms, root[todo], asked.sign)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = (log - part.room) / slope
            step = np.where(np.isfinite(step), step, 1.0 / self.tilt)
            moved = np.clip(root[todo] - step, asked.floor, top)
            distance = np.abs(moved - root[todo]) / np.maximum(np.abs(moved), 1.0)
            root[todo], rough[todo] = moved, distance > _AT_REST
            moving = np.flatnonzero(distance > _CLOSE)
            if not moving.size:
                break
            if 2 * moving.size < todo.size:
                todo, part = todo[moving], part[moving]
        return root, rough


class SmoothCurve:
    """δ(ε) of many equal steps on one side, asked as a :class:`DeltaCurve` is; the other side is trivial.

    ``offset``: what has to be added to the loss of all steps.
    """

    def __init__(self, loss: FewFrequencies, offset: float, side: Side) -> None:
        self.loss, self.offset, self.side = loss, offset, side
        self.terms = loss.terms(np.zeros(1, dtype=np.int64))
        self.infinite = float(loss.infinite[0])

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """As :meth:`DeltaCurve.delta_bounds`."""
        sign = 1.0 if self.side == "upper" else -1.0
        at = epsilon - self.offset - sign * _OF_AN_OFFSET * (abs(epsilon) + abs(self.offset))
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
        return max(found + self.offset + sign * _OF_AN_OFFSET * (abs(found) + abs(self.offset)), 0.0)


def smooth_curve(
    laws: Sequence[tuple[LossPMF, int]], tilt: float, window: Window, offset: float, side: Side
) -> SmoothCurve | None:
    """δ(ε) by few frequencies; None where the loss of all steps is too rough for that, or steps differ."""
    if len(laws) > 1:
        return None
    ((law, steps),) = laws
    try:
        return SmoothCurve(FewFrequencies(law, np.array([float(steps)]), tilt, window), offset, side)
    except TooManyFrequenciesError:
        return None
