r"""One step with public probes in which a sample is replaced: (N11) of ``docs/theory/neighbours.md``.

The worst case is opposite gradients of rank one with equal squared-norm ratios X and X'. Different ratios make
gradients less opposite, since E(X - X')² ≤ (4/k) sin²θ, and that loses more than it gains. The part that the proof
does not cover is charged, ratio by ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc, ndtr

from dprmt.accounting.basics._numbers import LEAST_DELTA, Array
from dprmt.accounting.laws._gamma_mixture import GammaMixture, NormRatioBins
from dprmt.accounting.pairs._exact_replacement import replacement_thresholds
from dprmt.accounting.pairs._pairs import LARGE_LOSS, AtomicPair, PublicPair, interval_masses
from dprmt.accounting.pairs._tight_pair import spaced_from_zero, symmetric_pair

Places: TypeAlias = NDArray[np.int64]

_PIECES = 48  # intervals of losses with one multiplier β each, of ratios, and of each side of a box of densities


def expected_below(x: Array, probes: int) -> Array:
    """Compute E(x - X)₊, which is ∫₀ˣ P(X ≤ y) dy."""
    law = GammaMixture((probes,))
    value: Array = np.maximum(x * law.cdf(x) - law.partial_mean(x), 0.0)
    return value


def expected_above(x: Array, probes: int) -> Array:
    """Compute E(X - x)₊."""
    half = probes / 2
    value: Array = np.maximum(gammaincc(half + 1.0, half * x) - x * gammaincc(half, half * x), 0.0)
    return value


def replaced_by_opposites(
    law: NormRatioBins, probes: int, noise_multiplier: float, sample_rate: float, tail: float, number: int
) -> AtomicPair:
    """Return a pair that dominates two samples whose norms ``probes`` public Gaussian probes estimate.

    ``law``: χ²(k)/k in bins. ``tail``: P-mass at losses that need not be resolved; ``number``: of losses.
    """
    x, mass = law.spread(equal_ratios_convex_from(noise_multiplier))
    losses = _losses(1.0 / (noise_multiplier * np.sqrt(x)), mass, noise_multiplier, sample_rate, tail, number)
    curve, _ = opposite_curve(losses, x, mass, law.below, probes, noise_multiplier, sample_rate)
    return symmetric_pair(losses, curve)


def opposites_below(
    law: NormRatioBins, noise_multiplier: float, sample_rate: float, tail: float, number: int
) -> AtomicPair:
    """Return a pair that opposite gradients with equal ratios dominate: outcomes of about one loss are one."""
    x, mass = law.concentrate(equal_ratios_convex_from(noise_multiplier))
    shift = np.maximum(1.0 / (noise_multiplier * np.sqrt(x)), 1e-9)
    losses = _losses(shift, mass, noise_multiplier, sample_rate, tail, number)
    threshold = replacement_thresholds(losses[:, None], shift, sample_rate)
    ends = np.concatenate([threshold, np.full((1, shift.size), np.inf)])
    plain = (1.0 - sample_rate) * interval_masses(ends)
    p = (plain + sample_rate * interval_masses(ends - shift)) @ mass
    q = (plain + sample_rate * interval_masses(ends + shift)) @ mass
    seen = np.minimum(p, q) > LEAST_DELTA  # leaving out lighter outcomes is safe from below
    p, q = p[seen], q[seen]
    both = np.log(p / q)
    return AtomicPair(np.concatenate([-both[::-1], both]), np.concatenate([q[::-1], p]), 0.0)


def _losses(shift: Array, mass: Array, noise_multiplier: float, sample_rate: float, tail: float, number: int) -> Array:
    """Space losses from 0 on, denser where they are small."""
    high = PublicPair(np.maximum(shift, 1e-9), mass, sample_rate).loss_range(tail)[1]
    high += min(-math.log1p(-sample_rate) if sample_rate < 1.0 else math.inf, high)
    scale = min(2 * sample_rate * math.sqrt(math.expm1(min(noise_multiplier**-2.0, 50.0))), 1.0)
    return spaced_from_zero(scale, min(high, LARGE_LOSS), number)


def equal_ratios_convex_from(noise_multiplier: float) -> float:
    """Return 1/(3σ²): right of it h of two equal ratios is convex in their value (N12)."""
    return 1.0 / (3.0 * noise_multiplier**2)


def opposite_curve(
    losses: Array, x: Array, mass: Array, below: float, probes: int, noise_multiplier: float, sample_rate: float
) -> tuple[Array, Array]:
    """Bound H_{e^l} of a replacement from above at increasing losses l ≥ 0, under every coupling and for all spectra.

    ``x``, ``mass``: the law of ``probes``, spread outward for functions that are convex right of 1/(3σ²). ``below``:
    its probability of ratios smaller than all of ``x``. The result is the curve, and its charge beyond opposite
    gradients with equal ratios.
    """
    bend_free = 3.0 / (4.0 * noise_multiplier**2)  # both potentials are convex right of it
    if x[-1] < bend_free:
        more = np.geomspace(x[-1], bend_free, _PIECES)[1:]
        x, mass = np.append(x, more), np.append(mass, np.zeros(more.size))
    shift = 1.0 / (noise_multiplier * np.sqrt(x))
    equal = _EqualRatios.at(losses, shift, sample_rate)
    charged = equal.bent(x, shift, probes, noise_multiplier) + below
    start = np.unique(np.round(losses.size * np.linspace(0.0, 1.0, _PIECES + 1) ** 2).astype(np.int64))[:-1]
    parts = np.split(losses, start[1:])
    ends = np.array([[part[0], part[-1]] for part in parts])
    charged += np.repeat(
        _coupling(ends, float(x[0]), probes, noise_multiplier, sample_rate), [part.size for part in parts]
    )
    return sample_rate * (equal.height @ mass + charged), sample_rate * charged


@dataclass(frozen=True)
class _EqualRatios:
    """The pair whose shifts are both a, by loss l (row) and shift (column), over the rate.

    ``height``: h, rounded up. ``before``, ``after``: y = a - t and z = a + t with the threshold t. ``loss``: l.
    """

    height: Array
    before: Array
    after: Array
    loss: Array

    @classmethod
    def at(cls, losses: Array, shift: Array, sample_rate: float) -> _EqualRatios:
        t = replacement_thresholds(losses[:, None], shift, sample_rate)
        before, after, weight = shift - t, shift + t, np.exp(losses)[:, None]
        drawn = ndtr(before)
        plain = np.expm1(losses)[:, None] * ((1.0 - sample_rate) / sample_rate) * ndtr(-t)
        height = np.maximum(drawn - weight * ndtr(-after) - plain, 0.0) + 1e-11 * drawn  # rounding of the difference
        return cls(height, before, after, losses[:, None])

    def tilt(self, shift: Array) -> Array:
        """Return κ = tanh(at - l/2)."""
        return np.asarray(np.tanh(shift * (self.after - self.before) / 2 - self.loss / 2))

    def bent(self, x: Array, shift: Array, probes: int, noise_multiplier: float) -> Array:
        """Compute the extra cost of convex functions above both potentials: E of each one's excess."""
        cells = np.diff(expected_below(x, probes))
        tilt, total, bend = self.tilt(shift), np.zeros(self.loss.size), 3.0  # the largest N of a convex potential
        for density, (least, most) in (
            (_density(self.before), self._bend_of_w(shift, tilt)),
            (np.exp(self.loss) * _density(self.after), self._bend_of_v(shift, tilt)),
        ):
            slope = shift**3 * density
            step = np.log(shift[:-1] / shift[1:]) / 2
            turn = np.where(least >= bend, 0.0, np.maximum(np.abs(least - bend), np.abs(most - bend))) * step
            turn = np.exp(np.minimum(turn, 50.0))
            is_convex = np.logical_and.accumulate((most <= bend)[:, ::-1], axis=1)[:, ::-1]
            high = np.where(is_convex, 0.0, np.maximum(slope[:, :-1], slope[:, 1:]) * turn)
            low = np.minimum(slope[:, :-1], slope[:, 1:]) / turn
            steepest = np.maximum.accumulate(high[:, ::-1], axis=1)[:, ::-1]
            total += np.where(is_convex, 0.0, steepest - low) @ cells
            total += np.maximum(steepest[:, 0], slope[:, 0]) * float(expected_below(x[:1], probes)[0])
        value: Array = noise_multiplier**2 / 2 * total
        return value

    def _between(self, shift: Array) -> tuple[Array, Array]:
        """Return the least and largest z between neighbours: z = 2a - y, and y grows with a."""
        low = np.maximum(2 * shift[1:] - self.before[:, :-1], 0.0)
        return low, 2 * shift[:-1] - self.before[:, 1:]

    def _bend_of_v(self, shift: Array, tilt: Array) -> tuple[Array, Array]:
        """Bound N = z(y + κa) between neighbours."""
        (low, high), other = self._between(shift), self.before + tilt * shift
        return _product(other[:, 1:], low, high)[0], _product(other[:, :-1], low, high)[1]

    def _bend_of_w(self, shift: Array, tilt: Array) -> tuple[Array, Array]:
        """Bound N = y(z - κa) between neighbours."""
        (low, high), lean = self._between(shift), tilt * shift
        low, high = np.maximum(low - lean[:, :-1], 0.0), np.maximum(high - lean[:, 1:], 0.0)
        return _product(self.before[:, 1:], low, high)[0], _product(self.before[:, :-1], low, high)[1]


