"""A Trainer whose steps are private: what it draws, clips, counts, logs and saves, and what it refuses by name."""

from __future__ import annotations

import copy
import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from dprmt import ParameterError, TrainingStateError
from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, Poisson
from dprmt.training.hugging_face import PrivacyArguments, PrivateTrainer
from tests.training.literal import clipped_sum, gradients_of, norm_of

NONE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}
CONFIG = BertConfig(num_labels=3, **SIZES, **NONE)


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
    ids = [torch.as_tensor(item["input_ids"]) for item in items]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    labels = torch.tensor([item["labels"] for item in items])
    return {"input_ids": padded, "attention_mask": (padded > 0).long(), "labels": labels}


def classifier() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(copy.deepcopy(CONFIG))


Make = Callable[..., PrivateTrainer]
GIVEN = ("model", "train_dataset", "losses", "callbacks", "optimizers", "compute_loss_func", "eval_dataset")


@pytest.fixture
def trainer(tmp_path: Path) -> Make:
    def make(
        kind: type[PrivateTrainer] = PrivateTrainer, number: int = 24, privacy: Any = None, **changes: Any
    ) -> PrivateTrainer:
        given = {name: changes.pop(name) for name in GIVEN if name in changes}
        options = {"max_steps": 2, "per_device_train_batch_size": 6, "logging_steps": 1, "output_dir": tmp_path / "out"}
        quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
        words = {"norms": "ghost", "clipping_norm": 0.1, "delta": 1e-5, "noise_multiplier": 1.0} | (privacy or {})
        defaults = {"model": classifier(), "train_dataset": Texts(number), "data_collator": collate}
        arguments = TrainingArguments(**(options | quiet | changes))
        return kind(privacy=PrivacyArguments(**words), args=arguments, **(defaults | given))

    return make


# ------------------------------------------------------------------------------------------------------- what it does


def test_a_run_is_charged_and_logs_nothing_private(trainer: Make, tmp_path: Path) -> None:
    one = trainer(save_strategy="steps", save_steps=1, privacy={"norms": Hutchinson(4, secret=True)})
    before = {name: value.clone() for name, value in one.model.named_parameters()}
    result = one.train()
    private = one.private
    assert (private.steps_taken, private.steps_charged, result.global_step) == (2, 2, 2)
    assert math.isnan(result.training_loss)
    assert not {"train_loss", "total_flos"} & result.metrics.keys()
    assert 0.25 <= private.mechanism.sample_rate <= 0.25 + 2**-24
    assert private.mechanism.norms != ExactNorms()
    again = DPSGD(1.0, private.mechanism.sample_rate, norms=private.mechanism.norms).epsilon(steps=2, delta=1e-5).upper
    assert private.epsilon().upper == again
    history = one.state.log_history
    assert again <= history[-1]["epsilon"] <= again + 1e-4
    assert history[0]["epsilon"] < history[1]["epsilon"]
    assert not {"loss", "train_loss", "grad_norm"} & {name for entry in history for name in entry}
    moved = [name for name, value in one.model.named_parameters() if not torch.equal(value, before[name])]
    assert moved == list(before)
    assert not any(module._forward_hooks or module._backward_hooks for module in one.model.modules())
    saved = tmp_path / "out" / "checkpoint-2" / "private_run.pt"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    keys = torch.load(tmp_path / "out" / "checkpoint-2" / "optimizer.pt", weights_only=True)
    assert keys["state"]


def literal_steps(model: torch.nn.Module, texts: Texts, steps: int, loss_of: Callable[..., Any], bound: float) -> Any:
    """At rate 1 without noise: by autograd, one sample at a time; and all norms."""
    norms: list[float] = []
    for _ in range(steps):
        samples = gradients_of(model, (loss_of(model, collate([text])) for text in texts))
        norms += map(norm_of, samples)
        with torch.no_grad():
            for name, total in clipped_sum(samples, bound).items():
                model.get_parameter(name).sub_(0.5 * total / len(texts))
    return torch.cat([value.detach().flatten() for value in model.parameters()]), norms


def plain(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch).loss


