"""A step's upper pair as other packages need it: in both directions, with all charges in the infinite mass."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dprmt.accounting._bounds import Direction
from dprmt.accounting._cells import LossCells, StepPair
from dprmt.accounting._types import Array

_BLOCK = 2048  # nodes at a time: a pair needs some arrays of (nodes × sensitivities)


def charged_cells(pair: StepPair, nodes: Array) -> dict[Direction, LossCells]:
    """Cells of an upper pair in both adjacency directions, with memory for one block of nodes at a time.

    Parameters
    ----------
    pair : StepPair
        An upper pair.
    nodes : ndarray, shape (n,)
        Strictly increasing losses of the direction "remove"; those of "add" are ``-nodes[::-1]``.

    Returns
    -------
    dict
        Keys ``"remove"`` and ``"add"``. Each ``p_above`` is all that has to be charged to an infinite loss: mass
        above the last node, what the pair charges, and its slack. So masses may sum to more than 1.
    """
    starts = range(0, max(nodes.size - 1, 1), _BLOCK)
    blocks = [pair.cells(nodes[start : start + _BLOCK + 1]) for start in starts]
    first, last = blocks[0], blocks[-1]
    cells = LossCells(
        p=np.concatenate([block.p for block in blocks]),
        q=np.concatenate([block.q for block in blocks]),
        p_below=first.p_below,
        q_below=first.q_below + sum(_excess(block.q_below, block.q, block.q_above) for block in blocks[1:]),
        p_above=last.p_above + sum(_excess(block.p_below, block.p, block.p_above) for block in blocks[:-1]),
        q_above=last.q_above,
    )
    return {"remove": _with_slack(cells, pair.slack), "add": _with_slack(cells.mirrored(), pair.slack)}


def _excess(below: float, mass: Array, above: float) -> float:
    """What a block charges to an infinite loss on top of a total mass of 1; it must not be lost with its tails."""
    return max(below + math.fsum(mass) + above - 1.0, 0.0)


def _with_slack(cells: LossCells, slack: float) -> LossCells:
    return replace(cells, p_above=min(cells.p_above + slack, 1.0))
