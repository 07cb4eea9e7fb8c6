"""A step's upper pair as other packages need it: in both directions, with all charges in the infinite mass."""

from __future__ import annotations

from dataclasses import replace

from dprmt.accounting.basics import Array, Direction
from dprmt.accounting.pairs._cells import LossCells, StepPair


def charged_cells(pair: StepPair, nodes: Array) -> dict[Direction, LossCells]:
    """Cells of an upper pair in both adjacency directions.

    ``nodes``: strictly increasing losses of the direction "remove"; those of "add" are ``-nodes[::-1]``.
    Returns: keys ``"remove"`` and ``"add"``. Each ``p_above`` is all that has to be charged to an infinite loss: mass
    above the last node, what the pair charges, and its slack. So masses may sum to more than 1.
    """
    cells = pair.cells(nodes)
    return {"remove": _with_slack(cells, pair.slack), "add": _with_slack(cells.mirrored(), pair.slack)}


def _with_slack(cells: LossCells, slack: float) -> LossCells:
    return replace(cells, p_above=min(cells.p_above + slack, 1.0))
