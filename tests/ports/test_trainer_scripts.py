"""Public Trainer scripts, written anew: how many lines become others, and that both versions run.

Each script is a function that makes one of two trainers; the test counts the lines of the private one.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
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
from tests.ports.test_ports import written

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
LARGEST, EXACT = 3, ExactNorms()


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
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    return quiet | {"output_dir": str(folder), "max_steps": 2}


def gpt2(folder: Path, kind: str) -> Any:
    """Table-to-text with GPT-2, all parameters, embeddings tied: as private-transformers' example trains it."""
    tokenizer = Bytes()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=8, n_layer=1, n_head=2, n_positions=64))
    data = texts().map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=["text", "author"])
    args = TrainingArguments(per_device_train_batch_size=4, gradient_accumulation_steps=2, **quiet(folder))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    if kind == "plain":
        trainer = Trainer(model=model, args=args, train_dataset=data, data_collator=collator)
    else:
        privacy = PrivacyArguments(norms="ghost", clipping_norm=0.1, target_epsilon=8.0, delta=1e-3)
        trainer = PrivateTrainer(privacy=privacy, model=model, args=args, train_dataset=data, data_collator=collator)
    trainer.train()
    return trainer


def authors(folder: Path, kind: str) -> Any:
    """LoRA where an author has several texts: as dp-transformers' example with author-level privacy trains it."""
    tokenizer = Bytes()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=8, n_layer=1, n_head=2, n_positions=64))
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    data = texts().map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=["text"])
    args = TrainingArguments(per_device_train_batch_size=3, **quiet(folder))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    if kind == "plain":
        trainer = Trainer(model=model, args=args, train_dataset=data, data_collator=collator)
    else:
        privacy = PrivacyArguments("exact", 0.1, 1e-3, target_epsilon=8.0, owners="author", rows_per_owner=4)
        trainer = PrivateTrainer(privacy=privacy, model=model, args=args, train_dataset=data, data_collator=collator)
    trainer.train()
    return trainer


def qlora(folder: Path, kind: str) -> Any:
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
    if kind == "plain":
        trainer = Trainer(model=model, args=args, train_dataset=data, data_collator=collator)
    else:
        privacy = PrivacyArguments("hutch++", clipping_norm=0.1, noise_multiplier=1.0, delta=1e-3)
        trainer = PrivateTrainer(privacy=privacy, model=model, args=args, train_dataset=data, data_collator=collator)
    trainer.train()
    return trainer


PORTS: dict[str, tuple[Callable[[Path, str], Any], Callable[[Any], bool]]] = {
    "private-transformers, GPT-2": (
        gpt2,
        lambda run: run.records["batch_size"] == 8.0 and run.epsilon().upper <= 8.0 and run.mechanism.norms == EXACT,
    ),
    "dp-transformers, authors": (
        authors,
        lambda run: run.records["samples"] == 7 and run.mechanism.sample_rate == pytest.approx(3 / 7),
    ),
    "QLoRA": (qlora, lambda run: isinstance(run.mechanism.norms, (HutchPlusPlus, ExactNorms))),
}


@pytest.mark.parametrize("name", PORTS)
def test_a_trainer_script_changes_in_three_lines(name: str, tmp_path: Path) -> None:
    """And trains what it says: 4 rows times 2 a batch, three of seven authors."""
    script, is_meant = PORTS[name]
    assert len(written(ast.parse(inspect.getsource(script)).body[0])) <= LARGEST
    assert script(tmp_path / "plain", "plain").state.global_step == 2
    run = script(tmp_path / "private", "private").private
    assert run.steps_taken == run.steps_charged == 2
    assert 0.0 < run.epsilon().upper < 50.0
    assert is_meant(run)
