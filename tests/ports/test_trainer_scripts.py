"""Public Trainer scripts, written anew: how many lines become others, and that both versions run.

Each script is a function of ``Trainer``-like names only; the private version differs in lines that the test counts.
"""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import datasets
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from dprmt.accounting import ExactNorms, HutchPlusPlus
from dprmt.training.hugging_face import PrivacyArguments, PrivateTrainer

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
LARGEST = 3


class Bytes:
    """A tokenizer of letters, with what collators ask for."""

    pad_token_id, pad_token = 0, "<pad>"

    def __call__(self, texts: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[1 + ord(letter) % 30 for letter in text] for text in texts]}

    def pad(self, items: list[dict[str, Any]], return_tensors: str = "pt", **_: Any) -> dict[str, torch.Tensor]:
        ids = [torch.tensor(item["input_ids"]) for item in items]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        return {"input_ids": padded, "attention_mask": (padded != 0).long()}


def texts() -> datasets.Dataset:
    rows = [{"text": "restaurant near the river " * (1 + i % 2), "author": f"a{i % 7}"} for i in range(24)]
    return datasets.Dataset.from_list(rows)


def quiet(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "max_steps": 2,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
    }


def gpt2_plain(folder: Path) -> Any:
    """Table-to-text with GPT-2, all parameters, embeddings tied: as private-transformers' example trains it."""
    tokenizer = Bytes()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=8, n_layer=1, n_head=2, n_positions=64))
    data = texts().map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=["text", "author"])
    args = TrainingArguments(per_device_train_batch_size=4, gradient_accumulation_steps=2, **quiet(folder))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = Trainer(model=model, args=args, train_dataset=data, data_collator=collator)
    trainer.train()
    return trainer


def gpt2_private(folder: Path) -> Any:
    """Table-to-text with GPT-2, all parameters, embeddings tied: as private-transformers' example trains it."""
    tokenizer = Bytes()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=8, n_layer=1, n_head=2, n_positions=64))
    data = texts().map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=["text", "author"])
    args = TrainingArguments(per_device_train_batch_size=4, gradient_accumulation_steps=2, **quiet(folder))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    privacy = PrivacyArguments(norms="ghost", clipping_norm=0.1, target_epsilon=8.0, delta=1e-3)
    trainer = PrivateTrainer(privacy=privacy, model=model, args=args, train_dataset=data, data_collator=collator)
    trainer.train()
    return trainer


def authors_plain(folder: Path) -> Any:
    """LoRA where an author has several texts: as dp-transformers' example with author-level privacy trains it."""
    tokenizer = Bytes()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=8, n_layer=1, n_head=2, n_positions=64))
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    data = texts().map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=["text"])
    args = TrainingArguments(per_device_train_batch_size=3, **quiet(folder))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = Trainer(model=model, args=args, train_dataset=data, data_collator=collator)
    trainer.train()
    return trainer


def authors_private(folder: Path) -> Any:
    """LoRA where an author has several texts: as dp-transformers' example with author-level privacy trains it."""
    tokenizer = Bytes()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=8, n_layer=1, n_head=2, n_positions=64))
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    data = texts().map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=["text"])
    args = TrainingArguments(per_device_train_batch_size=3, **quiet(folder))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    privacy = PrivacyArguments("exact", 0.1, 1e-3, target_epsilon=8.0, owners="author", rows_per_owner=4)
    trainer = PrivateTrainer(privacy=privacy, model=model, args=args, train_dataset=data, data_collator=collator)
    trainer.train()
    return trainer


def qlora_plain(folder: Path) -> Any:
    """Adapters on a frozen model, with activation checkpointing: as QLoRA's script trains them.

    Layers of four bits, and arithmetic in sixteen, need a GPU: here the frozen model is in single precision.
    """
    tokenizer = Bytes()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=31, max_position_embeddings=64, **sizes))
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"]))
    data = texts().map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=["text", "author"])
    args = TrainingArguments(per_device_train_batch_size=6, activation_checkpointing=True, **quiet(folder))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    model.enable_input_require_grads()
    trainer = Trainer(model=model, args=args, train_dataset=data, data_collator=collator)
    trainer.train()
    return trainer


def qlora_private(folder: Path) -> Any:
    """Adapters on a frozen model, with activation checkpointing: as QLoRA's script trains them.

    Layers of four bits, and arithmetic in sixteen, need a GPU: here the frozen model is in single precision.
    """
    tokenizer = Bytes()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=31, max_position_embeddings=64, **sizes))
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"]))
    data = texts().map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=["text", "author"])
    args = TrainingArguments(per_device_train_batch_size=6, activation_checkpointing=True, **quiet(folder))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    model.enable_input_require_grads()
    privacy = PrivacyArguments("hutch++", clipping_norm=0.1, noise_multiplier=1.0, delta=1e-3)
    trainer = PrivateTrainer(privacy=privacy, model=model, args=args, train_dataset=data, data_collator=collator)
    trainer.train()
    return trainer


PORTS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "private-transformers, GPT-2": (gpt2_plain, gpt2_private),
    "dp-transformers, authors": (authors_plain, authors_private),
    "QLoRA": (qlora_plain, qlora_private),
}


def changed_lines(plain: Callable[..., Any], private: Callable[..., Any]) -> list[str]:
    """Lines of the private version that the plain one does not have, the signature aside."""
    one, other = (textwrap.dedent(inspect.getsource(version)).splitlines()[1:] for version in (plain, private))
    return [line for line in difflib.ndiff(one, other) if line.startswith("+ ")]


@pytest.mark.parametrize("name", PORTS)
def test_a_trainer_script_changes_in_three_lines(name: str, tmp_path: Path) -> None:
    plain, private = PORTS[name]
    imports = 1  # from dprmt.training.hugging_face import PrivacyArguments, PrivateTrainer
    assert len(changed_lines(plain, private)) + imports <= LARGEST
    assert plain(tmp_path / "plain").state.global_step == 2
    run = private(tmp_path / "private").private
    assert run.steps_taken == run.steps_charged == 2
    assert 0.0 < run.epsilon().upper < 50.0


def test_what_the_scripts_mean_is_what_they_train(tmp_path: Path) -> None:
    gpt2 = gpt2_private(tmp_path / "gpt2").private
    assert gpt2.records["batch_size"] == 8.0  # 4 rows times 2
    assert gpt2.epsilon().upper <= 8.0
    assert gpt2.mechanism.norms == ExactNorms()
    authors = authors_private(tmp_path / "authors").private
    assert authors.records["samples"] == 7
    assert authors.mechanism.sample_rate == pytest.approx(3 / 7)
    qlora = qlora_private(tmp_path / "qlora").private
    assert isinstance(qlora.mechanism.norms, (HutchPlusPlus, ExactNorms))
