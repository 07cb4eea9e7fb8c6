"""Adapters are files that PEFT and Transformers read without this package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")

import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel

from dprmt.training.models import byte_tokenizer, load_model
from dprmt.training.models._trainable import save_adapter
from dprmt.training.recipes import LoraRecipe, ModelRecipe

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run_folder.md"
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A checkpoint of an encoder, as on the hub."""
    torch.manual_seed(3)
    folder = tmp_path / "base"
    BertModel(BertConfig(**SIZES, vocab_size=260, pad_token_id=0), add_pooling_layer=False).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def trained(base: Path, pooling: str, seed: int = 0, **keys: Any) -> torch.nn.Module:
    options: dict[str, Any] = {"rank": 2, "alpha": 4.0, "targets": ("query", "output.dense")} | keys
    recipe = ModelRecipe("classification", source=str(base), pooling=pooling, lora=LoraRecipe(**options))
    model = load_model(recipe, labels=3, seed=seed).model
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(4, 260, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("keys", [{}, {"also_train": ("embeddings.LayerNorm",)}])
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_what_the_page_says_gives_the_same_logits_without_this_package(
    keys: dict[str, Any], base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = trained(base, "mean", **keys), tmp_path / "adapter"
    save_adapter(model, folder)
    with torch.no_grad():
        expected = model(**batch()).logits
    for name in [name for name in sys.modules if name.partition(".")[0] == "dprmt"]:
        monkeypatch.setitem(sys.modules, name, None)
    code = PAGE.read_text(encoding="utf-8").split("```python")[1].split("```")[0]
    scope: dict[str, Any] = {"FOLDER": str(folder), "BASE": str(base)}
    exec(code, scope)
    with torch.no_grad():
        torch.testing.assert_close(scope["logits"](**batch()), expected)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["auto_mapping"]["base_model_class"] == "BertModel"
    assert config["auto_mapping"]["parent_library"].startswith("transformers.")
    assert "dprmt" not in (folder / "adapter_config.json").read_text()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_without_pooling_of_our_own_peft_reads_it_as_it_is(base: Path, tmp_path: Path) -> None:
    model, folder = trained(base, "native"), tmp_path / "adapter"
    save_adapter(model, folder)
    torch.manual_seed(0)
    plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    plain.bert.pooler.load_state_dict(model.get_base_model().bert.pooler.state_dict())  # not in the checkpoint
    read = PeftModel.from_pretrained(plain, folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(read(**batch()).logits, model(**batch()).logits)
