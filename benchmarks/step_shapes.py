"""Models with random weights, batches and losses of ``benchmarks.step``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 50_265


@dataclass(frozen=True)
class Shape:
    """A model and a batch of so many samples and tokens.

    ``words``: for tables. ``width``: of the inputs, where they are no tokens. ``options``: of "checkpointing" (not
    reentrant), "autocast" (to bfloat16) and "compile".
    """

    words: str
    model: Callable[[int], nn.Module]
    batch: int
    tokens: int
    decodes: bool = False
    width: int | None = None
    options: frozenset[str] = field(default=frozenset())

    def make(self, tokens: int, device: str) -> nn.Module:
        """The model, with the same weights every time."""
        torch.manual_seed(0)
        with torch.device(device):
            model = self.model(tokens).train()
        if "checkpointing" in self.options:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return model.to(device)

    def inputs(self, batch: int, tokens: int, device: str) -> torch.Tensor:
        """Token numbers; of lone layers what wants a gradient, as inside a network."""
        torch.manual_seed(1)
        if self.width is not None:
            return torch.randn(batch, tokens, self.width, device=device, requires_grad=True)
        return torch.randint(4, 1000, (batch, tokens), device=device)

    def losses(self, model: Any, inputs: torch.Tensor) -> torch.Tensor:
        """One for each sample."""
        with torch.autocast(inputs.device.type, torch.bfloat16) if "autocast" in self.options else nullcontext():
            if inputs.is_floating_point():
                return model(inputs).square().mean((1, 2))
            logits = model(input_ids=inputs).logits
            if not self.decodes:
                return functional.cross_entropy(logits.float(), inputs[:, 0] % 2, reduction="none")
            words = logits[:, :-1].float().transpose(1, 2)
            return functional.cross_entropy(words, inputs[:, 1:], reduction="none").mean(1)


def _roberta(layers: int, *, adapters: bool = False) -> Callable[[int], nn.Module]:
    def make(tokens: int) -> nn.Module:
        from transformers import RobertaConfig, RobertaForSequenceClassification

        config = RobertaConfig(
            vocab_size=VOCABULARY,
            num_hidden_layers=layers,
            max_position_embeddings=max(514, tokens + 2),
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        model = RobertaForSequenceClassification(config)
        if not adapters:
            return model
        from peft import LoraConfig, get_peft_model

        return get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=16, target_modules=["query", "value"]))

    return make


def _qwen3(hidden: int, layers: int) -> Callable[[int], nn.Module]:
    def make(tokens: int) -> nn.Module:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        config = Qwen3Config(
            vocab_size=8192,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 64,
            num_key_value_heads=hidden // 128,
            head_dim=128 if hidden >= 1024 else 64,
            max_position_embeddings=max(4096, tokens),
            tie_word_embeddings=False,
            use_cache=False,
        )
        return Qwen3ForCausalLM(config)

    return make


def _llama(tokens: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=max(4096, tokens),
        tie_word_embeddings=False,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def _wide(tokens: int) -> nn.Module:
    return nn.Linear(4096, 4096, bias=False)


def _layers(tokens: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 2048))


_DECODER: dict[str, Any] = {"model": _qwen3(512, 2), "batch": 2, "tokens": 256, "decodes": True}
SHAPES = {
    "roberta-base": Shape("RoBERTa-base 8×64, full", _roberta(12), 8, 64),
    "roberta-4": Shape("4 layers of it 2×512, full", _roberta(4), 2, 512),
    "lora": Shape("RoBERTa-base 8×64, LoRA 16", _roberta(12, adapters=True), 8, 64),
    "wide": Shape("4096² 2×1024", _wide, 2, 1024, width=4096),
    "qwen3": Shape("Qwen3 shape 2×256", _qwen3(1024, 4), 2, 256, decodes=True),
    "qwen3-1k": Shape("Qwen3 shape, 2 layers, 1×1024", _qwen3(1024, 2), 1, 1024, decodes=True),
    "qwen3-4k": Shape("Qwen3 shape, 1 layer, 1×4096", _qwen3(1024, 1), 1, 4096, decodes=True),
    "qwen3-16k": Shape("Qwen3 shape of width 256, 1 layer, 1×16384", _qwen3(256, 1), 1, 16_384, decodes=True),
    "decoder": Shape("width 512, 2 layers, 2×256", **_DECODER),
    "decoder+checkpointing": Shape("checkpointing", **_DECODER, options=frozenset({"checkpointing"})),
    "decoder+autocast": Shape("bf16 autocast", **_DECODER, options=frozenset({"autocast"})),
    "decoder+compile": Shape("compiled", **_DECODER, options=frozenset({"compile"})),
    "layers-128": Shape("2 × 2048², 8×128", _layers, 8, 128, width=2048),
    "layers-1024": Shape("2 × 2048², 2×1024", _layers, 2, 1024, width=2048),
    "layers-4096": Shape("2 × 2048², 1×4096", _layers, 1, 4096, width=2048),
    "llama-1b": Shape("Llama-1B shape", _llama, 8, 512, decodes=True),
    "tiny": Shape("width 64, 1 layer, 2×16", _qwen3(128, 1), 2, 16, decodes=True),
}
"""``tiny`` shows in a second that everything goes through."""
