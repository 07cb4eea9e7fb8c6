"""Data: readers against literal tables, no leak between splits or by name, and losses that are the sample's own."""

from __future__ import annotations

import csv
import json
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from dprmt import ParameterError
from dprmt.training.data import TaskData, _docstrings, docstrings, load_data, per_sample_losses
from dprmt.training.models import byte_tokenizer, load_model
from dprmt.training.recipes import DataRecipe
from tests.training.test_models import DECODERS, tiny

TOKENIZER = byte_tokenizer()
PAD, EOS = 0, 2
TEXTS = ["null", "NA", "", 'a lone " quote', "né — ünï", "x, y; z", "007"]


def files(train: str, validation: str | None = None, **keys: Any) -> DataRecipe:
    options: dict[str, Any] = {"inputs": ("text",), "target": "label", "max_tokens": 32} | keys
    return DataRecipe(source="files", train=(train,), validation=(validation or train,), **options)


def byte_ids(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


# Docstrings


@pytest.fixture
def small_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_docstrings, "LEAST_SAMPLES", 2)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    for folder in ("email", "email/test", "http"):
        (tmp_path / folder).mkdir()
    return tmp_path


def test_the_split_of_a_text_does_not_depend_on_the_others(small_library: Path) -> None:
    texts = [f"Return the value of the setting with number {i}." for i in range(40)]

    def splits(some: list[str]) -> dict[str, str]:
        functions = (f'def f{i}():\n    """{text}"""\n' for i, text in enumerate(some))
        (small_library / "http" / "a.py").write_text("".join(functions))
        return {s.text: s.split for s in _docstrings.docstrings.__wrapped__()}

    every, half = splits(texts), splits(texts[::2])
    assert half == {text: every[text] for text in texts[::2]}
    assert set(every.values()) == {"train", "validation", "test"}


# Files


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            if path.suffix == ".csv":
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
            else:  # unquoted
                file.write("\t".join(rows[0]) + "\n")
                file.writelines("\t".join(str(value) for value in row.values()) + "\n" for row in rows)


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl"])
def test_texts_come_out_of_files_as_they_are(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    write_table(path, [{"text": text, "label": i % 2} for i, text in enumerate(TEXTS)])
    data = load_data(files(path.name), TOKENIZER, "classification", base_folder=tmp_path)
    assert [row.inputs for row in data.train.rows] == [(text,) for text in TEXTS]
    assert [item["input_ids"] for item in data.train] == [byte_ids(text)[:32] for text in TEXTS]
    assert [item["labels"] for item in data.train] == [i % 2 for i in range(len(TEXTS))]
    assert (data.labels, len(data.test)) == (("0", "1"), 0)
    assert list(tmp_path.iterdir()) == [path]


def test_missing_files_and_unreachable_sets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match=r"^data\.train must be a file that is there .*none\.csv'$"):
        load_data(files("none.csv"), TOKENIZER, "classification", base_folder=tmp_path)
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    hub = DataRecipe(source="no-one/nothing", train=("train",), validation=("test",), inputs=("a",), target="b")
    with pytest.raises(ParameterError, match=r"data\.source must be a data set .*, got 'no-one/nothing'$"):
        load_data(hub, TOKENIZER, "classification")


def test_a_hub_data_set_is_asked_for_as_the_recipe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    asked = []

    def load_dataset(*arguments: Any, **options: Any) -> Any:
        asked.append((*arguments, *options.values()))
        return datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    splits: dict[str, Any] = {"train": ("train",), "validation": ("v1", "v2")}
    recipe = DataRecipe("someone/some", subset="x", revision="y", **splits, inputs=("text",), target="label")
    data = load_data(recipe, TOKENIZER, "classification")
    assert asked == [("someone/some", "x", split, "y") for split in ("train", "v1", "v2")]
    assert data.labels == ("bad", "good")
    assert [item["labels"] for item in data.train] == [1, 0]
    assert [row.part for row in data.validation.rows] == ["v1", "v1", "v2", "v2"]


