"""Next-token prediction by token frequency (Figures 6 and 7: the head; Figure 8: LoRA on E2E)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._needs import data_file, missing_files
from paper_figures._picture import COLORS, STYLES, picture
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._tuner import LABELS, Train, Tuned, draw_groups, tuned

HEAD_RATES = {"gd": (10.0,), "gdm": (5.0,), "adam": (5e-2,), "adambc": (1e-2,)}
LORA_RATES = {"gd": (5.0,), "gdm": (0.5,), "adam": (5e-3,), "adambc": (1e-3,)}
VOCABULARY, LENGTH = 1000, 48
GROUPS = 30
"""Frequency groups of the head's items, as in the paper; their edges are powers of one factor."""

_LEARNED = 0.1  # nats below the start from which a run has learned something


def measure_head(scale: Scale, folder: Path) -> Found:
    """The output head on the sources of Python's own modules, as a text that every machine has."""
    data = _text(rows=400)
    pieces = Pieces(folder, "next-token", scale)
    runs = tuned(pieces, _train_head(data), HEAD_RATES, (0,))
    paper = published("next-token")
    counts = _group_counts(data)
    kept = [group for group, count in enumerate(counts) if count]
    most = kept[0]

    def draw(axes: np.ndarray) -> None:
        axes[0].plot(range(1, len(kept) + 1), [counts[group] for group in kept], "o-", color=COLORS[0], markersize=3)
        axes[0].set(yscale="log", xlabel="frequency group", ylabel="tokens to predict", title="the text")
        for ax, kind in zip(axes[1:], ("loss", "accuracy"), strict=True):
            _draw_over_groups(ax, runs, kind, kept)

    rows = []
    for kind, factor, unit in (("loss", 1.0, "nats"), ("accuracy", 100.0, "%")):
        for optimizer, found in runs.items():
            theirs = paper.number(optimizer, quantity=kind)
            ours = factor * found.last(f"group_{kind}", most)
            rows.append(Row(f"{LABELS[optimizer]}: {kind} of the most frequent group", ours, theirs, unit=unit))
    rows.append(Row("frequency groups with tokens", len(kept)))
    return Found(
        rows,
        differs="A small GPT-2 with random weights below the head, words of Python's docstrings; the paper has GPT-2's"
        " weights and TinyPTB, and its group is one token of frequency 30,000.",
        model="GPT-2, 2 layers, 64 wide; its head",
        data=f"{data.size} sequences of {LENGTH} words, {data.vocabulary} different",
        pictures=[picture(folder / "next-token.png", draw, panels=3)],
        earlier_seconds=pieces.earlier_seconds,
    )


def measure_lora(scale: Scale, folder: Path) -> Found:
    """LoRA on E2E, above a small GPT-2 that is trained on DART's public texts first."""
    files = ("e2e/trainset.csv", "dart/dart-v1.1.1-full-dev.json")
    absent = missing_files(*files)
    if absent:
        return Found([], "", missing=absent)
    pieces = Pieces(folder, "next-token-e2e", scale)
    sigma = published("next-token-e2e").setting["noise_multiplier"]
    with tempfile.TemporaryDirectory() as scratch:
        setup = PublicStart(Path(scratch), *(data_file(name) for name in files))
        runs = tuned(pieces, setup.train(sigma), LORA_RATES, (0,))
        groups = dict(enumerate(setup.data.group_names))
        size = setup.data.size

    def draw(axes: np.ndarray) -> None:
        draw_groups(axes, runs, "loss", groups)

    rare = max(groups)
    losses = {optimizer: found.last("group_loss", rare) for optimizer, found in runs.items()}
    rows = [Row(f"{LABELS[name]}: loss, all", found.last("loss"), unit="nats") for name, found in runs.items()]
    rows += [Row(f"{LABELS[name]}: loss, tokens {groups[rare]}", loss, unit="nats") for name, loss in losses.items()]
    start = float(runs["gd"].curve("group_loss", rare)[1][0])
    rows.append(Row(f"at the start: loss, tokens {groups[rare]}", start, unit="nats"))
    differs = "A GPT-2 of 2 layers trained on a part of DART stands in for GPT-2-medium; few sequences and steps."
    lead = min(losses["gd"], losses["gdm"]) - losses["adambc"]
    label = "rarest tokens: loss of the better of DP-GD and DP-GDM, less that of DP-AdamBC"
    if losses["adambc"] < start - _LEARNED:
        rows.append(mean_row(label, [lead], unit="nats", claim="> 0", within=ABOVE_ZERO))
    else:
        differs += f" DP-AdamBC ends within {_LEARNED} nats of its start on the rarest tokens: nothing can be compared."
    return Found(
        rows,
        differs=differs,
        model="GPT-2, 2 layers, 64 wide, LoRA",
        data=f"E2E, {size} sequences",
        pictures=[picture(folder / "next-token-e2e.png", draw, panels=1 + len(groups))],
        earlier_seconds=pieces.earlier_seconds,
    )


