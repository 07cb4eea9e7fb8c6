"""Opacus' PRV accountant at its default errors."""

from typing import Any


def epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Ask it."""
    from opacus.accountants import PRVAccountant

    accountant: Any = PRVAccountant()
    accountant.history = [(noise_multiplier, rate, steps)]
    return float(accountant.get_epsilon(delta))
