"""Thirteen natural mistakes and edited files, each as a user would meet it: refused in one line, or right.

``python -m pytest tests/training/test_reproductions.py -v``; the files beside this one go further into each.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("datasets")

import torch
from peft import PeftModel
from torch import nn
from transformers import BertConfig, BertModel

from audits.steps import make_private
from dprmt import ParameterError, TrainingStateError
from dprmt.cli import main
from dprmt.training.clipping import ClippedStep
from dprmt.training.data import load_data
from dprmt.training.harness import read_metrics, train
from dprmt.training.models import byte_tokenizer, load_model, save_adapter
from dprmt.training.recipes import DataRecipe, LoraRecipe, ModelRecipe
from paper_figures.shrinkers import blend
from tests.spectra.simulation import denoise, denoise_layers
from tests.training.norms_by_word import by_word
from tests.training.test_first_pass import SequenceFirst, TiedByHand
from tests.training.tiny_recipe import STEPS, killed_before_step, recipe_in, write_data

CLIPPINGS = ("exact", "ghost", "hutchinson", "hutch++")


def private(model: nn.Module, clipping: str, **options: Any) -> ClippedStep:
    settings: dict[str, Any] = {"clipping_norm": 1.0, "noise_multiplier": 0.0, "expected_batch_size": 1.0}
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return make_private(model, sgd, norms=by_word(clipping, 2), **settings | options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and a recipe."""
    path = tmp_path_factory.mktemp("data")
    write_data(path)
    (path / "recipe.toml").write_text(recipe_in(path).to_toml())
    return path


