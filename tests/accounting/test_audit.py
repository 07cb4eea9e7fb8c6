"""A statistical audit: attack the simulated mechanism; its certain ε stays below ours and above that of a fixed Z."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

from dprmt.accounting import DPSGD, Hutchinson

DELTA = 1e-3
RANK_ONE, SPREAD = (1.0,), (0.4, 0.3, 0.2, 0.1)


SETTINGS = [
    (RANK_ONE, 1.0, 1.0, 4, False),
    (SPREAD, 1.0, 1.0, 4, False),
    (RANK_ONE, 1.0, 0.5, 4, False),
    (RANK_ONE, 0.8, 1.0, 8, True),
    (SPREAD, 0.8, 0.5, 8, True),
]


# ------------------------------------------------------------------------------------------ each direction by itself


def simulate_clipping(
    spectrum: tuple[float, ...], sigma: float, rate: float, probes: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The step as the training code does it: probes, estimated norm, clip factor, noise; C = 1, a gradient of norm 50.

    Returns Z and the released coordinate with the sample among the candidates, and without it.
    """
    rng = np.random.default_rng(seed)
    draws, norm = 100_000, 50.0
    singular_values = norm * np.sqrt(np.array(spectrum))
    clipped = np.empty((4, draws))
    for block in clipped:
        probe = rng.standard_normal((draws, len(spectrum), probes)) / np.sqrt(probes)
        estimate = np.sqrt(np.einsum("i,nij->n", singular_values**2, probe**2))
        block[:] = norm * np.minimum(1.0 / estimate, 1.0)
    contribution = clipped.ravel()
    takes_part = rng.random(contribution.size) < rate
    noise = sigma * rng.standard_normal((2, contribution.size))
    return contribution, contribution * takes_part + noise[0], noise[1]


def attack_scores(setting: tuple[Any, ...], seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per direction: the score under the first and under the second hypothesis; larger speaks for the first."""
    spectrum, sigma, rate, probes, secret = setting
    clipped, present, absent = simulate_clipping(spectrum, sigma, rate, probes, seed)
    if not secret:
        present, absent = (clipped * output / sigma**2 - (clipped / sigma) ** 2 / 2 for output in (present, absent))
    return {"remove": (present, absent), "add": (-absent, -present)}


def certain_at(first: np.ndarray, second: np.ndarray, threshold: float, level: float = 1e-6) -> float:
    """The ε that one threshold proves, with probability 1 - 2·level, if the threshold was fixed beforehand."""
    hits, alarms = int((first > threshold).sum()), int((second > threshold).sum())
    power = beta.ppf(level, hits, first.size - hits + 1) if hits else 0.0
    false_alarm = beta.ppf(1 - level, alarms + 1, second.size - alarms)
    return float(np.log((power - DELTA) / false_alarm)) if power > DELTA else -np.inf


def proved_by_direction(setting: tuple[Any, ...]) -> dict[str, float]:
    """Thresholds are chosen on a pilot; what they prove is measured on fresh draws."""
    pilot, fresh = attack_scores(setting, seed=1), attack_scores(setting, seed=2)
    proofs = {}
    for direction, (first, second) in pilot.items():
        candidates = np.quantile(first, np.linspace(0.2, 0.999, 80))
        best = max(candidates, key=lambda threshold: certain_at(first, second, threshold))
        proofs[direction] = certain_at(*fresh[direction], best)
    return proofs


@pytest.mark.parametrize(
    "setting", [*SETTINGS, (RANK_ONE, 0.5, 1.0, 32, True), (RANK_ONE, 1.0, 0.5, 32, False)], ids=str
)
def test_no_attack_exceeds_the_upper_bound_of_its_own_direction(setting: tuple[Any, ...]) -> None:
    """Removing and adding are attacked separately: a bound that is too small in one direction only is caught."""
    _, sigma, rate, probes, secret = setting
    proofs = proved_by_direction(setting)
    for analysis in ("tight", "envelope"):
        run = DPSGD(sigma, rate, Hutchinson(probes, secret=secret, analysis=analysis))  # type: ignore[arg-type]
        for direction, bounds in run.epsilon_by_direction(steps=1, delta=DELTA).items():
            assert proofs[direction] <= bounds.upper, (direction, analysis)


@pytest.mark.parametrize(
    ("setting", "directions"),
    [
        ((RANK_ONE, 1.0, 1.0, 4, False), ("remove", "add")),
        ((RANK_ONE, 1.0, 0.5, 4, False), ("remove",)),
        ((RANK_ONE, 1.0, 1.0, 4, True), ("remove",)),
    ],
    ids=str,
)
def test_attacks_in_each_direction_exceed_what_ignoring_randomness_gives(
    setting: tuple[Any, ...], directions: tuple[str, ...]
) -> None:
    """Power: with Z = 1 put in for Z, the ε computed would be refuted by 0.5 at least."""
    _, sigma, rate, _, _ = setting
    proofs = proved_by_direction(setting)
    ignorant = DPSGD(sigma, rate).epsilon_by_direction(steps=1, delta=DELTA)
    for direction in directions:
        assert proofs[direction] > ignorant[direction].upper + 0.5  # type: ignore[index]
