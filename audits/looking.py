"""``python -m audits looking``: what running samples alone makes of right code on published architectures.

How much of the tolerance rounding takes, and what a look costs. Small random models; dropout as configured.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional

from audits.steps import make_private
from audits.table import markdown
from dprmt.training.clipping import ClippedStep, _isolation

Batch = dict[str, torch.Tensor]
WORDS = 40
_SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_OWN = {"tie_word_embeddings": False}
_FEW = {"num_key_value_heads": 2}
_BART = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
}
_MARKS = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


@dataclass(frozen=True)
class Architecture:
    """A model of Transformers by its class and configuration; ``what`` it does; which ``sides`` pad its texts."""

    name: str
    what: str
    options: dict[str, Any]
    sides: tuple[str, ...] = ("right",)
    samples: int = 6
    tokens: int = 12

    def build(self) -> nn.Module:
        """With trainable parameters, but tables in several places."""
        import transformers

        kind = getattr(transformers, self.name)
        model = kind(kind.config_class(**self.options))
        if self.what == "translation":
            model.get_input_embeddings().requires_grad_(False)
            model.get_output_embeddings().requires_grad_(False)
        return model.train()


_BOTH = ("right", "left")
ARCHITECTURES = [
    Architecture("LlamaForCausalLM", "text", _SIZES | _OWN, _BOTH),
    Architecture("Qwen2ForCausalLM", "text", _SIZES | _OWN | _FEW, _BOTH),
    Architecture("Qwen3ForCausalLM", "text", _SIZES | _OWN | _FEW | {"head_dim": 8}, _BOTH),
    Architecture("Gemma2ForCausalLM", "text", _SIZES | _OWN | _FEW | {"head_dim": 8}, _BOTH),
    Architecture("MistralForCausalLM", "text", _SIZES | _OWN | _FEW | {"sliding_window": 4}, _BOTH),
    Architecture(
        "GPT2LMHeadModel", "text", {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4} | _OWN, _BOTH
    ),
    Architecture("GPTNeoXForCausalLM", "text", _SIZES | _OWN, _BOTH),
    Architecture(
        "BloomForCausalLM", "text", {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4} | _OWN
    ),
    Architecture("PhiForCausalLM", "text", _SIZES | _OWN, _BOTH),
    Architecture("MambaForCausalLM", "text", {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2} | _OWN),
    Architecture("BertForSequenceClassification", "class", _SIZES),
    Architecture("RobertaForSequenceClassification", "class", _SIZES | {"pad_token_id": 0}),
    Architecture(
        "DistilBertForSequenceClassification",
        "class",
        {"vocab_size": WORDS, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    ),
    Architecture("AlbertForSequenceClassification", "class", _SIZES | {"embedding_size": 16}),
    Architecture("ElectraForSequenceClassification", "class", _SIZES | {"embedding_size": 16}),
    Architecture("LlamaForSequenceClassification", "class", _SIZES | {"pad_token_id": 0}),
    Architecture("ModernBertForSequenceClassification", "class", _SIZES | {"pad_token_id": 0} | _MARKS),
    Architecture("ViTForImageClassification", "image", _SIZES | {"image_size": 16, "patch_size": 4}),
    Architecture("BartForConditionalGeneration", "translation", _BART),
]
"""Those whose every layer has one row a sample, so that all of them are trained."""
LARGER = Architecture(
    "LlamaForCausalLM",
    "text",
    _SIZES | _OWN | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4},
    samples=16,
    tokens=64,
)
"""One whose time is arithmetic."""


@dataclass(frozen=True)
class Finding:
    """Largest share of a tolerance that rounding took for one architecture and dtype; time of a check over a step's."""

    share: float
    cost: float


def find(architecture: Architecture, dtype: torch.dtype, *, steps: int = 4, rate: float = 1.0) -> Finding:
    """Train some steps with every micro-batch looked at; ParameterError if right code is refused."""
    slow, took = _seconds(architecture, dtype, steps, rate)
    fast, _ = _seconds(architecture, dtype, steps, 0.0)
    return Finding(took, slow / fast - 1)


