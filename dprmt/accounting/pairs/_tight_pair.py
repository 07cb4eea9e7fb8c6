r"""The tight analysis of public probes: a pair that dominates every spectrum.

It takes at each node a bound that holds for every spectrum, (M1) of ``docs/theory/randomized_clipping.md``, or charges
once what the rank-one law lacks (T5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, ndtr

from dprmt.accounting.basics._numbers import Array
from dprmt.accounting.pairs._pairs import (
    EPS,
    AtomicPair,
    LossCells,
    PublicPair,
    connect_the_dots,
    log_shift_ratio,
    row_blocks,
)


@dataclass(frozen=True)
class TightPair:
    """A pair that dominates every spectrum at the losses it is asked for, and at all others.

    ``rank_one``: the rank-one law, every bin of which is spread to both ends (B4); its ``infinite`` is the probability
    of squared-norm ratios below the smallest atom.
    """

    rank_one: PublicPair
    slack: float = 0.0

    def loss_range(self, tail: float) -> tuple[float, float]:
        """Return the range as in :class:`PublicPair`."""
        return self.rank_one.loss_range(tail)

    def cells(self, nodes: Array) -> LossCells:
        """Return the masses between increasing loss nodes, all of them at nodes."""
        cells, excess = self.rank_one.cells(nodes), self.excess(nodes)
        if not np.any(excess > 0.0):
            return cells
        unit, moved = np.minimum(nodes, 0.0), 0.0
        right, left = connect_the_dots(nodes, cells), connect_the_dots(-nodes[::-1], cells.mirrored())[::-1]
        mass = np.where(nodes < 0.0, left, right) + _mass_changes(nodes, excess)
        if cells.p_below > 0.0:  # the Q-mass below the first node, where all of its P-mass is there and the rest at -∞
            moved = min(math.exp(min(math.log(cells.p_below) - nodes[0], 0.0)), cells.q_below)
        mass[0] += moved * np.exp(nodes[0] - unit[0])  # the envelope starts at (0, 1)
        missing, beyond = keep_the_envelope(nodes, mass)
        p, q = mass * np.exp(unit), mass * np.exp(unit - nodes)
        p[1], q[1] = p[0] + p[1], q[0] + q[1]
        return LossCells(
            p=p[1:],
            q=q[1:],
            p_below=0.0,
            q_below=max(cells.q_below - moved + float(excess[0] * np.exp(unit[0] - nodes[0])) + missing, 0.0),
            p_above=cells.p_above + float(excess[-1] * np.exp(unit[-1])) + beyond,
            q_above=cells.q_above,
        )

    def excess(self, nodes: Array) -> Array:
        """Compute how far the convex majorant's curve lies above the rank-one law's curve at each loss l (M1).

        Units are e^{min(l, 0)}, as for all masses at nodes here: P-masses where l ≥ 0, Q-masses where l < 0.
        """
        ratio = log_shift_ratio(nodes, self.rank_one.sample_rate)
        used = np.isfinite(ratio)
        pair, epsilon = self.rank_one, np.abs(ratio[used])
        steep = pair.shift > math.sqrt(12.0)  # elsewhere h_ε is convex for every ε (T2)
        shift, mass = pair.shift[steep], pair.mass[steep]
        total = pair.infinite * np.maximum(sum(_tangent(epsilon)[1:]) - 1.0, 0.0)
        for part in row_blocks(epsilon.size if shift.size else 0):
            total[part] += majorant_excess(epsilon[part], shift) @ mass
        excess = np.zeros(nodes.size)
        scale = np.exp(np.minimum(ratio[used], 0.0) - np.minimum(nodes[used], 0.0))
        excess[used] = pair.sample_rate * scale * total
        return excess

    def crude_excess(self, largest_loss: float) -> float:
        """Return a bound on the excess at every loss up to ``largest_loss``, per unit of the sample rate."""
        pair = self.rank_one
        active = pair.shift > math.sqrt(12.0)
        ratio = abs(float(log_shift_ratio(np.array([largest_loss]), pair.sample_rate)[0]))
        at_zero = 0.2 * float(inflection_shift(np.array([ratio]))[0])
        return float(0.2 * pair.shift[active] @ pair.mass[active]) + pair.infinite * at_zero


def largest_excess(pair: PublicPair, highest: float) -> float:
    """Bound E(ĥ_ε - h_ε)(X) from above for all ε up to the one of the loss ``highest``, and up to 10⁴ (T6)."""
    ratio = float(log_shift_ratio(np.array([highest]), pair.sample_rate)[0])
    epsilon = np.concatenate([np.linspace(0.0, 20.0, 801), np.geomspace(20.0, max(ratio, 1e4), 801)[1:]])
    at, _, rise = _tangent(epsilon)
    slope = at**2 * rise
    shift, mass = np.append(pair.shift, np.inf), np.append(pair.mass, pair.infinite)
    reach = np.maximum(at[:-1, None] ** -2.0 - shift**-2.0, 0.0) @ mass
    return float(np.max(majorant_excess(epsilon[:-1], shift) @ mass + np.diff(slope) * reach)) * (1.0 + 1e-9)


def inflection_shift(epsilon: Array) -> Array:
    """Compute μ₀(ε) of (T2): h_ε is convex in the squared-norm ratio where μ ≤ μ₀."""
    value: Array = np.sqrt(6.0 + 2.0 * np.hypot(3.0, epsilon))
    return value


def majorant_excess(epsilon: Array, shift: Array) -> Array:
    """Compute (ĥ_ε - h_ε)(x) for each ε and, in columns, each shift μ, rounded up; 0 where μ ≤ μ₀(ε)."""
    at, height, rise = _tangent(epsilon)
    reached = shift > at.min()
    result = np.zeros((epsilon.size, shift.size))
    if not np.any(reached):
        return result
    mu = shift[reached]
    tangent = (height + rise)[:, None] - np.multiply.outer(rise * at**2, mu**-2.0)
    across = np.multiply.outer(epsilon, 1.0 / mu)
    value = np.maximum(tangent - _hockey_stick(across - mu / 2, across + mu / 2), 0.0)
    value += 64 * EPS * at[:, None]  # ε/μ and the tangent's ends are of the size of μ₀
    result[:, reached] = np.where(mu > at[:, None], value, 0.0)
    return result


def _tangent(epsilon: Array) -> tuple[Array, Array, Array]:
    """Return μ₀(ε), h_ε at x₀ = μ₀^{-2} and x₀·|h'(x₀)| = (μ₀/2) φ(ε/μ₀ - μ₀/2) (T1), whose sum is the tangent at 0."""
    at = inflection_shift(epsilon)
    offset = -(3.0 + 9.0 / (np.hypot(3.0, epsilon) + epsilon)) / at  # ε/μ₀ - μ₀/2, without cancellation
    return at, _hockey_stick(offset, at / 2 + epsilon / at), at / 2 * (np.exp(-(offset**2) / 2) / np.sqrt(2 * np.pi))


