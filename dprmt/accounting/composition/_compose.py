"""Composition of discrete privacy losses by one exponentially tilted FFT, with every error charged.

Tilting by e^{λL} centres the composed loss where δ is decided, so that rounding and truncation are small
relative to δ itself, however small δ is: (F0) to (F3) of ``docs/theory/randomized_clipping.md``, §6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dprmt.accounting.basics import Array
from dprmt.accounting.pairs import LossPMF, complex_log1p

_EPS = float(np.finfo(np.float64).eps)
_LOG_NOTHING, _LOG_UNCHARGED = -80.0, -120.0
_FFT_POINTS = 2**17
"""Points that are transformed at a time: they fit into the cache."""


class PowerProduct:
    """The transform of a sum of independent losses on a window of ``size`` points, factor by factor.

    Frequencies at which the product is too small to be seen are dropped on the way.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.unit = 8 * _EPS * float(np.log2(size))
        self.frequency = np.arange(size // 2 + 1, dtype=np.int64)
        self.value = np.ones(self.frequency.size, dtype=np.complex128)
        self.log_bound = np.zeros(self.frequency.size)
        self.relative = np.ones(self.frequency.size)

    def multiply(self, index: Array, weights: Array, counts: Array) -> None:
        """Multiply by transforms of laws with ``weights``, shape (laws, n), at grid indices, each to its own power."""
        rows = max(_FFT_POINTS // self.size, 1)
        for start in range(0, counts.size, rows):
            part = slice(start, start + rows)
            transforms = fft.rfft(folded(index, weights[part], self.size), axis=-1)
            self.multiply_transforms(transforms[:, self.frequency], counts[part])

    def multiply_transforms(self, transforms: Array, counts: Array) -> None:
        """Multiply by transforms at the frequencies that are left, shape (laws, frequencies)."""
        padded = np.abs(transforms) + self.unit
        self.log_bound += counts @ np.log(padded)
        self.relative += 2.0 * counts @ (1.0 / padded)
        seen = self.log_bound > _LOG_UNCHARGED
        if not np.all(seen):
            transforms = transforms[:, seen]
            self.frequency, self.value = self.frequency[seen], self.value[seen]
            self.log_bound, self.relative = self.log_bound[seen], self.relative[seen]
        for transform, count in zip(transforms, counts.tolist(), strict=True):
            self.value *= power(transform, int(count))

    def inverse(self) -> Array:
        """Return the law of the sum, with negative masses where rounding left some."""
        spectrum = np.zeros(self.size // 2 + 1, dtype=np.complex128)
        spectrum[self.frequency] = self.value
        mass: Array = fft.irfft(spectrum, self.size)
        return mass

    def rounding(self) -> float:
        """Bound on the summed rounding error of transforms, powers and inverse (F2)."""
        # What is left out adds less than e^{-120} · T / unit in all.
        return 2 * self.unit * float(np.linalg.norm(np.exp(self.log_bound) * self.relative)) + 1e-25


def folded(index: Array, weights: Array, size: int) -> Array:
    """Return weights at grid indices, shape (laws, n), wrapped around a window."""
    place = (index % size).astype(np.intp)
    if index[-1] - index[0] < size:
        whole = np.zeros((weights.shape[0], size))
        whole[:, place] = weights
        return whole
    return np.array([np.bincount(place, weights=row, minlength=size) for row in weights])


def power(transform: Array, count: int) -> Array:
    """Return its power; 0 where that is below e^{-80}, as at most frequencies."""
    with np.errstate(divide="ignore"):
        seen = np.log(np.abs(transform)) * count > _LOG_NOTHING
    result = np.zeros_like(transform)
    result[seen] = transform[seen] ** count
    return result


Phases = Sequence[tuple[LossPMF, int]]
Item = TypeVar("Item")

_LOG_OUTSIDE = float(np.log(1e-10))  # tilted mass allowed outside the FFT window, on each side
_STACKED = 2**16  # masses of many phases at a time
_FAINT = 1e-250
_MANY_PHASES = 16
_SPLIT_TILTS, _SPLIT_LOSSES = 37, 64  # from a hundredth of a tilt to 10,000 times it, and losses, that are tried
_LONGEST = 2**40  # points: no transform is this long, and whoever asked takes a coarser mesh


@dataclass(frozen=True)
class _Stack:
    """Phases whose laws live on the same nodes: one of them in each row."""

    index: NDArray[np.int64]
    losses: Array
    mass: Array
    counts: Array


def _stacks(phases: Phases) -> Iterator[_Stack]:
    """Group consecutive phases on the same nodes, so that each group fits into the cache."""
    if len(phases) == 1:
        pmf, steps = phases[0]
        yield _Stack(pmf.index, pmf.losses, pmf.mass[None], np.array([float(steps)]))
        return
    for _, group in groupby(phases, key=lambda phase: id(phase[0].index)):
        laws = list(group)
        index, losses = laws[0][0].index, laws[0][0].losses
        rows = max(_STACKED // index.size, 1)
        for start in range(0, len(laws), rows):
            part = laws[start : start + rows]
            mass = np.stack([pmf.mass for pmf, _ in part])
            yield _Stack(index, losses, mass, np.array([steps for _, steps in part], dtype=np.float64))


def log_mgf(phases: Phases, tilts: Array) -> Array:
    """Log E e^{λS} of the finite part of the composed loss S, for each tilt λ."""
    total = np.zeros(tilts.shape)
    for stack in _stacks(phases):
        each = _log_mgf_of_each(stack, tilts) * stack.counts
        total = total + (each[:, 0] if stack.counts.size == 1 else each.sum(axis=1))
    return total


def _log_mgf_of_each(stack: _Stack, tilts: Array) -> Array:
    """Return one step's log E e^{λL} for each tilt and each of the laws, shape (tilts, laws)."""
    with np.errstate(divide="ignore"):
        if stack.counts.size == 1:
            support = stack.mass[0] > 0
            exponent = np.multiply.outer(tilts, stack.losses[support]) + np.log(stack.mass[0, support])
            return _log_sum_exp(exponent)[..., None]
        exponent = np.multiply.outer(tilts, stack.losses)
        peak = (exponent + np.log(stack.mass.max(axis=0))).max(axis=-1, keepdims=True)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.exp(exponent - peak) @ stack.mass.T
        result = peak + np.log(sums)
    # Laws that differ so much that one underflows beside the other.
    for law in np.flatnonzero(~np.all((sums > _FAINT) & (sums < 1.0 / _FAINT), axis=0)):
        alone = _Stack(stack.index, stack.losses, stack.mass[law : law + 1], stack.counts[law : law + 1])
        result[:, law] = _log_mgf_of_each(alone, tilts)[:, 0]
    value: Array = result
    return value


def _log_sum_exp(exponent: Array) -> Array:
    """Reduce over the last axis, with -inf for nothing; scipy's function spends more on dispatch than on the sum."""
    if exponent.shape[-1] == 0:
        return np.full(exponent.shape[:-1], -np.inf)
    peak = exponent.max(axis=-1, keepdims=True)
    total: Array = peak[..., 0] + np.log(np.exp(exponent - peak).sum(axis=-1))
    return total


def log_kappa(tilt: Array) -> Array:
    """Log of max_x e^{-λx}(1 - e^{-x}) = λ^λ / (1 + λ)^{1 + λ}."""
    return np.where(tilt > 0, tilt * np.log(np.maximum(tilt, 1e-300)), 0.0) - (1 + tilt) * np.log1p(tilt)


def tilt_for_delta(phases: Phases, delta: float) -> float:
    """Return the tilt whose Chernoff bound on ε at this δ is smallest."""
    return _minimize_on_log_grid(
        lambda tilts: (log_mgf(phases, tilts) + log_kappa(tilts) - np.log(delta)) / tilts, loss_deviation(phases)
    )


def tilt_for_epsilon(phases: Phases, epsilon: float) -> float:
    """Return the tilt whose Chernoff bound on δ at this ε is smallest."""
    return _minimize_on_log_grid(
        lambda tilts: log_mgf(phases, tilts) + log_kappa(tilts) - tilts * epsilon, loss_deviation(phases)
    )


def loss_deviation(phases: Phases, tilt: float = 0.0) -> float:
    """Return the standard deviation of the finite part of the composed loss after tilting."""
    variance = 0.0
    for stack in _stacks(phases):
        weights, losses = _tilted_mass(stack, tilt), stack.losses
        distance = losses - (weights @ losses)[:, None]
        variance += float(stack.counts @ np.sum(weights * distance**2, axis=1))
    return max(float(np.sqrt(variance)), 1e-12)


def step_scale(phases: Phases, tilt: float) -> float:
    """Return the standard deviation of one step's loss as the answer feels it: √(2K(λ)/(λ(1 + λ))), averaged over
    steps.
    """
    steps = sum(count for _, count in phases)
    smallest = 4 * min(pmf.mesh for pmf, _ in phases)
    if tilt == 0.0:
        return max(loss_deviation(phases) / float(np.sqrt(steps)), smallest)
    log_total = sum(count * float(np.log(max(float(pmf.mass.sum()), 1e-300))) for pmf, count in phases)
    cumulant = float(log_mgf(phases, np.array([tilt]))[0]) - log_total
    return max(float(np.sqrt(max(2 * cumulant / (tilt * (1 + tilt) * steps), 0.0))), smallest)


@dataclass(frozen=True)
class Split:
    """Losses beyond which a step is composed apart (F4), the tilts of both parts, and how much smaller errors get.

    ``tilt``: of all steps' losses up to ``large``; ``tilt_beyond``: of the rest. ``near``: the ε that Chernoff's
    bounds of both parts prove, or the one asked about. ``log_gain``: ratio of their δ there to the δ of all losses at
    one tilt, as a logarithm.
    """

    large: float
    tilt: float
    tilt_beyond: float
    near: float
    log_gain: float


def best_split(phases: Phases, tilt: float, epsilon: float | None, delta: float) -> Split | None:
    """Return the split at which Chernoff's bound on δ at ``epsilon``, or else on ε at ``delta``, is smallest."""
    tilts = tilt * np.geomspace(0.01, 1e4, _SPLIT_TILTS)[:, None]
    nodes = max((pmf.losses for pmf, _ in phases), key=lambda losses: float(losses[-1]))
    large = nodes[(nodes > 0) & (nodes < nodes[-1])]
    large = large[:: max(large.size // _SPLIT_LOSSES, 1)]
    if not large.size:
        return None
    log_below, expected = np.zeros((2, tilts.size, large.size))
    for pmf, steps in phases:
        below, above = _log_parts(pmf, tilts, large)
        log_below += steps * below
        expected += steps * np.exp(above - np.logaddexp(below, above))
    kappa, log_all = log_kappa(tilts), log_mgf(phases, tilts[:, 0])[:, None]
    with np.errstate(divide="ignore"):
        below, above = log_below + kappa, log_all + np.log(np.minimum(expected, 1.0)) + kappa
    if epsilon is None:
        each = np.stack([below, above]) - math.log(0.5 * delta)
        reached = np.min(each / tilts, axis=1).max(axis=0)
        near = max(float(reached.min()), 0.0)
        best, log_delta = int(np.argmin(reached)), math.log(delta)
    else:
        near = epsilon
        reached = np.logaddexp(*np.min(np.stack([below, above]) - tilts * near, axis=1))
        best = int(np.argmin(reached))
        log_delta = float(reached[best])
    at = [int(np.argmin(part[:, best] - tilts[:, 0] * near)) for part in (below, above)]
    gain = float(np.min(log_all + kappa - tilts * near)) - log_delta
    return Split(float(large[best]), float(tilts[at[0], 0]), float(tilts[at[1], 0]), near, gain)


def _log_parts(pmf: LossPMF, tilts: Array, large: Array) -> tuple[Array, Array]:
    """Return logarithms of the tilted masses up to each loss and beyond it, shape (tilts, losses); the last node is
    beyond.
    """
    cuts = np.clip(np.searchsorted(pmf.losses, large, side="right"), 1, pmf.losses.size - 1)
    inner, place = np.unique(cuts, return_inverse=True)
    starts = np.append(0, inner)
    with np.errstate(divide="ignore"):
        exponent = tilts * pmf.losses + np.log(np.maximum(pmf.mass, _FAINT))
        peak = np.maximum.reduceat(exponent, starts, axis=1)
        inside = np.exp(exponent - np.repeat(peak, np.diff(np.append(starts, pmf.losses.size)), axis=1))
        parts = peak + np.log(np.add.reduceat(inside, starts, axis=1))
    up_to, beyond = (np.logaddexp.accumulate(each, axis=1) for each in (parts, parts[:, ::-1]))
    return up_to[:, place], beyond[:, ::-1][:, place + 1]


def _minimize_on_log_grid(objective: Callable[[Array], Array], scale: float) -> float:
    center, half_width = np.log(1.0 / scale), 14.0
    for _ in range(4):
        grid = center + np.linspace(-half_width, half_width, 21)
        center = float(grid[int(np.argmin(objective(np.exp(grid))))])
        half_width *= 0.15
    return float(np.exp(center))


def chernoff(pmf: LossPMF, steps: int, tilt: float) -> tuple[float, float]:
    """Return a log c and p with δ(ε) ≤ p + c·e^{-tilt·ε} after so many steps: (F0) with nothing composed, rounding
    charged.
    """
    (stack,) = _stacks([(pmf, 1)])
    rounding = float(_mass_rounding(stack.mass, _tilted_mass(stack, tilt))[0])
    log_scale = steps * (float(log_mgf([(pmf, 1)], np.array([tilt]))[0]) + rounding)
    infinite = -np.expm1(steps * np.log1p(-pmf.infinite)) if pmf.infinite < 1 else 1.0
    return log_scale + float(log_kappa(np.array(tilt))), float(infinite)


def log_chernoff(phases: Phases, tilt: float) -> float:
    """Log c with δ(ε) ≲ c·e^{-tilt·ε} of finite losses: as :func:`chernoff`, rounding not charged."""
    return float(log_mgf(phases, np.array([tilt]))[0]) + float(log_kappa(np.array(tilt)))


@dataclass(frozen=True)
class Window:
    """FFT window and what it leaves out.

    Attributes
    ----------
    first : int
        Grid index of the first point.
    size : int
        Number of points.
    """

    first: int
    size: int


def window(phases: Phases, tilt: float, share: float = 1.0) -> Window:
    """Find the grid points outside which the tilted composed loss has mass at most 1e-10 · ``share`` on either side."""
    mesh, some, log_outside = phases[0][0].mesh, some_of(phases), _LOG_OUTSIDE + math.log(share)
    scale = 1.0 / loss_deviation(phases, tilt)
    # Every θ gives a bound by Chernoff; which is best, some phases tell.
    up, down = _sharpest(lambda up, down: _chernoff_ends(some, tilt, up, down, log_outside), scale)
    highest, lowest = _chernoff_ends(phases, tilt, up, down, log_outside)
    first = int(np.floor(np.max(lowest) / mesh)) - 1
    last = int(np.ceil(np.min(highest) / mesh)) + 1
    size = max(last - first + 1, 16)
    return Window(first, fft.next_fast_len(size, real=True) if size < _LONGEST else size)


def _sharpest(ends: Callable[[Array, Array], tuple[Array, Array]], scale: float) -> tuple[Array, Array]:
    """Return the θ at which the upper end is lowest, and that at which the lower one is highest: coarsely, then
    finely.
    """
    up = down = scale * np.exp(np.linspace(-12.0, 6.0, 19))
    near = np.exp(np.linspace(-0.75, 0.75, 7))
    for fine in (near, np.ones(1)):
        highest, lowest = ends(up, down)
        up, down = up[[int(np.argmin(highest))]] * fine, down[[int(np.argmax(lowest))]] * fine
    return up, down


def _chernoff_ends(phases: Phases, tilt: float, up: Array, down: Array, log_outside: float) -> tuple[Array, Array]:
    """Find the losses beyond which this little mass lies, above by each θ of ``up`` and below by each of ``down``."""
    log_mgfs = log_mgf(phases, np.concatenate([[tilt], tilt + up, tilt - down]))
    base, above, below = log_mgfs[0], log_mgfs[1 : up.size + 1], log_mgfs[up.size + 1 :]
    return (above - base - log_outside) / up, -(below - base - log_outside) / down


def some_of(phases: Sequence[tuple[Item, int]]) -> Sequence[tuple[Item, int]]:
    """Return some of many phases, for about as many steps: what one may choose, they choose nearly as well."""
    if len(phases) <= _MANY_PHASES:
        return phases
    chosen = phases[:: len(phases) // _MANY_PHASES]
    more = sum(count for _, count in phases) / sum(count for _, count in chosen)
    return [(item, max(round(more * count), 1)) for item, count in chosen]


def _tilted_mass(stack: _Stack, tilt: float) -> Array:
    """Return each law's masses, tilted and normalised; zeros where all of it counts as infinite."""
    with np.errstate(divide="ignore"):
        exponent = np.log(stack.mass) + tilt * stack.losses
    peak = exponent.max(axis=1, keepdims=True)
    weights = np.exp(exponent - np.where(peak > -np.inf, peak, 0.0))
    total = weights.sum(axis=1, keepdims=True)
    normalised: Array = weights / np.where(total > 0, total, 1.0)
    return normalised


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


def composed(phases: Phases, tilt: float, win: Window) -> ComposedLoss:
    """Compose by FFT on the window."""
    product, rounding = PowerProduct(win.size), 0.0
    for stack in _stacks(phases):
        weights = _tilted_mass(stack, tilt)
        product.multiply(stack.index, weights, stack.counts)
        rounding += float(stack.counts @ _mass_rounding(stack.mass, weights))
    error = 2 * np.exp(_LOG_OUTSIDE) + np.expm1(rounding) + product.rounding()
    return _composed_loss(phases, tilt, win, product.inverse(), error)


def _composed_loss(phases: Phases, tilt: float, win: Window, mass: Array, error: float) -> ComposedLoss:
    """Return the loss with these masses, wrapped around the window."""
    log_never_infinite = sum(
        steps * (float(np.log1p(-pmf.infinite)) if pmf.infinite < 1 else -np.inf) for pmf, steps in phases
    )
    return ComposedLoss(
        losses=(win.first + np.arange(win.size, dtype=np.int64)) * phases[0][0].mesh,
        mass=np.maximum(np.roll(mass, -(win.first % win.size)), 0.0),
        tilt=tilt,
        log_scale=float(log_mgf(phases, np.array([tilt]))[0]),
        infinite=float(-np.expm1(log_never_infinite)),
        error=error,
    )


def composed_beyond(phases: Phases, large: float, tilt: float, win: Window) -> ComposedLoss:
    """Return the part of the composition in which some step has a loss beyond ``large``: a difference of two products
    (F4).
    """
    share = _large_share(phases, large, tilt)
    unit, rounding, large_rounding = 8 * _EPS * math.log2(win.size), 0.0, 0.0
    frequency = np.arange(win.size // 2 + 1, dtype=np.int64)
    # Both products; log and bound of their ratio less 1; a bound on both products; T / |φ| and T · (large mass) / |φ|.
    whole, below = np.ones((2, frequency.size), dtype=np.complex128)
    log_ratio = np.zeros(frequency.size, dtype=np.complex128)
    ratio, log_bound, steps, large_steps = np.zeros((4, frequency.size))
    for stack in _stacks(phases):
        weights, is_large = _tilted_mass(stack, tilt), stack.losses > large
        rounding += float(stack.counts @ _mass_rounding(stack.mass, weights))
        large_rounding += float(stack.counts @ _mass_rounding(stack.mass, np.where(is_large, weights, 0.0)))
        for row, count in zip(weights, stack.counts.tolist(), strict=True):
            parts = np.where(is_large, row, 0.0), np.where(is_large, 0.0, row)
            few, many = (fft.rfft(folded(stack.index, part[None], win.size)[0])[frequency] for part in parts)
            padded = np.maximum(np.abs(many), np.abs(many + few)) + unit
            log_bound = log_bound + count * np.log(padded)
            seen = log_bound > _LOG_UNCHARGED
            few, many, padded, frequency = few[seen], many[seen], padded[seen], frequency[seen]
            steps, large_steps = steps[seen] + count / padded, large_steps[seen] + count * parts[0].sum() / padded
            with np.errstate(all="ignore"):  # where ``many`` is 0 the ratio is infinite, and not used
                ratio, log_ratio = (
                    ratio[seen] + count * np.abs(few / many),
                    log_ratio[seen] + count * complex_log1p(few / many),
                )
            whole, below = whole[seen] * power(many + few, int(count)), below[seen] * power(many, int(count))
            log_bound = log_bound[seen]
    spectrum = np.zeros(win.size // 2 + 1, dtype=np.complex128)
    spectrum[frequency] = np.where(ratio < 0.5, below * _expm1(np.where(ratio < 0.5, log_ratio, 0.0)), whole - below)
    # What ``power`` left out is charged in full; frequencies left out add less than e^{-120} · T · share / unit.
    size = np.exp(log_bound) * large_steps * (1.0 + 2.0 * steps)
    error = 2 * float(np.linalg.norm(np.where(spectrum[frequency] == 0.0, 1.0, unit) * size)) + 1e-25 * share
    error += 2 * share * (math.exp(_LOG_OUTSIDE) + math.expm1(rounding)) + large_rounding * math.exp(rounding)
    return _composed_loss(phases, tilt, win, fft.irfft(spectrum, win.size), error)


def up_to(phases: Phases, large: float) -> list[tuple[LossPMF, int]]:
    """Return the phases' finite losses that are at most ``large``."""
    return [
        (LossPMF(law.index, np.where(law.losses > large, 0.0, law.mass), law.mesh, 0.0), steps) for law, steps in phases
    ]


def window_beyond(phases: Phases, split: Split) -> Window:
    """Return the window of :func:`composed_beyond`, which leaves out 1e-10 of its mass on either side."""
    return window(phases, split.tilt_beyond, max(_large_share(phases, split.large, split.tilt_beyond), _FAINT))


def _large_share(phases: Phases, large: float, tilt: float) -> float:
    """Return a bound on the tilted mass of :func:`composed_beyond`: the expected number of losses beyond ``large``."""
    expected = sum(
        float(stack.counts @ _tilted_mass(stack, tilt)[:, stack.losses > large].sum(axis=1))
        for stack in _stacks(phases)
    )
    return min(expected * (1.0 + 1e-9), 1.0)


def _expm1(z: Array) -> Array:
    """Compute e^z - 1, accurate relative to z."""
    real = np.expm1(z.real) * np.cos(z.imag) - 2.0 * np.sin(0.5 * z.imag) ** 2
    value: Array = real + 1j * np.exp(z.real) * np.sin(z.imag)
    return value


def moved(loss: ComposedLoss, shift: float) -> ComposedLoss:
    """Return the law of a loss larger by ``shift``."""
    return replace(loss, losses=loss.losses + shift, log_scale=loss.log_scale + loss.tilt * shift)


def window_of(pmf: LossPMF, fewest: int, most: int, tilt: float) -> tuple[int, int]:
    """Find the first index and length of a window that serves any number of equal steps from ``fewest`` to ``most``.

    Chernoff's bound at one θ is linear in the number of steps, so its two ends decide.
    """

    def ends(up: Array, down: Array) -> tuple[Array, Array]:
        log_mgfs = log_mgf([(pmf, 1)], np.concatenate([[tilt], tilt + up, tilt - down]))
        above, below = log_mgfs[1 : up.size + 1] - log_mgfs[0], log_mgfs[up.size + 1 :] - log_mgfs[0]
        highest = (np.maximum(fewest * above, most * above) - _LOG_OUTSIDE) / up
        return highest, (_LOG_OUTSIDE - np.maximum(fewest * below, most * below)) / down

    highest, lowest = (float(end[0]) for end in ends(*_sharpest(ends, 1.0 / loss_deviation([(pmf, most)], tilt))))
    first, last = int(np.floor(lowest / pmf.mesh)) - 1, int(np.ceil(highest / pmf.mesh)) + 1
    return first, int(fft.next_fast_len(max(last - first + 1, 16), real=True))


@dataclass(frozen=True)
class TiltedLaw:
    """One step's law, tilted and normalised.

    Attributes
    ----------
    index : ndarray of int64, shape (n,)
        Grid indices of the losses.
    weights : ndarray, shape (n,)
        Their masses, of sum 1.
    log_scale : float
        Logarithm of the tilted mass before it was normalised.
    rounding : float
        Relative tilted mass that rounding moved (F1).
    """

    index: NDArray[np.int64]
    weights: Array
    log_scale: float
    rounding: float

    def transform(self, size: int) -> Array:
        """Return its transform on a window of ``size`` points, shape (size // 2 + 1,)."""
        values: Array = fft.rfft(folded(self.index, self.weights[None], size)[0])
        return values

    def misplaced(self, counts: Array | int) -> Array:
        """Bound the tilted mass outside the window, or moved by rounding, after this many steps."""
        value: Array = 2 * np.exp(_LOG_OUTSIDE) + np.expm1(counts * np.float64(self.rounding))
        return value


def tilted_law(pmf: LossPMF, tilt: float) -> TiltedLaw:
    """Return the law at a tilt."""
    (stack,) = _stacks([(pmf, 1)])
    weights = _tilted_mass(stack, tilt)
    rounding = float(_mass_rounding(stack.mass, weights)[0])
    return TiltedLaw(pmf.index, weights[0], float(log_mgf([(pmf, 1)], np.array([tilt]))[0]), rounding)


@dataclass(frozen=True)
class ComposedRows:
    """The finite part of one step's loss composed with itself, for several numbers of steps.

    Attributes
    ----------
    mass : ndarray, shape (m, n)
        One row for each number of steps, see :class:`ComposedLoss`.
    log_scale, error : ndarray, shape (m,)
        As there.
    """

    mass: Array
    log_scale: Array
    error: Array


def composed_rows(
    pmf: LossPMF, counts: Sequence[int], tilt: float, first: int, size: int, at_a_time: int
) -> Iterator[ComposedRows]:
    """Compose several lengths from one transform, some at a time, in the order of ``counts``."""
    one = tilted_law(pmf, tilt)
    values = one.transform(size)
    magnitude = np.abs(values)
    for start in range(0, len(counts), at_a_time):
        steps = np.array(counts[start : start + at_a_time], dtype=np.float64)
        mass = np.roll(fft.irfft(_powers(values, magnitude, steps), size), -(first % size), axis=1)
        error = one.misplaced(steps) + _power_rounding(magnitude, steps, size)
        yield ComposedRows(np.maximum(mass, 0.0), steps * one.log_scale, error)


def composed_powers(pmf: LossPMF, counts: Sequence[int], tilt: float, first: int, size: int) -> dict[int, ComposedLoss]:
    """Compose several lengths, one loss each."""
    losses = (first + np.arange(size, dtype=np.int64)) * pmf.mesh
    rows = composed_rows(pmf, counts, tilt, first, size, 1)
    return {
        count: ComposedLoss(losses, row.mass[0], tilt, float(row.log_scale[0]), 0.0, float(row.error[0]))
        for count, row in zip(counts, rows, strict=True)
    }


def _powers(transform: Array, magnitude: Array, counts: Array) -> Array:
    """Return its powers, one a row; 0 where that is below e^{-80}, as at most frequencies."""
    with np.errstate(divide="ignore"):
        seen = np.flatnonzero(np.log(magnitude) * counts.min() > -80.0)
    result = np.zeros((counts.size, transform.size), dtype=np.complex128)
    result[:, seen] = np.exp(counts[:, None] * np.log(transform[seen]))
    return result


def _mass_rounding(mass: Array, weights: Array) -> Array:
    """Bound on the relative tilted mass that rounding moved, for each law: see (F1) of the theory document."""
    tails = np.cumsum(mass[:, ::-1], axis=1)[:, ::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(mass > 0, weights * tails / mass, 0.0)
    value: Array = 64 * _EPS * np.sum(relative, axis=1) + 1e3 * _EPS * np.sum(weights, axis=1)
    return value


def _power_rounding(magnitude: Array, counts: Array, size: int) -> Array:
    """Bound rounding as :func:`_fft_rounding`, for each of several powers of one transform."""
    unit = 8 * _EPS * np.log2(size)
    log = np.log(magnitude + unit)
    log = log[counts.min() * log > -120.0]
    power = np.exp(counts[:, None] * log) * (1.0 + 2 * counts[:, None] * np.exp(-log))
    value: Array = 2 * unit * np.sqrt(np.sum(power**2, axis=1)) + 1e-25
    return value
