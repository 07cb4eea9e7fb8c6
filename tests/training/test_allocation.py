"""Who is in a batch, by random allocation, and under which name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import dprmt
from dprmt.accounting import DPSGD, Hutchinson, RandomAllocation
from dprmt.training.harness import Run, train
from dprmt.training.private_run import PrivateBatch
from dprmt.training.private_run._batches import Draws, Part, Source, content_of
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


# -------------------------------------- names of rows: by content, so that removing one changes no other's probes

C = 0.1


def points() -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(5, 24, generator=draw), "y": float(number)} for number in range(8)]


def losses(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (model(batch["x"]).sum((1, 2)) - batch["y"]).square()


def total(items: list[dict[str, Any]], patch: pytest.MonkeyPatch) -> torch.Tensor:
    """The clipped sum of all items, with the same secret of the probes every time."""
    torch.manual_seed(1)
    model = torch.nn.Linear(24, 24, bias=False)
    optimizer, norms = torch.optim.SGD(model.parameters(), lr=0.1), Hutchinson(2, secret=True, rank=24)
    sizes = {"batch_size": 1, "micro_batch_size": 3, "steps": 1, "noise_multiplier": 1.0}
    private = dprmt.make_private(model, optimizer, items, norms=norms, clipping_norm=C, **sizes)
    private._draw_from(Randomness(bytes(32), False))
    patch.setattr(Draws, "at", lambda *_: list(range(len(items))))
    batch = next(iter(private))
    for part in private.micro_batches(batch):
        private.accumulate(lambda rows: losses(model, rows), part)
    found: torch.Tensor = model.weight.summed_grad.clone()
    private.close()
    return found


@pytest.mark.parametrize("removed", [0, 3, 7])
def test_a_removed_item_takes_its_own_gradient_away_and_nothing_else(
    removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With positions as identities the others' factors would change too: the cosine was 0.967."""
    items = points()
    difference = total(items, monkeypatch) - total(items[:removed] + items[removed + 1 :], monkeypatch)
    torch.manual_seed(1)
    model = torch.nn.Linear(24, 24, bias=False)
    losses(model, torch.utils.data.default_collate([items[removed]])).sum().backward()
    own = model.weight.grad
    cosine = torch.nn.functional.cosine_similarity(difference.flatten(), own.flatten(), dim=0)
    assert float(cosine) > 1 - 1e-5


def names_of(rows: list[Any], before: Counter[str] | None = None) -> list[str]:
    source = Source(torch.utils.data.DataLoader(rows, collate_fn=list), None, None)
    parts = [Part(list(range(len(rows))))]
    loaded = source.loaded(iter([parts]), True)
    batch = PrivateBatch(0, len(rows), parts, loaded.__next__, 1, list, Counter() if before is None else before)
    return [str(name) for name in batch._next()._names]


def test_equal_items_are_told_apart_and_others_by_content() -> None:
    rows = [
        torch.ones(2),
        torch.ones(2),
        torch.ones(2, dtype=torch.float64),
        torch.ones(1, 2),
        [1, 2],
        (1, 2, None),
        {"a": "x", "b": 1.5},
        {"b": 1.5, "a": "x"},
        np.arange(3),
        "text",
    ]
    names = names_of(rows)
    assert len(set(names)) == len(rows)
    digests = [name.split()[0] for name in names]
    assert digests[0] == digests[1]
    assert digests[6] == digests[7]
    assert len(set(digests)) == len(rows) - 2
    assert names_of(rows[::-1])[-1].split()[0] == digests[0]
    assert content_of(rows[4]) != content_of(rows[5])


def test_processes_name_a_batch_as_one_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else equal items in two processes had one name, and were refused as one sample that is added twice."""
    items, size = [0, 1, 1, 0, 1, 2, 1, 0], 3
    shares = [list(range(rank, len(items), size)) for rank in range(size)]
    contents = [Counter(name.split()[0] for name in names_of([items[place] for place in share])) for share in shares]
    whole = names_of(items)

    def gathered(found: list[Counter[str]], own: Counter[str]) -> None:
        found[:] = contents
        assert own in found

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gathered)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: size)
    names: list[str] = []
    for rank in range(size):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)  # noqa: B023  # asked within the turn
        before = Source(items, None, None).seen_before([Part(shares[rank])], size)
        names += names_of([items[place] for place in shares[rank]], before)
    assert sorted(names) == sorted(whole)
