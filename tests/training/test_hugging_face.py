"""A Trainer whose steps are private: what is drawn, clipped, charged, logged, and what is refused."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from dprmt.training.hugging_face._owners import Owners, read_owners
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import DPSGD, ExactNorms, Hutchinson
from dprmt.training.clipping import Units
from dprmt.training.hugging_face import PoissonBatches, PrivateTraining

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
HOW: dict[str, Any] = {
    "norms": "ghost",
    "clipping_norm": 0.1,
    "expected_batch_size": 6,
    "delta": 1e-5,
    "noise_multiplier": 1.0,
}


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Of different lengths."""

    def __init__(self, number: int) -> None:
        draw = torch.Generator().manual_seed(3)
        self.texts = [torch.randint(1, 20, (2 + i % 4,), generator=draw) for i in range(number)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"input_ids": self.texts[i], "labels": i % 3}


def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True)
    labels = torch.tensor([item["labels"] for item in items])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def classifier() -> BertForSequenceClassification:
    torch.manual_seed(0)
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(vocab_size=20, num_labels=3, **SIZES, **none))


Make = Callable[..., Trainer]


@pytest.fixture
def trainer(tmp_path: Path) -> Make:
    def make(kind: type[Trainer] = Trainer, number: int = 24, **changes: Any) -> Trainer:
        given = {
            name: changes.pop(name) for name in ("optimizers", "callbacks", "compute_loss_func") if name in changes
        }
        options = {"max_steps": 2, "per_device_train_batch_size": 4, "max_grad_norm": 0, "logging_steps": 1}
        quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
        arguments = TrainingArguments(output_dir=str(tmp_path / "out"), **(options | quiet | changes))
        return kind(model=classifier(), args=arguments, train_dataset=Texts(number), data_collator=collate, **given)

    return make


def attached(one: Trainer, **changes: Any) -> PrivateTraining:
    privacy = PrivateTraining(**(HOW | changes))
    privacy.attach(one)
    return privacy


def test_a_run_is_charged_and_logs_nothing_private(trainer: Make, tmp_path: Path) -> None:
    one = trainer(save_strategy="steps", save_steps=1)
    before = {name: value.clone() for name, value in one.model.named_parameters()}
    privacy = attached(one, norms=Hutchinson(2, secret=True))
    result = one.train()
    assert (privacy.charged, result.global_step, result.training_loss) == (2, 2, 0.0)
    rate = privacy.mechanism.sample_rate
    assert 0.25 <= rate <= 0.25 + 2**-24
    assert privacy.mechanism.noise_multiplier == 1.0
    assert privacy.mechanism.norms != ExactNorms()
    again = DPSGD(1.0, rate, norms=privacy.mechanism.norms).epsilon(steps=2, delta=1e-5).upper
    assert privacy.epsilon() == again
    history = one.state.log_history
    assert [entry["epsilon"] for entry in history[:2]] == sorted({entry["epsilon"] for entry in history})
    assert history[-1]["epsilon"] == again
    assert not {"loss", "train_loss", "grad_norm"} & {name for entry in history for name in entry}
    moved = [name for name, value in one.model.named_parameters() if not torch.equal(value, before[name])]
    assert moved == list(before)
    assert not any(module._forward_hooks or module._backward_hooks for module in one.model.modules())
    assert (tmp_path / "out" / "checkpoint-2" / "optimizer.pt").exists()


def test_steps_are_those_of_clipped_gradients(trainer: Make) -> None:
    """At rate 1 two steps are known up to the noise, and how large that is: by autograd, one sample at a time."""
    one = trainer(number=10, lr_scheduler_type="constant")
    one.optimizer = torch.optim.SGD(one.model.parameters(), lr=0.5)
    attached(one, expected_batch_size=10, noise_multiplier=0.01, clipping_norm=0.3)
    one.train()

    model, texts, norms = classifier().train(), Texts(10), []
    for _ in range(2):
        total = [torch.zeros_like(value) for value in model.parameters()]
        for i in range(len(texts)):
            item = collate([texts[i]])
            loss = cross_entropy(model(item["input_ids"], item["attention_mask"]).logits, item["labels"])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))
            for sum_, g in zip(total, gradients, strict=True):
                sum_ += g * min(1.0, 0.3 / norms[-1])
        with torch.no_grad():
            for value, sum_ in zip(model.parameters(), total, strict=True):
                value -= 0.5 * sum_ / 10
    assert min(norms) > 0.3 * 1.01, "or clipping is not seen"
    expected = torch.cat([value.detach().flatten() for value in model.parameters()])
    noise = torch.cat([value.detach().flatten() for value in one.model.parameters()]) - expected
    deviation = 2**0.5 * 0.5 * 0.01 * 0.3 / 10
    assert float(noise.abs().max()) < 6 * deviation
    assert abs(float(noise.std()) / deviation - 1) < 5 / (2 * len(noise)) ** 0.5