# Generation

E2E = [{"mr": "name[Aromi]", "ref": "Aromi."}, {"mr": "name[Aromi]", "ref": "It is Aromi."}, {"mr": "x", "ref": "y"}]
TRIPLES = [["Mars Hill", "JOINED", "1973"], ["Mars Hill", "LOCATION", "North"]]
AS_TEXT = "Mars Hill : JOINED : 1973 | Mars Hill : LOCATION : North"


def pairs(folder: Path, rows: list[dict[str, str]], max_tokens: int) -> TaskData:
    """Texts to be written, from others."""
    write_table(folder / "a.json", rows)
    recipe = files("a.json", inputs=("mr",), target="ref", max_tokens=max_tokens)
    return load_data(recipe, TOKENIZER, "generation", base_folder=folder)


def test_only_the_target_is_learnt(tmp_path: Path) -> None:
    data = pairs(tmp_path, E2E, 64)
    for item, row in zip(data.train, E2E, strict=True):
        prompt, target = byte_ids(row["mr"] + "\n"), [*byte_ids(row["ref"]), EOS]
        assert item["input_ids"] == prompt + target
        assert item["labels"] == [-100] * len(prompt) + target
    assert data.labels is None


@pytest.mark.parametrize(("limit", "prompt", "target"), [(20, 10, 10), (24, 12, 12), (30, 18, 12), (33, 20, 12)])
def test_long_pairs_keep_a_target(limit: int, prompt: int, target: int, tmp_path: Path) -> None:
    data = pairs(tmp_path, [{"mr": "m" * 19, "ref": "r" * 11}], limit)  # 20 and 12 tokens
    labels = data.train[0]["labels"]
    assert (labels.count(-100), len(labels) - labels.count(-100)) == (prompt, target)
    assert len(data.train[0]["input_ids"]) == prompt + target


def test_dart_in_both_layouts(tmp_path: Path) -> None:
    write_table(
        tmp_path / "a.json",
        [
            {
                "tripleset": TRIPLES,
                "subtree_was_extended": True,
                "annotations": [{"source": "s", "text": "One. "}, {"source": "t", "text": "Two."}],
            },
            {
                "tripleset": [["a", "b", "c"]],
                "subtree_was_extended": False,
                "annotations": [{"source": "s", "text": "Three."}],
            },
        ],
    )
    (tmp_path / "b.xml").write_text(
        "<?xml version='1.0' encoding='utf-8'?><benchmark><entries><entry category='MISC' eid='Id1' size='2'>"
        "<modifiedtripleset><mtriple>Mars Hill | JOINED | 1973</mtriple><mtriple>Mars Hill | LOCATION | North</mtriple>"
        "</modifiedtripleset><lex comment='s' lid='Id1'>One.</lex><lex comment='t' lid='Id2'>Two.</lex></entry>"
        "</entries></benchmark>"
    )
    recipe = files("a.json", "b.xml", inputs=("tripleset",), target="annotations", max_tokens=128)
    data = load_data(recipe, TOKENIZER, "generation", base_folder=tmp_path)
    both = [(AS_TEXT, "One."), (AS_TEXT, "Two.")]
    assert [(row.inputs[0], row.target) for row in data.train.rows] == [*both, ("a : b : c", "Three.")]
    assert [(row.inputs[0], row.target) for row in data.validation.rows] == both


# Batches and losses


def test_batches_are_padded_on_the_right(tmp_path: Path) -> None:
    data = pairs(tmp_path, E2E, 21)
    items = [data.train[0], data.train[2]]
    assert [len(item["input_ids"]) for item in items] == [19, 4]
    batch = data.collate(items)
    assert batch["input_ids"].shape == (2, 21)  # 24 is more than the limit
    assert data.collate(items[1:])["input_ids"].shape == (1, 8)
    assert batch["input_ids"][1].tolist() == items[1]["input_ids"] + [PAD] * 17
    assert batch["attention_mask"].sum(dim=1).tolist() == [19, 4]
    assert batch["labels"][1].tolist() == items[1]["labels"] + [-100] * 17
    with pytest.raises(ParameterError, match="at least one item"):
        data.collate([])


