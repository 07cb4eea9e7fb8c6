"""Composition of discrete privacy losses by one exponentially tilted FFT, with every error charged, and its δ(ε).

Tilting by e^{λL} centres the composed loss where δ is decided, so that rounding and truncation are small
relative to δ itself, however small δ is: (F0) to (F3) of ``docs/theory/randomized_clipping.md``, §6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy import fft

from dprmt.accounting.basics._bounds import Side
from dprmt.accounting.basics._numbers import LEAST_DELTA, Array
from dprmt.accounting.pairs._pairs import EPS, Laws, LossPMF
from dprmt.accounting.pairs._ratio_sum import LOG_NOTHING

OUTSIDE = 1e-10
"""Tilted mass allowed outside the window of an FFT, on each side."""


def log_mgf(laws: Laws, tilts: Array) -> Array:
    """Log E e^{λS} of the finite part of the composed loss S, for each tilt λ; -∞ where there is none."""
    total = np.zeros(tilts.shape)
    for law, steps in laws:
        seen = law.mass > 0
        if not seen.any():
            return np.full(tilts.shape, -np.inf)
        exponent = np.multiply.outer(tilts, law.losses[seen]) + np.log(law.mass[seen])
        peak = exponent.max(axis=-1, keepdims=True)
        total += steps * (peak[..., 0] + np.log(np.exp(exponent - peak).sum(axis=-1)))
    return total


def log_kappa(tilt: Array) -> Array:
    """Log of max_x e^{-λx}(1 - e^{-x}) = λ^λ / (1 + λ)^{1 + λ}."""
    return np.where(tilt > 0, tilt * np.log(np.maximum(tilt, 1e-300)), 0.0) - (1 + tilt) * np.log1p(tilt)


def best_tilt(laws: Laws, question: Question | None) -> tuple[float, float]:
    """Return the tilt λ whose Chernoff bound on the answer is smallest; 0 for a whole curve.

    Returns: λ, and log c with δ(ε) ≲ c·e^{-λε} of finite losses (F0), rounding not charged.
    """
    if question is None:
        return 0.0, 0.0
    center, half_width, log_c = -math.log(loss_deviation(laws)), 14.0, 0.0
    for _ in range(4):
        grid = center + np.linspace(-half_width, half_width, 21)
        tilts = np.exp(grid)
        log_bound, epsilon = log_mgf(laws, tilts) + log_kappa(tilts), question.epsilon
        bound = (log_bound - math.log(question.delta)) / tilts if epsilon is None else log_bound - tilts * epsilon
        best = int(np.argmin(bound))
        center, log_c, half_width = float(grid[best]), float(log_bound[best]), 0.15 * half_width
    return math.exp(center), log_c


def tilted(law: LossPMF, tilt: float) -> Array:
    """Return its masses, tilted and normalised; zeros where all of it counts as infinite."""
    with np.errstate(divide="ignore"):
        exponent = np.log(law.mass) + tilt * law.losses
    peak = float(exponent.max())
    weights: Array = np.exp(exponent - peak) if peak > -math.inf else np.zeros(exponent.size)
    return weights / max(float(weights.sum()), 1.0)


def loss_deviation(laws: Laws, tilt: float = 0.0) -> float:
    """Return the standard deviation of the finite part of the composed loss after tilting."""
    variance = 0.0
    for law, steps in laws:
        weights = tilted(law, tilt)
        variance += steps * float(weights @ (law.losses - weights @ law.losses) ** 2)
    return max(math.sqrt(variance), 1e-12)


def step_scale(laws: Laws, tilt: float) -> float:
    """Return the standard deviation of one step's loss as the answer feels it: √(2K(λ)/(λ(1 + λ))), averaged over
    steps.
    """
    steps = sum(count for _, count in laws)
    smallest = 4 * min(law.mesh for law, _ in laws)
    if tilt == 0.0:
        return max(loss_deviation(laws) / math.sqrt(steps), smallest)
    log_total = sum(count * math.log(max(float(law.mass.sum()), 1e-300)) for law, count in laws)
    cumulant = float(log_mgf(laws, np.array([tilt]))[0]) - log_total
    return max(math.sqrt(max(2 * cumulant / (tilt * (1 + tilt) * steps), 0.0)), smallest)


def some_of(laws: Laws) -> Laws:
    """Return some of many phases, for about as many steps: what one may choose, they choose nearly as well."""
    if len(laws) < 32:
        return laws
    chosen = laws[:: len(laws) // 16]
    more = sum(count for _, count in laws) / sum(count for _, count in chosen)
    return [(law, max(round(more * count), 1)) for law, count in chosen]


@dataclass(frozen=True)
class Window:
    """FFT window: grid index of its first point, and number of points."""

    first: int
    size: int


def window(laws: Laws, tilt: float) -> Window:
    """Find the grid points outside which the tilted composed loss has mass at most ``OUTSIDE`` on either side."""
    # Every θ gives a bound by Chernoff; which is best, some phases tell: coarsely, then finely.
    some, log_outside = some_of(laws), math.log(OUTSIDE)
    if not all(law.mass.any() for law, _ in laws):
        return Window(0, 16)  # every composed loss is infinite
    up = down = np.exp(np.linspace(-12.0, 6.0, 19)) / loss_deviation(laws, tilt)
    for phases, fine in ((some, np.exp(np.linspace(-0.75, 0.75, 7))), (some, np.ones(1)), (laws, np.ones(1))):
        inside, above, below = np.split(
            log_mgf(phases, np.concatenate([[tilt], tilt + up, tilt - down])), [1, up.size + 1]
        )
        highest, lowest = (above - inside - log_outside) / up, -(below - inside - log_outside) / down
        up, down = up[[int(np.argmin(highest))]] * fine, down[[int(np.argmax(lowest))]] * fine
    mesh, offset = laws[0][0].mesh, math.fsum(steps * law.offset for law, steps in laws)
    first = math.floor((float(lowest[0]) - offset) / mesh) - 1
    size = max(math.ceil((float(highest[0]) - offset) / mesh) + 2 - first, 16)
    return Window(first, fft.next_fast_len(size, real=True) if size < 2**40 else size)  # none so long is transformed


@dataclass(frozen=True)
class ComposedLoss:
    """The composed loss around the point where it was asked for.

    Attributes
    ----------
    losses, mass : ndarray
        Grid and tilted masses, the latter relative to ``e^{log_scale - tilt·loss}``.
    tilt, log_scale : float
        P(S = l) = mass · e^{log_scale - tilt·l}.
    infinite : float
        Probability that some step has an infinite loss.
    error : float
        Bound on the tilted mass misplaced by truncation, aliasing and rounding.
    """

    losses: Array
    mass: Array
    tilt: float
    log_scale: float
    infinite: float
    error: float


def composed(laws: Laws, tilt: float, win: Window) -> ComposedLoss:
    """Compose by FFT on the window; frequencies at which the product is negligible are skipped."""
    unit, rounding = 8 * EPS * math.log2(win.size), 0.0
    frequency = np.arange(win.size // 2 + 1, dtype=np.int64)
    value = np.ones(frequency.size, dtype=np.complex128)
    log_bound, relative = np.zeros(frequency.size), np.ones(frequency.size)
    for law, steps in laws:
        weights = tilted(law, tilt)
        rounding += steps * _mass_rounding(law.mass, weights)
        folded = np.bincount((law.index % win.size).astype(np.intp), weights=weights, minlength=win.size)
        transform = fft.rfft(folded)[frequency]
        padded = np.abs(transform) + unit
        log_bound += steps * np.log(padded)
        relative += 2.0 * steps / padded
        seen = log_bound > LOG_NOTHING
        frequency, value, log_bound, relative = frequency[seen], value[seen], log_bound[seen], relative[seen]
        value *= transform[seen] ** steps
    # (F2), summed over transforms, powers and inverse; what is left out adds less than e^{-120} · T / unit in all.
    error = 2 * unit * float(np.linalg.norm(np.exp(log_bound) * relative)) + 1e-25
    log_finite = sum(n * math.log1p(-law.infinite) if law.infinite < 1.0 else -math.inf for law, n in laws)
    offset = math.fsum(steps * law.offset for law, steps in laws)  # from multiples of the mesh
    spectrum = np.zeros(win.size // 2 + 1, dtype=np.complex128)
    spectrum[frequency] = value
    return ComposedLoss(
        losses=(win.first + np.arange(win.size, dtype=np.int64)) * laws[0][0].mesh + offset,
        mass=np.maximum(np.roll(fft.irfft(spectrum, win.size), -(win.first % win.size)), 0.0),
        tilt=tilt,
        log_scale=float(log_mgf(laws, np.array([tilt]))[0]),
        infinite=-math.expm1(log_finite),
        error=error + 2 * OUTSIDE + math.expm1(rounding),
    )


def _mass_rounding(mass: Array, weights: Array) -> float:
    """Bound on the relative tilted mass that rounding moved: see (F1) of the theory document."""
    seen = mass > 0
    tails = np.cumsum(mass[::-1])[::-1]
    with np.errstate(over="ignore"):  # subnormal masses: an infinite bound is one
        relative = weights[seen] * tails[seen] / mass[seen]
    return 64 * EPS * float(relative.sum()) + 1e3 * EPS * float(weights.sum())


@dataclass(frozen=True)
class Split:
    """A loss beyond which a step is composed apart (F4), and the ε that both parts prove.

    ``tilts``: of steps without a loss beyond ``large``, and of one with it beside the others.
    """

    large: float
    tilts: tuple[float, float]
    near: float

    def parts(self, laws: Laws, side: Side = "upper") -> list[tuple[Laws, float]]:
        """Return laws and tilts of steps without large losses, and of a large loss at any one step and of the others.

        From above, two large losses count as an infinite one.
        """
        ((law, steps),) = laws
        is_large = law.losses > self.large
        few, mass = replace(law, mass=law.mass * ~is_large), steps * law.mass * is_large
        large = replace(law, mass=mass, infinite=0.5 * float(mass.sum()) ** 2 if side == "upper" else 0.0)
        others = replace(few, infinite=0.0)
        return [([(few, steps)], self.tilts[0]), ([(large, 1), (others, steps - 1)], self.tilts[1])]


def best_split(laws: Laws, tilt: float, question: Question) -> Split | None:
    """Return the split at which Chernoff's bound on the answer is smallest.

    Returns: None where that makes no error smaller by e^3, or steps differ.
    """
    ((law, steps), *others) = laws
    if others or steps == 1 or law.losses.size < 2:
        return None
    tilts = tilt * np.geomspace(0.01, 1e4, 61)[:, None]
    with np.errstate(divide="ignore"):
        exponent = tilts * law.losses + np.log(law.mass)
    below, above = (np.logaddexp.accumulate(each, axis=1) for each in (exponent, exponent[:, ::-1]))
    whole, few, large = below[:, -1:], below[:, :-1], above[:, -2::-1]
    both = np.stack([steps * few, math.log(steps) + large + (steps - 1) * few]) + log_kappa(tilts)
    is_common = steps * np.cumsum(law.mass[:0:-1])[::-1] > math.sqrt(2e-4 * question.delta)  # two would show in δ
    both[:, :, is_common | (law.losses[:-1] <= 0.0)] = math.inf
    epsilon = question.epsilon
    if epsilon is None:
        reached = np.min((both - math.log(0.5 * question.delta)) / tilts, axis=1).max(axis=0)
        best = int(np.argmin(reached))
        near, log_delta = max(float(reached[best]), 0.0), math.log(question.delta)
    else:
        reached = np.logaddexp(*np.min(both - tilts * epsilon, axis=1))
        best = int(np.argmin(reached))
        near, log_delta = epsilon, float(reached[best])
    if not float(np.min(steps * whole + log_kappa(tilts) - tilts * near)) - log_delta > 3.0:
        return None
    # The lower a tilt, the shorter its window; errors, of about 1e-11 a step, may be about 1e-4 of δ.
    exponents, room = both[:, :, best] - tilts[:, 0] * near, max(math.log(1e7 / steps), 0.0)
    first, second = tilts[np.argmax(exponents <= exponents.min(axis=1, keepdims=True) + room, axis=1), 0].tolist()
    return Split(float(law.losses[best]), (first, second), near)


class Curve(Protocol):
    """Bounds on the δ(ε) of a composition."""

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bound of δ(ε)."""
        ...

    def epsilon(self, delta: float, side: Side) -> float:
        """Return an ε ≥ 0 with δ(ε) ≤ ``delta`` for certain, or ∞; from below with δ(ε) ≥ ``delta``, or 0."""
        ...


