"""Peak memory and time of one DP-Adam step: whole per-sample gradients, ghost clipping, DP-GRAPE.

Real architectures with random weights; embeddings are frozen. Bytes are those of live tensors, counted at every
operation (``TensorMemory``), weights and activations included, over the second step, when the moments exist. Each line
is a process of its own; its largest resident set is printed as a check that the counter does not see.

Usage: ``python -m benchmarks.grape`` for shallow models, ``--full`` for all layers (15 minutes, 16 GB), ``--out FILE``
to append the numbers as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

METHODS = ("DP-Adam", "ghost", "DP-GRAPE", "DP-GRAPE ghost")
LABELS = 10
WIDTH = 2048  # of OPT-1.3B
PAPER = {"ViT-Base": 0.63, "RoBERTa-large": 0.70}
"""Less memory than DP-Adam, as published; which figure is of which model is our reading."""


@dataclass(frozen=True)
class Case:
    """A model and a micro-batch."""

    name: str
    layers: int
    batch: int
    tokens: int
    rank: int


FULL = (
    Case("ViT-Base", 12, batch=8, tokens=197, rank=64),
    Case("RoBERTa-large", 24, batch=4, tokens=64, rank=16),
    Case("OPT-1.3B, 4 of 24 layers", 4, batch=4, tokens=64, rank=16),
)
QUICK = tuple(replace(case, layers=1, batch=4, tokens=min(case.tokens, 197)) for case in FULL)


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """A layer of OPT (pre-norm, causal, ReLU), whose own implementation flattens samples into tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, T, width)."""
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        attention = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).flatten(2))
        return x + self.fc2(torch.relu(self.fc1(self.norm2(x))))


def build(case: Case) -> tuple[nn.Module, torch.Tensor, Callable[[nn.Module, torch.Tensor], torch.Tensor]]:
    """Model, input, and how to get scores (B, labels)."""
    import transformers

    torch.manual_seed(0)
    if case.name.startswith("ViT"):
        config = transformers.ViTConfig(num_hidden_layers=case.layers, num_labels=LABELS)
        model: nn.Module = transformers.ViTForImageClassification(config)
        model.vit.embeddings.requires_grad_(False)
        return model, torch.randn(case.batch, 3, 224, 224), lambda net, x: net(pixel_values=x).logits
    ids = torch.randint(5, 1000, (case.batch, case.tokens))
    if case.name.startswith("RoBERTa"):
        config = transformers.RobertaConfig(
            vocab_size=50265, hidden_size=1024, num_hidden_layers=case.layers, num_attention_heads=16,
            intermediate_size=4096, num_labels=LABELS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        model = transformers.RobertaForSequenceClassification(config)
        model.roberta.embeddings.requires_grad_(False)
        return model, ids, lambda net, x: net(input_ids=x).logits
    blocks = [DecoderLayer(WIDTH, 32) for _ in range(case.layers)]
    model = nn.Sequential(nn.Embedding(1000, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LABELS))
    model[0].requires_grad_(False)
    return model, ids, lambda net, x: net(x)[:, -1]


def make_step(case: Case, method: str, model: nn.Module) -> tuple[nn.Module, Callable[[torch.Tensor], int]]:
    """The model to call, and a function that turns losses into a step and says what was formed per sample."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    from audits.steps import make_private
    from dprmt.training.clipping import ClippedStep
    from dprmt.training.optimizers import DPGrape
    from dprmt.training.subspaces import Subspaces

    noise = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": case.batch}
    trainable = [p for p in model.parameters() if p.requires_grad]
    if method == "DP-Adam":
        module = GradSampleModule(model)
        optimizer = DPOptimizer(torch.optim.Adam(trainable, lr=1e-4, foreach=False), **noise)

        def step(losses: torch.Tensor) -> int:
            losses.mean().backward()
            formed = sum(p.grad_sample.nbytes for p in model.parameters() if p.requires_grad and p.ndim == 2)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return formed

        return module, step
    if method == "ghost":
        module = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0)
        ghost = DPOptimizerFastGradientClipping(torch.optim.Adam(trainable, lr=1e-4, foreach=False), **noise)

        def ghost_step(losses: torch.Tensor) -> int:
            DPTensorFastGradientClipping(module, ghost, losses, "mean").backward()
            ghost.step()
            ghost.zero_grad(set_to_none=True)
            return 0

        return module, ghost_step
    grape = DPGrape(trainable, lr=1e-4, subspaces=Subspaces(model, rank=case.rank, seed=0))
    norms = "exact" if method == "DP-GRAPE" else "ghost"
    private = make_private(
        model, grape, norms=norms, clipping_norm=1.0, noise_multiplier=1.0, expected_batch_size=case.batch
    )
    assert isinstance(private, ClippedStep)  # no units were asked for

    def projected_step(losses: torch.Tensor) -> int:
        squared = private._capture.backward(losses, step=0, samples=None)
        contributions = [contribution for _, contribution in private._capture.contributions]
        formed, factors = sum(map(kept_bytes, contributions)), torch.ones_like(squared)
        for contribution in contributions:
            contribution.add_to_sums(factors, slice(None))
        private.discard()
        private.step()
        return formed

    return private.model, projected_step


