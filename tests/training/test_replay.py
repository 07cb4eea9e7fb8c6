"""Samples that mix where no gradient shows it: refused by name; what does not mix goes on, dropout and padding too."""

from __future__ import annotations

import json
import random
from collections import UserDict, namedtuple
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from audits import mixing
from audits.steps import Parts
from dprmt import ParameterError, TrainingStateError
from dprmt.training.clipping import ClippedStep, plan_private
from dprmt.training.clipping._batch_rows import BatchRows
from dprmt.training.harness import train_task
from tests.training.test_isolation import go_on, outcome, private
from tests.training.test_planted_bugs import network, settings, task

SIZE, WIDTH, WORDS = 6, 5, 11


def single() -> nn.Module:
    """One layer."""
    return Parts(lambda model, x: model.head(x).flatten(), head=nn.Linear(WIDTH, 1))


def language(call: Callable[..., torch.Tensor] | None = None) -> nn.Module:
    """Words to logits, every position by itself, with dropout; ``call``: from (model, words) in another way."""
    parts = {"words": nn.Embedding(WORDS, WIDTH), "head": nn.Linear(WIDTH, WORDS), "dropout": nn.Dropout(0.5)}
    return Parts(call or (lambda model, words: model.head(model.dropout(model.words(words)))), **parts)


