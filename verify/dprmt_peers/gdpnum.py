"""gdpnum's accountant: the ε of its connected dots, not of its μ."""

from typing import Any


def epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Ask it."""
    from gdpnum import CTDAccountant

    accountant: Any = CTDAccountant()
    accountant.history = [(noise_multiplier, rate, steps)]
    return float(accountant.get_epsilon(delta=delta))