@pytest.fixture(scope="module")
def died(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed before its fourth step."""
    path = tmp_path_factory.mktemp("died") / "run"
    killed_before_step(4, recipe_in(folder, **{"training.spectra_every": 1}), path)
    return path


@pytest.fixture
def copy(died: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be damaged."""
    return Path(shutil.copytree(died, tmp_path / "run"))


def resumed(folder: Path, run: Path) -> Any:
    return train(recipe_in(folder, **{"training.spectra_every": 1}), run, resume=True)


@pytest.mark.parametrize("gone", [999, 0])
def test_a_a_limit_of_rows_changes_by_one_row_at_most(tmp_path: Path, gone: int) -> None:
    """1,000 rows, 500 kept; the last or the first row is removed."""

    def kept(rows: list[int]) -> set[str]:
        lines = ["text,label", *(f"text {number},{'abc'[number % 3]}" for number in rows)]
        (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
        files = {"train": ["rows.csv"], "validation": ["rows.csv"], "inputs": ["text"], "target": "label"}
        recipe = DataRecipe("files", limit=500, **files)
        data = load_data(recipe, byte_tokenizer(), "classification", base_folder=tmp_path)
        assert len(data.train.rows) == 500
        return {row.inputs[0] for row in data.train.rows}

    before, after = kept(list(range(1000))), kept([number for number in range(1000) if number != gone])
    assert before - after <= {f"text {gone}"}
    assert len(after - before) == len(before - after)


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_c_an_embedding_that_is_the_output_matrix_too_is_refused_by_name(clipping: str) -> None:
    step = private(TiedByHand(), clipping)
    losses = step.model(torch.tensor([[1, 2], [3, 4]])).square().sum((1, 2))
    with pytest.raises(ParameterError, match=r"used through its own layer only.*got 'emb\.weight'"):
        step.accumulate(losses, samples=[0, 1], step=0)


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_d_a_sequence_first_layer_is_refused_where_batch_and_text_are_as_long(clipping: str) -> None:
    """32 × 32."""
    step = private(SequenceFirst(), clipping)
    with pytest.raises(ParameterError, match=r"samples must be the first axis of every trainable layer.*'inner'"):
        step.accumulate(step.model(torch.randn(32, 32, 4)).sum(1), samples=range(32), step=0)


@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_f_identities_that_repeat_and_steps_that_do_not_end_are_refused(clipping: str) -> None:
    step = private(nn.Linear(3, 2), clipping)
    step.accumulate(step.model(torch.randn(2, 3)).square().sum(1), samples=[0, 1], step=0)
    for samples, number, name in (([0, 1], 0, "samples"), ([2, 3], 1, "step")):
        losses = step.model(torch.randn(2, 3)).square().sum(1)
        with pytest.raises(ParameterError) as error:
            step.accumulate(losses, samples=samples, step=number)
        assert error.value.name == name
        step.discard()


def sigma_in_the_summary(run: Path) -> None:
    document = json.loads((run / "run.json").read_text())
    document["noise_multiplier"] = document["step"]["noise_multiplier"] = 10.0
    (run / "run.json").write_text(json.dumps(document))


def ledger_and_checkpoints_gone(run: Path) -> None:
    (run / "privacy.jsonl").unlink()
    for name in ("checkpoint", "checkpoint.previous"):
        shutil.rmtree(run / name)


@pytest.mark.parametrize("damage", [sigma_in_the_summary, ledger_and_checkpoints_gone])
def test_g_files_of_a_run_that_disagree_are_refused(folder: Path, copy: Path, damage: Callable[[Path], None]) -> None:
    damage(copy)
    with pytest.raises((ParameterError, TrainingStateError)):
        resumed(folder, copy)


@pytest.fixture
def table(folder: Path) -> Iterator[Path]:
    """The training data, as they were afterwards."""
    path = folder / "train.csv"
    before = path.read_text()
    yield path
    path.write_text(before)


@pytest.mark.parametrize("change", ["permuted", "edited"])
def test_g_other_data_of_the_same_size_are_refused(folder: Path, copy: Path, table: Path, change: str) -> None:
    lines = table.read_text().splitlines()
    other = [lines[0], *lines[:0:-1]] if change == "permuted" else [*lines[:-1], "ruby ruby ruby,red"]
    table.write_text("\n".join(other) + "\n")
    with pytest.raises(TrainingStateError, match="training items or their order have changed"):
        resumed(folder, copy)


def test_h_times_losses_and_batch_sizes_are_private_in_files_and_on_the_terminal(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(folder / "recipe.toml"), "--out", str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "are private: ε does not cover them" in shown
    for entry in read_metrics(tmp_path / "run"):
        assert set(entry["private"]) == {"loss", "batch_size", "seconds"}
        assert not entry["private"].keys() & (entry.keys() - {"private"})


def document_is_a_list(run: Path) -> None:
    (run / "checkpoint" / "document.json").write_text("[1]")


def byte_flipped(run: Path) -> None:
    content = bytearray((run / "checkpoint" / "tensors.safetensors").read_bytes())
    content[-5] ^= 16
    (run / "checkpoint" / "tensors.safetensors").write_bytes(content)


def spectra_damaged(run: Path) -> None:
    (run / "spectra.npz").write_bytes(b"PK\x03\x04 no archive")


def metrics_are_no_text(run: Path) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n")


@pytest.mark.parametrize("damage", [document_is_a_list, byte_flipped, spectra_damaged, metrics_are_no_text])
def test_i_a_damaged_file_costs_what_it_must_and_no_more(
    folder: Path, copy: Path, damage: Callable[[Path], None]
) -> None:
    damage(copy)
    result = resumed(folder, copy)
    assert result.finished
    assert result.charged == STEPS + (1 if damage in (document_is_a_list, byte_flipped) else 0)


def test_i_a_summary_that_is_none_is_refused(folder: Path, copy: Path) -> None:
    (copy / "run.json").write_text("[]")
    with pytest.raises(ParameterError, match="it holds something else"):
        resumed(folder, copy)


@pytest.mark.parametrize(
    "options",
    [
        ["train", "RECIPE", "--dry-run", "--set", f"privacy.noise_multiplier=1{'0' * 400}"],
        ["train", "RECIPE", "--dry-run", "--set", 'name="../../x"'],
        ["train", "RECIPE", "--dry-run", "--device", "tpu"],
        ["train", "RECIPE", "--dry-run", "--noise-seed", "x"],
        ["train", "RECIPE", "--dry-run", "--out", "FILE/run"],
        ["report", "--out", ""],
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_j_options_are_refused_in_one_line_before_anything_runs(
    folder: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("mine")
    assert main([word.replace("RECIPE", str(folder / "recipe.toml")) for word in options]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_l_the_adapter_of_a_mean_pooled_model_is_read_without_this_package(tmp_path: Path) -> None:
    """By PEFT, around the plain encoder."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    plain = BertModel(BertConfig(**sizes, vocab_size=260, pad_token_id=0), add_pooling_layer=False)
    plain.save_pretrained(tmp_path / "base")
    byte_tokenizer().save_pretrained(tmp_path / "base")
    lora = LoraRecipe(rank=2, alpha=4.0, targets=("query",))
    recipe = ModelRecipe("classification", source=str(tmp_path / "base"), pooling="mean", lora=lora)
    model = load_model(recipe, labels=3, seed=0).model
    adapted = [value for name, value in model.named_parameters() if "lora_" in name]
    with torch.no_grad():
        for value in adapted:
            value.normal_()
    save_adapter(model, tmp_path / "adapter")
    assert "dprmt" not in (tmp_path / "adapter" / "adapter_config.json").read_text()
    read = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    found = [value for name, value in read.named_parameters() if "lora_" in name]
    assert len(found) == len(adapted) == 2
    assert all(torch.equal(one, other) for one, other in zip(adapted, found, strict=True))


@pytest.mark.parametrize("way", ["denoise", "blend", "denoise_layers"])
def test_m_finite_float16_in_finite_float16_out(way: str) -> None:
    torch.manual_seed(0)
    matrix = 4000 * torch.randn(64, 64)
    matrix[0, 0], matrix[0, 1] = 6e4, 5e4
    half = matrix.half()
    found = {
        "denoise": lambda: denoise(half, 4000.0),
        "blend": lambda: blend(half, 4000.0),
        "denoise_layers": lambda: denoise_layers({"w": half}, 4000.0)[0]["w"],
    }[way]()
    assert found.dtype == torch.float16
    assert bool(torch.isfinite(found).all())
