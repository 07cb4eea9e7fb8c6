"""Cells of a step's upper pair as other packages need them: in blocks, in one direction, every charge at infinity."""

from __future__ import annotations

import math

import numpy as np

from dprmt.accounting._bounds import Direction
from dprmt.accounting._cells import LossCells, StepPair
from dprmt.accounting._secret_pair import SecretUpperPair
from dprmt.accounting._types import Array

_BLOCK = 2048  # nodes at a time: a pair needs some arrays of (nodes × sensitivities)


def charged_cells(pair: StepPair, nodes: Array, direction: Direction) -> LossCells:
    """Cells of an upper pair in one adjacency direction.

    Parameters
    ----------
    pair : StepPair
        An upper pair.
    nodes : ndarray, shape (n,)
        Strictly increasing losses of that direction.
    direction : {"remove", "add"}
        Adjacency direction.

    Returns
    -------
    LossCells
        ``p_above`` is all that has to be charged to an infinite loss: the mass above the last node, the pair's slack,
        and what its law leaves out. Hence the masses may sum to a little more than 1.
    """
    if direction == "remove":
        cells = _in_blocks(pair, nodes)
        return _with_p_above(cells, cells.p_above + pair.slack)
    cells = _in_blocks(pair, -nodes[::-1])
    charge = pair.slack
    if isinstance(pair, SecretUpperPair):
        charge += _excess(cells) * math.exp(_largest_added_loss(pair, float(nodes[-1])))
    cells = cells.mirrored()
    return _with_p_above(cells, cells.p_above + charge)


def _largest_added_loss(pair: SecretUpperPair, last: float) -> float:
    # The secret pair's charge c raises P(y > t) for every t, so P(y ≤ t) may be too large by c. Then
    # H_α(Q‖P) = sup_t [Q(y ≤ t) - α P(y ≤ t)] is too small by up to αc, and α matters up to the largest loss only.
    return min(last, -math.log1p(-pair.sample_rate)) if pair.sample_rate < 1.0 else last


def _in_blocks(pair: StepPair, nodes: Array) -> LossCells:
    """The pair's cells, with memory for one block of nodes at a time."""
    starts = range(0, max(nodes.size - 1, 1), _BLOCK)
    blocks = [pair.cells(nodes[start : start + _BLOCK + 1]) for start in starts]
    first, last = blocks[0], blocks[-1]
    return LossCells(
        p=np.concatenate([block.p for block in blocks]),
        q=np.concatenate([block.q for block in blocks]),
        p_below=first.p_below,
        q_below=first.q_below,
        p_above=last.p_above + sum(_excess(block) for block in blocks[:-1]),
        q_above=last.q_above,
    )


def _excess(cells: LossCells) -> float:
    """What a pair charges to infinity on top of its total mass of 1."""
    return max(cells.p_below + math.fsum(cells.p) + cells.p_above - 1.0, 0.0)


def _with_p_above(cells: LossCells, p_above: float) -> LossCells:
    return LossCells(cells.p, cells.q, cells.p_below, cells.q_below, min(p_above, 1.0), cells.q_above)
