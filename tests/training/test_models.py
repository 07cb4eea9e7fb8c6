"""Models: what is loaded is what was saved, what is trained is what the recipe says, and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, BertConfig, BertModel

from dprmt import ParameterError
from dprmt.training.models import byte_tokenizer, load_model, load_tokenizer
from dprmt.training.models._trainable import load_adapter, save_adapter
from dprmt.training.recipes import LoraRecipe, ModelRecipe

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run_folder.md"
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES | {"max_position_embeddings": 34},
    "qwen3": SIZES | {"num_key_value_heads": 1, "head_dim": 8},
    "llama": SIZES | {"num_key_value_heads": 1},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
}
TARGETS = {
    "bert": ("query", "value"),
    "roberta": ("query", "key", "value", "intermediate.dense", "output.dense"),
    "qwen3": ("q_proj", "v_proj"),
    "llama": ("q_proj", "v_proj"),
    "gpt2": ("c_attn",),
}
DECODERS = ("qwen3", "llama", "gpt2")
TASKS = [(a, "classification") for a in CONFIGS] + [(a, "generation") for a in DECODERS]
every_task = pytest.mark.parametrize(("architecture", "task"), TASKS)


def lora(architecture: str, **keys: Any) -> LoraRecipe:
    return LoraRecipe(**{"rank": 2, "alpha": 4.0, "targets": TARGETS[architecture]} | keys)


def tiny(architecture: str, task: str = "classification", **keys: Any) -> ModelRecipe:
    options: dict[str, Any] = {"architecture": architecture, "config": CONFIGS[architecture], "finetune": "full"} | keys
    if options["finetune"] == "lora" and "lora" not in options:
        options["lora"] = lora(architecture)
    return ModelRecipe(task=task, **options)


def labels_of(task: str) -> int | None:
    return 3 if task == "classification" else None


def batch(length: int = 9) -> dict[str, torch.Tensor]:
    ids = torch.randint(4, 260, (2, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.fixture(params=CONFIGS)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, torch.nn.Module]:
    """A checkpoint with dropout in its configuration, written by Transformers itself."""
    architecture = request.param
    config = AutoConfig.for_model(architecture, **CONFIGS[architecture], vocab_size=260, pad_token_id=0)
    config.bos_token_id, config.eos_token_id, config.num_labels = 1, 2, 3
    torch.manual_seed(5)
    kind = AutoModelForCausalLM if architecture in DECODERS else AutoModelForSequenceClassification
    model = kind.from_config(config)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return architecture, tmp_path, model


def test_a_saved_model_is_loaded_by_its_folder(saved: tuple[str, Path, torch.nn.Module]) -> None:
    architecture, folder, original = saved
    task = "generation" if architecture in DECODERS else "classification"
    recipe = ModelRecipe(task=task, source=str(folder), finetune="lora", lora=lora(architecture))
    loaded = load_model(recipe, labels=labels_of(task))
    weights = {name.replace(".base_layer.", "."): value for name, value in loaded.model.named_parameters()}
    for name, value in original.named_parameters():
        trained = name.replace("classifier.", "classifier.modules_to_save.default.")
        found = [
            own for own in weights if own.endswith((f".{name}", f".{trained}")) and torch.equal(weights[own], value)
        ]
        assert len(found) == 1, name
    with torch.no_grad():
        # Adapters start at 0.
        logits = [model(**batch()).logits for model in (loaded.model, original.eval())]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
    assert loaded.tokenizer("né")["input_ids"] == byte_tokenizer()("né")["input_ids"]


def names_of(model: torch.nn.Module) -> list[str]:
    return [name for name, value in model.named_parameters() if value.requires_grad]


def test_a_new_head_is_the_only_thing_that_a_checkpoint_may_lack(saved: tuple[str, Path, torch.nn.Module]) -> None:
    _, folder, _ = saved
    recipe = ModelRecipe(task="classification", source=str(folder), finetune="head")
    loaded = load_model(recipe, labels=3)
    assert names_of(loaded.model)
    assert all(name.startswith(("classifier", "score")) for name in names_of(loaded.model))
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    gone = next(name for name in weights if "attention" in name or "attn" in name)
    del weights[gone]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ParameterError, match=r"model\.source must be weights for all of the model, also for "):
        load_model(recipe, labels=3)


@every_task
def test_every_dropout_is_zero_and_the_model_is_in_train_mode(architecture: str, task: str) -> None:
    model = load_model(tiny(architecture, task, finetune="lora"), labels=labels_of(task)).model
    assert all(module.training for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(**batch()).logits, model(**batch()).logits)
        trained = model(**batch()).logits
        torch.testing.assert_close(trained, model.eval()(**batch()).logits)


@every_task
def test_adapters_train_what_the_recipe_names(architecture: str, task: str) -> None:
    names = names_of(load_model(tiny(architecture, task, finetune="lora"), labels=labels_of(task)).model)
    head = {"classification": ("classifier", "score"), "generation": ()}[task]
    for name in names:
        parts = name.split(".")
        if "lora_A" in parts or "lora_B" in parts:
            at = parts.index("lora_A" if "lora_A" in parts else "lora_B")
            module = ".".join(parts[:at])
            assert any(module.endswith(f".{target}") for target in TARGETS[architecture]), name
        else:
            assert any(part in head for part in parts), name
            assert "modules_to_save" in parts
    adapted = {name.rpartition(".lora_")[0] for name in names if ".lora_" in name}
    # Per layer: those of the recipe; RoBERTa's output.dense is found twice, in attention and after it.
    assert len(adapted) == 2 * (len(TARGETS[architecture]) + (architecture == "roberta"))


def test_the_mean_is_over_the_text_only() -> None:
    model = load_model(tiny("bert", finetune="head", pooling="mean"), labels=3).model
    inputs = batch()
    inputs["attention_mask"][0, 5:] = 0
    with torch.no_grad():
        states = model.encoder(**inputs).last_hidden_state
        pooled = torch.stack([states[0, :5].mean(dim=0), states[1].mean(dim=0)])
        torch.testing.assert_close(model(**inputs).logits, model.classifier(pooled))


# Tied embeddings


@pytest.mark.parametrize(("architecture", "config"), [("gpt2", {}), ("qwen3", {"tie_word_embeddings": True})])
def test_tied_embeddings_stay_tied_unless_untied(architecture: str, config: dict[str, Any]) -> None:
    sizes = CONFIGS[architecture] | config
    model = load_model(tiny(architecture, "generation", config=sizes)).model
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.get_input_embeddings().weight.requires_grad
    model = load_model(tiny(architecture, "generation", config=sizes, untie=True)).model
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert inputs.data_ptr() != outputs.data_ptr()
    adapted = load_model(tiny(architecture, "generation", config=sizes, finetune="lora")).model
    assert adapted.get_input_embeddings().weight is adapted.get_output_embeddings().weight
    for names in ({"targets": ("lm_head",)}, {"also_train": ("lm_head",)}):
        with pytest.raises(ParameterError, match=r"model\.lora\.targets must be other modules"):
            load_model(
                tiny(architecture, "generation", config=sizes, finetune="lora", lora=lora(architecture, **names))
            )


# Seeds, dtypes, adapters on disk


def test_bfloat16_is_for_what_stays_fixed() -> None:
    model = load_model(tiny("qwen3", "generation", finetune="lora", dtype="bfloat16")).model
    kinds = {(parameter.requires_grad, parameter.dtype) for parameter in model.parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    assert model(**batch()).logits.isfinite().all()
    for recipe in (
        tiny("qwen3", "generation", dtype="bfloat16"),
        tiny("qwen3", finetune="lora", dtype="bfloat16"),
        tiny("qwen3", "generation", finetune="lora", lora=lora("qwen3", also_train=("norm",)), dtype="bfloat16"),
    ):
        with pytest.raises(ParameterError, match=r"model\.dtype must be 'float32'"):
            load_model(recipe, labels=labels_of(recipe.task))


@every_task
def test_adapters_survive_the_disk(architecture: str, task: str, tmp_path: Path) -> None:
    recipe = tiny(architecture, task, finetune="lora")
    model, fresh = (load_model(recipe, labels=labels_of(task), seed=1).model for _ in range(2))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    save_adapter(model, tmp_path)
    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as file:
        assert len(file.keys()) == sum(parameter.requires_grad for parameter in model.parameters())
    assert not any(path.suffix in (".bin", ".pt", ".pkl") for path in tmp_path.rglob("*"))
    load_adapter(fresh, tmp_path)
    for (name, a), (_, b) in zip(model.named_parameters(), fresh.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    wider = tiny(architecture, task, finetune="lora", lora=lora(architecture, rank=3))
    other = load_model(wider, labels=labels_of(task)).model
    before = [parameter.clone() for parameter in other.parameters()]
    with pytest.raises(ParameterError, match="names and shapes of this model"):
        load_adapter(other, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


# Bad input


def test_the_longest_input_of_roberta_is_two_less() -> None:
    assert load_model(tiny("bert", config=SIZES | {"max_position_embeddings": 34}), labels=3).longest_input == 34
    loaded = load_model(tiny("roberta"), labels=3)
    longest = loaded.longest_input
    assert longest == 33  # the byte tokenizer pads with 0, RoBERTa's own with 1
    loaded.model(**batch(longest))
    with pytest.raises((IndexError, RuntimeError)):
        loaded.model(**batch(longest + 1))


BAD: list[tuple[ModelRecipe, int | None, str]] = [
    (tiny("bert"), None, r"labels must be given for classification"),
    (tiny("gpt2", "generation"), 3, r"labels must be given for classification"),
    (tiny("bert"), 1, r"labels must be an integer >= 2"),
    (tiny("bert", "generation"), None, r"model\.task must be 'classification' for a bert model"),
    (tiny("bert", config={"hidden": 8}), 3, r"model\.config\.hidden must be left out: bert has no such size"),
    (tiny("bert", config={"hidden_size": 15}), 3, r"model\.config must be sizes that fit together"),
    (tiny("bert", finetune="lora", lora=lora("gpt2")), 3, r"model\.lora\.targets must be .*query.*, got 'c_attn'"),
    (tiny("bert", finetune="lora", lora=lora("bert", targets=("ery",))), 3, r"model\.lora\.targets must be the end of"),
    (tiny("bert", finetune="lora", lora=lora("bert", targets=("LayerNorm",))), 3, r"linear modules, not a LayerNorm"),
    (tiny("bert", finetune="lora", lora=lora("bert", also_train=("c",))), 3, r"lora\.also_train must be the end"),
    (ModelRecipe(task="classification", source="./none", finetune="head"), 3, r"model\.source must be a folder with"),
    (tiny("bert", tokenizer="/none"), 3, r"model\.tokenizer must be a folder with config\.json"),
]


@pytest.mark.parametrize(("recipe", "labels", "message"), BAD, ids=[message for _, _, message in BAD])
def test_bad_input_is_refused(recipe: ModelRecipe, labels: int | None, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        load_model(recipe, labels=labels)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model("bert", **SIZES, vocab_size=260, num_labels=3)
    model = AutoModelForSequenceClassification.from_config(config)
    config.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    recipe = ModelRecipe(task="classification", source=str(tmp_path), finetune="head")
    with pytest.raises(ParameterError, match=r"model\.source must be a model folder or hub name that loads"):
        load_model(recipe, labels=3)


WIDTH, HEADS, LAYERS, HIDDEN = 32, 2, 1, 48
BYTES = sorted(byte_tokenizer().get_vocab())
TOKENS = ["<|endoftext|>", "<|im_end|>", *(token for token in BYTES if len(token) == 1), "th"]


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A llama of one layer with the byte tokens and one merge; returns its tensors."""
    writer = pytest.importorskip("gguf").GGUFWriter(str(path), "llama")
    for set_size, value in (
        (writer.add_block_count, LAYERS),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, WIDTH),
        (writer.add_feed_forward_length, HIDDEN),
        (writer.add_head_count, HEADS),
        (writer.add_head_count_kv, HEADS),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_dimension_count, WIDTH // HEADS),
        (writer.add_rope_freq_base, 10000.0),
        (writer.add_vocab_size, len(TOKENS)),
        (writer.add_tokenizer_model, "gpt2"),
        (writer.add_tokenizer_pre, "smollm"),
        (writer.add_token_list, TOKENS),
        (writer.add_token_types, [3, 3, *[1] * (len(TOKENS) - 2)]),
        (writer.add_token_merges, ["t h"]),
        (writer.add_bos_token_id, 0),
        (writer.add_eos_token_id, 1),
    ):
        set_size(value)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.0.{name}"] = (WIDTH, WIDTH)
    shapes |= {"blk.0.ffn_gate": (HIDDEN, WIDTH), "blk.0.ffn_up": (HIDDEN, WIDTH), "blk.0.ffn_down": (WIDTH, HIDDEN)}
    shapes |= {"blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,)}
    tensors = {name: rng.standard_normal(shape).astype(np.float32) / WIDTH**0.5 for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return tensors


def test_a_gguf_file_is_a_model_with_its_tokenizer(tmp_path, capfd):
    tensors = write_gguf(tmp_path / "tiny.gguf")
    loaded = load_model(ModelRecipe("generation", source=str(tmp_path / "tiny.gguf"), lora=lora("llama")))
    parameters = dict(loaded.model.named_parameters())
    embedding = next(value for name, value in parameters.items() if "embed_tokens" in name)
    np.testing.assert_array_equal(embedding.detach().numpy(), tensors["token_embd"])
    value = next(value for name, value in parameters.items() if name.endswith("v_proj.base_layer.weight"))
    np.testing.assert_array_equal(value.detach().numpy(), tensors["blk.0.attn_v"])
    assert len(names_of(loaded.model)) == 4
    assert loaded.model.config.model_type == "llama"
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    assert loaded.tokenizer.decode(loaded.tokenizer("this")["input_ids"]) == "this"
    assert capfd.readouterr().err == ""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A checkpoint of an encoder, as on the hub."""
    torch.manual_seed(3)
    folder = tmp_path / "base"
    BertModel(BertConfig(**SIZES, vocab_size=260, pad_token_id=0), add_pooling_layer=False).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def trained(base: Path, **keys: Any) -> torch.nn.Module:
    adapter = lora("bert", targets=("query", "output.dense"), **keys)
    model = load_model(ModelRecipe("classification", source=str(base), pooling="mean", lora=adapter), labels=3).model
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def padded_batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(4, 260, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("keys", [{}, {"also_train": ("embeddings.LayerNorm",)}])
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_what_the_page_says_gives_the_same_logits_without_this_package(
    keys: dict[str, Any], base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = trained(base, **keys), tmp_path / "adapter"
    save_adapter(model, folder)
    with torch.no_grad():
        expected = model(**padded_batch()).logits
    for name in [name for name in sys.modules if name.partition(".")[0] == "dprmt"]:
        monkeypatch.setitem(sys.modules, name, None)
    code = PAGE.read_text(encoding="utf-8").split("```python")[1].split("```")[0]
    scope: dict[str, Any] = {"FOLDER": str(folder), "BASE": str(base)}
    exec(code, scope)
    with torch.no_grad():
        torch.testing.assert_close(scope["logits"](**padded_batch()), expected)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["auto_mapping"]["base_model_class"] == "BertModel"
    assert config["auto_mapping"]["parent_library"].startswith("transformers.")
    assert "dprmt" not in (folder / "adapter_config.json").read_text()


def test_without_its_head_a_mean_pooled_adapter_is_refused(base: Path, tmp_path: Path) -> None:
    model = trained(base)
    save_adapter(model, tmp_path)
    (tmp_path / "classifier.safetensors").unlink()
    before = {name: value.clone() for name, value in model.named_parameters()}
    with pytest.raises(ParameterError, match="folder must be one with the classifier of the run"):
        load_adapter(model, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_a_tokenizer_without_padding_gets_one(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = None
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    for more, expected in (([], "<eos>"), (["<|finetune_right_pad_id|>"], "<|finetune_right_pad_id|>")):
        tokenizer.add_tokens(more, special_tokens=True)
        tokenizer.save_pretrained(tmp_path)
        assert load_tokenizer(tiny("gpt2", tokenizer=str(tmp_path))).pad_token == expected


def test_mean_pooling_of_a_decoder_checkpoint_is_refused(tmp_path: Path) -> None:
    AutoConfig.for_model("gpt2", **CONFIGS["gpt2"]).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    recipe = ModelRecipe(task="classification", source=str(tmp_path), finetune="head", pooling="mean")
    with pytest.raises(ParameterError, match=r"model\.pooling must be 'native' for a gpt2 model"):
        load_model(recipe, labels=3)