def smoothed(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    logits = model(batch["input_ids"], batch["attention_mask"]).logits
    return cross_entropy(logits, batch["labels"], label_smoothing=0.2)


class Doubled(PrivateTrainer):
    """With a loss of its own."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        return 2.0 * model(**inputs).loss


def twice(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    return 2.0 * cross_entropy(outputs.logits, labels)


STEPS: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "plain": ({}, plain),
    "accumulation": ({"gradient_accumulation_steps": 5, "per_device_train_batch_size": 2}, plain),
    "label smoothing": ({"label_smoothing_factor": 0.2}, smoothed),
    "activation checkpointing": ({"activation_checkpointing": True}, plain),
    "own compute_loss": ({"kind": Doubled, "privacy": {"one_by_one": True}}, lambda m, b: 2.0 * plain(m, b)),
    "compute_loss_func": ({"compute_loss_func": twice, "privacy": {"one_by_one": True}}, lambda m, b: 2 * plain(m, b)),
    "losses": ({"losses": lambda m, b: 3 * cross_entropy(m(b["input_ids"], b["attention_mask"]).logits, b["labels"],
                reduction="none")}, lambda m, b: 3.0 * plain(m, b)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_those_of_clipped_gradients_of_the_loss_that_was_meant(trainer: Make, name: str) -> None:
    """At rate 1 two steps are known up to the noise, and how large that is."""
    changes, loss_of = STEPS[name]
    words = {"batch_size": 10, "noise_multiplier": 0.01, "clipping_norm": 0.3} | changes.get("privacy", {})
    if name == "accumulation":
        del words["batch_size"]  # 2 rows times 5
    one = trainer(number=10, lr_scheduler_type="constant", **{**changes, "privacy": words})
    one.optimizer = torch.optim.SGD(one.model.parameters(), lr=0.5)
    one.train()
    expected, norms = literal_steps(classifier().train(), Texts(10), 2, loss_of, 0.3)
    assert min(norms) > 0.3 * 1.01, "or clipping is not seen"
    noise = torch.cat([value.detach().flatten() for value in one.model.parameters()]) - expected
    deviation = 2**0.5 * 0.5 * 0.01 * 0.3 / 10
    assert float(noise.abs().max()) < 6 * deviation
    assert abs(float(noise.std()) / deviation - 1) < 5 / (2 * len(noise)) ** 0.5


@pytest.mark.parametrize("one_by_one", [False, True])
def test_owners_with_all_their_rows_are_samples(trainer: Make, one_by_one: bool) -> None:
    """In steps without chance, of three owners of whom one has most rows."""
    rows = [{"input_ids": text["input_ids"].tolist(), "labels": text["labels"]} for text in Texts(9)]
    whose = ["a", "b", "c", "a", "a", "a", "a", "b", "c"]
    data = datasets.Dataset.from_list([row | {"who": name} for row, name in zip(rows, whose, strict=True)])
    words = {"owners": "who", "rows_per_owner": 5, "batch_size": 3, "noise_multiplier": 1e-3, "clipping_norm": 0.3}
    words["one_by_one"] = one_by_one
    one = trainer(train_dataset=data, max_steps=1, lr_scheduler_type="constant", privacy=words)
    one.optimizer = torch.optim.SGD(one.model.parameters(), lr=0.5)
    one.train()
    model, losses = classifier().train(), []
    for name in "abc":
        own = collate([row for row, who in zip(rows, whose, strict=True) if who == name])
        logits = model(own["input_ids"], own["attention_mask"]).logits
        losses.append(cross_entropy(logits, own["labels"], reduction="sum"))
    for name, total in clipped_sum(gradients_of(model, losses), 0.3).items():
        expected = model.get_parameter(name) - 0.5 * total / 3
        torch.testing.assert_close(one.model.get_parameter(name), expected, rtol=0, atol=3e-4)
    assert one.private.mechanism.sampling == Poisson(1.0)
    with pytest.raises(ParameterError, match=r"at most 2, as was given, got 5\.\nFix: .*rows_per_owner=5"):
        trainer(train_dataset=data, privacy={"owners": "who", "rows_per_owner": 2, "batch_size": 3}).train()


def test_the_target_holds_for_the_planned_steps(trainer: Make) -> None:
    one = trainer(max_steps=-1, num_train_epochs=1.5, privacy={"noise_multiplier": None, "target_epsilon": 3.0})
    one.train()
    assert one.private.steps_charged == one.state.global_step == 6  # 24 samples, 6 a batch, one and a half epochs
    assert 2.9 < one.private.epsilon().upper <= 3.0


def test_options_come_from_a_command_line() -> None:
    words = ["--norms", "hutch++", "--clipping_norm", "1", "--delta", "1e-5", "--target_epsilon", "3"]
    words += ["--owners", "author", "--output_dir", "x"]
    arguments, privacy = HfArgumentParser((TrainingArguments, PrivacyArguments)).parse_args_into_dataclasses(words)
    asked = (privacy.norms, privacy.target_epsilon, privacy.owners, privacy.noise_multiplier)
    assert asked == ("hutch++", 3.0, "author", None)
    assert arguments.max_grad_norm == 1.0
    with pytest.raises(SystemExit):  # what changes ε has no default
        HfArgumentParser(PrivacyArguments).parse_args_into_dataclasses(["--norms", "ghost"])


# ------------------------------------------------------------------------------------------------------------ going on


PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1}
FALLS = {"lr_scheduler_kwargs": {"patience": 0, "threshold": 1.0, "factor": 0.5}}


@pytest.mark.parametrize("schedule", [{"lr_scheduler_type": "cosine", "warmup_steps": 2}, PLATEAU | FALLS])
def test_a_resumed_run_ends_as_one_that_was_not_stopped(
    trainer: Make, tmp_path: Path, schedule: dict[str, Any]
) -> None:
    words = {"noise_multiplier": 0.5, "public_evaluation": True}
    options = {"max_steps": 7, "privacy": words, "eval_dataset": Texts(8), **schedule}
    whole = trainer(**options, save_strategy="steps", save_steps=3)
    whole.train()
    again = trainer(**options)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert again.state.global_step == again.private.steps_taken == again.private.steps_charged == 7
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert again.private.epsilon() == whole.private.epsilon()
    rates, others = ([entry.get("learning_rate") for entry in one.state.log_history] for one in (whole, again))
    assert rates == others
    assert len({*rates}) > 4


def test_a_checkpoint_without_the_private_run_or_with_other_noise_is_refused(trainer: Make, tmp_path: Path) -> None:
    trainer(save_strategy="steps", save_steps=1).train()
    folder = tmp_path / "out" / "checkpoint-1"
    with pytest.raises(ParameterError, match=r"mechanism.noise_multiplier: 1.0 then, 0.7 now"):
        trainer(privacy={"noise_multiplier": 0.7}).train(resume_from_checkpoint=str(folder))
    os.remove(folder / "private_run.pt")
    with pytest.raises(ParameterError, match="resume_from_checkpoint must be a checkpoint of a private run"):
        trainer().train(resume_from_checkpoint=str(folder))


def test_more_steps_than_planned_are_none(trainer: Make) -> None:
    class More(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            state.max_steps = args.max_steps = 9

    one = trainer(max_steps=3, callbacks=[More()], privacy={"noise_multiplier": None, "target_epsilon": 2.0})
    one.train()
    assert one.private.steps_charged == one.private.steps_taken == 3
    assert one.private.epsilon().upper <= 2.0


def test_a_step_that_nobody_charged_is_seen(trainer: Make) -> None:
    class Again(TrainerCallback):  # type: ignore[misc]
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            state.global_step += 1

    one = trainer(max_steps=5, callbacks=[Again()])
    with pytest.raises(TrainingStateError, match="has taken 2 steps, the private run 1"):
        one.train()


def test_it_is_trained_once(trainer: Make) -> None:
    one = trainer()
    one.train()
    with pytest.raises(TrainingStateError, match="once"):
        one.train()


def test_samples_that_mix_are_refused_and_leave_no_sum(trainer: Make) -> None:
    def over_the_batch(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits = model(batch["input_ids"], batch["attention_mask"]).logits
        losses = cross_entropy(logits, batch["labels"], reduction="none")
        return losses / losses.detach().mean()

    one = trainer(losses=over_the_batch, privacy={"batch_size": 24})
    with pytest.raises(TrainingStateError, match="loss"):
        one.train()
    assert one.private.steps_charged == 0
    assert all(value.grad is None and getattr(value, "summed_grad", None) is None for value in one.model.parameters())


# ---------------------------------------------------------------------------------------------- what is refused by name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fp16", True),
        ("neftune_noise_alpha", 5.0),
        ("auto_find_batch_size", True),
        ("torch_compile", True),
        ("use_liger_kernel", True),
        ("include_num_input_tokens_seen", "all"),
    ],
)
def test_arguments_under_which_steps_would_not_be_these(trainer: Make, name: str, value: Any) -> None:
    one = trainer()
    setattr(one.args, name, value)
    with pytest.raises(ParameterError, match=rf"args\.{name}"):
        one._check()


def test_several_processes_are_refused_by_name(trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    with pytest.raises(ParameterError, match=r"args\.world_size must be 1: .*dprmt train.*make_private.*, got 2"):
        trainer()


@pytest.mark.parametrize(
    "changes",
    [
        {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps", "save_steps": 1,
         "eval_steps": 1},
        {"callbacks": [EarlyStoppingCallback()]},
        PLATEAU,
    ],
)  # fmt: skip
def test_following_private_scores_is_refused(trainer: Make, changes: dict[str, Any]) -> None:
    given = {"eval_dataset": Texts(4), "metric_for_best_model": "loss"} | changes
    with pytest.raises(ParameterError, match=r"privacy\.public_evaluation must be True with"):
        trainer(**given)
    one = trainer(**given, privacy={"public_evaluation": True})
    if "save_steps" in changes:
        one.train()
        assert one.state.best_metric is not None


def test_losses_and_loops_of_ones_own_say_what_to_do(trainer: Make) -> None:
    for changes in ({"kind": Doubled}, {"compute_loss_func": twice}):
        with pytest.raises(ParameterError, match=r"losses must be given .*compute_loss.*\nFix: losses=.*one_by_one"):
            trainer(**changes)

    class SFTTrainer(Trainer):  # as TRL has it
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            return super().compute_loss(model, inputs, return_outputs)

        def log(self, logs: dict[str, float], *args: Any) -> None:
            super().log(logs | {"mean_token_accuracy": 0.5}, *args)

    class PrivateSFTTrainer(PrivateTrainer, SFTTrainer):
        """Both, in the order that lets the private one come first."""

    with pytest.raises(ParameterError, match=r"PrivateSFTTrainer\.compute_loss.*one loss for the batch"):
        trainer(PrivateSFTTrainer)
    for shows in (False, True):
        one = trainer(PrivateSFTTrainer, privacy={"one_by_one": True, "show_losses": shows})
        with pytest.raises(TrainingStateError, match=r"no private run before train\(\)"):
            one.private.epsilon()
        assert math.isfinite(one.train().training_loss) is shows
        logged = {name for line in one.state.log_history for name in line}
        assert logged & {"mean_token_accuracy", "loss", "grad_norm"} == (
            {"mean_token_accuracy", "loss"} if shows else set()
        )
    for name in ("training_step", "create_optimizer", "_get_train_sampler"):
        own = type("Own", (PrivateTrainer,), {name: lambda self, *args: None})
        with pytest.raises(ParameterError, match=rf"Own, with its own {name}'\.\nFix: optimizers=\(optimizer, sched"):
            trainer(own)
    for rows in (iter([]), []):
        with pytest.raises(ParameterError, match="train_dataset must be a data set of at least one row"):
            trainer(train_dataset=rows)
    with pytest.raises(ParameterError, match="privacy must be PrivacyArguments"):
        PrivateTrainer(privacy={}, args=TrainingArguments("x", use_cpu=True))
    with pytest.raises(ParameterError, match="args must be TrainingArguments"):
        PrivateTrainer(privacy=PrivacyArguments("ghost", 1.0, 1e-5))
    with pytest.raises(TrainingStateError, match="private_selection"):
        trainer().hyperparameter_search()


@pytest.mark.parametrize(
    ("loss_of", "message"),
    [
        (lambda logits, labels, number: cross_entropy(logits, labels, reduction="sum") / number,
         r"num_items_in_batch is None: .*\nFix: divide by what the row itself has"),
        (lambda logits, labels, _: cross_entropy(logits @ logits.T, torch.arange(len(logits))),
         "gradients of the first 10 samples are zero.*\nFix: put what a row is compared with"),
    ],
)  # fmt: skip
def test_losses_over_a_batch_that_mean_nothing_in_one_row(trainer: Make, loss_of: Any, message: str) -> None:
    def compute(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        return loss_of(outputs.logits, labels, num_items_in_batch)

    one = trainer(compute_loss_func=compute, privacy={"one_by_one": True, "batch_size": 24})
    with pytest.raises(TrainingStateError, match=message):
        one.train()
    assert one.private.steps_charged == 0


def test_a_head_that_is_not_known_is_refused_before_training(trainer: Make) -> None:
    with pytest.raises(ParameterError, match="got 'BertForNextSentencePrediction'"):
        trainer(model=BertForNextSentencePrediction(CONFIG))


def test_multiple_choice_trains_one_row_at_a_time(trainer: Make) -> None:
    choices = [{"input_ids": torch.randint(1, 20, (2, 4)), "labels": i % 2} for i in range(12)]

    def stack(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {key: torch.stack([torch.as_tensor(item[key]) for item in items]) for key in ("input_ids", "labels")}

    one = trainer(model=BertForMultipleChoice(CONFIG), train_dataset=choices, privacy={"one_by_one": True})
    one.data_collator = stack
    one.train()
    assert one.private.steps_charged == 2


# -------------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("batch_size", {"batch_size": 25}),
        ("owners must be one of the training set's columns", {"owners": "author"}),
        ("rows_per_owner must be left out without owners", {"rows_per_owner": 5}),
    ],
)
def test_bad_values(trainer: Make, name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=name):
        trainer(privacy=changes).train()
