"""A step's upper pair as other packages need it: in both directions, with all charges in the infinite mass."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dprmt.accounting._bounds import Direction
from dprmt.accounting._cells import LossCells, StepPair
from dprmt.accounting._secret_pair import SecretUpperPair
from dprmt.accounting._types import Array

_BLOCK = 2048  # nodes at a time: a pair needs some arrays of (nodes × sensitivities)


def charged_cells(pair: StepPair, nodes: Array) -> dict[Direction, LossCells]:
    """Cells of an upper pair in both adjacency directions.

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
        above the last node, the pair's slack, and what its law leaves out. So masses may sum to more than 1.
    """
    remove_charge = add_charge = pair.slack
    if isinstance(pair, SecretUpperPair):
        charge = _excess(pair.cells(nodes[-1:]))
        pair = replace(pair, below=0.0)  # else every block would charge it
        cells = _in_blocks(pair, nodes)
        remove_charge += charge
        add_charge += (charge + _excess(cells)) * math.exp(_largest_added_loss(pair, nodes))
    else:
        cells = _in_blocks(pair, nodes)
    return {"remove": _charged(cells, remove_charge), "add": _charged(cells.mirrored(), add_charge)}


def _largest_added_loss(pair: SecretUpperPair, nodes: Array) -> float:
    # The secret pair's charge c raises P(y > t) for every t, so P(y ≤ t) may be too large by c. Then
    # H_α(Q‖P) = sup_t [Q(y ≤ t) - α P(y ≤ t)] is too small by up to αc, and α matters up to the largest loss only.
    largest = -float(nodes[0])
    return min(largest, -math.log1p(-pair.sample_rate)) if pair.sample_rate < 1.0 else largest


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


def _charged(cells: LossCells, charge: float) -> LossCells:
    return replace(cells, p_above=min(cells.p_above + charge, 1.0))
