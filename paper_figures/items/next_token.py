"""Next-token prediction by token frequency (Figures 6 and 7: the head; Figure 8: LoRA on E2E).

At small scale a GPT-2 of two layers, its head above random weights on words of Python's docstrings, its adapters above
weights that are trained on DART's public texts first. At paper scale GPT-2's own weights, on TinyPTB and on E2E.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._needs import all_missing, data_file, missing_files, missing_gpu, missing_weights
from paper_figures._picture import COLORS, STYLES, picture
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._tuner import LABELS, Train, Tuned, draw_groups, half_power_grid, tuned

RANGES = {"gd": (5.0, 50.0), "gdm": (1.0, 10.0), "adam": (1e-2, 1e-1), "adambc": (5e-3, 5e-2)}
GRIDS = {name: half_power_grid(*ends) for name, ends in RANGES.items()}
HEAD_RATES = {"gd": [10.0], "gdm": [5.0], "adam": [5e-2], "adambc": [1e-2]}
LORA_RATES = {"gd": [5.0], "gdm": [0.5], "adam": [5e-3], "adambc": [1e-3]}
VOCABULARY, LENGTH, ROWS = 1000, 48, 400
GROUPS = 30
"""Frequency groups of the head's items, as in the paper; their edges are powers of one factor."""
MARGINS = {"loss": 0.35, "accuracy": 5.0}
TEXT, E2E, DART = "tinyptb/train.txt", "e2e/trainset.csv", "dart/dart-v1.1.1-full-dev.json"
_LEARNED = 0.1  # nats below the start from which a run has learned something


@dataclass(frozen=True)
class Extent:
    """How much of the figures is made."""

    head_rates: Mapping[str, list[float]]
    lora_rates: Mapping[str, list[float]]
    seeds: tuple[int, ...]
    steps: int
    weights: tuple[str, str] | None = None
    """Of the head's model and of the adapters'; none are small ones made here."""


EXTENTS: dict[Scale, Extent] = {
    "small": Extent(HEAD_RATES, LORA_RATES, (0,), 20),
    "paper": Extent(GRIDS, GRIDS, (0, 1, 2), 200, ("gpt2", "gpt2-medium")),
}


def measure_head(scale: Scale, folder: Path) -> Found:
    extent = EXTENTS[scale]
    if extent.weights and (
        absent := all_missing(missing_weights(extent.weights[0]), missing_files(TEXT), missing_gpu())
    ):
        return Found([], "", missing=absent)
    data = _text(extent)
    pieces, paper = Pieces(folder, "next-token", scale), published("next-token")
    runs = tuned(pieces, _train_head(data, extent), extent.head_rates, extent.seeds)
    counts = _group_counts(data)
    kept = [group for group, count in enumerate(counts) if count]

    def draw(axes: np.ndarray) -> None:
        axes[0].plot(range(1, len(kept) + 1), [counts[group] for group in kept], "o-", color=COLORS[0], markersize=3)
        axes[0].set(yscale="log", xlabel="frequency group", ylabel="tokens to predict", title="the text")
        for ax, kind in zip(axes[1:], ("loss", "accuracy"), strict=True):
            _draw_over_groups(ax, runs, kind, kept)

    rows = []
    for kind, factor, unit in (("loss", 1.0, "nats"), ("accuracy", 100.0, "%")):
        for optimizer, found in runs.items():
            against: dict[str, Any] = {"published": paper.number(optimizer, quantity=kind), "unit": unit}
            label, ours = (
                f"{LABELS[optimizer]}: {kind} of the most frequent group",
                found.ends(f"group_{kind}", kept[0]),
            )
            judged = mean_row(label, factor * ours, margin=MARGINS[kind], **against)
            rows.append(judged if scale == "paper" else Row(label, judged.ours, **against))
    rows.append(Row("frequency groups with tokens", len(kept)))
    words = "tokens" if extent.weights else "words"
    small = (
        "A small GPT-2 with random weights below the head, words of Python's docstrings; the paper has GPT-2's weights"
        " and TinyPTB, and its group is one token of frequency 30,000."
    )
    return Found(
        rows,
        differs="Steps and batches are not printed." if extent.weights else small,
        model="GPT-2's head" if extent.weights else "GPT-2, 2 layers, 64 wide; its head",
        data=f"{data.size} sequences of {LENGTH} {words}, {data.vocabulary} different",
        seeds=len(extent.seeds),
        pictures=[picture(folder / "next-token.png", draw, panels=3)],
        earlier_seconds=pieces.earlier_seconds,
    )


