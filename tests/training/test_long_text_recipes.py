"""The recipes of long texts, from local files of their form to scores: a tiny Llama in place of the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dprmt.training.harness import read_metrics, train
from dprmt.training.models import byte_tokenizer
from dprmt.training.recipes import load_recipe
from tests.conftest import Say

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


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def led_by(rows: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    first = next(iter(rows[0]))
    return [{**row, first: prefix + row[first]} for row in rows]


def here(model: Path, file: Path, task: str) -> dict[str, Any]:
    changes: dict[str, Any] = {"model.source": str(model), "data.source": "files"}
    changes |= {"data.train": [str(file)], "data.validation": [str(file)], "data.max_tokens": 48}
    changes |= {"training.batch_size": 4, "training.steps": 2, "evaluation.every": 2}
    return changes if task == "bbc" else changes | {"evaluation.max_new_tokens": 3}


@pytest.mark.parametrize("task", ROWS)
def test_a_recipe_of_long_texts_runs_on_a_local_file(task: str, model: Path, tmp_path: Path) -> None:
    """From rows to a score."""
    (file := tmp_path / "rows.jsonl").write_text(lines(ROWS[task]))
    recipe = load_recipe(f"llama-3.2-1b-{task}-4096").with_changes(here(model, file, task))
    train(recipe, tmp_path / "run", noise_seed=0)
    last = read_metrics(tmp_path / "run")[-1]
    assert last["step"] == 2
    assert 0 < last["epsilon"] <= recipe.privacy.target_epsilon
    assert 0 <= last["evaluation"][METRICS[task]] <= 1


def without(rows: list[dict[str, Any]], place: int, *, everywhere: bool = False) -> str:
    gone = list(rows[0])[place]
    cut = [{name: value for name, value in row.items() if name != gone} for row in rows]
    return lines(cut if everywhere else [*rows[:5], cut[5], *rows[6:]])


def bare(rows: list[dict[str, Any]], more: str) -> str:
    return "\n".join([",".join(rows[0]), *(f"some text{more},{i % 2}" for i in range(12)), ""])


FAULTS: dict[str, tuple[str, Any, str]] = {
    "empty": ("rows.jsonl", lambda rows: "", "a file with rows, got"),
    "blank": ("rows.json", lambda rows: " \n\n", "a file with rows, got"),
    "empty table": ("rows.csv", lambda rows: "", "a file with rows, got"),
    "header alone": ("rows.csv", lambda rows: ",".join(rows[0]) + "\r\n", "a file with rows"),
    "no target": ("rows.jsonl", lambda rows: without(rows, 1, everywhere=True), "data.target must be one of"),
    "no input": ("rows.jsonl", lambda rows: without(rows, 0, everywhere=True), "data.inputs must be one of"),
    "a target short": ("rows.jsonl", lambda rows: without(rows, 1), "data.target must be a column of"),
    "an input short": ("rows.jsonl", lambda rows: without(rows, 0), "data.inputs must be columns of"),
    "Latin 1": ("rows.jsonl", lambda rows: lines(led_by(rows, "é")).encode("latin-1"), "UTF-8"),
    "UTF-16": ("rows.jsonl", lambda rows: lines(rows).encode("utf-16"), "a readable jsonl file"),
    "cut off": ("rows.jsonl", lambda rows: lines(rows)[:-9], "a readable jsonl file"),
    "open quote": ("rows.csv", lambda rows: bare(rows, "").replace("some", '"some', 1), "a readable csv file"),
    "a field more": ("rows.csv", lambda rows: bare(rows, ", with a comma"), "has not as many fields as the header"),
    "no such name": ("rows.txt", lines, "named *.csv"),
}


@pytest.mark.parametrize(("task", "fault"), [*(("bbc", fault) for fault in FAULTS), ("billsum", "a target short")])
def test_a_file_of_another_form_is_refused_in_one_line(
    task: str, fault: str, model: Path, tmp_path: Path, refusal: Say
) -> None:
    name, write, message = FAULTS[fault]
    file, content = tmp_path / name, write(ROWS[task])
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    changes = [f"{key}={json.dumps(value)}" for key, value in here(model, file, task).items()]
    options = [word for change in changes for word in ("--set", change)]
    assert message in refusal(f"train llama-3.2-1b-{task}-4096 --out", tmp_path / "run", options)
    assert not (tmp_path / "run").exists()
