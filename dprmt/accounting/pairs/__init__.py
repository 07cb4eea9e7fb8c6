"""One step, or one epoch of random allocation, as pairs of distributions: what a mechanism composes."""

from __future__ import annotations

from dprmt.accounting.pairs._allocation import AllocationEpoch
from dprmt.accounting.pairs._discretization import (
    LossPMF,
    cut_above,
    from_above,
    from_below,
    keep_at_last,
)
from dprmt.accounting.pairs._fixed_size import FixedSizeStep, TruncatedStep
from dprmt.accounting.pairs._pairs import AtomicPair, LossCells, Schedule, Step, StepPair, charged_cells, facing
from dprmt.accounting.pairs._public_pair import PublicPair, TightPair, log_shift_ratio
from dprmt.accounting.pairs._ratio_sum import LOG_NOTHING
from dprmt.accounting.pairs._renyi import NOTHING, RenyiStep, ends_stay_apart, renyi_as_one
from dprmt.accounting.pairs._secret_pair import SecretLowerPair
from dprmt.accounting.pairs._steps import (
    AddRemove,
    AnyStep,
    ClippingStep,
    Group,
    Neighbours,
    RelatedStep,
    ReplaceOne,
    ZeroOut,
    checked_neighbours,
    gaussians_as_one,
    has_pairs,
    neighbours_from_dict,
    related,
)

__all__ = [
    "LOG_NOTHING",
    "NOTHING",
    "AddRemove",
    "AllocationEpoch",
    "AnyStep",
    "AtomicPair",
    "ClippingStep",
    "FixedSizeStep",
    "Group",
    "LossCells",
    "LossPMF",
    "Neighbours",
    "PublicPair",
    "RelatedStep",
    "RenyiStep",
    "ReplaceOne",
    "Schedule",
    "SecretLowerPair",
    "Step",
    "StepPair",
    "TightPair",
    "TruncatedStep",
    "ZeroOut",
    "charged_cells",
    "checked_neighbours",
    "cut_above",
    "ends_stay_apart",
    "facing",
    "from_above",
    "from_below",
    "gaussians_as_one",
    "has_pairs",
    "keep_at_last",
    "log_shift_ratio",
    "neighbours_from_dict",
    "related",
    "renyi_as_one",
]