def test_a_large_vocabulary_costs_no_digits() -> None:
    """Summed word by word in single precision, the losses would be off by 1e-4."""

    class Given(torch.nn.Module):
        head, config = "causal language modelling", SimpleNamespace()

        def forward(self, **_: Any) -> Any:
            return SimpleNamespace(logits=logits)

    logits = 3 * torch.randn(2, 40, 49152, generator=torch.Generator().manual_seed(0))
    logits[..., 7] += 15
    labels = torch.full((2, 40), 7)
    labels[0, :11] = -100
    exact = -torch.log_softmax(logits[:, :-1].double(), dim=-1)[..., 7]
    expected = torch.stack([exact[0, 10:].mean(), exact[1].mean()])
    losses = per_sample_losses(Given(), {"input_ids": labels.clamp(min=0), "labels": labels})
    assert float((losses - expected).abs().max()) < 2e-5


@pytest.mark.parametrize("padding_first", [False, True])
@pytest.mark.parametrize("architecture", DECODERS)
def test_logits_that_no_loss_reads_are_left_out(architecture: str, padding_first: bool, tmp_path: Path) -> None:
    """Where the head stays as it is: losses and gradients are those of all logits, and the head sees fewer of them."""
    texts = [("name[Aromi]", "Aromi."), ("x", "A longer text."), ("food[Thai]", "")]
    data = pairs(tmp_path, [{"mr": mr, "ref": ref} for mr, ref in texts], 40)
    model = load_model(tiny(architecture, "generation", finetune="lora"), seed=1).model
    trained = [value for value in model.parameters() if value.requires_grad]
    with torch.no_grad():
        for number, value in enumerate(trained):  # of zeros, as adapters begin, gradients would say little
            value.add_(0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(number)))
    batch = data.collate(list(data.train))
    if padding_first:
        batch = {name: value.flip(1) if value.ndim > 1 else value for name, value in batch.items()}
    seen: list[tuple[int, ...]] = []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape[:2])))
    losses = per_sample_losses(model, batch)
    targets = functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    targets = targets.masked_fill(batch["attention_mask"] == 0, -100)  # padding predicts nothing
    first = int((targets != -100).any(0).nonzero()[0])
    length = targets.shape[1]
    assert seen == [(3, length - first)]
    assert padding_first or 0 < first < length - 1

    positions = torch.arange(length).expand(3, length)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    logits = model(**inputs, position_ids=positions).logits
    each = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=-100)
    expected = each.sum(1) / (targets != -100).sum(1).clamp(min=1)
    torch.testing.assert_close(losses, expected, rtol=2e-5, atol=1e-6)
    for number in range(3):
        own = torch.autograd.grad(losses[number], trained, retain_graph=True)
        others = torch.autograd.grad(expected[number], trained, retain_graph=True)
        for one, other in zip(own, others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_docstrings_as_task_data() -> None:
    data = load_data(DataRecipe(source="docstrings", max_tokens=16, limit=100), TOKENIZER, "classification")
    assert data.labels == tuple(sorted({s.package for s in docstrings()}))
    package = {s.text: s.package for s in docstrings() if s.split == "train"}
    for item, row in zip(data.train, data.train.rows, strict=True):
        assert data.labels[item["labels"]] == package.pop(row.inputs[0])  # none twice
        assert item["input_ids"] == byte_ids(row.inputs[0])[:16]
    assert len(data.train) == 100
    assert len(data.test) == len([s for s in docstrings() if s.split == "test"])