def formula(case: Case, method: str, model: nn.Module) -> int:
    """Table 2: bytes of the weights' per-sample gradients, B Σ mn or B r Σ n; B T Σ (r + n) if that is less."""
    shapes = [sorted(p.shape, reverse=True) for p in model.parameters() if p.requires_grad and p.ndim == 2]
    if method == "DP-Adam":
        return 4 * case.batch * sum(m * n for m, n in shapes)
    if method == "ghost":
        return 0
    ranks = [(min(case.rank, m), n) for m, n in shapes]
    return 4 * case.batch * sum(min(r * n, case.tokens * (r + n)) for r, n in ranks)


def kept_bytes(contribution: Any) -> int:
    """Bytes of a layer's weights' per-sample gradients, formed or kept as factors."""
    if hasattr(contribution, "values"):
        return sum(value.nbytes for p, value in contribution.values.items() if p.ndim == 2)
    return sum(
        getattr(contribution, side).nbytes for side in ("activations", "gradients") if hasattr(contribution, side)
    )


def measure(case: Case, method: str) -> dict[str, Any]:
    """One line of the table, in this process."""
    from dprmt.training.clipping import TensorMemory

    torch.set_num_threads(1)
    model, x, scores = build(case)
    model.train()
    module, step = make_step(case, method, model)
    labels, formed, seconds = torch.arange(case.batch) % LABELS, 0, []
    with TensorMemory(model.parameters()) as memory:
        for _ in range(2):
            memory.reset_peak()
            start = time.perf_counter()
            formed = step(nn.functional.cross_entropy(scores(module, x), labels, reduction="none"))
            seconds.append(time.perf_counter() - start)
    return {
        "case": case.name, "layers": case.layers, "batch": case.batch, "tokens": case.tokens, "rank": case.rank,
        "method": method, "peak": memory.peak, "between_steps": memory.live, "seconds": seconds[1],
        "weights": sum(p.nbytes for p in model.parameters()), "formed": formed, "formula": formula(case, method, model),
        "resident": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }  # fmt: skip


def measure_apart(cases: tuple[Case, ...], full: bool) -> Iterator[dict[str, Any]]:
    """All lines, each in a process of its own."""
    for number, _ in enumerate(cases):
        for method in METHODS:
            yield measure_one_apart(number, method, full=full)


def measure_one_apart(number: int, method: str, *, full: bool) -> dict[str, Any]:
    """One line, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.grape", "--one", str(number), method]
    command += ["--full"] if full else []
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def line(result: dict[str, Any], whole: float) -> str:
    keys = ("peak", "formed", "formula", "between_steps", "resident")
    peak, formed, expected, between, resident = (float(result[key]) / 1e9 for key in keys)
    times = f"{float(result['seconds']):7.1f}"
    shown = f"{peak:8.2f} {1 - peak / whole:7.0%} {formed:7.3f} {expected:8.3f} {between:8.2f} {times} {resident:9.2f}"
    return f"{result['method']:<16}{shown}"


def main(arguments: list[str] | None = None) -> None:
    """Print a table per model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--one", nargs=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args([] if arguments is None else arguments)
    cases = FULL if given.full else QUICK
    if given.one:
        print(json.dumps(measure(cases[int(given.one[0])], given.one[1])))
        return
    whole = 1.0
    for result in measure_apart(cases, given.full):
        if result["method"] == METHODS[0]:
            whole = float(result["peak"]) / 1e9
            claim = PAPER.get(str(result["case"]))
            print(
                f"{result['case']}: {result['layers']} layers, B = {result['batch']}, T = {result['tokens']}, "
                f"r = {result['rank']}" + (f"; published: {claim:.0%} less" if claim else "")
            )
            print(
                f"{'GB':<16}{'peak':>8}{'less':>8}{'formed':>8}{'formula':>9}{'between':>9}{'s/step':>8}{'resident':>10}"
            )
        print(line(result, whole), flush=True)
        if given.out:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