@dataclass(frozen=True)
class Question:
    """What is asked of a composition: ε at ``delta``, or δ at ``epsilon``, whose size ``delta`` then guesses.

    Truncated mass has to be negligible compared with ``delta``.
    """

    delta: float = 1e-12
    epsilon: float | None = None

    def read(self, curve: Curve, side: Side, drift: float) -> float:
        """Return the answer on one side, moved outward by a possible ``drift`` of the composed loss (F3)."""
        outward = drift if side == "upper" else -drift
        if self.epsilon is not None:
            return curve.delta_bounds(self.epsilon - outward)[side == "upper"]
        found = curve.epsilon(self.delta, side)
        return max(found + outward, 0.0) if found > 0.0 else 0.0

    def is_within(self, lower: float, upper: float, tolerance: float) -> bool:
        """Return whether the ends are no further apart than asked.

        For ε absolutely up to 1, relatively beyond; for δ relatively, down to the least number that is resolved.
        """
        if self.epsilon is not None:
            return upper - lower <= tolerance * upper or upper <= LEAST_DELTA
        return upper < math.inf and upper - lower <= tolerance * max(1.0, upper)

    def sharpened(self, upper: float, lower: float) -> Question:
        """Return the question with a better guess of the answer's size, so that truncation becomes negligible.

        What is known of ε does not change how to look for it.
        """
        guess = max(lower, min(upper, self.delta) * 1e-40, LEAST_DELTA)
        return self if self.epsilon is None or guess >= self.delta else self.sized(guess)

    def sized(self, delta: float) -> Question:
        """Return it with another guess, in powers of 10⁴, so that pairs that were made for one are met again."""
        return replace(self, delta=max(10.0 ** (4 * math.floor(math.log10(delta) / 4)), LEAST_DELTA))