def _product(factor: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the least and the largest of a number times one between ``low`` ≥ 0 and ``high``."""
    return np.where(factor >= 0.0, factor * low, factor * high), np.where(factor >= 0.0, factor * high, factor * low)


def _density(y: Array) -> Array:
    value: Array = np.exp(-(y**2) / 2) / math.sqrt(2 * math.pi)
    return value


def _coupling(ends: Array, smallest: float, probes: int, noise_multiplier: float, sample_rate: float) -> Array:
    """Charge ratios that differ, over the rate, at all losses between ``ends`` (a row each).

    ``smallest``: all ratios below it are charged.
    """
    # Ends of cells in geometric progression, up to where hardly any ratio is.
    right = max(GammaMixture((probes,)).quantile(1e-5, True), 1.5 * smallest)
    x = np.geomspace(smallest, right, _PIECES + 1)
    shift = 1.0 / (noise_multiplier * np.sqrt(x))
    cross = _largest_cross_derivative(ends, shift, sample_rate)
    window = _Windows.of(ends, x, shift, probes, sample_rate)
    largest = window.beta.max(axis=1)[:, None]
    beta = largest * np.array([0.0, 1.0, 0.25, 0.06, 0.016, 0.004])
    need = _excess_of_cells(beta, cross, x, noise_multiplier)
    return _least_charge(beta, need, x, probes, window)


def _largest_cross_derivative(ends: Array, shift: Array, sample_rate: float) -> Array:
    """Bound -∂²h/∂a∂b from above, over the rate, for all shifts a, b up to each of ``shift`` (columns), decreasing.

    Boxes of y = a - t and s are used: e^l φ(z) = u φ(y), u = 1/(1 + (1-q)/q (1 - e^{-l}) e^s), s ≥ 0 as b = y + z - a.
    """
    low, high = ends[:, :1, None], ends[:, 1:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.nan_to_num(np.log(np.expm1(-low) / np.expm1(-high)), nan=0.0, neginf=-np.inf)
    more = spaced_from_zero(1.0, 40.0 + float(ends.max()), _PIECES + 1)  # y > 8 beyond
    s = np.concatenate([first, np.broadcast_to(more, (*first.shape[:2], more.size))], axis=2)
    log_u = -np.log1p((1.0 - sample_rate) / sample_rate * -np.expm1(-high) * np.exp(s))
    least = s - high + log_u  # of ay - a²/2, whose solutions are y ± √(y² - 2·)
    most = np.append(s[:, :, 1:] - first + log_u[:, :, 1:] - low, np.full(first.shape, np.inf), axis=2)
    u1 = np.exp(log_u)
    u0 = np.append(u1[:, :, 1:], np.zeros(first.shape), axis=2)
    y = spaced_from_zero(1.0, float(shift[0]), _PIECES + 1)[:, None]
    y0, y1 = y[:-1], y[1:]
    near, far = (np.sqrt(np.maximum(end**2 - 2 * of, 0.0)) for end, of in ((y0, most), (y1, least)))
    z0, z1 = (np.sqrt(end**2 + 2 * (low - log_u)) for end in (y0, y1))
    up = np.maximum(least, 0.0)
    smaller = 2 * up / (y1 + np.sqrt(np.maximum(y1**2 - 2 * up, 0.0)))
    zu = u1 * np.maximum(np.sqrt(y1**2 + 2 * (high - log_u)), 1.0)  # it grows with u where z ≥ 1
    of_y = np.clip(1.0, y0, y1) * _density(np.clip(1.0, y0, y1))
    found = np.zeros((ends.shape[0], shift.size))
    for a, b, is_met in ((y0 + near, z1 - far, True), (smaller, z0 + near, most >= 0.0)):
        rest = np.minimum(a * (1.0 - u0) + y0 * u0, a * (1.0 - u1) + y0 * u1)
        reach = np.maximum(a, b) * (1.0 - 1e-9)  # the least bound of a and b that lets the box in
        row, *box = np.nonzero(is_met & (y1**2 >= 2 * least) & (reach <= shift[0]))
        value = np.broadcast_to(of_y * zu / (rest + zu), reach.shape)[row, *box]
        np.maximum.at(found, (row, np.searchsorted(-shift, -reach[row, *box], side="right") - 1), value)
    largest: Array = np.maximum.accumulate(found[:, ::-1], axis=1)[:, ::-1]
    return largest


def _excess_of_cells(beta: Array, cross: Array, x: Array, noise_multiplier: float) -> Array:
    """Bound how far h exceeds w + v + β(x - x')², for each loss, β and cell of the smaller ratio x: it falls with x."""
    # With s = √(x/x') it is m/(2σ²x) times (1-s)² - c (s⁻² - 1)², whose maximum, convex in c, is known at every s.
    half = np.maximum(cross[:, None, :-1], 1e-300) / (2.0 * noise_multiplier**2)
    s = np.linspace(0.0, 1.0, 201)
    excess = np.interp(beta[:, :, None] * x[:-1] ** 3 / half, s**5 / (2 + 2 * s), (1 - s) ** 3 * (2 + s) / 2)
    return np.asarray(half / x[:-1] * excess)


@dataclass(frozen=True)
class _Windows:
    """The largest β for which all is settled between two ratios, by loss (row) and window (column).

    ``left``, ``right``: places of these among ratios.
    """

    beta: Array
    left: Places
    right: Places

    @classmethod
    def of(cls, ends: Array, x: Array, shift: Array, probes: int, sample_rate: float) -> _Windows:
        place = np.arange(0, x.size, 4, dtype=np.int64)  # every fourth end is a window's
        allowed = _allowed_multiplier(ends, shift[place[:-1]], shift[place[1:]], probes, sample_rate)
        cells = place.size - 1
        middle = int(np.clip(np.searchsorted(x[place], 1.0) - 1, 0, cells - 1))
        windows = [(i, j) for i in range(middle + 1) for j in range(middle, cells)]
        beta = [allowed[:, i : j + 1, i : j + 1].min(axis=(1, 2)) for i, j in windows]
        left, right = zip(*windows, strict=True)
        return cls(np.stack(beta, axis=1), place[list(left)], place[1:][list(right)])


def _allowed_multiplier(ends: Array, high: Array, low: Array, probes: int, sample_rate: float) -> Array:
    """Return β such that 4β/k sin²θ is at most what misaligned gradients lose, by loss and cells of both shifts."""
    a0, a1, b0, b1 = low[:, None], high[:, None], low[None, :], high[None, :]
    weight, loss = np.exp(ends[:, 0])[:, None, None], ends[:, 1][:, None, None]
    found = np.full((ends.shape[0], high.size, high.size), math.inf)
    for before, after in pairwise((0.0, 0.3, 1.0)):  # of 1 - cos θ
        b = np.sqrt(a1**2 + b0**2 + 2 * a1 * b0 * (1.0 - after)) - a1
        t = np.maximum(_threshold_above(a0, b, loss, sample_rate), _threshold_above(a1, b, loss, sample_rate))
        lost = weight * _density(b1 + t) / (1.0 / a0 + 1.0 / b0)
        found = np.minimum(found, lost * probes / (4.0 * (2.0 - before)))
    return found


def _threshold_above(a: Array, b: Array, loss: Array, sample_rate: float) -> Array:
    """Bound the threshold of shifts a and -b from above."""
    rho, gamma = np.expm1(loss) * ((1.0 - sample_rate) / sample_rate), np.exp(loss)
    low = np.broadcast_to((a - b) / 2, np.broadcast_shapes(np.shape(a - b), loss.shape))
    high = np.maximum(a / 2 + np.log(rho + gamma) / a, low)
    for _ in range(7):
        middle = (low + high) / 2
        with np.errstate(over="ignore"):
            is_below = np.exp(a * (middle - a / 2)) - gamma * np.exp(-b * (middle + b / 2)) < rho
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return high


def _least_charge(beta: Array, need: Array, x: Array, probes: int, window: _Windows) -> Array:
    """Return the smallest, over β, of what convex functions of one ratio cost that make up for all that is not
    settled.
    """
    outside = expected_below(x[window.left + 1], probes) / (x[window.left + 1] - x[window.left])
    right = expected_above(x[window.right - 1], probes) / (x[window.right] - x[window.right - 1])
    fits = window.beta[:, None, :] >= beta[:, :, None]
    best = np.where(fits, outside + right, math.inf).argmin(axis=2)
    allowance = 4.0 * beta / probes
    # Smaller ratio: at each node, for all ratios to its left.
    node = np.concatenate([np.ones((*beta.shape, 1)), need], axis=2)
    node = node + np.where(
        np.arange(x.size, dtype=np.int64) <= window.left[best][:, :, None], allowance[:, :, None], 0.0
    )
    charge = _expected_hinges(node, x, probes) + allowance * right[best]
    result: Array = 2.0 * np.where(fits.any(axis=2) | (beta == 0.0), charge, math.inf).min(axis=1)
    return result


def _expected_hinges(node: Array, x: Array, probes: int) -> Array:
    """Compute E of a convex decreasing function that is at least ``node`` at the ratios ``x``, and the last value
    beyond.
    """
    places = np.append(x, 2 * x[-1] - x[-2])
    hinge = expected_below(places, probes)
    rest = node[..., -1]
    value, slope, total = np.zeros(rest.shape), np.zeros(rest.shape), rest.copy()
    for i in range(x.size - 1, -1, -1):
        width = places[i + 1] - places[i]
        steeper = np.maximum((node[..., i] - rest - value) / width - slope, 0.0)
        slope = slope + steeper
        total += steeper * hinge[i + 1]
        value = value + slope * width
    return total
