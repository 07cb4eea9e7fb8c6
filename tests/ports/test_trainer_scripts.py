"""Public Trainer scripts, written anew: each runs as it is, and with the private Trainer and its arguments."""

from __future__ import annotations

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


def trained(model: Any, privacy: PrivacyArguments | None, folder: Path, remove: list[str], **options: Any) -> Any:
    """As each script does: its own Trainer, or, with an argument more, the private one."""
    tokenizer = Bytes()
    data = texts().map(lambda row: tokenizer(row["text"]), batched=True, remove_columns=remove)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    args = TrainingArguments(**options, **quiet(folder))
    given = {"model": model, "args": args, "train_dataset": data, "data_collator": collator}
    trainer = Trainer(**given) if privacy is None else PrivateTrainer(privacy=privacy, **given)
    trainer.train()
    return trainer


def gpt2(folder: Path, privacy: PrivacyArguments | None = None) -> Any:
    """Table-to-text with GPT-2, all parameters, embeddings tied: as private-transformers' example trains it."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=8, n_layer=1, n_head=2, n_positions=64))
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    return trained(model, privacy, folder, ["text", "author"], **sizes)


def authors(folder: Path, privacy: PrivacyArguments | None = None) -> Any:
    """LoRA where an author has several texts: as dp-transformers' example with author-level privacy trains it."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=8, n_layer=1, n_head=2, n_positions=64))
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    return trained(model, privacy, folder, ["text"], per_device_train_batch_size=3)


def qlora(folder: Path, privacy: PrivacyArguments | None = None) -> Any:
    """Adapters on a frozen model, with activation checkpointing: as QLoRA's script trains them.

    Layers of four bits, and arithmetic in sixteen, need a GPU: here the frozen model is in single precision.
    """
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=31, max_position_embeddings=64, **sizes))
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"]))
    model.enable_input_require_grads()
    options = {"per_device_train_batch_size": 6, "activation_checkpointing": True}
    return trained(model, privacy, folder, ["text", "author"], **options)


PORTS: dict[str, tuple[Callable[..., Any], PrivacyArguments]] = {
    "private-transformers, GPT-2": (gpt2, PrivacyArguments("ghost", 0.1, 1e-3, target_epsilon=8.0)),
    "dp-transformers, authors": (
        authors,
        PrivacyArguments("exact", 0.1, 1e-3, target_epsilon=8.0, owners="author", rows_per_owner=4),
    ),
    "QLoRA": (qlora, PrivacyArguments("hutch++", clipping_norm=0.1, noise_multiplier=1.0, delta=1e-3)),
}


@pytest.mark.parametrize("name", PORTS)
def test_a_trainer_script_needs_other_arguments_alone(name: str, tmp_path: Path) -> None:
    script, privacy = PORTS[name]
    assert script(tmp_path / "plain").state.global_step == 2
    run = script(tmp_path / "private", privacy).private
    assert run.steps_taken == run.steps_charged == 2
    assert 0.0 < run.epsilon().upper < 50.0


def test_what_the_scripts_mean_is_what_they_train(tmp_path: Path) -> None:
    table, of_authors, adapters = (script(tmp_path, privacy).private for script, privacy in PORTS.values())
    assert table.records["batch_size"] == 8.0  # 4 rows times 2
    assert table.epsilon().upper <= 8.0
    assert table.mechanism.norms == ExactNorms()
    assert of_authors.records["samples"] == 7
    assert of_authors.mechanism.sample_rate == pytest.approx(3 / 7)
    assert isinstance(adapters.mechanism.norms, (HutchPlusPlus, ExactNorms))
