"""What a loop around a private run may get wrong: an error that names the way out, before anything is released."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils import data as sources
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, default_collate

from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import Units
from dprmt.training.private_run import AdaptiveClipping, PrivateRun
from dprmt.training.private_run._batches import _Collation
from tests.training.test_private_run import ROWS, first, losses, new, train, weights

LOADER = DataLoader(ROWS, batch_size=12, shuffle=True)
MIDDLE = "middle of a private step"
Act = Callable[[PrivateRun, Any], Any]


def step(private: PrivateRun, batch: Any) -> None:
    private.step(losses(private), batch)


def accumulate(private: PrivateRun, batch: Any) -> None:
    for part in private.micro_batches(batch):
        private.accumulate(losses(private), part)


def one_micro_batch(private: PrivateRun, batch: Any) -> None:
    private.accumulate(losses(private), next(private.micro_batches(batch)))


def whole_step(private: PrivateRun, batch: Any) -> None:
    accumulate(private, batch)
    private.finish()


def backward(private: PrivateRun, batch: Any) -> None:
    cross_entropy(private.model(ROWS[:5][0]), ROWS[:5][1]).backward()


def with_losses(function: Callable[[nn.Module, Any], torch.Tensor]) -> Act:
    return lambda private, batch: private.step(lambda rows: function(private.model, rows), batch)


def penalized(model: nn.Module, rows: Any) -> torch.Tensor:
    found = cross_entropy(model(rows[0]), rows[1], reduction="none")
    found.sum().backward(retain_graph=True)
    return found


def pairs(model: nn.Module, rows: Any) -> torch.Tensor:
    return (model(rows[0]) - model(rows[0].flip(1))).square().sum(1)


def mid_step(act: Callable[[PrivateRun], Any]) -> Act:
    """Done after a micro-batch."""

    def wrong(private: PrivateRun, batch: Any) -> None:
        for part in private.micro_batches(batch):
            private.accumulate(losses(private), part)
            act(private)
        private.finish()

    return wrong


def accelerator() -> Any:
    return pytest.importorskip("accelerate").Accelerator(cpu=True)


def unscale(private: PrivateRun) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.unscale_(private.optimizer)


def micro_batch_twice(private: PrivateRun, batch: Any) -> None:
    for part in private.micro_batches(batch):
        private.accumulate(losses(private), part)
        private.accumulate(losses(private), part)


def batch_left_out(private: PrivateRun, batch: Any) -> None:
    for later in private:
        if later.step:
            private.step(losses(private), later)


def two_iterations(private: PrivateRun, batch: Any) -> None:
    one, other = iter(private), iter(private)
    for iteration in (one, other, one):
        next(iteration)


OUTSIDE = nn.Linear(6, 6)
UNCLIPPED = "outside of the model: it would be trained without clipping"
SMALL: dict[str, Any] = {"micro_batch_size": 1}
ALONE: dict[str, Any] = {"units": Units(1, regime="alone")}


def behind_another(model: nn.Module, rows: Any) -> torch.Tensor:
    return cross_entropy(model(OUTSIDE(rows[0])), rows[1], reduction="none")


MISTAKES: dict[str, tuple[Any, ...]] = {  # the act, what is said, and options of the run
    "a batch of a loader": (lambda run, _: step(run, next(iter(LOADER))), "carry no identities", {"data": LOADER}),
    "a batch opened": (lambda _, batch: cross_entropy(*batch), r"Fix: private.step\(lambda rows"),
    "a batch's entry": (lambda _, batch: batch["labels"], r"Fix: private.step\(lambda rows"),
    "a batch's entries": (lambda _, batch: [*batch], r"Fix: private.step\(lambda rows"),
    "a part opened": (lambda run, batch: next(run.micro_batches(batch))[0], r"Fix: private.accumulate\(lambda rows"),
    "a mean": (with_losses(lambda model, rows: cross_entropy(model(rows[0]), rows[1])), "loss"),
    "a mean, one row": (with_losses(lambda model, rows: cross_entropy(model(rows[0]), rows[1])[None]), "loss"),
    "a mean, as long as rows": (with_losses(lambda m, r: cross_entropy(m(r[0]), r[1]).expand(len(r[0]))), "loss"),
    "a tensor": (lambda run, batch: run.step(run.model(ROWS[:5][0]).sum(1), batch), "a function from rows"),
    "a backward pass after a step": (backward, "backward", {"prepare": step}),
    "a backward pass in the losses": (with_losses(penalized), "no backward\\(\\) in it"),
    "another module's parameters": (with_losses(behind_another), UNCLIPPED),
    "another module's, rows alone": (with_losses(behind_another), UNCLIPPED, ALONE),
    "two calls of the model": (with_losses(pairs), "alone"),
    "the optimizer's step": (lambda run, _: run.optimizer.step(), "optimizer"),
    "a prepared optimizer's step": (lambda run, _: accelerator().prepare(run.optimizer).step(), "optimizer"),
    "step": (mid_step(lambda run: run.optimizer.step()), "optimizer"),
    "zero_grad": (mid_step(lambda run: run.optimizer.zero_grad(set_to_none=True)), MIDDLE),
    "zero_grad in place": (mid_step(lambda run: run.optimizer.zero_grad(set_to_none=False)), MIDDLE),
    "clipping": (mid_step(lambda run: nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)), MIDDLE),
    "backward": (mid_step(lambda run: run.model(ROWS[:5][0]).sum().backward()), "backward"),
    "accelerate's backward": (mid_step(lambda run: accelerator().backward(run.model(ROWS[:5][0]).sum())), "backward"),
    "accelerate's clipping": (mid_step(lambda run: accelerator().clip_grad_norm_(run.model.parameters(), 1.0)), MIDDLE),
    "a grad scaler": (mid_step(unscale), MIDDLE),
    "two steps for a batch": (step, "its step was taken already", {"prepare": step}),
    "finish twice": (lambda run, _: run.finish(), "there is no batch to finish", {"prepare": whole_step}),
    "a batch of another run": (lambda run, _: step(run, first(new())), "not this run's last one"),
    "a micro-batch twice": (micro_batch_twice, "a micro-batch is added once"),
    "rows as one part": (lambda run, _: run.accumulate(losses(run), ROWS[:5]), "part must be the last micro-batch"),
    "a batch left out": (batch_left_out, "the batch of step 0 was left out: a step without noise"),
    "the last batch left out": (lambda run, _: list(run), "the batch of step 0 was left out", {"steps": 1}),
    "a micro-batch left out": (lambda run, batch: list(run.micro_batches(batch)), "a micro-batch was left out", SMALL),
    "all micro-batches left out": (lambda run, _: run.finish(), "a micro-batch was left out", SMALL),
    "two iterations": (two_iterations, "another iteration"),
    "evaluation mode": (step, "evaluation mode", {"prepare": lambda run, _: run.model.eval()}),
    "saved in mid-step": (lambda run, _: run.state_dict(), "a step is under way", SMALL | {"prepare": one_micro_batch}),
    "pickled": (lambda run, _: pickle.dumps(run), r"save private.state_dict\(\)"),
    "copied": (lambda run, _: copy.deepcopy(run), "cannot be pickled or copied"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_moves_nothing_and_the_run_goes_on(name: str) -> None:
    """No parameter has moved, nothing was charged."""
    act, match, *more = MISTAKES[name]
    options = {"micro_batch_size": 3, **dict(*more)}
    prepare = options.pop("prepare", None)
    private = new(**options)
    batch = first(private)
    if prepare:
        prepare(private, batch)
    before, charged = weights(private.model), private.steps_charged
    with pytest.raises((ParameterError, TrainingStateError), match=match) as found:
        act(private, batch)
    assert "Fix: " in str(found.value) or found.type is ParameterError
    assert all(map(torch.equal, before, weights(private.model)))
    assert private.steps_charged == charged
    private.model.train()
    train(private)
    assert private.steps_taken == private.steps_charged == len(private)
    assert OUTSIDE.weight.grad is None


@pytest.mark.parametrize("options", [{}, ALONE])
def test_no_gradient_of_private_rows_reaches_another_module_later(options: dict[str, Any]) -> None:
    """The first micro-batch alone is looked at for other parameters."""
    private = new(isolation_checks=0.0, **options)
    for batch in private:
        later = private.steps_taken > 0
        private.step(lambda rows: losses(private)(rows) + (OUTSIDE(rows[0]).sum(1) if later else 0.0), batch)  # noqa: B023
    assert OUTSIDE.weight.grad is None


def test_two_runs_with_one_ledger(tmp_path: Path) -> None:
    one, other = new(ledger=tmp_path), new(ledger=tmp_path)
    step(one, next(iter(one)))
    with pytest.raises(TrainingStateError, match="another run records its steps in"):
        step(other, next(iter(other)))
    assert other.steps_taken == 0


def test_two_calls_of_the_model_have_a_way() -> None:
    private = new(**ALONE)
    for batch in private:
        with_losses(pairs)(private, batch)
    assert private.steps_taken == 6


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].weight.requires_grad_(False),
        lambda model: setattr(model[0], "bias", None),
        lambda model: setattr(model[0], "bias", nn.Parameter(torch.zeros(8))),
        lambda model: model[0].register_parameter("scale", nn.Parameter(torch.ones(1))),
        lambda model: model.double(),
        lambda model: model[0].weight.register_hook(lambda _: None),
    ],
)
def test_a_changed_model(change: Callable[[Any], Any]) -> None:
    private = new()
    batch = first(private)
    change(private.model)
    with pytest.raises(TrainingStateError, match=r"changed since make_private: parameter '0\.\w+'"):
        private.step(losses(private), batch)
    assert private.steps_charged == private.steps_taken


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
        ({"ledger": __file__}, "ledger must be a folder"),
        ({"denoising": True}, "denoising"),
        ({"telemetry": {"evry": 20}}, "telemetry"),
        ({"isolation_checks": 5}, "isolation_checks"),
        ({"owners": len}, "owners"),
        ({"owners": "author"}, "owners must be a list with the owner of each row"),
        ({"norms": "hutchinsom"}, "norms"),
        ({"clipping_norm": 0.0}, "clipping_norm"),
        (
            {"clipping_norm": AdaptiveClipping(noise_multiplier=0.5), "noise_multiplier": None, "target_epsilon": 0.5},
            "target_epsilon .*\nFix: give AdaptiveClipping a larger noise_multiplier",
        ),
        ({"optimizer": torch.optim.LBFGS}, r"optimizer must be one whose step\(\) needs no closure: .* got 'LBFGS'"),
        ({"max_grad_norm": 1.0}, "max_grad_norm must be written as clipping_norm"),
        ({"target_delta": 1e-5}, "target_delta must be written as delta"),
    ],
)
def test_arguments_out_of_range(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ParameterError, match=f"^{named}"):
        new(**options)


@pytest.mark.parametrize("add", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("options", [{}, ALONE])
def test_hooks_on_gradients_are_not_called(add: str, options: dict[str, Any]) -> None:
    """So they are refused: a mask of a frozen row would hold no noise off."""
    model = nn.Linear(6, 2)
    hook = getattr(model.weight, add)(lambda *_: None)
    with pytest.raises(ParameterError, match="hooks on a parameter's gradient must be none"):
        new(model=model, **options)
    hook.remove()
    new(model=model, **options)


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
        (DataLoader(ROWS, sampler=sources.WeightedRandomSampler([1.0] * 60, 60)), "sampler must be torch's"),
        (DataLoader(ROWS, sampler=sources.SubsetRandomSampler([1, 2])), "sampler must be torch's"),
        (DataLoader(ROWS, sampler=RandomSampler(ROWS, replacement=True)), "sampler must be torch's"),
        (DataLoader(ROWS, sampler=RandomSampler(range(20))), "sampler must be torch's .* over all rows"),
        (DataLoader(ROWS, sampler=sources.SequentialSampler(range(20))), "sampler must be torch's .* over all rows"),
        (DataLoader(ROWS, sampler=RandomSampler(ROWS, num_samples=20)), "sampler must be torch's .* over all rows"),
    ],
)
def test_data_that_cannot_be_drawn_from(data: Any, named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        new(data)


def mean_taken_off(rows: list[Any]) -> Any:
    batch = default_collate(rows)
    return [batch[0] - batch[0].mean(0), *batch[1:]]


def mixed(rows: list[Any]) -> Any:
    batch, share = default_collate(rows), torch.rand(())
    return [share * batch[0] + (1 - share) * batch[0][torch.randperm(len(rows)).roll(1)], *batch[1:]]


def by_size(rows: list[Any]) -> Any:
    return default_collate(sorted(rows, key=lambda row: float(row[0][0])))


def padded(rows: list[Any]) -> Any:
    """Texts of their lengths, of which some tokens are masked at random."""
    texts = [row[0][: 2 + int(row[2]) % 5] for row in rows]
    return [nn.functional.dropout(nn.utils.rnn.pad_sequence(texts, batch_first=True)), *default_collate(rows)[1:]]


OWN = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("collate", "workers", "is_refused"),
    [
        (mean_taken_off, 0, True),
        (mixed, 0, True),
        (mixed, 1, True),
        (by_size, 0, True),
        (padded, 0, False),
        (lambda rows: [torch.randn(len(rows), 6, generator=OWN), *default_collate(rows)[1:]], 0, False),
    ],
)
def test_a_collated_row_is_made_from_one_row(collate: Any, workers: int, is_refused: bool) -> None:
    """Where it is made from several, or from those of another place, nothing is released."""
    private = new(DataLoader(ROWS, collate_fn=collate, num_workers=workers), steps=1, batch_size=60)
    private.model.register_forward_pre_hook(lambda _, args: (nn.functional.pad(args[0], (0, 6 - args[0].shape[1])),))
    with pytest.raises(TrainingStateError, match="collate_fn makes a row") if is_refused else nullcontext():
        step(private, first(private))
    assert private.steps_charged == (0 if is_refused else 1)


def test_one_row_says_nothing_about_collate_fn() -> None:
    """Micro-batches of several rows are still compared after it."""
    collation, numbered = _Collation(mean_taken_off, False), [(place, ROWS[place]) for place in range(2)]
    collation(numbered[:1])
    with pytest.raises(TrainingStateError, match="collate_fn makes a row"):
        collation(numbered)


def test_rows_that_could_not_be_loaded_are_not_left_out() -> None:
    fails = iter([True])
    loader = DataLoader(ROWS, collate_fn=lambda rows: 1 / 0 if next(fails, False) else default_collate(rows))
    private = new(loader, batch_size=len(ROWS), micro_batch_size=4, steps=1)
    batch = next(iter(private))
    with pytest.raises(ZeroDivisionError):
        step(private, batch)
    with pytest.raises(TrainingStateError, match="other rows than were drawn"):
        step(private, batch)
    train(private)
    assert private.steps_taken == private.steps_charged == 1


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
    with pytest.raises(TrainingStateError, match="this private run was closed"):
        step(private, first(private))


@pytest.mark.parametrize(
    "saved",
    [
        lambda private: private.optimizer,
        lambda private: list(private.model.parameters()),
        lambda private: private.model.state_dict(keep_vars=True),
        lambda private: private.model,
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
    torch.save(saved(private), file := io.BytesIO())
    file.seek(0)
    if isinstance(loaded := torch.load(file, weights_only=False), nn.Module):  # without the run's hooks
        loaded(ROWS[:5][0]).sum().backward()
        assert all(value.grad is not None for value in loaded.parameters())
    assert all(type(value.grad) is torch.Tensor for value in private.model.parameters() if value.grad is not None)
