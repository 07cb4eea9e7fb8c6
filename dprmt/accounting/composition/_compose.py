"""Composition of discrete privacy losses by one exponentially tilted FFT, with every error charged.

Tilting by e^{λL} centres the composed loss where δ is decided, so that rounding and truncation are small
relative to δ itself, however small δ is: (F0) to (F3) of ``docs/theory/randomized_clipping.md``, §6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import fft

from dprmt.accounting.basics._bounds import Side
from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.composition._loss_grid import Laws
from dprmt.accounting.pairs import LOG_NOTHING, LossPMF

EPS = float(np.finfo(np.float64).eps)
OUTSIDE = 1e-10
"""Tilted mass allowed outside the window of an FFT, on each side."""
_FEW = 16  # phases by which a tilt or a window is chosen for all
_LONGEST = 2**40  # points: no transform is this long, and a coarser mesh is taken


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


def log_chernoff(laws: Laws, tilt: float) -> float:
    """Log c with δ(ε) ≲ c·e^{-tilt·ε} of finite losses (F0), rounding not charged."""
    return float(log_mgf(laws, np.array([tilt]))[0]) + float(log_kappa(np.array(tilt)))


def infinite_of(laws: Laws) -> float:
    """Return the probability that some step has an infinite loss."""
    return -math.expm1(sum(steps * math.log1p(-law.infinite) if law.infinite < 1 else -math.inf for law, steps in laws))


def best_tilt(laws: Laws, *, delta: float = 1.0, epsilon: float | None = None) -> float:
    """Return the tilt whose Chernoff bound is smallest: on δ at ``epsilon``, or else on ε at ``delta``."""
    center, half_width = -math.log(loss_deviation(laws)), 14.0
    for _ in range(4):
        grid = center + np.linspace(-half_width, half_width, 21)
        tilts = np.exp(grid)
        log_bound = log_mgf(laws, tilts) + log_kappa(tilts)
        bound = (log_bound - np.log(delta)) / tilts if epsilon is None else log_bound - tilts * epsilon
        center, half_width = float(grid[int(np.argmin(bound))]), 0.15 * half_width
    return math.exp(center)


def tilted(law: LossPMF, tilt: float) -> Array:
    """Return its masses, tilted and normalised; zeros where all of it counts as infinite."""
    with np.errstate(divide="ignore"):
        exponent = np.log(law.mass) + tilt * law.losses
    peak = float(exponent.max())
    weights: Array = np.exp(exponent - peak) if peak > -math.inf else np.zeros(exponent.size)
    return weights / max(float(weights.sum()), 1.0)


def total_offset(laws: Laws) -> float:
    """Return by how much the composed losses lie beside multiples of the mesh."""
    return math.fsum(steps * law.offset for law, steps in laws)


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
    if len(laws) <= _FEW:
        return laws
    chosen = laws[:: len(laws) // _FEW]
    more = sum(count for _, count in laws) / sum(count for _, count in chosen)
    return [(law, max(round(more * count), 1)) for law, count in chosen]


@dataclass(frozen=True)
class Window:
    """FFT window: grid index of its first point, and number of points."""

    first: int
    size: int


def window(laws: Laws, tilt: float, share: float = 1.0) -> Window:
    """Find the grid points outside which the tilted composed loss has mass at most 1e-10 · ``share`` on either side."""
    # Every θ gives a bound by Chernoff; which is best, some phases tell: coarsely, then finely.
    some, log_outside = some_of(laws), math.log(OUTSIDE * share)
    up = down = np.exp(np.linspace(-12.0, 6.0, 19)) / loss_deviation(laws, tilt)
    for fine in (np.exp(np.linspace(-0.75, 0.75, 7)), np.ones(1)):
        highest, lowest = _ends(some, tilt, up, down, log_outside)
        up, down = up[[int(np.argmin(highest))]] * fine, down[[int(np.argmax(lowest))]] * fine
    highest, lowest = _ends(laws, tilt, up, down, log_outside)
    mesh = laws[0][0].mesh
    offset = total_offset(laws)
    first = math.floor((float(lowest[0]) - offset) / mesh) - 1
    size = max(math.ceil((float(highest[0]) - offset) / mesh) + 2 - first, 16)
    return Window(first, fft.next_fast_len(size, real=True) if size < _LONGEST else size)


def _ends(laws: Laws, tilt: float, up: Array, down: Array, log_outside: float) -> tuple[Array, Array]:
    """Find the losses beyond which this little mass lies, above by each θ of ``up`` and below by each of ``down``."""
    log_mgfs = log_mgf(laws, np.concatenate([[tilt], tilt + up, tilt - down]))
    base, above, below = log_mgfs[0], log_mgfs[1 : up.size + 1], log_mgfs[up.size + 1 :]
    return (above - base - log_outside) / up, -(below - base - log_outside) / down


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
    spectrum = np.zeros(win.size // 2 + 1, dtype=np.complex128)
    spectrum[frequency] = value
    return ComposedLoss(
        losses=(win.first + np.arange(win.size, dtype=np.int64)) * laws[0][0].mesh + total_offset(laws),
        mass=np.maximum(np.roll(fft.irfft(spectrum, win.size), -(win.first % win.size)), 0.0),
        tilt=tilt,
        log_scale=float(log_mgf(laws, np.array([tilt]))[0]),
        infinite=infinite_of(laws),
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
    """A loss beyond which a step is composed apart (F4), the tilts of both parts, and the ε that they prove.

    ``tilt``: of steps without a loss beyond ``large``; ``tilt_beyond``: of the rest.
    """

    large: float
    tilt: float
    tilt_beyond: float
    near: float

    def parts(self, laws: Laws, side: Side = "upper") -> tuple[Laws, Laws]:
        """Return laws without large losses, and those of one step with a large loss, and of the others: from below they
        have none.
        """
        ((law, steps),) = laws
        small, large = (
            replace(law, mass=law.mass * keep) for keep in (law.losses <= self.large, law.losses > self.large)
        )
        few = replace(small, infinite=0.0)
        return [(few, steps)], [(large, 1), (law if side == "upper" else few, steps - 1)]


def best_split(laws: Laws, tilt: float, epsilon: float | None, delta: float) -> Split | None:
    """Return the split at which Chernoff's bound on δ at ``epsilon``, or else on ε at ``delta``, is smallest.

    Returns: None where that makes no error smaller by e^5, or steps differ.
    """
    ((law, steps), *others) = laws
    if others or steps == 1 or law.losses.size < 2:
        return None
    tilts = tilt * np.geomspace(0.01, 1e4, 37)[:, None]
    with np.errstate(divide="ignore"):
        exponent = tilts * law.losses + np.log(law.mass)
    below, above = (np.logaddexp.accumulate(each, axis=1) for each in (exponent, exponent[:, ::-1]))
    whole, above = below[:, -1:], above[:, -2::-1]
    both = np.stack([steps * below[:, :-1], math.log(steps) + above + (steps - 1) * whole]) + log_kappa(tilts)
    both[:, :, law.losses[:-1] <= 0.0] = math.inf
    if epsilon is None:
        reached = np.min((both - math.log(0.5 * delta)) / tilts, axis=1).max(axis=0)
        best = int(np.argmin(reached))
        near, log_delta = max(float(reached[best]), 0.0), math.log(delta)
    else:
        reached = np.logaddexp(*np.min(both - tilts * epsilon, axis=1))
        best = int(np.argmin(reached))
        near, log_delta = epsilon, float(reached[best])
    if not float(np.min(steps * whole + log_kappa(tilts) - tilts * near)) - log_delta > 5.0:
        return None
    chosen = tilts[np.argmin(both[:, :, best] - tilts[:, 0] * near, axis=1), 0]
    return Split(float(law.losses[best]), float(chosen[0]), float(chosen[1]), near)
