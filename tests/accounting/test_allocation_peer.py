"""Random allocation against the one package that accounts for it, PLD_accounting: its interval must hold ours."""

from __future__ import annotations

import pytest

from dprmt.accounting import DPSGD, RandomAllocation

SETTINGS = [(2.341, 32, 2, 9.999999999999999e-06), (3.836, 28, 1, 1e-07), (3.297, 7, 4, 0.0001), (3.103, 8, 4, 1e-07)]
"""σ, steps of an epoch, epochs and δ; others take the peer half a minute."""


@pytest.mark.peer
@pytest.mark.parametrize(("sigma", "steps", "epochs", "delta"), SETTINGS)
def test_the_peer_s_interval_holds_ours(sigma: float, steps: int, epochs: int, delta: float) -> None:
    """Both intervals are bounds of the same ε, and ours is the narrower."""
    peer = pytest.importorskip("PLD_accounting")
    high, low = peer.gaussian_allocation_epsilon_range(
        delta=delta, sigma=sigma, num_steps=steps, num_epochs=epochs, epsilon_accuracy=0.1
    )
    ours = DPSGD(sigma, RandomAllocation(steps)).epsilon(epochs=epochs, delta=delta)
    assert low <= ours.lower <= ours.upper <= high
    assert ours.upper - ours.lower < high - low