class DeltaCurve:
    """δ(ε) on the grid of a composed loss, with its error bound, relative to a reference loss.

    ``beyond``: other parts of the loss, on the same grid.
    """

    def __init__(self, question: Question | None, loss: ComposedLoss, *beyond: ComposedLoss) -> None:
        self.loss, parts = loss, [loss, *beyond]
        log_kappas = [float(log_kappa(np.asarray(part.tilt))) for part in parts]
        if question is None or question.epsilon is not None:
            around = 0.0 if question is None or question.epsilon is None else question.epsilon
        else:  # what Chernoff's bound proves
            each, log_delta = zip(parts, log_kappas, strict=True), math.log(question.delta)
            around = max((part.log_scale + kappa - log_delta) / (part.tilt or math.inf) for part, kappa in each)
        self.log_unit = max(part.log_scale - part.tilt * around for part in parts)
        log_growth = np.array([part.log_scale - part.tilt * loss.losses - self.log_unit for part in parts])
        keep = log_growth.max(axis=0) < 80.0
        keep[-1] = True
        self.nodes, growth = loss.losses[keep], np.exp(np.minimum(log_growth[:, keep], 700.0))
        weight = sum(part.mass[keep] * each for part, each in zip(parts, growth, strict=True))
        # For ε just left of node j: δ(ε) = e^{log_unit} · (mass_above[j] - e^{ε - nodes[j]} · discounted[j]).
        self.mass_above = np.cumsum(weight[::-1])[::-1]
        self.discounted = discounted_suffix_sums(weight, self.nodes)
        self.at_nodes = self.mass_above - self.discounted
        errors = np.array([part.error * math.exp(kappa) for part, kappa in zip(parts, log_kappas, strict=True)])
        self.error = errors @ growth + EPS * loss.losses.size * self.mass_above
        self.infinite = sum(part.infinite for part in parts)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bound of the discrete loss's δ(ε)."""
        index = int(np.searchsorted(self.nodes, epsilon, side="left"))
        if index == self.nodes.size:
            return 0.0, min(self._scaled(float(self.error[-1])) + self.infinite, 1.0)
        if index == 0 and self.nodes[0] > epsilon:
            return self._scaled(float(self.at_nodes[0] - self.error[0])), 1.0
        value = float(self.mass_above[index] - np.exp(epsilon - self.nodes[index]) * self.discounted[index])
        value, error = max(value, 0.0), float(self.error[max(index - 1, 0)])
        return self._scaled(value - error), min(self._scaled(value + error) + self.infinite, 1.0)

    def epsilon(self, delta: float, side: Side) -> float:
        """Bound ε as :meth:`Curve.epsilon`, between the nodes beside which δ(ε) is known to cross ``delta``."""
        finite = delta - self.infinite if side == "upper" else delta
        if finite <= 0.0:
            return math.inf
        target = math.exp(min(max(math.log(finite) - self.log_unit, -700.0), 700.0))
        if side == "upper":
            error, found = self.error, np.flatnonzero(self.at_nodes + self.error <= target)[:1]
        else:
            error, found = -self.error, np.flatnonzero(self.at_nodes - self.error >= target)[-1:] + 1
        if not found.size:
            return math.inf if side == "upper" else 0.0
        right = min(int(found[0]), self.nodes.size - 1)
        if int(found[0]) != right or right == 0:
            return max(float(self.nodes[right]), 0.0)
        # Left of node ``right``, e^{ε}·discounted equals ``room``.
        room = float(self.mass_above[right] + error[right - 1]) - target
        start, crossing = float(self.nodes[right - 1]), float(self.nodes[right])
        if room <= 0.0:
            crossing = start
        elif self.discounted[right] > 0.0:
            fallen = crossing + math.log(room) - math.log(self.discounted[right])
            crossing = min(max(fallen, start), crossing)
        return max(crossing, 0.0)

    def _scaled(self, value: float) -> float:
        return math.exp(min(math.log(value) + self.log_unit, 0.0)) if value > 0 else 0.0