def measure_lora(scale: Scale, folder: Path) -> Found:
    extent = EXTENTS[scale]
    absent = missing_files(E2E, *(() if extent.weights else (DART,)))
    if extent.weights:
        absent = all_missing(absent, missing_weights(extent.weights[1]), missing_gpu())
    if absent:
        return Found([], "", missing=absent)
    pieces = Pieces(folder, "next-token-e2e", scale)
    with tempfile.TemporaryDirectory() as scratch:
        data, start = _public_start(Path(scratch)) if extent.weights is None else _pretrained(extent.weights[1])
        runs = tuned(pieces, _train_lora(data, start, extent), extent.lora_rates, extent.seeds)
    groups = dict(enumerate(data.group_names))

    def draw(axes: np.ndarray) -> None:
        draw_groups(axes, runs, "loss", groups)

    rare = max(groups)
    losses = {optimizer: found.ends("group_loss", rare) for optimizer, found in runs.items()}
    rows = [Row(f"{LABELS[name]}: loss, all", found.last("loss"), unit="nats") for name, found in runs.items()]
    rows += [
        Row(f"{LABELS[name]}: loss, tokens {groups[rare]}", float(loss.mean()), unit="nats")
        for name, loss in losses.items()
    ]
    start_loss = float(runs["gd"].curve("group_loss", rare)[1][:, 0].mean())
    rows.append(Row(f"at the start: loss, tokens {groups[rare]}", start_loss, unit="nats"))
    small = "A GPT-2 of 2 layers trained on a part of DART stands in for GPT-2-medium; few sequences and steps."
    differs = "Steps and batches are not printed." if extent.weights else small
    lead = np.minimum(losses["gd"], losses["gdm"]) - losses["adambc"]
    label = "rarest tokens: loss of the better of DP-GD and DP-GDM, less that of DP-AdamBC"
    if losses["adambc"].mean() < start_loss - _LEARNED:
        rows.append(mean_row(label, lead, unit="nats", claim="> 0", within=ABOVE_ZERO))
    else:
        differs += f" DP-AdamBC ends within {_LEARNED} nats of its start on the rarest tokens: nothing can be compared."
    return Found(
        rows,
        differs=differs,
        model=f"{extent.weights[1] if extent.weights else 'GPT-2, 2 layers, 64 wide'}, LoRA",
        data=f"E2E, {data.size} sequences",
        seeds=len(extent.seeds),
        pictures=[picture(folder / "next-token-e2e.png", draw, panels=1 + len(groups))],
        earlier_seconds=pieces.earlier_seconds,
    )


def _text(extent: Extent) -> Any:
    from dprmt.training.data import docstrings
    from paper_figures.next_token import encoder, text_data, word_encoder, word_vocabulary

    if extent.weights:
        tokenizer = _tokenizer(extent.weights[0])
        ids, vocabulary = encoder(tokenizer)(data_file(TEXT).read_text(encoding="utf-8")), len(tokenizer)
    else:
        text, vocabulary = "\n".join(entry.text for entry in docstrings()), VOCABULARY
        ids = word_encoder(word_vocabulary(text, VOCABULARY))(text)[: ROWS * LENGTH]
    most = np.bincount(ids, minlength=vocabulary).max()
    edges = np.unique(np.geomspace(1, most, GROUPS).astype(int))[::-1]
    return text_data(ids, LENGTH, vocabulary, lowest=[*map(int, edges), 0])


