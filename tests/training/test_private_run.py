"""A private run as its users meet it: what it computes, what it costs, how it goes on, and what raises an error."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import Hutchinson, calibrate
from dprmt.training.clipping import Units
from dprmt.training.denoising import Denoising
from dprmt.training.optimizers import DPAdamBC, DPGrape
from dprmt.training.private_run import BandedNoise, PrivateRun, make_private
from dprmt.training.private_run._randomness import Randomness
from dprmt.training.subspaces import Subspaces
from tests.training.literal import clipped_sum, gradients_of
from tests.training.tiny_recipe import positions

N = 60
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(1))
ROWS = TensorDataset(X, torch.arange(N) % 2, torch.arange(N))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def new(data: Any = ROWS, model: nn.Module | None = None, optimizer: Any = None, **options: Any) -> PrivateRun:
    model = network() if model is None else model
    make = torch.optim.SGD if optimizer is None else optimizer
    optimizer = make if isinstance(make, torch.optim.Optimizer) else make(model.parameters(), lr=1.0)
    defaults = {"norms": "exact", "clipping_norm": 0.3, "noise_multiplier": 1.0, "delta": 1e-5}
    sizes = {"batch_size": 12, "steps": 6} | options
    return make_private(model, optimizer, data, **{**defaults, **sizes})


def losses(private: PrivateRun) -> Callable[[Any], torch.Tensor]:
    return lambda rows: cross_entropy(private.model(rows[0]), rows[1], reduction="none")


def row_losses(model: nn.Module, rows: list[int]) -> list[torch.Tensor]:
    return [cross_entropy(model(ROWS[row][0][None]), ROWS[row][1][None]) for row in rows]


def first(private: PrivateRun) -> Any:
    """The first batch that is not empty; those before it are trained on."""
    for batch in private:
        if batch._parts:
            return batch
        private.step(losses(private), batch)
    raise AssertionError("every batch is empty")


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.parameters()]


def train(private: PrivateRun, end: int | None = None) -> list[list[int]]:
    """Steps up to this one, or all that are left; the rows drawn for each."""
    drawn = []
    for batch in private:
        drawn.append(positions(batch))
        private.step(losses(private), batch)
        if private.steps_taken == end:
            break
    return drawn


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    """Through a file, without pickled objects."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------- what it computes


@pytest.mark.parametrize("micro_batch_size", [None, 5])
@pytest.mark.parametrize("data", [ROWS, DataLoader(ROWS, batch_size=12, shuffle=True, num_workers=0)])
def test_a_step_releases_the_clipped_sum_over_the_expected_batch_size(data: Any, micro_batch_size: int | None) -> None:
    private = new(data, noise_multiplier=1e-3, micro_batch_size=micro_batch_size)
    for batch in private:
        (literal := network()).load_state_dict(private.model.state_dict())
        drawn = positions(batch)
        private._inner.stands_in = True  # as after a micro-batch of no row of this process
        returned = private.step(losses(private), batch, return_losses=True)
        assert returned is not None
        assert len(returned) == len(drawn)
        total = clipped_sum(gradients_of(literal, row_losses(literal, drawn)), 0.3)
        for name, value in literal.named_parameters():
            found = private.model.get_parameter(name)
            torch.testing.assert_close(found, value - total[name] / 12, atol=2e-4, rtol=0)  # 8 standard deviations
    assert private.steps_taken == len(private) == 6
    assert list(private.model.state_dict()) == list(network().state_dict())