def table(found: dict[tuple[str, torch.dtype], Finding]) -> str:
    """One row an architecture and dtype."""
    rows = [
        [name, str(dtype).removeprefix("torch."), f"{f.share:.1%}", f"{f.cost:.1f}"]
        for (name, dtype), f in found.items()
    ]
    return markdown(["architecture", "dtype", "of the tolerance", "cost of a look"], rows)


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kinds = (torch.float32, torch.bfloat16)
    found = {(each.name, dtype): find(each, dtype, steps=8) for dtype in kinds for each in ARCHITECTURES}
    found["LlamaForCausalLM, 256 wide, 16 texts of 64", torch.float32] = find(LARGER, torch.float32, steps=8)
    print(table(found), end="")
    return 0


def _seconds(architecture: Architecture, dtype: torch.dtype, steps: int, rate: float) -> tuple[float, float]:
    torch.manual_seed(0)
    model = architecture.build().to(dtype)
    private = make_private(
        model,
        torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.01),
        norms="ghost",
        clipping_norm=1.0,
        noise_multiplier=0.1,
        expected_batch_size=4.0,
        replay=rate,
    )
    times, shares, within = [], [0.0], _isolation.within

    def note(difference: float, allowed: float) -> bool:
        shares.append(difference / max(allowed, 1e-300))
        return within(difference, allowed)

    for number in range(steps):
        batch = _batch(architecture, number, dtype)
        start = time.process_time()
        with mock.patch.object(_isolation, "within", note):
            private.accumulate(
                _losses(architecture, private), samples=range(architecture.samples), step=number, batch=batch
            )
        times.append(time.process_time() - start)
        private.step()
    assert private.replays == (steps if rate else 1)
    return statistics.median(times[1:]), max(shares)


def _batch(architecture: Architecture, number: int, dtype: torch.dtype) -> Batch:
    samples, tokens = architecture.samples, architecture.tokens
    if architecture.what == "image":
        return {"pixel_values": torch.randn(samples, 3, 16, 16, dtype=dtype), "labels": torch.arange(samples) % 2}
    ids, mask = _texts(samples, tokens)
    if architecture.sides[number % len(architecture.sides)] == "left":
        ids, mask = ids.flip(1), mask.flip(1)
    batch = {"input_ids": ids, "attention_mask": mask}
    if architecture.what == "class":
        return batch | {"labels": torch.arange(samples) % 2}
    if architecture.what == "translation":
        words, own = _texts(samples, tokens - 3 * (number % 2))
        return batch | {"labels": words.masked_fill(own == 0, -100)}
    return batch | {"position_ids": (mask.cumsum(1) - 1).clamp_min(0)}


def _texts(samples: int, width: int) -> Sequence[torch.Tensor]:
    lengths = torch.randint(2, width + 1, (samples, 1))
    lengths[1] = width
    mask = (torch.arange(width) < lengths).long()
    return torch.randint(3, WORDS, (samples, width)) * mask, mask


def _losses(architecture: Architecture, private: ClippedStep) -> Callable[[Batch], torch.Tensor]:
    return lambda batch: _own_losses(architecture, private.model, batch)


def _own_losses(architecture: Architecture, model: nn.Module, batch: Batch) -> torch.Tensor:
    if architecture.what in ("class", "image"):
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return functional.cross_entropy(model(**inputs).logits.float(), batch["labels"], reduction="none")
    if architecture.what == "translation":
        logits, targets = model(**batch).logits, batch["labels"]
    else:
        positions = {"position_ids": batch["position_ids"]} if len(architecture.sides) > 1 else {}
        mask = batch["attention_mask"]
        logits = model(input_ids=batch["input_ids"], attention_mask=mask, **positions).logits[:, :-1]
        targets = batch["input_ids"][:, 1:].masked_fill(mask[:, 1:] * mask[:, :-1] == 0, -100)
    losses = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view_as(targets).sum(1) / (targets != -100).sum(1)


if __name__ == "__main__":
    sys.exit(main())