def discounted_suffix_sums(values: Array, nodes: Array) -> Array:
    """Compute Σ_{i ≥ j} values[i] · e^{-(nodes[i] - nodes[j])} on equidistant nodes."""
    # Block by block, so that no exponential overflows; where one step discounts below rounding, nothing carries.
    step = float(nodes[1] - nodes[0]) if nodes.size > 1 else 0.0
    if step > 40.0:
        return values
    length = min(int(300.0 / max(step, 1e-300)) + 1, nodes.size)
    growth = np.exp(step * np.arange(length + 1, dtype=np.int64))
    discount = 1.0 / growth
    sums = np.empty_like(values)
    carried = 0.0
    for stop in range(nodes.size, 0, -length):
        start = max(stop - length, 0)
        size = stop - start
        inner = sums[start:stop]
        np.multiply(np.cumsum((values[start:stop] * discount[:size])[::-1])[::-1], growth[:size], out=inner)
        if stop < nodes.size:
            inner += carried * discount[size:0:-1]
        carried = float(sums[start])
    return sums


class OneStepCurve:
    """The same questions as to a :class:`DeltaCurve`; the side that was not asked for is trivial."""

    def __init__(self, pmf: LossPMF, side: Side) -> None:
        self.side, self.nodes = side, pmf.losses
        mass = rounded(pmf.mass, side) * (1 + 1e-12 if side == "upper" else 1 - 1e-12)  # sums of positive terms
        self.infinite = pmf.infinite
        self.discounted = discounted_sums(mass, self.nodes)
        # Σ mass_i (1 - e^{l_j - l_i}) as a sum of positive terms: a heavy node below would swallow a light tail.
        rises = self.discounted[1:] * -np.expm1(-np.diff(self.nodes))
        self.at_nodes = np.append(np.cumsum(rises[::-1])[::-1], 0.0)

    def delta_bounds(self, epsilon: float) -> tuple[float, float]:
        """Bound δ as :meth:`DeltaCurve.delta_bounds`."""
        index = int(np.searchsorted(self.nodes, epsilon, side="left"))
        value = 0.0
        if index < self.nodes.size:
            value = float(self.at_nodes[index] - math.expm1(epsilon - self.nodes[index]) * self.discounted[index])
        if self.side == "upper":
            return 0.0, min(max(value, 0.0) + self.infinite, 1.0)
        return min(max(value, 0.0), 1.0), 1.0

    def epsilon(self, delta: float, side: Side) -> float:
        """Bound ε as :meth:`Curve.epsilon`."""
        delta = delta - self.infinite if side == "upper" else delta
        if delta <= 0.0:
            return math.inf
        index = int(np.argmax(self.at_nodes <= delta))  # 0 at the last node, so there is one
        if index == 0:
            return 0.0
        fallen = (delta - float(self.at_nodes[index])) / float(self.discounted[index])
        step = math.log1p(-fallen) if fallen < 1.0 else -math.inf
        return max(float(self.nodes[index]) + step, float(self.nodes[index - 1]), 0.0)


