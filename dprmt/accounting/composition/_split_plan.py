"""When to split a step's loss into a small-loss part and rare large-loss events, where, and on which meshes (J1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics import Array, Direction, Side, resolvable
from dprmt.accounting.composition._composed_loss import log_chernoff, log_kappa, log_mgf, tilt_for_delta
from dprmt.accounting.composition._small_losses import WindowTooLongError, mean_ratio
from dprmt.accounting.composition._split_curve import SplitCurve, events_to_count
from dprmt.accounting.composition._step_law import Lattice, discretize_step, lattice
from dprmt.accounting.pairs import LossPMF, StepPair

_EXPECTED_EVENTS = 0.5
_LARGE_NODES, _MOST_LARGE_NODES = 256, 1024
_WIDE_LARGE_MESH = 2.0  # losses so far apart are resolved to first order only
_LARGE_MESH = 0.1  # in units of the scale that an unsplit mesh would be chosen from
_MAX_COARSENINGS = 8
_SMALL_MESH, _WIDEST_SMALL_MESH = 0.1, 1.0  # in standard deviations of one small loss
_SMALL_SHARE = 1 / 30  # of the answer; where less of it is due to small losses, their mesh may be wider
_SMALL_BULK, _SMALL_DEVIATIONS = 5.0, 6.0
_LUMP = 2.0  # standard deviations of one small loss; if log(1 - q) is so near, it gets a node
_MOVED = 0.5  # at most, of the reach: such a node moves all large losses by T times as much
_FINE_ENOUGH = 0.4
_IN_VAIN = 11.0  # e^{11} of 2e-10, the mass outside of an FFT's window, is charged beside δ
_TOO_MANY = 6.0  # large-loss events among the steps that decide: one mesh resolves these better
_SHARP = 20.0  # Chernoff's bound exceeds δ by e^{5} or so where it shows what decides
_UNCOUNTED = 1e-3  # of δ, at most, is left to more large-loss events than are ever counted
_MISJUDGED = 2.0  # how far Chernoff's bound lies above what both parts make likely, where a tail decides


@dataclass(frozen=True)
class SplitPlan:
    """Where a step's loss is cut.

    Attributes
    ----------
    cut : float
        Losses above it are large-loss events.
    small_scale : float
        Standard deviation of one small loss, as the answer feels it.
    small_mesh : float
        The small losses' mesh at the coarsest level, in units of ``small_scale``.
    reach : float
        The largest loss of interest, of one step or of all.
    large_nodes : int
        How many nodes the large losses' mesh has at the coarsest level.
    needed : bool
        Whether one mesh for both would hardly resolve the small-loss part, or one tilt lie far from what decides.
    """

    cut: float
    small_scale: float
    small_mesh: float
    reach: float
    large_nodes: int
    needed: bool


def plan_split(
    rough: LossPMF, steps: int, small: float, near: float, tilt: float, scale: float, below: float
) -> SplitPlan | None:
    """How to split, from a rough law of one step.

    ``near``: Chernoff's bound on the answer; ``below`` one that may be known from elsewhere.
    ``scale``: the scale of one step's loss from which an unsplit mesh would be chosen.
    """
    losses = rough.losses
    above = np.append(np.cumsum(rough.mass[::-1])[::-1][1:], 0.0)
    cut = int(np.argmax((steps * above <= _EXPECTED_EVENTS) & (losses > 0)))
    if steps * above[cut] > _EXPECTED_EVENTS or losses[cut] <= 0.0 or above[cut] <= 0.0:
        return None
    if not _are_rare(rough, steps, cut, small, near, tilt):
        return None
    small_part = LossPMF(rough.index[: cut + 1], rough.mass[: cut + 1], rough.mesh, 0.0)
    small_scale, small_epsilon = _small_part(small_part, steps, small)
    largest = _largest_useful(losses, rough.mass, small / steps)
    likely = largest + small_epsilon
    misjudged = near > _MISJUDGED * likely + 1.0 or tilt * (near - likely) > _IN_VAIN
    needed = small_scale < _FINE_ENOUGH * scale or misjudged
    if near > 3 * likely:  # Chernoff's bound misjudges a heavy tail
        near = 2 * likely
    reach = min(near, below, steps * float(losses[-1])) + min(
        8.0, 12.0 / tilt
    )  # beyond it losses count by 1 - e^{ε - l} ≈ 1, or are too rare
    if not 0.0 < losses[cut] < reach:
        return None
    nodes = int(min(max(reach / (_LARGE_MESH * scale), _LARGE_NODES), _MOST_LARGE_NODES))
    if reach / nodes > _WIDE_LARGE_MESH:
        nodes *= 2
    small_size = max(small_epsilon, 3.0 * math.sqrt(steps) * small_scale)
    mesh = _SMALL_MESH * math.sqrt(_SMALL_SHARE * likely / small_size)
    mesh = min(max(mesh, _SMALL_MESH), _WIDEST_SMALL_MESH)
    return SplitPlan(float(losses[cut]), small_scale, mesh, reach, nodes, needed)


def _are_rare(rough: LossPMF, steps: int, cut: int, small: float, near: float, tilt: float) -> bool:
    """Whether few losses above a node are met where δ is decided, too: else they cannot be told apart one by one."""
    leaves = float(rough.mass[cut + 1 :].sum())
    if events_to_count(steps, float(rough.mass[: cut + 1].sum()), leaves, small)[1] > _UNCOUNTED * small:
        return False
    phases = [(rough, steps)]
    if log_chernoff(phases, tilt) - tilt * near > math.log(small) + _SHARP:
        return True  # a tail so heavy that no tilt shows what decides
    with np.errstate(divide="ignore"):
        exponent = np.log(rough.mass) + tilt * rough.losses
    tilted = np.exp(exponent - exponent.max())
    return steps * float(tilted[cut + 1 :].sum() / tilted.sum()) <= _TOO_MANY


def one_step_scale(rough: LossPMF, small: float) -> float:
    """The loss at which one step's δ is about ``small``, or where most of it lies."""
    deviation = math.sqrt(float(rough.mass @ rough.losses**2) / max(float(rough.mass.sum()), 1e-300))
    found = _largest_useful(rough.losses, rough.mass, small)
    return max(found if found > 1e-3 * deviation else deviation, 4 * rough.mesh)


