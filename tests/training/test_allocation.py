"""Random allocation in the harness: the sampler audited, with planted bugs; charges, stops and resumption."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from dprmt.accounting import DPSGD, RandomAllocation
from dprmt.training.harness import Run, train
from dprmt.training.private_run._batches import Draws
from dprmt.training.private_run._randomness import Randomness
from dprmt.training.randomness import SecureRandom, allocation
from tests.training.tiny_recipe import killed_before_step, positions, recipe_in

# --------------------------------------------------------------------------------------------- the audit


def complaints(epochs, samples, steps, level=1e-4):
    """What random allocation would hardly do, in epochs that are lists of batches; tests at that level each."""
    found = []
    if any(Counter(position for batch in epoch for position in batch) != Counter(range(samples)) for epoch in epochs):
        found.append("not once each")
    sizes = np.array([[len(batch) for batch in epoch] for epoch in epochs])
    # Sizes of an epoch are multinomial: their sum of squared deviations, over the mean, is χ² of t - 1 degrees.
    spread = ((sizes - samples / steps) ** 2).sum() / (samples / steps)
    freedom = (steps - 1) * len(epochs)
    if min(stats.chi2.cdf(spread, freedom), stats.chi2.sf(spread, freedom)) < level / 2:
        found.append("sizes of batches")
    step_of = np.full((len(epochs), samples), -1)
    for row, epoch in zip(step_of, epochs, strict=True):
        for step, batch in enumerate(epoch):
            row[batch] = step
    for name, same in (
        ("neighbours together", step_of[:, 1:] == step_of[:, :-1]),
        ("one epoch like the last", step_of[1:] == step_of[:-1]),
    ):
        if stats.binomtest(int(same.sum()), same.size, 1 / steps).pvalue < level:
            found.append(name)
    counts = np.bincount(step_of[:, 0], minlength=steps)[:steps]
    if stats.chisquare(counts, np.full(steps, counts.sum() / steps)).pvalue < level:
        found.append("one sample's step")
    return found


def drawn(samples, steps, epochs, sampler=allocation, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [sampler(samples, steps, generator) for _ in range(epochs)]


def permutation_cut(samples, steps, generator):
    order = torch.randperm(samples, generator=generator)
    return [part.tolist() for part in torch.chunk(order, steps)]


KEY_STREAM = SecureRandom(bytes(range(32)))


def ciphers(samples, steps, generator):
    return allocation(samples, steps, KEY_STREAM)


def sampled_twice(samples, steps, generator):
    batches = allocation(samples, steps, generator)
    batches[0] = sorted({*batches[0], 5})
    return batches


def drawn_in_pairs(samples, steps, generator):
    half = allocation(samples // 2, steps, generator)
    return [[position for pair in batch for position in (2 * pair, 2 * pair + 1)] for batch in half]


@pytest.mark.parametrize(("samples", "steps"), [(60, 5), (200, 7), (30, 64)])
def test_the_sampler_has_nothing_to_hide(samples, steps):
    assert complaints(drawn(samples, steps, 400), samples, steps) == []
    assert complaints(drawn(samples, steps, 400, ciphers), samples, steps) == []


def test_planted_bugs_are_found():
    """A permutation cut, a sample that comes twice, draws that samples share, and an epoch drawn once for all."""
    assert "sizes of batches" in complaints(drawn(60, 5, 400, permutation_cut), 60, 5)
    assert "not once each" in complaints(drawn(60, 5, 400, sampled_twice), 60, 5)
    assert "neighbours together" in complaints(drawn(60, 5, 400, drawn_in_pairs), 60, 5)
    assert "one epoch like the last" in complaints(drawn(60, 5, 1) * 400, 60, 5)


def test_steps_that_are_no_power_of_two_are_uniform():
    """Of 3 steps: taking two bits modulo 3 would send half of the samples to the first."""
    sizes = np.sum([[len(batch) for batch in epoch] for epoch in drawn(3000, 3, 10)], axis=0)
    assert stats.chisquare(sizes).pvalue > 1e-4
    assert stats.chisquare([15000, 7500, 7500]).pvalue < 1e-100


def test_every_start_and_epoch_has_draws_of_its_own():
    starts = [Draws(50, RandomAllocation(4), Randomness(secret, False)) for secret in (bytes(32), b"1" * 32)]
    batches = [tuple(draws.at(charged)) for draws in starts for charged in range(8)]
    epochs = [batches[start : start + 4] for start in range(0, 16, 4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4


# -------------------------------------------------------------------------------------------- in a run


SAMPLES, LENGTH, DELTA = 60, 5, 1e-4
MECHANISM = DPSGD(1.0, RandomAllocation(LENGTH))


def colours(folder, steps=12, **changes):
    return recipe_in(folder, **{"privacy.sampling": "allocation", "training.steps": steps, **changes})


@pytest.fixture
def batches(monkeypatch):
    """What every step that was charged drew, over all starts: (start, step, positions)."""
    seen = []
    real = Run._one_step

    def step(self, number, batch):
        drawn = tuple(positions(batch))
        record = real(self, number, batch)
        if record is not None:
            seen.append((self.start.number, number, drawn))
        return record

    monkeypatch.setattr(Run, "_one_step", step)
    return seen


def once_each(epoch):
    return Counter(position for _, _, batch in epoch for position in batch) == Counter(range(SAMPLES))


def test_an_epoch_that_lost_steps_is_given_up_and_charged(folder, tmp_path, batches):
    """Killed before step 8, checkpointed at 6: epochs 1 and 2 are charged, and the rest is drawn anew."""
    recipe = colours(folder, **{"training.checkpoint_every": 6})
    killed_before_step(8, recipe, tmp_path / "run")
    second = train(recipe, tmp_path / "run", resume=True)
    again = [entry for entry in batches if entry[0] == 2]
    assert [step for _, step, _ in again] == [7, 8, 9, 10, 11, 12]
    assert once_each(again[:5])
    # 7 steps became 10, then 6 more: four epochs were begun.
    assert second.charged == 16
    assert second.epsilon == MECHANISM.epsilon(epochs=4, delta=DELTA).upper