WAYS: list[dict[str, Any]] = [{}, {"optimizer": partial(DPAdamBC, floor=1e-3)}, {"secure": True}]
WAYS += [{"units": Units(1, regime="alone")}, {"denoising": Denoising()}]


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("options", WAYS)
def test_the_row_of_padding_gets_no_noise(options: dict[str, Any], is_tied: bool) -> None:
    """As without privacy, unless a head trains it; else padding would reach the losses of all texts of a batch."""
    torch.manual_seed(0)
    table, head = nn.Embedding(30, 8, padding_idx=3), nn.Linear(8, 30)
    if is_tied:
        head.weight = table.weight
    model = nn.Sequential(table, head)
    private = new(TensorDataset(torch.arange(60)[:, None] % 30), model=model, **options)
    before = table.weight.detach().clone()
    for batch in private:
        private.step(lambda rows: cross_entropy(model(rows[0])[:, 0], rows[0][:, 0], reduction="none"), batch)
    moved = (table.weight != before).any(1)
    assert moved.tolist() == [is_tied or word != 3 for word in range(30)]


def test_sigma_rate_and_length_are_those_that_epsilon_is_stated_for() -> None:
    private = new(noise_multiplier=None, target_epsilon=2.0, epochs=2, steps=None)
    rate = private.mechanism.sample_rate
    assert len(private) == private.steps_per_epoch * 2 == 10
    assert rate >= 12 / N > rate - 2.0**-23
    again = calibrate(private.mechanism, steps=10, target_epsilon=2.0, delta=1e-5)
    assert private.noise_multiplier == pytest.approx(again.noise_multiplier)
    assert private.epsilon().upper == 0.0
    for batch in private:
        assert not dataclasses.is_dataclass(batch)  # Lightning would take it apart
        private.step(losses(private), batch)
        assert private.epsilon() == private.mechanism.epsilon(steps=private.steps_taken, delta=1e-5)
    assert 1.99 < private.epsilon().upper <= 2.0
    assert "T = 10 steps" in private.statement()
    assert "owner" not in private.statement()
    assert private.epsilon(delta=1e-3).upper < private.epsilon().upper


def test_allocation_takes_every_row_once_an_epoch() -> None:
    private = new(sampling="allocation", epochs=2, steps=None)
    for epoch in range(2):
        seen = train(private, 5 * epoch + 5)
        assert sorted(itertools.chain(*seen)) == list(range(N)), epoch
    assert private.steps_taken == len(private) == 10
    assert private.mechanism.steps_per_epoch == 5


def test_an_epoch_of_allocation_is_charged_whole() -> None:
    private = new(sampling="allocation", steps=3)
    for batch in private:
        private.step(losses(private), batch)
        assert private.records["steps_charged"] == 5
        assert private.epsilon() == private.mechanism.epsilon(steps=5, delta=1e-5)
    assert (private.steps_taken, private.steps_charged) == (3, 3)


def test_an_empty_batch_is_a_step_of_noise() -> None:
    private = new(batch_size=1e-4, steps=2)
    before = weights(private.model)
    for batch in private:
        assert private.step(lambda rows: pytest.fail("called"), batch, return_losses=True).shape == (0,)  # type: ignore[union-attr, arg-type, return-value]
    assert private.steps_charged == 2
    assert not torch.equal(before[0], next(private.model.parameters()))


def test_a_loop_of_its_own_does_the_same() -> None:
    private, other = new(micro_batch_size=4), new(micro_batch_size=4)
    other.load_state_dict(private.state_dict())
    train(private)
    for batch in other:
        for part in other.micro_batches(batch):
            other.accumulate(losses(other), part)
        other.finish()
    assert all(map(torch.equal, weights(private.model), weights(other.model)))