def one_step_delta(law: LossPMF, epsilon: float) -> float:
    """δ(ε) of one step."""
    beyond = law.losses > epsilon
    return float(law.mass[beyond] @ -np.expm1(epsilon - law.losses[beyond])) + law.infinite


def discounted_sums(mass: Array, nodes: Array) -> Array:
    """Σ_{i ≥ j} mass_i e^{l_j - l_i} at each node, on any nodes."""
    factors = np.exp(-np.diff(nodes)).tolist()
    sums = mass.tolist()
    for j in range(len(sums) - 2, -1, -1):
        sums[j] += factors[j] * sums[j + 1]
    return np.array(sums)


def _small_part(small_part: LossPMF, steps: int, small: float) -> tuple[float, float]:
    """The standard deviation of one small loss, tilted or not, and Chernoff's bound on ε of all of them."""
    phases = [(small_part, steps)]
    tilt = tilt_for_delta(phases, small)
    log_total = steps * math.log(float(small_part.mass.sum()))
    cumulant = float(log_mgf(phases, np.array([tilt]))[0])
    variance = max(2 * (cumulant - log_total) / (tilt * (1 + tilt) * steps), 0.0)
    epsilon = (cumulant + float(log_kappa(np.array(tilt))) - math.log(small)) / tilt
    plain = float(small_part.mass @ small_part.losses**2) / float(small_part.mass.sum())
    return max(math.sqrt(max(variance, plain)), 4 * small_part.mesh), max(epsilon, 0.0)


def _largest_useful(losses: Array, mass: Array, small: float) -> float:
    """An ε at which one step's δ is about ``small``."""
    delta = np.cumsum(mass[::-1])[::-1] - discounted_sums(mass, losses)
    enough = np.flatnonzero((losses > 0) & (delta <= small))
    return float(losses[enough[0]]) if enough.size else float(losses[-1])


def split_curve(
    pair: StepPair,
    steps: int,
    ends: tuple[float, float],
    direction: Direction,
    side: Side,
    plan: SplitPlan,
    level: float,
    small: float,
) -> SplitCurve | None:
    """Discretize on the plan's two meshes, that of small losses coarser if its FFT would be too long, and compose."""
    mesh = resolvable(plan.small_mesh * 2.0**-level * plan.small_scale, 2.0 * plan.reach)
    within = min(_LUMP * plan.small_scale, _MOVED * plan.reach / steps)
    for _ in range(_MAX_COARSENINGS):
        grid = lattice(pair, ends, direction, side, mesh, within=max(within, 5 * mesh), stretched=True)
        if grid.offset + mesh > plan.cut:  # then log(1 - q) is a large loss, not what nearly every step loses
            grid = Lattice(mesh)
        index, cut, stride = _two_meshes(grid, steps, ends[0], plan, level)
        pmf = discretize_step(pair, index, grid, direction, side, to_infinity=True)
        small_part = pmf.index <= cut
        if not 0.0 < mean_ratio(LossPMF(pmf.index[small_part], pmf.mass[small_part], pmf.mesh, 0.0)) < math.inf:
            return None
        try:
            return SplitCurve(pmf, steps, cut, stride, side, small, grid.offset)
        except WindowTooLongError as error:
            mesh *= 1.2 * error.factor
    return None


def _two_meshes(
    grid: Lattice, steps: int, low: float, plan: SplitPlan, level: float
) -> tuple[NDArray[np.int64], int, int]:
    """Indices of all nodes, the last one of the small-loss part, and the large losses' mesh in units of it."""
    mesh = grid.mesh
    stride = max(round(plan.reach / (plan.large_nodes * 2.0**level) / mesh), 1)
    cut = math.ceil((plan.cut - grid.offset) / mesh)
    first = cut // stride + 1
    # Small losses sum to at least T log(1 - q), hardly less than some deviations: so far large ones make up for it.
    lost = min(max(-steps * grid.offset, 0.0), _SMALL_DEVIATIONS * math.sqrt(steps) * plan.small_scale + plan.cut)
    last = max(math.ceil((plan.reach + lost) / (stride * mesh)), first + 1)
    small_part = grid.covering((low, plan.cut), _SMALL_BULK * plan.small_scale)
    return (
        np.concatenate([small_part[small_part < cut], [cut], np.arange(first, last + 1, dtype=np.int64) * stride]),
        cut,
        stride,
    )