OWNERS = [f"p{i % 5}" if i < 20 else "p0" for i in range(24)]  # four, and p0 with eight


@pytest.mark.parametrize("regime", ["together", "alone"])
def test_steps_are_those_of_owners_with_all_their_items(
    trainer: Make, regime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Σ_u min(1, (1-ρ)C/‖g_u‖) g_u over the owners that were drawn; ε is that of five of them."""
    one, sums, drawn = trainer(max_steps=1, per_device_train_batch_size=4), [], []
    privacy = attached(one, owners=OWNERS, units=Units(8, regime=regime), expected_batch_size=3)
    before = {name: value.detach().clone() for name, value in one.model.named_parameters()}
    batches = PoissonBatches.__iter__

    def kept(self: PoissonBatches) -> Iterator[list[int]]:
        for positions in batches(self):
            drawn.append(positions)
            yield positions

    monkeypatch.setattr(PoissonBatches, "__iter__", kept)

    class Look(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            noisy, inner = privacy._private.optimizer, privacy._private.optimizer.add_noise

            def add_noise() -> None:
                sums.append({name: p.summed_grad.clone() for name, p in one.model.named_parameters()})
                inner()

            noisy.add_noise = add_noise

    one.add_callback(Look())
    one.train()
    plain, items = classifier().train(), Texts(24)
    plain.load_state_dict(before)
    wanted = {name: torch.zeros_like(p) for name, p in plain.named_parameters()}
    for owner in drawn[0]:
        plain.zero_grad()
        for place in [i for i, name in enumerate(OWNERS) if name == f"p{owner}"]:
            batch = collate([items[place]])
            labels = batch.pop("labels")
            cross_entropy(plain(**batch).logits, labels).backward()
        norm = torch.stack([p.grad.norm() for p in plain.parameters()]).norm()
        for name, p in plain.named_parameters():
            wanted[name] += p.grad * min(1.0, 0.1 * (1 - 2**-13) / float(norm))
    for name, value in sums[0].items():
        torch.testing.assert_close(value, wanted[name], rtol=2e-3, atol=2e-5)
    assert privacy.epsilon() == DPSGD(1.0, privacy._batches.rate).epsilon(steps=1, delta=1e-5).upper
    assert privacy._batches.rate == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owners": "author"}, r"owners must be one of the columns \(there are none\), got 'author'"),
        ({"owners": ["a"] * 23}, "owners must be one integer or string for each of the 24 items, got 23"),
        ({"owners": ["a"] * 22 + [None, ""]}, r"items without owners must be 0 of 24: .*, got 2"),
        ({"owners": [0.5] * 24}, "owners must be integers or strings, got 0.5"),
        ({"owners": OWNERS, "units": Units(7)}, "items of an owner must be at most units.rows_per_unit = 7, got 8"),
        ({"units": Units(7)}, "owners must be given with units"),
    ],
)
def test_bad_owners_are_refused_in_a_sentence(trainer: Make, changes: dict[str, Any], message: str) -> None:
    one = trainer()
    with pytest.raises(ParameterError, match=message):
        attached(one, **({"expected_batch_size": 1} | changes))


def test_owners_are_read_from_a_column() -> None:
    table = datasets.Dataset.from_dict({"text": list("abc"), "who": ["x", "y", "x"]})
    assert read_owners(table, "who", 2) == Owners(("x", "y"), ((0, 2), (1,)))
    with pytest.raises(ParameterError, match="owners must be one of the columns text, who, got 'author'"):
        read_owners(table, "author", None)


def test_micro_batches_hold_whole_owners() -> None:
    """Or one owner, cut where each is run alone."""
    owners = Owners(("a", "b", "c"), ((0, 3, 4), (1,), (2, 5)))
    assert [places for places, _ in owners.parts([0, 1, 2], 4)] == [[0, 3, 4, 1], [2, 5]]
    assert [places for places, _ in owners.parts([0, 1, 2], 2)] == [[0, 3, 4], [1], [2, 5]]
    alone = Owners(owners.names, owners.items, alone=True)
    assert list(alone.parts([0, 2], 2)) == [([0, 3], ["a", "a"]), ([4], ["a"]), ([2, 5], ["c", "c"])]
    assert list(owners.parts([], 2)) == []


def test_the_target_holds_for_the_planned_steps(trainer: Make) -> None:
    one = trainer(max_steps=-1, num_train_epochs=1.5)
    privacy = attached(one, noise_multiplier=None, target_epsilon=3.0)
    one.train()
    assert privacy.charged == 6  # 24 samples, 6 a batch, one and a half epochs
    assert 2.9 < privacy.epsilon() <= 3.0
    assert re.fullmatch(
        r"<PrivateTraining: epsilon <= (2\.9\d+|3\.0+) at delta = 1e-05 \(zero-out\) after 6 steps, \w+\(.*\)>",
        repr(privacy),
    )


def test_an_empty_batch_is_a_step(trainer: Make) -> None:
    one = trainer(max_steps=12)
    privacy = attached(one, expected_batch_size=0.3)
    one.train()
    assert privacy.charged == 12


def test_losses_are_shown_where_that_is_asked_for(trainer: Make) -> None:
    one = trainer(max_steps=3)
    attached(one, expected_batch_size=24, show_losses=True)
    result = one.train()
    assert 0.9 < result.training_loss < 1.3
    assert [abs(entry["loss"] - 1.1) < 0.2 for entry in one.state.log_history if "loss" in entry] == [True] * 3


def test_samples_that_mix_are_refused_and_leave_no_sum(trainer: Make) -> None:
    def over_the_batch(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits = model(batch["input_ids"], batch["attention_mask"]).logits
        losses = cross_entropy(logits, batch["labels"], reduction="none")
        return losses / losses.detach().mean()

    one = trainer()
    privacy = attached(one, losses=over_the_batch, expected_batch_size=24)
    with pytest.raises(TrainingStateError, match="loss"):
        one.train()
    assert privacy.charged == 0
    assert all(value.grad is None and getattr(value, "summed_grad", None) is None for value in one.model.parameters())
    with pytest.raises(TrainingStateError, match="once"):
        one.train()


def test_a_callback_that_was_not_attached_refuses(trainer: Make) -> None:
    with pytest.raises(TrainingStateError, match=r"attach\(trainer\)"):
        trainer(callbacks=[PrivateTraining(**HOW)]).train()


def test_one_that_was_given_and_attached_is_there_once(trainer: Make) -> None:
    privacy = PrivateTraining(**HOW)
    one = trainer(callbacks=[privacy])
    privacy.attach(one)
    assert one.callback_handler.callbacks.count(privacy) == 1
    with pytest.raises(TrainingStateError, match="another PrivateTraining"):
        PrivateTraining(**HOW).attach(one)
    with pytest.raises(TrainingStateError, match="has a Trainer already"):
        privacy.attach(trainer())


@pytest.mark.parametrize("what", ["loader", "optimizer"])
def test_what_was_replaced_afterwards_is_refused(trainer: Make, what: str) -> None:
    one = trainer()
    attached(one)
    if what == "loader":
        one.get_train_dataloader = lambda: Trainer.get_train_dataloader(one)
    else:
        one.create_optimizer = lambda model=None: Trainer.create_optimizer(one)
    with pytest.raises(ParameterError, match=what):
        one.train()


def test_a_step_that_nobody_charged_is_seen(trainer: Make) -> None:
    class Again(TrainerCallback):  # type: ignore[misc]
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            state.global_step += 1

    one = trainer(callbacks=[Again()])
    attached(one)
    with pytest.raises(TrainingStateError, match="2 steps were taken, 1 charged"):
        one.train()


def test_it_is_trained_once(trainer: Make) -> None:
    one = trainer()
    attached(one)
    one.train()
    with pytest.raises(TrainingStateError, match="once"):
        one.train()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_grad_norm", 1.0),
        ("gradient_accumulation_steps", 2),
        ("label_smoothing_factor", 0.1),
        ("neftune_noise_alpha", 5.0),
        ("bf16", True),
        ("resume_from_checkpoint", "checkpoint-1"),
        ("auto_find_batch_size", True),
    ],
)
def test_arguments_under_which_steps_would_not_be_these(trainer: Make, name: str, value: Any) -> None:
    one = trainer()
    setattr(one.args, name, value)
    with pytest.raises(ParameterError, match=rf"args\.{name}"):
        attached(one)


def test_loops_and_losses_of_ones_own_are_refused(trainer: Make) -> None:
    class Own(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            return model(**inputs).loss

    with pytest.raises(ParameterError, match="Own, with its own compute_loss"):
        attached(trainer(Own))
    with pytest.raises(ParameterError, match="compute_loss_func"):
        attached(trainer(compute_loss_func=lambda outputs, labels, **_: outputs.loss))
    one = trainer()
    one.train_dataset = iter([])
    with pytest.raises(ParameterError, match="train_dataset"):
        attached(one)
    with pytest.raises(ParameterError, match=r"transformers\.Trainer"):
        PrivateTraining(**HOW).attach(object())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("delta", {"delta": 1.0}),
        ("noise_multiplier", {"noise_multiplier": 0.0}),
        ("exactly one", {"target_epsilon": 1.0}),
        ("exactly one", {"noise_multiplier": None}),
        ("target_epsilon", {"noise_multiplier": None, "target_epsilon": -1.0}),
        ("expected_batch_size", {"expected_batch_size": 25}),
        ("expected_batch_size", {"expected_batch_size": 0}),
    ],
)
def test_bad_numbers(trainer: Make, name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=name):
        attached(trainer(), **changes)


def test_an_estimator_of_unknown_law_is_refused_before_the_first_step(trainer: Make) -> None:
    class Unknown:
        norms = None

        def is_cheaper(self, in_features: int, out_features: int) -> bool:
            return True

        def terms(self, tokens: int, in_features: int, out_features: int) -> int:
            return 1

        def squared_norms(self, *args: Any, **_: Any) -> torch.Tensor:
            raise AssertionError("no step is taken")

    one = trainer()
    attached(one, norms=Unknown())
    with pytest.raises(ValueError, match="law"):
        one.train()


@pytest.mark.parametrize("secure", [False, True])
def test_every_sample_is_drawn_by_a_coin_of_its_own(secure: bool) -> None:
    """Of 4,000 batches: every sample's share, the spread of sizes, and pairs are a binomial law's, not a shuffle's."""
    if secure:
        pytest.importorskip("cryptography")
    batches = PoissonBatches(20, 5, secure=secure)
    drawn = torch.zeros(4000, 20)
    epochs = itertools.chain.from_iterable(itertools.repeat(batches))
    for row, positions in zip(drawn, epochs, strict=False):
        row[positions] = 1
    deviation = (0.25 * 0.75 / 4000) ** 0.5
    assert float((drawn.mean(0) - 0.25).abs().max()) < 5 * deviation
    assert abs(float(drawn.sum(1).var()) / (20 * 0.25 * 0.75) - 1) < 5 * (2 / 4000) ** 0.5  # a shuffle's is 0
    pairs = drawn.T @ drawn / 4000
    pairs.fill_diagonal_(0.0625)
    assert float((pairs - 0.0625).abs().max()) < 5.5 * (0.0625 * 0.9375 / 4000) ** 0.5
    later = (drawn[1:] * drawn[:-1]).mean(0)  # of one sample in batches that follow each other
    assert float((later - 0.0625).abs().max()) < 5 * (0.0625 * 0.9375 / 3999) ** 0.5 * 1.3


def test_nobody_sets_the_coins() -> None:
    torch.manual_seed(0)
    transformers.set_seed(0)
    first = list(PoissonBatches(100, 50))
    transformers.set_seed(0)
    assert first != list(PoissonBatches(100, 50))


def test_the_rate_is_no_smaller_than_it_was_asked_for() -> None:
    for size, samples in ((1, 3), (2000, 67349), (3, 3), (0.001, 7)):
        rate = PoissonBatches(samples, size).rate
        assert size / samples <= rate <= min(1.0, size / samples + 2**-24)
        assert (rate * 2**24).is_integer()
