"""Compositions with a rare large loss, taken apart from all others (F4): against sums of positive terms."""

import numpy as np
import pytest

from dprmt.accounting import DPSGD, Hutchinson, compose
from dprmt.accounting.composition._compose import (
    Split,
    composed_beyond,
    large_share,
    log_mgf,
    window,
)
from dprmt.accounting.pairs import LossPMF

MESH = 0.01


def law(rare, seed, spread=30):
    """Nearly all mass near 0, and a heavy tail of ``rare`` mass."""
    rng = np.random.default_rng(seed)
    index = np.arange(-spread, 2000)
    small, large = index <= spread, index > spread
    mass = np.where(small, rng.uniform(0.5, 1.0, index.size) * np.exp(-((index / spread * 3.0) ** 2)), 0.0)
    tail = np.where(large, rng.uniform(0.5, 1.0, index.size) * (1.0 + index / 100.0) ** -4.0, 0.0)
    return LossPMF(index, (1.0 - rare) * mass / mass.sum() + rare * tail / tail.sum(), MESH, 0.0)


def parts_by_sums(pmf, steps, large):
    """The masses of sums with some loss beyond ``large``, from positive terms alone; index of the first."""
    is_large = pmf.losses > large
    below, beyond = np.where(is_large, 0.0, pmf.mass), np.where(is_large, pmf.mass, 0.0)
    without, with_some = below, beyond
    for _ in range(steps - 1):
        with_some = np.convolve(with_some, pmf.mass) + np.convolve(without, beyond)
        without = np.convolve(without, below)
    return with_some, steps * int(pmf.index[0])


@pytest.mark.parametrize("rare", [1e-4, 1e-9, 1e-14])
@pytest.mark.parametrize("tilt", [0.0, 0.05])
@pytest.mark.parametrize("large", [0.3, 5.0])
def test_what_has_a_large_loss_is_known_relative_to_itself(rare, tilt, large):
    pmf, steps = law(rare, 3), 7
    phases, split = [(pmf, steps)], Split(large, tilt, tilt, 0.0)
    found = composed_beyond(phases, split, window(phases, tilt, large_share(phases, split)))
    truth, first = parts_by_sums(pmf, steps, large)
    place = np.rint(found.losses / MESH).astype(int) - first
    inside = (place >= 0) & (place < truth.size)
    wanted = np.where(inside, truth[np.clip(place, 0, truth.size - 1)], 0.0) * np.exp(tilt * found.losses)
    wanted /= np.exp(log_mgf([(pmf, steps)], np.array([tilt]))[0])
    assert np.abs(found.mass - wanted).sum() <= found.error
    assert found.error < 1e-8 * wanted.sum()  # a transform of everything leaves 1e-13 of 1, however rare they are


def test_two_laws_and_losses_that_decide_among_many():
    """Large losses are no longer rare: the two products are subtracted as they are."""
    phases, large, tilt = [(law(0.3, 1), 4), (law(0.05, 2), 3)], 1.0, 0.02
    split = Split(large, tilt, tilt, 0.0)
    found = composed_beyond(phases, split, window(phases, tilt, large_share(phases, split)))
    whole, below = np.ones(1), np.ones(1)
    for pmf, steps in phases:
        for _ in range(steps):
            whole, below = (
                np.convolve(whole, pmf.mass),
                np.convolve(below, np.where(pmf.losses > large, 0.0, pmf.mass)),
            )
    losses = MESH * (np.arange(whole.size) + sum(steps * int(pmf.index[0]) for pmf, steps in phases))
    wanted = (whole - below) * np.exp(tilt * losses - log_mgf(phases, np.array([tilt]))[0])
    place = np.rint((found.losses - losses[0]) / MESH).astype(int)
    inside = (place >= 0) & (place < wanted.size)
    expected = np.where(inside, wanted[np.clip(place, 0, wanted.size - 1)], 0.0)
    assert np.abs(found.mass - expected).sum() <= found.error + 1e-13
    assert found.error < 1e-8


def test_few_secret_probes_among_many_steps_have_a_narrow_answer():
    """By one transform of everything both were over a factor 3 wide."""
    bounds = DPSGD(1.811, 2.2719e-4, Hutchinson(9, secret=True)).epsilon(delta=1.89e-9, steps=53307)
    assert 16.5 < bounds.lower < bounds.upper < 17.9
    phases = [(DPSGD(2.0, 1e-3), 100000), (DPSGD(4.0, 1e-3, Hutchinson(9, secret=True)), 100000)]
    bounds = compose(phases).epsilon(1e-8)
    assert 0.967 < bounds.lower < bounds.upper < 0.98
