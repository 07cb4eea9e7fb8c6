"""One step, or one epoch of random allocation, as pairs of distributions: what a mechanism composes."""

from __future__ import annotations

from dprmt.accounting.pairs._allocation_epoch import AllocationEpoch
from dprmt.accounting.pairs._atomic_pair import AtomicPair
from dprmt.accounting.pairs._cells import CellRows, LossCells, StepPair
from dprmt.accounting.pairs._charged_cells import charged_cells
from dprmt.accounting.pairs._clipping_step import ClippingStep
from dprmt.accounting.pairs._common_grid import pairs_of_steps
from dprmt.accounting.pairs._discretization import (
    LossPMF,
    cut_above,
    from_above,
    from_below,
    keep_at_last,
    mass_from_above,
    mass_from_below,
)
from dprmt.accounting.pairs._neighbours import (
    AddRemove,
    Group,
    Neighbours,
    ReplaceOne,
    ZeroOut,
    checked_neighbours,
    neighbours_from_dict,
)
from dprmt.accounting.pairs._power_convolution import complex_log1p
from dprmt.accounting.pairs._public_pair import PublicPair, masses_by_shift
from dprmt.accounting.pairs._related_step import AnyStep, RelatedStep, has_pairs, related
from dprmt.accounting.pairs._schedule import Schedule, Step
from dprmt.accounting.pairs._secret_lower_pair import SecretLowerPair
from dprmt.accounting.pairs._tight_pair import TightPair

__all__ = [
    "AddRemove",
    "AllocationEpoch",
    "AnyStep",
    "AtomicPair",
    "CellRows",
    "ClippingStep",
    "Group",
    "LossCells",
    "LossPMF",
    "Neighbours",
    "PublicPair",
    "RelatedStep",
    "ReplaceOne",
    "Schedule",
    "SecretLowerPair",
    "Step",
    "StepPair",
    "TightPair",
    "ZeroOut",
    "charged_cells",
    "checked_neighbours",
    "complex_log1p",
    "cut_above",
    "from_above",
    "from_below",
    "has_pairs",
    "keep_at_last",
    "mass_from_above",
    "mass_from_below",
    "masses_by_shift",
    "neighbours_from_dict",
    "pairs_of_steps",
    "related",
]
