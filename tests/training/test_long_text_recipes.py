"""The recipes of long texts, from local files of their form to scores: a tiny Llama in place of the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dprmt.training.harness import read_metrics, train
from dprmt.training.models import byte_tokenizer
from dprmt.training.recipes import load_recipe

ROWS = {
    "bbc": [{"text": f"{word} news, number {i}", "label": i % 2} for i, word in enumerate(["ball", "bank"] * 6)],
    "billsum": [{"text": f"A bill of {i} sections.", "summary": f"{i} sections"} for i in range(12)],
    "hotpotqa": [{"prompt": f"Town {i} lies north. Where lies town {i}?", "answer": "north"} for i in range(12)],
}
METRICS = {"bbc": "accuracy", "billsum": "rouge_1", "hotpotqa": "exact_match"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights and bytes as tokens, with embeddings tied as those of the 1B model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=300, pad_token_id=0, tie_word_embeddings=True, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("task", ROWS)
def test_a_recipe_of_long_texts_runs_on_a_local_file(task: str, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[task]), encoding="utf-8")
    here: dict[str, Any] = {"model.source": str(model), "data.source": "files"}
    here |= {"data.train": [str(file)], "data.validation": [str(file)], "data.max_tokens": 48}
    shorter = {"training.batch_size": 4, "training.steps": 2, "evaluation.every": 2}
    if task != "bbc":
        shorter |= {"evaluation.max_new_tokens": 3}
    recipe = load_recipe(f"llama-3.2-1b-{task}-4096").with_changes(here | shorter)
    train(recipe, tmp_path / "run", noise_seed=0)
    last = read_metrics(tmp_path / "run")[-1]
    assert last["step"] == 2
    assert 0 < last["epsilon"] <= recipe.privacy.target_epsilon
    assert 0 <= last["evaluation"][METRICS[task]] <= 1
