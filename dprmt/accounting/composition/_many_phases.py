"""The discrete losses of phases on one mesh; of many with public sensitivities, side by side on common nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dprmt.accounting.basics import Array, Direction, graded_indices
from dprmt.accounting.composition._step_law import (
    MEANS,
    Home,
    Lattice,
    Meshing,
    at_mean,
    discrete_variation,
    is_wide,
    law_of_step,
    rough_meshing,
)
from dprmt.accounting.pairs import (
    AtomicPair,
    CellRows,
    LossCells,
    LossPMF,
    PublicPair,
    StepPair,
    TightPair,
    mass_from_above,
    mass_from_below,
    masses_by_shift,
)

Public = PublicPair | TightPair
Item = TypeVar("Item")

_ROUNDING = 64 * float(np.finfo(np.float64).eps)
_MANY = 4
_GROWTH = 1.125
_MOST_SHIFTS = 2**10  # of phases that are evaluated together
_PLACES = 8  # of a node in a mesh: phases whose nodes are nearly the same share them


def discretized(
    pairs: Sequence[tuple[StepPair, int]], ranges: Sequence[tuple[float, float]], how: Meshing
) -> tuple[list[tuple[LossPMF, int]], float]:
    """The steps' losses, each less an offset, and the sum of all offsets."""
    phases, total = [], 0.0
    together: list[tuple[Public, int, tuple[float, float]]] = []
    # Of one sample rate: with several, nodes that reach as far as the others need left an upper bound wide.
    rates = Counter(_public(pair).sample_rate for pair, _ in pairs if isinstance(pair, Public))
    for (pair, count), ends in zip(pairs, ranges, strict=True):
        if isinstance(pair, Public) and rates[_public(pair).sample_rate] >= _MANY:
            together.append((pair, count, ends))
            continue
        law, offset = law_of_step(pair, ends, how)
        phases.append((law, count))
        total += count * offset
    if together:
        alike, counts, their_ranges = zip(*together, strict=True)
        laws, offsets = laws_side_by_side(alike, their_ranges, how)
        phases += zip(laws, counts, strict=True)
        total += sum(count * offset for count, offset in zip(counts, offsets, strict=True))
    return phases, total


def laws_side_by_side(
    pairs: Sequence[Public], ranges: Sequence[tuple[float, float]], how: Meshing
) -> tuple[list[LossPMF], list[float]]:
    """Each pair's discrete loss less an offset, all on the same indices, and the offsets."""
    lattices = _lattices(pairs, ranges, how)
    index = _covering(lattices, ranges, how)
    rates = [_public(pair).sample_rate for pair in pairs]
    laws: dict[int, LossPMF] = {}
    for group in _alike(range(len(pairs)), lambda at: (lattices[at], rates[at])):
        laws |= zip(group, _laws([pairs[at] for at in group], index, lattices[group[0]], how), strict=True)
    return [laws[at] for at in range(len(pairs))], [lattice.offset for lattice in lattices]


def most_variation(pair: StepPair, ends: tuple[float, float], direction: Direction, mesh: float) -> float:
    """At least H_1 of what the pair stands for; from a rough law where its sensitivity is secret."""
    if isinstance(pair, AtomicPair):
        return pair.total_variation() + _ROUNDING
    if not isinstance(pair, Public):
        return discrete_variation(law_of_step(pair, ends, rough_meshing(direction, mesh, _GROWTH))[0])
    public = _public(pair)
    own = public.sample_rate * (public.total_variation() + _ROUNDING) + pair.slack
    return own if isinstance(pair, PublicPair) else own + float(pair.excess(np.zeros(1))[0])


def _public(pair: Public) -> PublicPair:
    return pair if isinstance(pair, PublicPair) else pair.rank_one


