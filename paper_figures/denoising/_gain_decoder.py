"""Matrices of SmolLM2's last layer as functions to logits, of a few rows of E2E."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from paper_figures._needs import data_file
from paper_figures.denoising._gains import Curvature
from paper_figures.denoising._last_decoder import IGNORED, LastDecoder, padded, states

ROWS = 8
MATRICES = {
    "self_attn.v_proj": "self_attn.v_proj.base_layer",
    "self_attn.v_proj, LoRA B": "self_attn.v_proj.lora_B.default",
    "self_attn.o_proj": "self_attn.o_proj",
    "mlp.down_proj": "mlp.down_proj",
}
"""By the name on the page."""


def curvatures(rows: int = ROWS) -> Iterator[tuple[str, Curvature]]:
    """Every matrix by its name, at the pretrained weights and adapters that are not trained yet."""
    end, hidden, targets = _last_layer(rows)
    learnt = targets != IGNORED
    for matrix, module in MATRICES.items():
        weight = end.get_parameter(f"layer.{module}.weight")
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no forward derivative
            logits = partial(_logits, end, hidden, learnt, f"layer.{module}.weight")
            yield matrix, Curvature(logits, weight, targets[learnt])


class _Logits(torch.nn.Module):  # type: ignore[misc]
    """Of the tokens that are learnt."""

    def __init__(self, end: LastDecoder) -> None:
        super().__init__()
        self.end = end

    def forward(self, hidden: torch.Tensor, learnt: torch.Tensor) -> torch.Tensor:
        return self.end.output(self.end.last_states(hidden, learnt))


def _logits(
    end: LastDecoder, hidden: torch.Tensor, learnt: torch.Tensor, name: str, weight: torch.Tensor
) -> torch.Tensor:
    logits: torch.Tensor = torch.func.functional_call(_Logits(end), {f"end.{name}": weight}, (hidden, learnt))
    return logits


def _last_layer(rows: int) -> tuple[LastDecoder, torch.Tensor, torch.Tensor]:
    from dprmt.training.data import load_data
    from dprmt.training.models import load_model, load_tokenizer
    from dprmt.training.recipes import load_recipe

    file = [str(data_file("e2e/trainset.csv"))]
    changes: dict[str, Any] = {f"data.{part}": file for part in ("train", "validation", "test")}
    made = load_recipe("smollm2-e2e").with_changes(
        {**changes, "data.limit": rows, "model.lora.targets": ["layers.29.self_attn.v_proj"]}
    )
    tokenizer = load_tokenizer(made.model)
    data: Any = load_data(made.data, tokenizer, made.model.task)
    model = load_model(made.model, seed=0, tokenizer=tokenizer).model.eval().requires_grad_(False)
    items = [data.train[i] for i in range(rows)]
    hidden = list(states(model, [item["input_ids"] for item in items]))
    return LastDecoder(model), *padded(hidden, [item["labels"] for item in items])
