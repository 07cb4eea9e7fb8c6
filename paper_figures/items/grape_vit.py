"""A vision transformer under DP-GRAPE: accuracy on small images, and the memory that a ViT-Base would save.

On CIFAR-10's binary files where they are, on scikit-learn's digits otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paper_figures._measured import exact_row, mean_row
from paper_figures._needs import data_file
from paper_figures._pieces import Pieces
from paper_figures._published import Cell, published
from paper_figures._reproduction import Found, Item, Row, Scale, load
from paper_figures._verdict import Reason

if TYPE_CHECKING:
    import torch

    from paper_figures.items._projected_runs import Images

PAPER = published("grape-vit")
EPSILON, STEPS, RANK, SEEDS, RATE = 4.0, 40, 16, (0, 1), 1e-2
MARGIN = 5.0
BATCHES, RANKS = (1, 8), (16, 256)
"""Of the looks at what decides how much is saved, in one layer."""
METHODS: dict[str, dict[str, Any]] = {
    "DP-Adam": {"name": "adam"},
    "DP-GRAPE": {"name": "grape", "rank": RANK, "refresh_every": 25},
}
CIFAR = tuple(f"cifar-10-batches-bin/{name}.bin" for name in ("data_batch_1", "test_batch"))
RECORD = 1 + 3 * 32 * 32  # a label and three planes of 32 × 32


def images() -> Images:
    """CIFAR-10's first batch and its test batch; or the digits."""
    from paper_figures.items._projected_runs import Images, digits

    paths = [data_file(name) for name in CIFAR]
    if not all(path.exists() for path in paths):
        return digits(flat=False)
    return Images("CIFAR-10, its first batch", *(cifar_images(path) for path in paths))


def cifar_images(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 3, 32, 32) in [0, 1] and labels, from a file of CIFAR-10's binary version."""
    import torch

    from dprmt._validation import ParameterError

    content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    if not len(content) or len(content) % RECORD:
        raise ParameterError("path", str(path), f"a file of records of {RECORD} bytes")
    records = content.reshape(-1, RECORD)
    pixels = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32) / np.float32(255))
    return pixels, torch.from_numpy(records[:, 0].astype(np.int64))


def network(sample: torch.Tensor, seed: int) -> torch.nn.Module:
    """A ViT of two layers, 48 wide, on 16 or 64 patches."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    channels, side, _ = sample.shape
    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=side,
        patch_size=max(2, side // 8),
        num_channels=channels,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = ViTForImageClassification(config)
    model.vit.embeddings.requires_grad_(False)
    return model


def measure(scale: Scale, folder: Path) -> Found:
    source = images()
    pieces = Pieces(folder, "grape-vit", scale)
    found = pieces.measure({_name(m, seed): _run(source, m, seed) for m in METHODS for seed in SEEDS})
    adam, grape = (np.array([found[_name(m, seed)] for seed in SEEDS]) for m in METHODS)
    gaps = adam - grape
    saved = 100 * (1 - _counted("DP-GRAPE") / _counted("DP-Adam"))
    printed = PAPER.number("value", quantity="memory saved, about")
    by_setting = {(batch, rank): _saved(pieces, batch, rank) for batch in BATCHES for rank in RANKS}
    least, most = (by_setting[pick(by_setting, key=by_setting.__getitem__)] for pick in (min, max))
    peak = "one layer, measured peak saved"
    return Found(
        [
            mean_row(f"DP-Adam: accuracy at ε = {EPSILON:g}", adam, unit="%"),
            mean_row(f"DP-GRAPE, r = {RANK}: behind DP-Adam, paired", gaps, unit="points"),
            Row("ViT-Base, 12 layers: saved of weights, moments and per-sample gradients, counted", saved, unit="%"),
            *_measured(printed),
            *(Row(f"B = {b}, r = {r}, {peak}", share, unit="%") for (b, r), share in by_setting.items()),
        ],
        differs=f"A small ViT on small images, {STEPS} steps, one learning rate. The peak is that of `grape-memory`, of"
        " live tensors on a CPU; the paper measures a GPU's.",
        reasons=[
            Reason(
                "tested",
                f"batch and rank, which are not in the notes, decide how much is saved: {least:.1f} to {most:.1f} %"
                f" with {BATCHES[0]} to {BATCHES[-1]} images and ranks of {RANKS[0]} to {RANKS[-1]}.",
                command="python -m paper_figures run grape-vit --scale small",
            )
        ],
        model="ViT of 2 layers, 48 wide, patch embeddings fixed",
        data=source.name,
        seeds=len(SEEDS),
        earlier_seconds=pieces.earlier_seconds,
    )


def _measured(printed: Cell) -> list[Row]:
    """The stored rows of `grape-memory` on the ViT."""
    stored = load("grape-memory")
    rows = [row for row in stored.found.rows if "ViT" in row.label and "peak" in row.label] if stored else []
    return [exact_row(row.label, row.ours, published=printed, margin=MARGIN, unit="%") for row in rows]


def _saved(pieces: Pieces, batch: int, rank: int) -> float:
    peaks = pieces.measure(
        {
            f"peak, {method}, B = {batch}" + f", r = {rank}" * (method == "DP-GRAPE"): _peak(batch, rank, method)
            for method in METHODS
        }
    )
    adam, grape = peaks.values()
    return 100 * (1 - grape / adam)


def _peak(batch: int, rank: int, method: str) -> Callable[[], float]:
    """Of one layer of ViT-Base, as in `grape-memory`; DP-Adam has no rank."""

    def run() -> float:
        from benchmarks.grape import QUICK, measure

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hooks on inputs without gradients
            return float(measure(replace(QUICK[0], batch=batch, rank=rank), method)["peak"])

    return run


def _counted(method: str) -> float:
    # Weights, sum, gradient, two moments, and per-sample gradients; DP-GRAPE's are r/m of a weight's.
    from benchmarks.grape import FULL, build, formula

    case = FULL[0]
    model, *_ = build(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    states = sum(p.numel() for p in trained if p.ndim != 2)
    for m, n in (sorted(p.shape, reverse=True) for p in trained if p.ndim == 2):
        states += n * (m if method == "DP-Adam" else min(case.rank, m))
    return sum(p.nbytes for p in model.parameters()) + 16 * states + formula(case, method, model)


def _name(method: str, seed: int) -> str:
    return f"{method}, seed {seed}"


def _run(source: Images, method: str, seed: int) -> Callable[[], float]:
    from paper_figures.items._projected_runs import train_once

    return lambda: train_once(
        network(source.train[0][0], seed),
        source,
        optimizer={"learning_rate": RATE, **METHODS[method]},
        privacy={"target_epsilon": EPSILON},
        steps=STEPS,
        batch=len(source.train[1]) // 10,
        seed=seed,
        scores=lambda net, x: net(pixel_values=x).logits,
    )


ITEM = Item("grape-vit", "A vision transformer under DP-GRAPE", measure, form_only=True)
