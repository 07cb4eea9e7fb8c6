"""Random allocation against the one package that accounts for it, PLD_accounting: its interval must hold ours."""

from __future__ import annotations

import numpy as np
import pytest

from dprmt.accounting import DPSGD

pytestmark = pytest.mark.peer

_RNG = np.random.default_rng(15)
SETTINGS = [
    (
        round(float(np.exp(_RNG.uniform(np.log(0.7), np.log(4.0)))), 3),
        int(np.exp(_RNG.uniform(np.log(2), np.log(60)))),
        int(_RNG.integers(1, 9)),
        float(10.0 ** -_RNG.integers(4, 8)),
    )
    for _ in range(50)
]


@pytest.mark.parametrize(("sigma", "steps", "epochs", "delta"), SETTINGS)
def test_the_peer_s_interval_holds_ours(sigma, steps, epochs, delta):
    """Fifty settings; both intervals are bounds of the same ε, and ours is the narrower."""
    peer = pytest.importorskip("PLD_accounting")
    upper, lower = peer.gaussian_allocation_epsilon_range(
        delta=delta, sigma=sigma, num_steps=steps, num_epochs=epochs, epsilon_accuracy=0.1
    )
    ours = DPSGD(sigma, sampling="allocation", steps_per_epoch=steps).epsilon(epochs=epochs, delta=delta)
    assert lower <= ours.lower
    assert ours.upper <= upper
    assert ours.upper - ours.lower < upper - lower