def rounded(mass: Array, side: Side) -> Array:
    """Return the masses with the rounding of the tails that they are differences of charged (F1)."""
    charge = 64 * EPS * np.cumsum(mass[::-1])[::-1]
    return mass + charge if side == "upper" else np.maximum(mass - charge, 0.0)


def discounted_sums(mass: Array, nodes: Array) -> Array:
    """Compute Σ_{i ≥ j} mass_i e^{l_j - l_i} at each node, on any nodes."""
    factors = np.exp(-np.diff(nodes)).tolist()
    sums = mass.tolist()
    for j in range(len(sums) - 2, -1, -1):
        sums[j] += factors[j] * sums[j + 1]
    return np.array(sums)


def one_step_scale(rough: LossPMF, small: float) -> float:
    """Return the loss at which one step's δ is about ``small``, or where most of it lies."""
    deviation = math.sqrt(float(rough.mass @ rough.losses**2) / max(float(rough.mass.sum()), 1e-300))
    delta = np.cumsum(rough.mass[::-1])[::-1] - discounted_sums(rough.mass, rough.losses)
    enough = np.flatnonzero((rough.losses > 0) & (delta <= small))
    found = float(rough.losses[enough[0] if enough.size else -1])
    return max(found if found > 1e-3 * deviation else deviation, 4 * rough.mesh)
