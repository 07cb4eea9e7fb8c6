"""Compositions with a rare large loss, taken apart from all others (F4): against sums of positive terms."""

from dataclasses import replace

import numpy as np
import pytest

from dprmt.accounting.composition._compose import Split, Window, composed, window
from dprmt.accounting.composition._curve import DeltaCurve
from dprmt.accounting.pairs._discretization import LossPMF

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
    """From above each step may have it, beside steps of any loss; from below all others have none (F4)."""
    pmf, steps = law(rare, 3), 7
    truth, first = parts_by_sums(pmf, steps, large)
    few, beyond = Split(large, tilt, tilt, 0.0).parts([(pmf, steps)])
    assert few[0][0].mass @ (pmf.losses > large) == 0.0
    found = composed(beyond, tilt, window(beyond, tilt))
    place = np.rint(found.losses / MESH).astype(int) - first
    inside = (place >= 0) & (place < truth.size)
    wanted = np.where(inside, truth[np.clip(place, 0, truth.size - 1)], 0.0) * np.exp(tilt * found.losses)
    charged = steps * found.mass * np.exp(found.log_scale)
    error = steps * found.error * np.exp(found.log_scale)
    assert np.all(charged >= wanted - error)
    assert np.abs(charged - wanted).sum() <= steps**2 * rare * wanted.sum() + 2 * error  # two of them at once
    assert error < 1e-8 * wanted.sum()  # a transform of everything leaves 1e-13 of 1, however rare they are


@pytest.mark.parametrize("side", ["upper", "lower"])
def test_both_parts_together_bound_the_curve(side):
    """A curve of few steps with a heavy tail, by both parts on one grid, against sums of positive terms."""
    pmf, steps, large = law(1e-6, 3), 7, 2.0
    split = Split(large, 3.0, 0.05, 8.0)
    few, beyond = split.parts([(pmf, steps)], side)
    tilts = (split.tilt, split.tilt_beyond)
    windows = [window(part, tilt) for part, tilt in zip((few, beyond), tilts, strict=True)]
    first, last = min(w.first for w in windows), max(w.first + w.size for w in windows)
    small, more = (composed(part, t, Window(first, last - first)) for part, t in zip((few, beyond), tilts, strict=True))
    curve = DeltaCurve(small, split.near, replace(more, log_scale=more.log_scale + np.log(steps)))
    exact = np.ones(1)
    for _ in range(steps):
        exact = np.convolve(exact, pmf.mass)
    losses = MESH * (np.arange(exact.size) + steps * int(pmf.index[0]))
    for epsilon in (0.5, 2.0, 8.0, 15.0):
        delta = float(exact @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))
        low, high = curve.delta_bounds(epsilon)
        assert (high >= delta * (1 - 1e-9)) if side == "upper" else (low <= delta * (1 + 1e-9))
        assert low == pytest.approx(delta, rel=1e-4, abs=1e-18)