def _text(rows: int) -> Any:
    from dprmt.training.data import docstrings
    from paper_figures.next_token import text_data, word_encoder, word_vocabulary

    text = "\n".join(entry.text for entry in docstrings())
    ids = word_encoder(word_vocabulary(text, VOCABULARY))(text)[: rows * LENGTH]
    counts = np.bincount(ids, minlength=VOCABULARY)
    edges = np.unique(np.geomspace(1, counts.max(), GROUPS).astype(int))[::-1]
    return text_data(ids, LENGTH, VOCABULARY, lowest=[*map(int, edges), 0])


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


def _train_head(data: Any) -> Train:
    from paper_figures.next_token import HeadData, head_and_features, small_gpt2
    from paper_figures.studies import private_settings, train_privately

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> Any:
        settings = private_settings(
            optimizer,
            rate,
            size=data.size,
            noise_multiplier=1.0,
            stability=1e-3 if optimizer == "adam" else 0.1,
            micro_batch=32,
            seed=seed,
        )
        head, features = head_and_features(small_gpt2(data.vocabulary, length=LENGTH, seed=seed), data.ids)
        task = HeadData(features, data)
        return train_privately(head, task, settings, 20, folder, record_every=5, progress=False)

    return train


class PublicStart:
    """A checkpoint from public text, and E2E in its tokens."""

    def __init__(self, folder: Path, e2e: Path, dart: Path) -> None:
        from paper_figures.next_token import (
            byte_pair_tokenizer,
            e2e_data,
            public_lines,
            small_gpt2,
            text_data,
            train_on_public,
        )

        lines = public_lines([str(dart)])[:2000]
        tokenizer = byte_pair_tokenizer(lines, VOCABULARY)
        ids = [token for line in tokenizer(lines)["input_ids"] for token in (*line, tokenizer.eos_token_id)]
        model = small_gpt2(len(tokenizer), length=LENGTH)
        train_on_public(model, text_data(ids, LENGTH, len(tokenizer)), epochs=2, progress=False)
        self._folder = folder / "public"
        model.save_pretrained(self._folder)
        end, rows = tokenizer.eos_token_id, 600
        self.data = e2e_data(e2e, _encoder(tokenizer), len(tokenizer), length=LENGTH, end=end, rows=rows)

    def train(self, sigma: float) -> Train:
        """How one optimizer trains from there."""
        from paper_figures.next_token import pretrained_gpt2, with_lora
        from paper_figures.studies import private_settings, train_privately

        def train(optimizer: str, rate: float, seed: int, folder: Path) -> Any:
            settings = private_settings(
                optimizer,
                rate,
                size=self.data.size,
                noise_multiplier=sigma,
                sample_rate=0.1,
                stability=1e-3 if optimizer == "adam" else 0.1,
                micro_batch=32,
                seed=seed,
            )
            model = with_lora(pretrained_gpt2(str(self._folder)), seed=seed)
            return train_privately(model, self.data, settings, 20, folder, record_every=5, progress=False)

        return train


def _encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    return lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"])


ITEMS = (
    Item("next-token", "Next token by frequency, the head", measure_head, form_only=True),
    Item("next-token-e2e", "Next token by frequency, LoRA on E2E", measure_lora, form_only=True),
)
