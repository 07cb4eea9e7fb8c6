"""The learning rate as a function of the step alone, so that a resumed run continues it."""

from __future__ import annotations


def learning_rate_factor(schedule: str, step: int, steps: int) -> float:
    """Share of the peak learning rate at a step.

    Examples
    --------
    >>> [learning_rate_factor("linear", step, 4) for step in (1, 2, 3, 4)]
    [1.0, 0.75, 0.5, 0.25]
    """
    return 1.0 if schedule == "constant" else (steps - step + 1) / steps
