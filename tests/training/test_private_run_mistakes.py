"""What a loop around a private run may get wrong: an error that names the way out, before anything is released."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import Units
from dprmt.training.private_run import PrivateRun
from tests.training.test_private_run import ROWS, first, losses, new, train, weights

LOADER = DataLoader(ROWS, batch_size=12, shuffle=True)


def fails(private: PrivateRun, act: Callable[[], Any], match: str, error: type = TrainingStateError) -> None:
    """The act raises; no parameter has moved, nothing was charged, and the run goes on."""
    before, charged = weights(private.model), private.steps_charged
    with pytest.raises(error, match=match) as found:
        act()
    assert "Fix: " in str(found.value) or error is not TrainingStateError
    assert all(map(torch.equal, before, weights(private.model)))
    assert private.steps_charged == charged
    private.model.train()
    for value in private.model.parameters():
        value.requires_grad_(True)
    train(private)
    assert private.steps_taken == private.steps_charged == len(private)


def test_batches_of_a_loader_have_no_identities() -> None:
    private = new(LOADER)
    fails(private, lambda: private.step(losses(private), next(iter(LOADER))), "carry no identities")


def test_a_private_batch_is_opened_by_the_loss_function_alone() -> None:
    private = new()
    batch = first(private)
    for opened in (lambda: cross_entropy(*batch), lambda: batch["labels"], lambda: [*batch]):
        with pytest.raises(TrainingStateError, match=r"Fix: private.step\(lambda rows"):
            opened()
    fails(private, lambda: next(private.micro_batches(batch))[0], r"Fix: private.accumulate\(lambda rows")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda rows, model: cross_entropy(model(rows[0]), rows[1]),
        lambda rows, model: cross_entropy(model(rows[0]), rows[1])[None],
        lambda rows, model: cross_entropy(model(rows[0]), rows[1], reduction="none").mean().expand(len(rows[0])),
    ],
)
def test_a_mean_loss(wrong: Any) -> None:
    private = new()
    batch = first(private)
    error = (ParameterError, TrainingStateError)
    fails(private, lambda: private.step(lambda rows: wrong(rows, private.model), batch), "loss", error)  # type: ignore[arg-type]


def test_losses_as_a_tensor() -> None:
    private = new()
    batch = first(private)
    found = cross_entropy(private.model(ROWS[:5][0]), ROWS[:5][1], reduction="none")
    fails(private, lambda: private.step(found, batch), "a function from rows", ParameterError)  # type: ignore[arg-type]


def test_a_backward_pass_of_ones_own() -> None:
    private = new()
    batch = first(private)

    def backward() -> None:
        private.step(losses(private), batch)
        cross_entropy(private.model(ROWS[:5][0]), ROWS[:5][1]).backward()

    before = private.steps_charged
    with pytest.raises(TrainingStateError, match="backward"):
        backward()
    assert private.steps_charged == before + 1
    train(private)


def in_mid_step(act: Callable[[PrivateRun], Any], match: str, micro_batch_size: int | None = 3) -> None:
    private = new(micro_batch_size=micro_batch_size)
    batch = first(private)

    def wrong() -> None:
        for part in private.micro_batches(batch):
            private.accumulate(losses(private), part)
            act(private)
        private.finish()

    fails(private, wrong, match)


def test_a_step_of_the_optimizer_that_was_given() -> None:
    for given in (lambda optimizer: optimizer, lambda optimizer: accelerator().prepare(optimizer)):
        private = new()
        fails(private, given(private.optimizer).step, "optimizer")


MIDDLE = "middle of a private step"


@pytest.mark.parametrize(
    ("act", "match"),
    [
        (lambda private: private.optimizer.step(), "optimizer"),
        (lambda private: private.optimizer.zero_grad(set_to_none=True), MIDDLE),
        (lambda private: private.optimizer.zero_grad(set_to_none=False), MIDDLE),
        (lambda private: nn.utils.clip_grad_norm_(private.model.parameters(), 1.0), MIDDLE),
        (lambda private: private.model(ROWS[:5][0]).sum().backward(), "backward"),
        (lambda private: accelerator().backward(private.model(ROWS[:5][0]).sum()), "backward"),
        (lambda private: accelerator().clip_grad_norm_(private.model.parameters(), 1.0), MIDDLE),
    ],
)
def test_what_is_done_in_mid_step(act: Callable[[PrivateRun], Any], match: str) -> None:
    in_mid_step(act, match)


def accelerator() -> Any:
    return pytest.importorskip("accelerate").Accelerator(cpu=True)


def test_a_grad_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu")

    def unscale(private: PrivateRun) -> None:
        scaler.scale(torch.ones(()))
        scaler.unscale_(private.optimizer)

    in_mid_step(unscale, MIDDLE, micro_batch_size=None)


def test_a_second_backward_pass_inside_the_losses() -> None:
    private = new()
    batch = first(private)

    def penalized(rows: Any) -> torch.Tensor:
        found = losses(private)(rows)
        found.sum().backward(retain_graph=True)
        return found

    fails(private, lambda: private.step(penalized, batch), "no backward\\(\\) in it")


def test_several_steps_for_one_batch() -> None:
    private = new()
    batch = first(private)
    private.step(losses(private), batch)
    fails(private, lambda: private.step(losses(private), batch), "its step was taken already")
    other = new()
    batch = first(other)
    for part in other.micro_batches(batch):
        other.accumulate(losses(other), part)
    other.finish()
    fails(other, other.finish, "there is no batch to finish")


def test_a_batch_of_another_run() -> None:
    private, other = new(), new()
    batch = first(other)
    first(private)
    fails(private, lambda: private.step(losses(private), batch), "not this run's last one")


def test_a_micro_batch_twice() -> None:
    private = new()

    def twice() -> None:
        for part in private.micro_batches(first(private)):
            private.accumulate(losses(private), part)
            private.accumulate(losses(private), part)

    fails(private, twice, "a micro-batch is added once")
    other = new()
    fails(other, lambda: other.accumulate(losses(other), ROWS[:5]), "part must be the last micro-batch")  # type: ignore[arg-type]


def test_a_batch_left_out() -> None:
    private = new()

    def skipping() -> None:
        for batch in private:
            if batch.step:
                private.step(losses(private), batch)

    fails(private, skipping, "the batch of step 0 was left out: a step without noise")
    last = new(steps=1)
    fails(last, lambda: list(last), "the batch of step 0 was left out")


def test_a_micro_batch_left_out() -> None:
    private = new(micro_batch_size=1)
    batch = first(private)
    fails(private, lambda: list(private.micro_batches(batch)), "a micro-batch was left out")
    other = new(micro_batch_size=1)
    batch = first(other)
    fails(other, other.finish, "a micro-batch was left out")


def test_two_iterations_at_a_time() -> None:
    private = new()
    one, other = iter(private), iter(private)
    next(one)
    next(other)
    fails(private, lambda: next(one), "another iteration")


def test_evaluation_mode_forgotten() -> None:
    private = new()
    batch = first(private)
    private.model.eval()
    fails(private, lambda: private.step(losses(private), batch), "evaluation mode")


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].weight.requires_grad_(False),
        lambda model: setattr(model[0], "bias", None),
        lambda model: setattr(model[0], "bias", nn.Parameter(torch.zeros(8))),
        lambda model: model[0].register_parameter("scale", nn.Parameter(torch.ones(1))),
        lambda model: model.double(),
    ],
)
def test_a_changed_model(change: Callable[[Any], Any]) -> None:
    private = new()
    batch = first(private)
    change(private.model)
    with pytest.raises(TrainingStateError, match=r"changed since make_private: parameter '0\.\w+'"):
        private.step(losses(private), batch)
    assert private.steps_charged == private.steps_taken


def test_saving_in_mid_step() -> None:
    private = new(micro_batch_size=1)
    batch = first(private)
    private.state_dict()
    private.accumulate(losses(private), next(private.micro_batches(batch)))
    fails(private, private.state_dict, "a step is under way")
    with pytest.raises(TrainingStateError, match=r"save private.state_dict\(\)"):
        pickle.dumps(private)
    with pytest.raises(TrainingStateError, match="cannot be pickled or copied"):
        copy.deepcopy(private)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": None}, "noise_multiplier, target_epsilon must .*\nFix: "),
        ({"target_epsilon": 1.0}, "noise_multiplier, target_epsilon must .*\nFix: "),
        ({"target_epsilon": 1.0, "noise_multiplier": None, "delta": None}, "delta"),
        ({"target_epsilon": -1.0, "noise_multiplier": None}, "target_epsilon"),
        ({"epochs": 2}, "steps, epochs must .*\nFix: "),
        ({"steps": None}, "steps, epochs must .*\nFix: "),
        ({"steps": 0}, "steps"),
        ({"batch_size": 61}, "batch_size"),
        ({"batch_size": None}, "batch_size"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"sampling": "shuffled"}, "sampling"),
        ({"delta": 1.0}, "delta"),
        ({"ledger": "here", "delta": None}, "delta"),
        ({"norms": "hutchinsom"}, "norms"),
        ({"clipping_norm": 0.0}, "clipping_norm"),
        ({"max_grad_norm": 1.0}, "max_grad_norm must be written as clipping_norm"),
        ({"target_delta": 1e-5}, "target_delta must be written as delta"),
    ],
)
def test_arguments_out_of_range(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=f"^{named}"):
        new(**options)


class Stream(IterableDataset[int]):  # type: ignore[misc]
    """Rows without numbers."""

    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (Stream(), "a data set with a length"),
        (TensorDataset(torch.zeros(0, 6)), "a data set with rows"),
        (iter([1, 2]), "a data set with a length"),
        (DataLoader(ROWS, sampler=WeightedRandomSampler([1.0] * 60, 60)), "sampler must be torch's"),
        (DataLoader(ROWS, sampler=SubsetRandomSampler([1, 2])), "sampler must be torch's"),
        (DataLoader(ROWS, sampler=torch.utils.data.RandomSampler(ROWS, replacement=True)), "sampler must be torch's"),
    ],
)
def test_data_that_cannot_be_drawn_from(data: Any, named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        new(data)


def test_several_calls_of_the_model_have_a_way() -> None:
    """Two calls in one loss: an error, and units of one row that run alone."""

    def pairs(private: PrivateRun) -> Callable[[Any], torch.Tensor]:
        def losses_of(rows: Any) -> torch.Tensor:
            one, other = private.model(rows[0]), private.model(rows[0].flip(1))
            return (one - other).square().sum(1)

        return losses_of

    private = new()
    batch = first(private)
    with pytest.raises(TrainingStateError, match="alone"):
        private.step(pairs(private), batch)
    other = new(units=Units(1, regime="alone"))
    for batch in other:
        other.step(pairs(other), batch)
    assert other.steps_taken == 6


def test_returned_losses_are_recorded() -> None:
    private = new(steps=1)
    for batch in private:
        assert private.step(losses(private), batch) is None
    assert private.records["losses_returned"] is False
    assert "returned" not in private.statement()
    other = new(steps=1, batch_size=60)
    for batch in other:
        found = other.step(losses(other), batch, return_losses=True)
        assert found is not None
        assert found.shape == (60,)
        assert not found.requires_grad
    assert other.records["losses_returned"] is True  # how often tells how large batches were
    assert "does not cover them" in other.statement()


def test_a_model_in_two_runs() -> None:
    private = new()
    with pytest.raises(ParameterError, match=r"no other private run holds: call close\(\)"):
        new(model=private.model)
    assert new(model=private.close()).model is private.model


@pytest.mark.parametrize(
    "saved",
    [
        lambda private: private.optimizer,
        lambda private: list(private.model.parameters()),
        lambda private: private.model.state_dict(keep_vars=True),
    ],
)
def test_sums_without_noise_are_saved_nowhere(saved: Callable[[PrivateRun], Any]) -> None:
    """Parameters hold them in the middle of a step, and optimizers hold parameters."""
    private = new()
    batch = first(private)
    torch.save(saved(private), io.BytesIO())
    for part in private.micro_batches(batch):
        private.accumulate(losses(private), part)
        assert all(hasattr(copy.deepcopy(value), "summed_grad") is False for value in private.model.parameters())
        with pytest.raises(TrainingStateError, match=r"its sum has no noise yet\.\nFix: save before"):
            torch.save(saved(private), io.BytesIO())
    private.finish()
    torch.save(saved(private), io.BytesIO())
    assert all(type(value.grad) is torch.Tensor for value in private.model.parameters() if value.grad is not None)