def _alike(items: Sequence[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _lattices(pairs: Sequence[Public], ranges: Sequence[tuple[float, float]], how: Meshing) -> list[Lattice]:
    """As :func:`lattice` for each, but from below a node lies up to a small part of a mesh beyond the mean (O1)."""
    ends = [how.end(each) for each in ranges]
    lattices = [Lattice(how.mesh, how.sign * end if abs(end) < how.within else 0.0) for end in ends]
    if how.side == "upper":
        return lattices
    near = [at for at, end in enumerate(ends) if abs(end) < how.within]
    nodes = {at: ends[at] for at in near}
    for again in range(MEANS):
        near = near if again == 0 else [at for at in near if is_wide(how.mesh, ends[at])]
        for group in _alike(near, lambda at: (_public(pairs[at]).sample_rate, ends[at], nodes[at])):
            end, boundary = ends[group[0]], nodes[group[0]] + how.mesh
            below = cells_of_many([_public(pairs[at]) for at in group], np.array([boundary]))
            for at, cells in zip(group, below, strict=True):
                mean, meeting = at_mean(cells, end, boundary)
                shared = end + math.ceil((mean - end) / how.mesh * _PLACES) / _PLACES * how.mesh
                nodes[at] = min(shared, boundary) if how.coarse else mean
                home = None if meeting is None else Home(0, how.sign * meeting, how.sign * end)
                goes_on = _public(pairs[at]).sample_rate == 1.0 and abs(nodes[at] - end) > how.mesh
                lattices[at] = Lattice(how.mesh) if goes_on else Lattice(how.mesh, how.sign * nodes[at], home)
    return lattices


def _covering(lattices: Sequence[Lattice], ranges: Sequence[tuple[float, float]], how: Meshing) -> NDArray[np.int64]:
    low = min(ends[0] - lattice.offset for ends, lattice in zip(ranges, lattices, strict=True))
    high = max(ends[1] - lattice.offset for ends, lattice in zip(ranges, lattices, strict=True))
    return graded_indices(low - how.mesh, high + how.mesh, how.mesh, how.bulk)


def _laws(pairs: Sequence[Public], index: NDArray[np.int64], lattice: Lattice, how: Meshing) -> list[LossPMF]:
    """Of phases with the same lattice and sample rate."""
    losses = lattice.boundaries(index)
    nodes = losses if how.direction == "remove" else -losses[::-1]
    each = cells_of_many([_public(pair) for pair in pairs], nodes)
    each = [
        cells if isinstance(pair, PublicPair) else pair.dominating(nodes, cells)
        for pair, cells in zip(pairs, each, strict=True)
    ]
    rows = _stacked(each if how.direction == "remove" else [cells.mirrored() for cells in each])
    if how.side == "lower":
        return [LossPMF(index, mass, how.mesh, 0.0) for mass in mass_from_below(lattice.nodes(index), rows)]
    masses = mass_from_above(lattice.nodes(index), rows)
    return [
        LossPMF(index, mass, how.mesh, min(beyond + pair.slack, 1.0))
        for mass, beyond, pair in zip(masses, rows.p_above.tolist(), pairs, strict=True)
    ]


def cells_of_many(pairs: Sequence[PublicPair], nodes: Array) -> list[LossCells]:
    """The cells of pairs with the same sample rate: at each shift that several have the normal law is taken once."""
    shift, place = np.unique(np.concatenate([pair.shift for pair in pairs]), return_inverse=True)
    if len(pairs) > 1 and shift.size > _MOST_SHIFTS:
        half = len(pairs) // 2
        return cells_of_many(pairs[:half], nodes) + cells_of_many(pairs[half:], nodes)
    mass = np.zeros((shift.size, len(pairs)))
    column = np.repeat(np.arange(len(pairs), dtype=np.intp), [pair.shift.size for pair in pairs])
    np.add.at(mass, (place, column), np.concatenate([pair.mass for pair in pairs]))
    absent, present = masses_by_shift(nodes, shift, mass, pairs[0].sample_rate)
    return [pair.mixed(nodes, *both) for pair, *both in zip(pairs, absent.T, present.T, strict=True)]


def _stacked(cells: Sequence[LossCells]) -> CellRows:
    columns = ([getattr(each, field.name) for each in cells] for field in fields(LossCells))
    return CellRows(*(np.array(column) for column in columns))