def test_no_two_micro_batches_share_their_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those of two processes: rows at one place of both would have one mask."""
    purposes, derive = [], Randomness.derive
    monkeypatch.setattr(Randomness, "derive", lambda own, purpose: purposes.append(purpose) or derive(own, purpose))
    for process in range(2):
        private = new(micro_batch_size=2, steps=2)
        private._rank = process
        train(private)
    dropout = [purpose for purpose in purposes if purpose.startswith("dropout")]
    assert len(set(dropout)) == len(dropout) > 4


def test_epochs_end_with_the_run() -> None:
    private = new(steps=7)
    lengths = []
    for _ in range(3):
        lengths.append(0)
        for batch in private.epoch():
            private.step(losses(private), batch)
            lengths[-1] += 1
    assert lengths == [5, 2, 0]
    assert len(private.epoch()) == 5


def test_workers_collate_and_pinning_are_kept() -> None:
    def collate(rows: list[Any]) -> dict[str, Any]:
        return {"x": torch.stack([row[0] for row in rows]), "y": torch.stack([row[1] for row in rows])}

    loader = DataLoader(ROWS, batch_size=12, collate_fn=collate, num_workers=1, shuffle=True)
    private = new(loader, batch_size=None, steps=2)
    assert private.records["batch_size"] == 12
    for batch in private:
        private.step(lambda rows: cross_entropy(private.model(rows["x"]), rows["y"], reduction="none"), batch)
    assert private.steps_taken == 2


def test_people_with_several_rows_are_samples() -> None:
    owners = [f"person {row // 3}" for row in range(N)]
    for regime in ("alone", "together"):
        units = Units(3, micro_batch_size=6, regime=regime)
        private = new(owners=owners, units=units, batch_size=5, micro_batch_size=6, noise_multiplier=1e-3)
        assert private.mechanism.sample_rate == pytest.approx(5 / 20)
        for drawn in train(private):
            assert all({row, row + 1, row + 2} <= set(drawn) for row in drawn if row % 3 == 0)
        assert private.steps_taken == 6
    private = new(owners=owners, batch_size=5, steps=1)
    train(private)
    assert "all rows of one owner" in private.statement()


# ------------------------------------------------------------------------------------------------------------ going on

FEW: dict[str, Any] = {"rank": 2, "seed": 3, "refresh_every": 2}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norms": Hutchinson(4, secret=True)},
        {"sampling": "allocation"},
        {"noise": BandedNoise(3)},
        {"micro_batch_size": 5, "telemetry": {"every": 2}},
        {"optimizer": lambda model: DPGrape(model.parameters(), 0.1, subspaces=Subspaces(model, **FEW))},
    ],
)
def test_a_loaded_run_goes_on_exactly(options: dict[str, Any]) -> None:
    def started() -> PrivateRun:
        model = network()
        model.insert(1, nn.Dropout(0.2))  # type: ignore[operator]
        make = options.get("optimizer", lambda model: torch.optim.Adam(model.parameters(), lr=0.1))
        return new(**options | {"model": model, "optimizer": make(model)})

    private, other = started(), started()
    train(private, 3)
    other.load_state_dict(saved_and_loaded(private.state_dict()))
    for run in (private, other):
        torch.manual_seed(5)
        train(run)
    assert all(map(torch.equal, weights(private.model), weights(other.model)))
    assert other.steps_taken == other.steps_charged == 6
    assert other.epsilon() == private.epsilon()
    assert (other.records["loads"], private.records["loads"]) == (1, 0)


def test_steps_taken_after_the_state_was_saved_stay_charged_and_get_other_noise() -> None:
    private = new(steps=4)
    state = private.state_dict()
    releases = []
    for _ in range(2):
        before = weights(private.model)
        releases.append((train(private, 1), weights(private.model)))
        assert all(map(torch.equal, before, state["parameters"].values()))
        private.load_state_dict(state)
    assert releases[0][0] != releases[1][0]
    assert not torch.equal(releases[0][1][0], releases[1][1][0])
    assert (private.steps_taken, private.steps_charged) == (0, 2)
    train(private)
    assert private.steps_charged == 6
    assert private.epsilon() == private.mechanism.epsilon(steps=6, delta=1e-5)


@pytest.mark.parametrize("sampling", ["poisson", "allocation"])
def test_a_state_without_its_secret_finishes_an_epoch_and_draws_anew(sampling: str) -> None:
    """An epoch of five steps, left after two: nobody is in it twice, and its charges are those of one epoch."""
    private = new(sampling=sampling, steps=10)
    before = train(private, 2)
    state = private.state_dict(secret=False)
    assert "secret" not in state
    assert ("epoch" in state) == (sampling == "allocation")
    other = new(sampling=sampling, steps=10)
    other.load_state_dict(state)
    after, same = train(other), train(private)
    assert (after[:3] == same[:3]) == (sampling == "allocation")
    assert after[3:] != same[3:]
    assert not all(map(torch.equal, weights(other.model), weights(private.model)))
    assert other.steps_charged == private.steps_charged == 10
    if sampling == "allocation":
        assert sorted(place for batch in before + after[:3] for place in batch) == list(range(N))


def test_an_epoch_that_is_lost_is_followed_by_a_whole_one() -> None:
    """Left after three of five steps: five are charged, and from its middle a row could be in three for two charged."""
    private = new(sampling="allocation", steps=10)
    train(private, 2)
    state = private.state_dict()
    train(private, 3)
    private.load_state_dict(state)
    assert sorted(itertools.chain(*train(private, 7))) == list(range(N))
    assert private.steps_charged == 10


@pytest.mark.parametrize(
    ("options", "taken", "charged"), [({"steps": 3}, 2, 3), ({"steps": 8, "sampling": "allocation"}, 5, 10)]
)
def test_a_target_is_never_exceeded(options: dict[str, Any], taken: int, charged: int) -> None:
    """Of allocation, in whole epochs of five steps: the rest of one that was left is lost."""
    private = new(noise_multiplier=None, target_epsilon=1.0, **options)
    state = private.state_dict()
    train(private, 1)
    private.load_state_dict(state)
    train(private)
    assert (private.steps_taken, private.steps_charged) == (taken, charged)
    assert private.epsilon().upper <= 1.0
    with pytest.raises(TrainingStateError, match="another one would exceed the target"):
        next(iter(private))


def test_the_same_noise_never_comes_with_other_parameters() -> None:
    """A run whose rate is changed after a load draws other noise from then on, whatever its checkpoint holds."""
    runs = [new(steps=3, batch_size=1e-4) for _ in range(2)]
    state = runs[0].state_dict()
    moves: list[list[torch.Tensor]] = []
    for run, rate in zip(runs, (1.0, 0.5), strict=True):
        run.load_state_dict(state)
        run.optimizer.param_groups[0]["lr"] = rate
        moves.append([])
        for batch in run:
            before = weights(run.model)[0]
            run.step(losses(run), batch)
            moves[-1].append((before - weights(run.model)[0]) / rate)
    torch.testing.assert_close(moves[0][0], moves[1][0], atol=1e-5, rtol=1e-4)  # one and the same release
    assert float((moves[0][1] - moves[1][1]).abs().max()) > 1e-3


@pytest.mark.parametrize("units", [None, Units(1, regime="alone")])
def test_two_sums_at_one_place_of_a_run_never_get_the_same_noise(units: Units | None) -> None:
    """Loaded twice and trained with other losses: the difference of what is released has noise, and no bare sum."""
    data = torch.utils.data.Subset(ROWS, [1]) if units else ROWS  # a unit, held back until the step ends
    options = {"noise_multiplier": 1000.0, "units": units, "batch_size": len(data) / 5 if units is None else 1}
    state = new(data, **options).state_dict()

    def moved(sign: float) -> torch.Tensor:
        private = new(data, **options)
        private.load_state_dict(state)
        before = torch.cat([value.flatten() for value in weights(private.model)])
        private.step(lambda rows: sign * losses(private)(rows), next(iter(private)))
        return torch.cat([value.flatten() for value in weights(private.model)]) - before

    one, same, other = moved(1.0), moved(1.0), moved(-1.0)
    assert torch.equal(one, same)
    noise = 1000.0 * 0.3 / options["batch_size"]  # of an entry; sums differ by less than 2 N C / L
    assert (one - other).std() > noise


def test_a_ledger_counts_what_a_lost_process_took(tmp_path: Any) -> None:
    private = new(ledger=tmp_path, steps=6)
    train(private, 2)
    state = private.state_dict()
    train(private, 4)
    other = new(ledger=tmp_path, steps=6)
    assert other.steps_charged == 4
    other.load_state_dict(state)
    assert (other.steps_taken, other.steps_charged) == (2, 4)
    train(other)
    assert (other.steps_taken, other.steps_charged) == (6, 8)
    assert other._draws.randomness.secret != bytes(state["secret"].tolist())
    assert len((tmp_path / "privacy.jsonl").read_text().splitlines()) == 8


def test_a_step_is_charged_before_it_is_taken(tmp_path: Any) -> None:
    private = new(ledger=tmp_path)

    class StoppedError(Exception):
        pass

    def stop(*_: Any) -> None:
        raise StoppedError

    private.optimizer.register_step_pre_hook(stop)
    before = weights(private.model)
    batch = next(iter(private))
    with pytest.raises(StoppedError):
        private.step(losses(private), batch)
    assert all(map(torch.equal, before, weights(private.model)))
    assert private.steps_charged == 1
    assert len((tmp_path / "privacy.jsonl").read_text().splitlines()) == 1


def test_secure_runs_save_no_secret() -> None:
    pytest.importorskip("cryptography")
    private = new(secure=True, steps=4)
    train(private, 2)
    state = private.state_dict()
    assert "secret" not in state
    assert not any(isinstance(value, bytes) for value in state.values())
    other = new(secure=True, steps=4)
    other.load_state_dict(state)
    train(other)
    assert (other.steps_taken, other.steps_charged) == (4, 4)


def test_states_of_other_runs_raise() -> None:
    private = new()
    state = private.state_dict()
    for changed, named in (
        ({"noise_multiplier": 2.0}, "mechanism"),
        ({"noise": BandedNoise(2)}, "mechanism"),
        ({"clipping_norm": 1.0}, "clipping_norm"),
        ({"optimizer": torch.optim.Adam}, "of a run like this one .optimizer: SGD then, Adam now"),
        ({"data": TensorDataset(*ROWS[:50])}, "samples|mechanism"),
    ):
        with pytest.raises(ParameterError, match=named):
            new(**changed).load_state_dict(state)
    with pytest.raises(ParameterError, match="state must be"):
        private.load_state_dict({})
    other = new()
    other.step(losses(other), next(iter(other)))
    with pytest.raises(TrainingStateError, match="already taken steps"):
        other.load_state_dict(state)


@pytest.mark.parametrize("units", [None, Units(1, regime="alone")])
def test_copies_averages_and_evaluation_work_between_steps(units: Units | None) -> None:
    private = new(units=units)
    average = torch.optim.swa_utils.AveragedModel(private.model)
    for batch in private:
        private.step(losses(private), batch)
        average.update_parameters(private.model)
        private.model.eval()
        copy.deepcopy(private.model)(ROWS[:4][0]).sum().backward()
        with torch.no_grad():
            private.model(ROWS[:4][0])
        private.model.train()
        private.model(ROWS[:4][0])
        private.optimizer.zero_grad()
    assert not any(hasattr(value, "summed_grad") for value in copy.deepcopy(private.model).parameters())
    assert private.close() is private.model
    private.model(ROWS[:4][0]).sum().backward()
    private.optimizer.step()


def test_released_gradients_are_denoised_and_read() -> None:
    rows = TensorDataset(torch.randn(N, 24), torch.arange(N) % 2)
    model = nn.Sequential(nn.Linear(24, 32, bias=False), nn.Tanh(), nn.Linear(32, 2))
    private = new(rows, model, denoising=Denoising("paper"), telemetry=True)
    train(private)
    assert private.denoising.last_report.layers.keys() >= {"0.weight", "2.weight"}  # type: ignore[union-attr]
    assert "signal" in private.telemetry.last  # type: ignore[union-attr]
