"""X = 1: the norm is computed exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dprmt.accounting.laws._law import NormLaw
from dprmt.accounting.laws._norm_ratio_bins import Focus, NormRatioBins


@dataclass(frozen=True)
class ExactLaw(NormLaw):
    """The law of exact norms, X = 1."""

    is_exact: ClassVar[bool] = True

    def bins(self, number: int, tail: float, focus: Focus | None = None) -> NormRatioBins:
        """One bin."""
        del number, tail, focus
        one = np.ones(1)
        return NormRatioBins(left=one, right=one, mass=one, mean=one, below=0.0)