def _hockey_stick(offset: Array, across: Array) -> Array:
    """Compute Φ(-offset) - e^ε Φ(-across), where offset = ε/μ - μ/2 and across = ε/μ + μ/2."""
    density = np.exp(-(offset**2) / 2) / np.sqrt(2 * np.pi)
    value: Array = ndtr(-offset) - density * (np.sqrt(np.pi / 2) * erfcx(across / np.sqrt(2.0)))
    return value


def _mass_changes(nodes: Array, excess: Array) -> Array:
    """Return the masses at nodes that add the piecewise linear function of e^ε through the ``excess`` to a curve."""
    step, unit = np.diff(nodes), np.diff(np.minimum(nodes, 0.0))
    with np.errstate(over="ignore", invalid="ignore"):
        near = (excess[1:] * np.exp(unit) - excess[:-1]) / np.expm1(step)
        far = excess[1:] * np.exp(unit - step) - excess[:-1] * np.exp(-step)
        change = np.append(np.where(step > 30.0, far, near), 0.0)
    change[1:] -= (excess[1:] - excess[:-1] * np.exp(-unit)) / -np.expm1(-step)
    change[0] -= excess[0]
    return change


def keep_the_envelope(nodes: Array, mass: Array) -> tuple[float, float]:
    """Take nodes of negative mass out, in place: they lie above the lower convex envelope.

    Such a mass goes to both neighbours so that P- and Q-mass are kept.
    """
    missing = beyond = 0.0
    before, after = np.arange(-1, nodes.size - 1, dtype=np.int64), np.arange(1, nodes.size + 1, dtype=np.int64)
    waiting = np.flatnonzero(mass < 0.0).tolist()
    while waiting:
        j = waiting.pop()
        if mass[j] >= 0.0:
            continue
        a, b, moved = int(before[j]), int(after[j]), float(mass[j])
        mass[j] = 0.0
        # What nodes a and b, or -∞ and +∞, take of it, in their own units.
        here, unit = float(nodes[j]), min(float(nodes[j]), 0.0)
        to_a = np.exp(nodes[a] - here) if a >= 0 else 0.0
        to_b = np.exp(here - nodes[b]) if b < nodes.size else 0.0
        left = np.exp(unit - min(nodes[a], 0.0) + nodes[a] - here) if a >= 0 else np.exp(unit - here)
        right = np.exp(unit - min(nodes[b], 0.0)) if b < nodes.size else np.exp(unit)
        to_left = moved * float(left * (1.0 - to_b) / (1.0 - to_a * to_b))
        to_right = moved * float(right * (1.0 - to_a) / (1.0 - to_a * to_b))
        if a >= 0:
            mass[a] += to_left
            after[a] = b
            waiting.append(a)
        else:
            missing += to_left
        if b < nodes.size:
            mass[b] += to_right
            before[b] = a
            waiting.append(b)
        else:
            beyond += to_right
    return missing, beyond


def slack_of_excess(eta: float, sample_rate: float, total_variation: float) -> float:
    """Compute the charge of (T5) per step for a bound η on the excess at every ε."""
    room = 1.0 - sample_rate * total_variation
    return min(1.0, sample_rate * eta / room) if room > 0 else 1.0


def spaced_from_zero(scale: float, high: float, number: int) -> Array:
    """Space numbers from 0 to ``high``, denser where they are below ``scale``."""
    return np.asarray(scale * np.sinh(np.linspace(0.0, math.asinh(high / scale), number)))


def symmetric_pair(losses: Array, curve: Array) -> AtomicPair:
    """Return the pair with the largest convex δ(ε) that is at most ``curve`` at ``losses`` ≥ 0, and the same
    exchanged.
    """
    curve = np.minimum(np.minimum.accumulate(curve * (1.0 + 1e-9)), 1.0)
    step = np.diff(losses)
    mass = np.zeros(losses.size)
    mass[1:] = -np.diff(curve) / -np.expm1(-step)
    mass[1:-1] += np.diff(curve)[1:] / np.expm1(step[1:])
    infinite = float(curve[-1])
    mass[0] = 1.0 - infinite - float(mass[1:] @ (1.0 + np.exp(-losses[1:])))
    nodes = np.concatenate([-losses[:0:-1], losses])
    both = np.concatenate([mass[:0:-1], mass])
    missing, beyond = keep_the_envelope(nodes, both)
    return AtomicPair(
        nodes, np.maximum(both, 0.0) * np.exp(np.minimum(nodes, 0.0)), infinite + max(missing, beyond, 0.0)
    )
