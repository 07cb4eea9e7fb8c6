"""Secret probes: both pairs' curves against T(t) = E Φ(μ - t) by quadrature, far into the tail."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammainc, ndtr

from dprmt.accounting.laws._laws import EnvelopeLaw
from dprmt.accounting.pairs import _pairs
from dprmt.accounting.pairs._secret_pair import SecretLowerPair, SecretUpperPair
from dprmt.accounting.pairs._steps import ClippingStep

SIGMA, TAIL = 2.0, 1e-9
THRESHOLDS = np.concatenate([np.linspace(-8.0, 8.0, 33), np.geomspace(9.0, 300.0, 12)])


def truth(probes: int, t: np.ndarray) -> np.ndarray:
    """E Φ(μ - t) of the envelope: P(μ > t + G), averaged over a normal G by the trapezoidal rule."""
    length = np.linspace(0.0, 30.0, 6001)
    kink = np.maximum(1 / SIGMA - t, -12.0)[:, None]  # X_env is at most 1: the rest is beyond it
    g = kink + length
    weight = np.exp(-(g**2) / 2) * length[1] / np.sqrt(2 * np.pi)
    weight[:, 0] /= 2
    law = gammainc(probes / 2, probes / 2 / (SIGMA * np.maximum(t[:, None] + g, 1 / SIGMA)) ** 2)
    return ndtr(kink[:, 0]) + (law * weight).sum(axis=1)


def pairs(probes: int, bins: int = 256) -> tuple[SecretUpperPair, SecretLowerPair]:
    step = ClippingStep(SIGMA, 0.5, EnvelopeLaw(probes), secret=True)
    upper, lower = step.pairs(bins, TAIL)
    assert isinstance(upper, SecretUpperPair)
    assert isinstance(lower, SecretLowerPair)
    return upper, lower


@pytest.mark.parametrize("probes", [2, 3, 5])
def test_an_envelope_as_it_is_bounds_the_curve_at_every_threshold(probes: int) -> None:
    """(C3), valid for a law in the stochastic order; from below tight."""
    upper, lower = pairs(probes)
    exact = truth(probes, THRESHOLDS)
    above = upper.curve(THRESHOLDS)[0]
    below = lower.curve(THRESHOLDS)[0]
    assert np.all(above >= exact * (1 - 1e-9) - 1e-6 * (THRESHOLDS < 7))
    assert np.all(below <= exact * (1 + 1e-9) + 1e-6 * (THRESHOLDS < 7))
    seen = exact > 3e-7
    assert np.all(below[seen] >= exact[seen] * 0.93)  # of two probes, at shifts of 20 and more


def test_the_curve_is_the_sum_over_atoms_of_their_majorants(monkeypatch) -> None:
    """(C3), (C4); the block length changes nothing."""
    shift = np.geomspace(400.0, 0.02, 300)
    mass = np.full(300, 1 / 300)
    pair = SecretUpperPair(shift, mass, 0.3)
    value, rest = pair._uncapped(THRESHOLDS)
    plain = _literal(shift, mass, THRESHOLDS)
    np.testing.assert_allclose(value, plain, rtol=1e-12)
    np.testing.assert_allclose(rest, 1 - plain, atol=1e-12)
    ratio, slope = pair.log_ratio(THRESHOLDS)
    step = 1e-5
    np.testing.assert_allclose(
        slope, (pair.log_ratio(THRESHOLDS + step)[0] - pair.log_ratio(THRESHOLDS - step)[0]) / (2 * step), rtol=2e-3
    )
    monkeypatch.setattr(_pairs.row_blocks, "__defaults__", (3,))
    np.testing.assert_allclose(pair._uncapped(THRESHOLDS)[0], value, rtol=1e-12)
    np.testing.assert_allclose(pair.log_ratio(THRESHOLDS)[0], ratio, rtol=1e-12)


def _literal(shift: np.ndarray, mass: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Equation (C3), one threshold and one atom at a time."""
    total = []
    for t in thresholds:
        star = (t + np.sqrt(t * t + 12)) / 2 if t >= 0 else 6 / (np.sqrt(t * t + 12) - t)
        value = 0.0
        for mu, m in zip(shift, mass, strict=True):
            if mu <= star:
                value += m * ndtr(mu - t)
                continue
            at, y = (star, (star / mu) ** 2) if mu <= np.sqrt(3) * star else (mu / np.sqrt(3), 1 / 3)
            value += m * (ndtr(3 / at) + at / 2 * np.exp(-4.5 / at**2) / np.sqrt(2 * np.pi) * (1 - y))
        total.append(value)
    return np.array(total)


def test_thresholds_meet_their_losses() -> None:
    upper, _ = pairs(2)
    nodes = np.concatenate([np.linspace(-0.69, 30.0, 200), np.geomspace(31.0, 1e5, 200)])
    t, miss = upper.thresholds(nodes)
    finite = np.isfinite(t)
    assert np.all(np.diff(t[finite]) >= 0)
    assert np.max(miss / np.maximum(nodes, 1.0)) < 1e-9


def test_no_outcome_between_the_smallest_loss_and_the_cap_is_lost() -> None:
    """(C6): also where shifts reach 1e6, the divergence at the smallest losses is that of min(1, T̂) or more."""
    shift = np.geomspace(0.3, 1e6, 60)
    mass = shift**-1.0 / np.sum(shift**-1.0) * (1 - 1e-9)
    pair = SecretUpperPair(shift, mass, 0.5, 1e-9)
    nodes = np.linspace(np.log(0.5) + 1e-6, 3.0, 400)
    found = hockey_sticks(pair.cells(nodes), nodes)
    t = np.linspace(-12.0, 6.0, 40001)
    curve = np.minimum(pair._uncapped(t)[0], 1.0)
    wanted = np.array([np.max(0.5 * ndtr(-t) + 0.5 * curve - np.exp(loss) * ndtr(-t)) for loss in nodes])
    assert np.all(found >= wanted * (1 - 1e-12))
    assert np.all(found <= wanted * (1 + 1e-3))
    low, high = -12.0, 6.0  # where T̂ reaches 1, to the last digits: that point is the best one for small losses
    while high - low > 1e-15:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if pair._uncapped(np.array([middle]))[1][0] <= 0.0 else (low, middle)
    cap = 0.5 * ndtr(-low) + 0.5 - np.exp(nodes) * ndtr(-low)
    assert np.all(found >= cap - 2e-15)


def hockey_sticks(cells, nodes: np.ndarray, charged: float = 0.0) -> np.ndarray:
    """H of the cells at each node, the mass above the last one at an infinite loss."""
    p, q = (np.append(np.cumsum(mass[::-1])[::-1], 0.0) for mass in (cells.p, cells.q))
    return p + cells.p_above - charged - np.exp(nodes) * (q + cells.q_above)
