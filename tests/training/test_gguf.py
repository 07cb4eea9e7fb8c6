"""Models from GGUF files: a tiny one written here, the packaged one where it is installed, and unreadable files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprmt import ParameterError
from dprmt.training.models import byte_tokenizer, load_model, load_tokenizer
from dprmt.training.recipes import LoraRecipe, ModelRecipe

needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs gguf")
WIDTH, HEADS, LAYERS, HIDDEN = 32, 2, 1, 48
LORA = LoraRecipe(rank=2, alpha=4.0, targets=("q_proj", "v_proj"))
BYTES = sorted(byte_tokenizer().get_vocab())
TOKENS = ["<|endoftext|>", "<|im_end|>", *(token for token in BYTES if len(token) == 1), "th"]


def write_gguf(path: Path, architecture: str = "llama", seed: int = 0) -> dict[str, np.ndarray]:
    """A llama of one layer with the byte tokens and one merge; returns its tensors."""
    import gguf

    writer = gguf.GGUFWriter(str(path), architecture)
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
    rng = np.random.default_rng(seed)
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.0.{name}"] = (WIDTH, WIDTH)
    shapes |= {"blk.0.ffn_gate": (HIDDEN, WIDTH), "blk.0.ffn_up": (HIDDEN, WIDTH), "blk.0.ffn_down": (WIDTH, HIDDEN)}
    shapes |= {"blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,)}
    tensors = {name: rng.standard_normal(shape).astype(np.float32) / WIDTH**0.5 for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def recipe(source: str, **keys: Any) -> ModelRecipe:
    return ModelRecipe("generation", source=source, **{"lora": LORA} | keys)


@needs_gguf
def test_a_gguf_file_is_a_model_with_its_tokenizer(tmp_path, capfd):
    tensors = write_gguf(tmp_path / "tiny.gguf")
    loaded = load_model(recipe(str(tmp_path / "tiny.gguf")))
    parameters = dict(loaded.model.named_parameters())
    embedding = next(value for name, value in parameters.items() if "embed_tokens" in name)
    np.testing.assert_array_equal(embedding.detach().numpy(), tensors["token_embd"])
    value = next(value for name, value in parameters.items() if name.endswith("v_proj.base_layer.weight"))
    np.testing.assert_array_equal(value.detach().numpy(), tensors["blk.0.attn_v"])
    assert len(loaded.trainable) == 4
    assert loaded.model.config.model_type == "llama"
    assert loaded.tokenizer.eos_token == "<|im_end|>"
    assert loaded.tokenizer.decode(loaded.tokenizer("this")["input_ids"]) == "this"
    assert capfd.readouterr().err == ""


@needs_gguf
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path):
    with pytest.raises(ParameterError, match=r"^model\.source must be a GGUF file that exists, got '/none/x\.gguf'$"):
        load_tokenizer(recipe("/none/x.gguf"))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(40))
    write_gguf(tmp_path / "other.gguf", architecture="rwkv7")
    for file in (damaged, tmp_path / "other.gguf"):
        with pytest.raises(ParameterError) as caught:
            load_model(recipe(str(file)), tokenizer=byte_tokenizer())
        allowed = (
            "model.source must be a GGUF file that Transformers reads, of a Llama for example, or a model folder ("
        )
        assert str(caught.value).startswith(allowed)
        assert "\n" not in str(caught.value)
        with pytest.raises(ParameterError) as caught:
            load_tokenizer(recipe(str(file)))
        assert str(caught.value).startswith(allowed)
    assert "rwkv7" in str(caught.value)
