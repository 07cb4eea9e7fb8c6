"""A statistical audit: attack the simulated mechanism; its certain ε stays below ours and above that of a fixed Z."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

from dprmt.accounting import DPSGD, RandomizedClipping

DRAWS = 400_000
DELTA = 1e-3
RANK_ONE, SPREAD = (1.0,), (0.4, 0.3, 0.2, 0.1)


def draw_sensitivity(spectrum: tuple[float, ...], probes: int, rng: np.random.Generator) -> np.ndarray:
    """Z = X^{-1/2} with X = Σ λ_i χ²_i(k)/k."""
    ratio = sum(weight * rng.chisquare(probes, DRAWS) / probes for weight in spectrum)
    return np.asarray(1.0 / np.sqrt(ratio))


def certain_epsilon(present: np.ndarray, absent: np.ndarray, thresholds: np.ndarray) -> float:
    """Largest ε that Clopper–Pearson intervals prove, over thresholds on a score (Bonferroni over them)."""
    level = 0.001 / (2 * thresholds.size)
    hits = np.array([(present > threshold).sum() for threshold in thresholds])
    false = np.array([(absent > threshold).sum() for threshold in thresholds])
    power = beta.ppf(level, hits, DRAWS - hits + 1)
    alarm = beta.ppf(1 - level, false + 1, DRAWS - false)
    with np.errstate(divide="ignore", invalid="ignore"):
        proved = np.log((power - DELTA) / alarm)
    return float(np.nanmax(np.where(power > DELTA, proved, -np.inf)))


def scores(
    spectrum: tuple[float, ...], sigma: float, rate: float, probes: int, secret: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The attacker's score with and without the sample: the loss given Z, or the output alone where Z is secret."""
    rng = np.random.default_rng(7)
    shift = draw_sensitivity(spectrum, probes, rng) / sigma
    takes_part = rng.random(DRAWS) < rate
    present = rng.standard_normal(DRAWS) + shift * takes_part
    absent = rng.standard_normal(DRAWS)
    if secret:
        return present, absent
    other = draw_sensitivity(spectrum, probes, rng) / sigma
    return shift * present - shift**2 / 2, other * absent - other**2 / 2


SETTINGS = [
    (RANK_ONE, 1.0, 1.0, 4, False),
    (SPREAD, 1.0, 1.0, 4, False),
    (RANK_ONE, 1.0, 0.5, 4, False),
    (RANK_ONE, 0.8, 1.0, 8, True),
    (SPREAD, 0.8, 0.5, 8, True),
]


def proved(*setting: Any) -> float:
    """What the attack proves, over both directions of the test."""
    present, absent = scores(*setting)
    grid = np.quantile(present, np.linspace(0.3, 0.999, 60))
    low_grid = np.quantile(-absent, np.linspace(0.3, 0.999, 60))
    return max(certain_epsilon(present, absent, grid), certain_epsilon(-absent, -present, low_grid))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_attack_never_exceeds_our_upper_bound(setting: tuple[Any, ...]) -> None:
    _, sigma, rate, probes, secret = setting
    sharing = "sample" if secret else "batch"
    for analysis in ("tight", "envelope"):
        run = RandomizedClipping(sigma, rate, probes, analysis=analysis, probe_sharing=sharing)  # type: ignore[arg-type]
        assert proved(*setting) <= run.epsilon(1, DELTA).upper


def test_the_attack_exceeds_what_ignoring_randomness_gives() -> None:
    """Power: a rank-one gradient with few probes leaks more than the exact norm's ε."""
    assert proved(*SETTINGS[0]) > DPSGD(1.0, 1.0).epsilon(1, DELTA).upper + 0.3
    assert proved(*SETTINGS[3]) > DPSGD(0.8, 1.0).epsilon(1, DELTA).upper + 0.05


def test_the_attack_is_not_far_from_the_bound() -> None:
    """The bound is tight: with enough probes for a light tail, the attack proves most of it."""
    run = RandomizedClipping(1.0, 1.0, 32)
    assert proved(RANK_ONE, 1.0, 1.0, 32, False) > 0.75 * run.epsilon(1, DELTA).upper