def _group_counts(data: Any) -> list[int]:
    import torch

    groups = data.token_groups[data.ids[data.counted]]
    return torch.bincount(groups, minlength=len(data.group_names)).tolist()


def _draw_over_groups(ax: Any, runs: Mapping[str, Tuned], kind: str, kept: list[int]) -> None:
    for optimizer, found in runs.items():
        values = [found.last(f"group_{kind}", group) for group in kept]
        ax.plot(range(1, len(kept) + 1), values, label=LABELS[optimizer], **STYLES[LABELS[optimizer]])
    unit = " in nats" if kind == "loss" else ""
    ax.set(xlabel="frequency group, the most frequent first", ylabel=f"training {kind} at the end{unit}")
    ax.legend(frameon=False)


def _settings(optimizer: str, rate: float, seed: int, size: int, sigma: float, **more: Any) -> Any:
    from paper_figures.studies import private_settings

    stability = 1e-3 if optimizer == "adam" else 0.1
    options: dict[str, Any] = {"noise_multiplier": sigma, "stability": stability, "micro_batch": 32, "seed": seed}
    return private_settings(optimizer, rate, size=size, **options, **more)


def _train_head(data: Any, extent: Extent) -> Train:
    from paper_figures.next_token import HeadData, head_and_features, pretrained_gpt2, small_gpt2
    from paper_figures.studies import train_privately

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> Any:
        model = small_gpt2(data.vocabulary, length=LENGTH, seed=seed)
        if extent.weights:
            model = pretrained_gpt2(extent.weights[0])
        head, features = head_and_features(model, data.ids)
        settings = _settings(optimizer, rate, seed, data.size, sigma=1.0)
        return train_privately(head, HeadData(features, data), settings, extent.steps, folder, record_every=5)

    return train


def _train_lora(data: Any, start: str, extent: Extent) -> Train:
    from paper_figures.next_token import pretrained_gpt2, with_lora
    from paper_figures.studies import train_privately

    sigma = published("next-token-e2e").setting["noise_multiplier"]

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> Any:
        settings = _settings(optimizer, rate, seed, data.size, sigma, sample_rate=0.1)
        model = with_lora(pretrained_gpt2(start), seed=seed)
        return train_privately(model, data, settings, extent.steps, folder, record_every=5)

    return train


def _tokenizer(weights: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(weights)


def _e2e(tokenizer: Any, **options: Any) -> Any:
    from paper_figures.next_token import e2e_data, encoder

    return e2e_data(data_file(E2E), encoder(tokenizer), len(tokenizer), end=tokenizer.eos_token_id, **options)


def _pretrained(weights: str) -> tuple[Any, str]:
    """E2E in the tokens of these weights, and the weights."""
    return _e2e(_tokenizer(weights)), weights


def _public_start(folder: Path) -> tuple[Any, str]:
    """E2E in the tokens of public text, and a checkpoint that is trained on it."""
    from paper_figures.next_token import byte_pair_tokenizer, public_lines, small_gpt2, text_data, train_on_public

    lines = public_lines(data_file(DART))[:2000]
    tokenizer = byte_pair_tokenizer(lines, VOCABULARY)
    ids = [token for line in tokenizer(lines)["input_ids"] for token in (*line, tokenizer.eos_token_id)]
    model: Any = small_gpt2(len(tokenizer), length=LENGTH)
    train_on_public(model, text_data(ids, LENGTH, len(tokenizer)), epochs=2)
    model.save_pretrained(folder / "public")
    return _e2e(tokenizer, length=LENGTH, rows=600), str(folder / "public")


SCALES: tuple[Scale, ...] = ("small", "paper")
ITEMS = (
    Item("next-token", "Next token by frequency, the head", measure_head, SCALES, form_only=True),
    Item("next-token-e2e", "Next token by frequency, LoRA on E2E", measure_lora, SCALES, form_only=True),
)
