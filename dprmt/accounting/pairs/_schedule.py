"""What is composed: one step of a mechanism, as pairs with finitely many sensitivities, and a schedule of such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dprmt.accounting.pairs._cells import StepPair


class Step(Protocol):
    """One step of a mechanism, as pairs with finitely many sensitivities."""

    @property
    def tail_share(self) -> float:
        """Share of δ, over all steps, that may be charged for mass cut off at the ends of each law."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether the sensitivity is one number, so that a step is cheap to discretize."""
        ...

    @property
    def steps(self) -> int:
        """Number of steps that it stands for: each adds its rounding."""
        ...

    def pairs(self, bins: int, tail: float) -> tuple[StepPair, StepPair]:
        """A pair that is never more private than the step, and one that is never less private."""
        ...


Schedule = Sequence[tuple[Step, int]]