def per_token(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits, targets = model(batch["input_ids"]), batch["input_ids"]
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return loss.view_as(targets) * batch["attention_mask"]


def texts(lengths: list[int]) -> dict[str, torch.Tensor]:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": torch.randint(1, WORDS, mask.shape) * mask, "attention_mask": mask}


def rows() -> torch.Tensor:
    x = torch.randn(SIZE, WIDTH)
    return x[x.norm(dim=1).argsort()]  # in order of length: sorting changes nothing in the first micro-batch


def plain(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - 1.0) ** 2


def over_the_largest(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    losses = plain(model, x)
    return losses / losses.detach().max()


def over_padding(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return per_token(model, batch).mean(1)


def over_own_tokens(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return per_token(model, batch).sum(1) / batch["attention_mask"].sum(1)


@pytest.mark.filterwarnings("ignore:std:UserWarning")  # of one sample
@pytest.mark.parametrize("code", mixing.codes(), ids=lambda code: code.what)
def test_mixing_is_refused_at_the_first_micro_batch(code: mixing.Code) -> None:
    torch.manual_seed(0)
    step, (batch, *_) = private(code.model(), clipping_norm=code.clipping_norm, replay=0.0), code.batches()
    size = len(next(iter(batch.values())))
    with pytest.raises(TrainingStateError, match=r"depends? on other samples|a forward pass changes buffer mean"):
        step.accumulate(partial(code.losses, step.model), samples=range(size), step=0, batch=batch)
    assert all(getattr(value, "summed_grad", None) is None for value in step.optimizer.params)


def test_a_later_micro_batch_shows_what_the_first_hid() -> None:
    """Samples that mix from some step on: seen at a rate of 1, not at a rate of 0."""
    for rate in (1.0, 0.0):
        torch.manual_seed(1)
        step = private(single(), replay=rate)
        outcome(step, partial(plain, step.model), rows(), SIZE, None)
        step.step()
        refused = "depends on other samples" if rate else None
        outcome(step, partial(over_the_largest, step.model), rows(), SIZE, refused, 1)
        assert step.replays == 1


def test_a_rate_is_kept() -> None:
    """Of 400 micro-batches after the first about a tenth, and not a twentieth nor a fifth."""
    step = private(single(), replay=0.1)
    x = torch.randn(2, WIDTH)
    for number in range(401):
        step.accumulate(partial(plain, step.model), samples=[2 * number, 2 * number + 1], step=0, batch=x)
    assert 20 < step.replays - 1 < 68  # five standard deviations of 40


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_right_losses_go_on_with_dropout_and_padding(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = language().to(dtype)
    go_on(model, texts([3, 7, 1, 6]), partial(over_own_tokens, model))


def test_losses_given_as_a_tensor_are_not_run_again() -> None:
    """And the record says so."""
    step = private(single(), replay=1.0)
    step.accumulate(over_the_largest(step.model, rows()), samples=range(SIZE), step=0)
    assert step.replays == 0


@pytest.mark.parametrize(
    "shared", [3, 2.5, torch.tensor(3.0), torch.ones(2), [1, 2]], ids=["int", "float", "tensor", "vector", "list"]
)
def test_what_samples_share_does_not_belong_into_the_batch(shared: Any) -> None:
    """Such as the batch's number of tokens, which would be the same for a sample alone."""
    step = private(single())
    batch = {"x": rows(), "tokens": shared}
    with pytest.raises(ParameterError, match=r"batch\['tokens'\] must be .*what all share belongs into"):
        step.accumulate(lambda part: plain(step.model, part["x"]), samples=range(SIZE), step=0, batch=batch)


def test_a_run_says_how_often_rows_are_run_alone(tmp_path: Path) -> None:
    """``run.json`` and ``summary.json`` have the rate; a recipe's rate is the step's default."""
    default = plan_private(nn.Linear(2, 2), norms="ghost", clipping_norm=1.0, expected_batch_size=2.0).replay
    assert settings().privacy.replay == default
    train_task(network(), task(), settings(privacy={"replay": 0.25}), tmp_path / "run", noise_seed=1)
    for name in ("run.json", "summary.json"):
        assert json.loads((tmp_path / "run" / name).read_text())["replay"] == 0.25


def noisy() -> nn.Module:
    """Draws in every way that models do, in training."""
    own = torch.Generator().manual_seed(5)

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        x = model.dropouts(model.first(x)) + torch.randn_like(x)
        x = model.channels(x[:, :, None])[..., 0] * torch.bernoulli(torch.sigmoid(x))
        x = x + torch.normal(x, 0.1) * torch.rand(len(x), 1, generator=own)
        x = x * torch.empty(len(x), 1).uniform_(0.5, 1.5) + torch.randint(0, 3, x.shape)
        x = x * torch.empty_like(x).bernoulli_(0.5 + 0 * x)
        if random.random() < 0.5 and np.random.rand() < 0.5:  # noqa: NPY002  (layers that are left out)
            x = x * 2
        return model.last(x).flatten()

    dropouts = nn.Sequential(nn.Dropout(0.3), nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2))
    parts = {"first": nn.Linear(WIDTH, WIDTH), "last": nn.Linear(WIDTH, 1), "channels": nn.Dropout1d(0.4), "own": own}
    return Parts(call, dropouts=dropouts, **parts)


def test_a_sample_alone_gets_the_numbers_that_were_drawn_for_it() -> None:
    """Dropout of every kind, noise, coins."""
    torch.manual_seed(0)
    model = noisy()
    go_on(model, rows(), partial(plain, model))


def test_a_generator_that_no_module_has_is_refused() -> None:
    """Its numbers, which others may know, would go on from pass to pass."""
    model, own = single(), torch.Generator().manual_seed(5)
    with pytest.raises(TrainingStateError, match="depends on other samples"):
        go_on(model, rows(), lambda x: plain(model, x) * torch.rand(len(x), generator=own))
    passes = iter(range(99))  # which numbers a sample gets would depend on how often others were run
    with pytest.raises(TrainingStateError, match="depends on earlier passes"):
        go_on(other := single(), rows(), lambda x: plain(other, x) + 0 * torch.rand(next(passes)).sum())


def test_looking_leaves_every_generator_as_it_was() -> None:
    step, x = private(noisy(), replay=1.0), rows()
    calls: list[int] = []

    def states() -> tuple[Any, ...]:
        global_ones = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
        return step.model.own.get_state().tolist(), *global_ones

    before = states()
    handle = step.model.register_forward_pre_hook(lambda *_: calls.append(1))
    step._isolation.check(partial(plain, step.model), x, SIZE, 1.0)
    handle.remove()
    assert len(calls) >= 8
    assert states() == before


def test_a_seed_of_the_models_own_generator_tells_nothing() -> None:
    """Else a row that is removed would move the others on to masks that are known."""
    steps = [private(noisy(), replay=0.0) for _ in range(2)]
    for step in steps:
        step.accumulate(partial(plain, step.model), samples=range(SIZE), step=0, batch=rows())
    assert not torch.equal(*(step.model.own.get_state() for step in steps))


@pytest.mark.parametrize("told", ["attention_mask", "padding_idx", "padding_idx of a tuple"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_told_by_a_mask_or_an_index_on_either_side(told: str, side: str) -> None:
    for wrong in (True, False):
        torch.manual_seed(0)
        model = language()
        if told != "attention_mask":
            model.words.padding_idx = 0
        step, batch = private(model, replay=1.0), texts([3, 7, 5, 6])
        if side == "left":
            batch = {name: value.flip(1) for name, value in batch.items()}
        ids = batch["input_ids"]

        def losses(part: Any, step: ClippedStep = step, wrong: bool = wrong) -> torch.Tensor:
            words = part["input_ids"] if isinstance(part, dict) else part[0]
            found = per_token(step.model, {"input_ids": words, "attention_mask": words != 0})
            return found.mean(1) if wrong else found.sum(1) / (words != 0).sum(1)

        given = {"attention_mask": batch, "padding_idx": {"input_ids": ids}}.get(told, (ids, torch.ones(4)))
        outcome(step, losses, given, 4, "not over padding" if wrong else None)


def test_a_model_of_one_length_keeps_its_padding_and_others_may_not() -> None:
    """What fails without padding is run with it; in batches of other widths it could hide a loss over the padding."""
    step = private(language(), replay=1.0)

    def losses(batch: dict[str, torch.Tensor], width: list[int]) -> torch.Tensor:
        if batch["input_ids"].shape[1] != width[0]:
            raise ValueError("another length")
        return over_padding(step.model, batch)

    step.accumulate(partial(losses, width=[7]), samples=range(4), step=0, batch=texts([3, 7, 1, 6]))
    with pytest.raises(TrainingStateError, match="must take texts without padding"):
        step.accumulate(partial(losses, width=[6]), samples=range(4, 8), step=0, batch=texts([3, 5, 1, 6]))


class Dictionary(UserDict[str, torch.Tensor]):
    """Entries are attributes too, as tokenizers give them."""

    def __getattr__(self, name: str) -> torch.Tensor:
        if name == "data":
            raise AttributeError(name)
        return self.data[name]


def test_batches_as_loaders_and_tokenizers_make_them() -> None:
    """Lists of tensors, named tuples, nested ones, arrays, words for all; a dictionary keeps its attributes."""
    x, named = rows(), namedtuple("named", ["x", "kind"])
    batches: list[tuple[Any, Callable[[Any], torch.Tensor]]] = [
        ([x, torch.ones(SIZE)], lambda part: part[0]),
        (named(x, "kind"), lambda part: part.x),
        ({"deep": ({"x": x}, None)}, lambda part: part["deep"][0]["x"]),
        (x.numpy(), torch.as_tensor),
        (list(x.tolist()), torch.tensor),
        (Dictionary(x=x), lambda part: part.x),
    ]
    for batch, get in batches:
        for losses, refused in ((over_the_largest, "depends on other samples"), (plain, None)):
            step = private(single())
            outcome(step, lambda part, f=losses, s=step, g=get: f(s.model, g(part)), batch, SIZE, refused)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-7), (torch.float32, 1e-4), (torch.bfloat16, 0.05), (torch.float16, 0.05)],
)
@pytest.mark.parametrize("where", ["losses", "inputs"])
def test_stated_tolerances_from_both_sides(dtype: torch.dtype, tolerance: float, where: str) -> None:
    """A fifth of it passes as rounding; ten times as much is refused."""
    for share, refused in ((0.2 * tolerance, False), (10 * tolerance, True)):
        torch.manual_seed(0)
        step, x = private(single().to(dtype)), rows().to(dtype)

        def losses(part: torch.Tensor, step: ClippedStep = step, share: float = share) -> torch.Tensor:
            factor = 1.0 + share * (len(part) > 1)
            if where == "inputs":
                return plain(step.model, part * factor)
            return plain(step.model, part).double() * factor

        outcome(step, losses, x, SIZE, "on other samples" if refused else None)


def test_a_row_with_padding_among_others_is_run_alone() -> None:
    step = private(language())
    outcome(step, partial(over_padding, step.model), texts([7, 7, 3, 7]), 4, "not over padding")


def test_gradients_of_padding_that_no_loss_shows_are_seen() -> None:
    step = private(language())

    def losses(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        found = per_token(step.model, batch | {"attention_mask": torch.ones(())})
        return (found - (1 - batch["attention_mask"]) * found.detach()).sum(1)

    outcome(step, losses, texts([7, 7, 3, 7]), 4, "gradients at .* depend on other samples")


def test_gradients_that_a_check_forms_are_in_no_sum() -> None:
    """They are formed where a row alone differs by more than rounding, and less than what is refused."""
    sums = []
    for checked in (True, False):
        torch.manual_seed(0)
        step, x = private(single(), replay=1.0), rows()

        def losses(part: torch.Tensor, step: ClippedStep = step) -> torch.Tensor:
            return plain(step.model, part) * (1.0 + 2e-5 * (len(part) > 1))

        for samples in (range(SIZE), range(SIZE, 2 * SIZE)):  # the second check leaves the first sum as it is, too
            if checked:
                step.accumulate(losses, samples=samples, step=0, batch=x)
            else:
                step.accumulate(losses(x), samples=samples, step=0)
        sums.append([value.summed_grad.clone() for value in step.optimizer.params])
    assert all(torch.equal(one, other) for one, other in zip(*sums, strict=True))


def packed_dropout(model: Any, words: torch.Tensor) -> torch.Tensor:
    """Dropout of words alone, without padding: how many numbers are drawn depends on the lengths of all texts."""
    x, own = model.words(words), words != 0
    return model.head(x.masked_scatter(own[..., None], model.dropout(x[own])))


def test_rows_that_get_other_numbers_beside_shorter_ones_are_not_compared() -> None:
    torch.manual_seed(0)
    step = private(language(packed_dropout), replay=1.0)
    for number in range(3):
        step.accumulate(partial(over_own_tokens, step.model), samples=range(4), step=number, batch=texts([3, 7, 5, 6]))
        step.step()
    assert step.replays == 3


@pytest.mark.parametrize("size", [1, SIZE])
def test_buffers_that_move_are_refused_in_given_losses_too(size: int) -> None:
    """In every micro-batch, and of one sample: it would be kept for others."""
    step = private(mixing.running_mean(WIDTH), replay=0.0)
    with pytest.raises(TrainingStateError, match="a forward pass changes buffer mean"):
        step.accumulate(plain(step.model, rows()[:size]), samples=range(size), step=0)


def written(widths: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Texts with labels of their own lengths, as padded for an encoder and a decoder."""
    batch = texts([3, widths[0], 2, 5])
    left_out = torch.arange(widths[1]) >= torch.tensor([5, 2, widths[1], 3])[:, None]
    batch["labels"] = torch.randint(1, WORDS, (4, widths[1])).masked_fill(left_out, -100)
    return batch


@pytest.mark.parametrize("widths", [(7, 7), (7, 6), (6, 8)])
@pytest.mark.parametrize("wrong", [True, False])
def test_texts_that_are_read_and_written_have_columns_of_their_own(widths: tuple[int, int], wrong: bool) -> None:
    """A mean over the padded length of the labels shows, whatever the inputs' length; over one's own does not."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    model = T5ForConditionalGeneration(T5Config(vocab_size=WORDS, decoder_start_token_id=0, **sizes)).train()
    for name, value in model.named_parameters():
        value.requires_grad_(name.endswith(("q.weight", "wi.weight")))
    step = private(model, replay=1.0)

    def losses(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits, labels = step.model(**batch).logits, batch["labels"]
        found = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        return found.mean(1) if wrong else found.sum(1) / (labels != -100).sum(1)

    for number in range(3):
        outcome(step, losses, written(widths), 4, "not over padding" if wrong else None, number)
        step.step()
    assert step.replays == (0 if wrong else 3)


@pytest.mark.parametrize("wrong", [True, False])
def test_dropout_of_samples_and_tokens_in_one_axis(wrong: bool) -> None:
    """As in feed-forward parts that are not trained and take (B·T, d); numbers are those of the sample's own tokens."""

    def flattened(model: Any, words: torch.Tensor) -> torch.Tensor:
        x = model.words(words)
        return model.head(model.dropout(x.flatten(0, 1)).view_as(x))

    torch.manual_seed(0)
    step = private(language(flattened), replay=1.0)
    losses = partial(over_padding if wrong else over_own_tokens, step.model)
    batch = {name: value.flip(1) for name, value in texts([3, 7, 1, 6]).items()}
    outcome(step, losses, batch, 4, "not over padding" if wrong else None)


@pytest.mark.parametrize("targets", ["labels", "decoder_attention_mask", "labels alone", "labels of padding", "read"])
def test_columns_of_a_text_to_be_written(targets: str) -> None:
    batch = written((7, 7))
    if targets == "decoder_attention_mask":
        batch["decoder_attention_mask"] = (batch.pop("labels") != -100).long()
    elif targets == "labels alone":
        batch = {"features": torch.randn(4, 3, 2), "labels": batch["labels"]}
    elif targets == "labels of padding":
        batch["labels"] = batch["labels"].clamp_min(0)
    elif targets == "read":  # whatever stands in the labels' padding: a loss over it has to show
        batch["labels"] = batch["input_ids"]
    rows = BatchRows(batch, 4, padding=[0], translates=targets != "read")
    alone = rows.alone(0)
    written_to = alone["decoder_attention_mask" if targets.startswith("decoder") else "labels"]
    assert written_to.shape == (1, 3 if targets == "read" else 5)
    assert rows.widths_cut(0) == ((7,) if targets in ("labels alone", "read") else (7, 7))
    if targets != "labels alone":
        assert alone["input_ids"].shape == (1, 3)


def test_losses_that_are_nearly_zero_are_not_refused_for_their_rounding() -> None:
    """Where a sample is fitted, a loss of 1e-6 is known to a few per cent only: logits round, not losses."""
    torch.manual_seed(0)
    model, x = nn.Linear(WIDTH, 3), 2 * torch.randn(40, WIDTH)
    with torch.no_grad():
        model.weight.mul_(40.0)
        y = model(x).argmax(1)

    def losses(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0] * (1 + 1e-7 * len(batch[0]))), batch[1], reduction="none")

    assert float(losses((x, y)).detach().median()) < 1e-5
    go_on(model, (x, y), losses)


@pytest.mark.parametrize(("share", "refused"), [(0.002, None), (0.5, "inputs of adapter depend on other samples")])
def test_an_adapter_in_float32_has_the_tolerance_of_what_computes_its_inputs(share: float, refused: str | None) -> None:
    """Of a frozen model in 16 bits: its products round, whatever the adapter's own inputs are cast to."""

    def call(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model.adapter(model.fixed(x.bfloat16()).float() * (1.0 + share * (len(x) > 1))).flatten()

    torch.manual_seed(0)
    fixed = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16).requires_grad_(False)
    step = private(Parts(call, fixed=fixed, adapter=nn.Linear(WIDTH, 1)).train())
    outcome(step, partial(plain, step.model), rows(), SIZE, refused)
