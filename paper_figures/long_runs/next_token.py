"""Figures 6 to 8 of the paper on DP-AdamBC: next-token prediction, by token frequency.

Usage: ``python -m paper_figures study next-token OUT.png TEXT [--model NAME_OR_FOLDER] [--lora] [--steps T] …``

TEXT is a text file, or a csv file with the columns mr and ref (E2E). With --model, a pretrained GPT-2 and its
tokenizer (the study ``public-model`` makes one); without, a small GPT-2 with random weights on a vocabulary of words
counted on the text. The output head alone is trained, with per-sample clipping in closed form, or with --lora the
adapters, by hooks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dprmt.plots import save_picture
from paper_figures._plots import plot_metric_against_epsilon
from paper_figures.long_runs._options import add_training_options, panel, settings, show, tuned_runs
from paper_figures.next_token import (
    HeadData,
    TokenData,
    e2e_data,
    head_and_features,
    pretrained_encoder,
    pretrained_gpt2,
    small_gpt2,
    text_data,
    with_lora,
    word_encoder,
    word_vocabulary,
)
from paper_figures.studies import GroupRecord, train_privately

RANGES = {"gd": (5.0, 50.0), "gdm": (1.0, 10.0), "adam": (1e-2, 1e-1), "adambc": (5e-3, 5e-2)}


def tokens(options: argparse.Namespace) -> TokenData:
    """The set, cut to --rows sequences."""
    text = Path(options.text).read_text(encoding="utf-8")
    if options.model:
        encode, size, end = pretrained_encoder(options.model)
    else:
        vocabulary = word_vocabulary(text, options.vocabulary)
        encode, size, end = word_encoder(vocabulary), options.vocabulary, 0
    if options.text.endswith(".csv"):
        return e2e_data(options.text, encode, size, length=options.length, end=end, rows=options.rows)
    return text_data(encode(text)[: options.rows * options.length], options.length, size)


def train(
    data: TokenData, options: argparse.Namespace, optimizer: str, rate: float, seed: int, folder: Path
) -> list[GroupRecord]:
    """One run."""
    chosen = settings(options, data.size, optimizer, rate, seed, micro_batch=32)
    if options.model:
        model = pretrained_gpt2(options.model)
    else:
        model = small_gpt2(data.vocabulary, length=options.length, seed=seed)
    if options.lora:
        return train_privately(
            with_lora(model, seed=seed), data, chosen, options.steps, folder, record_every=options.record_every
        )
    head, features = head_and_features(model, data.ids)
    task = HeadData(features, data)
    return train_privately(head, task, chosen, options.steps, folder, record_every=options.record_every)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures study next-token", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("out")
    parser.add_argument("text")
    parser.add_argument("--model")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--vocabulary", type=int, default=1000)
    add_training_options(parser, steps=40)
    options = parser.parse_args(arguments)
    data = tokens(options)
    runs = tuned_runs(options, RANGES, partial(train, data, options))

    def draw(axes: np.ndarray) -> None:
        for row, kind in zip(axes, ("loss", "accuracy"), strict=True):
            groups = (None, *range(len(data.group_names)))
            for ax, group in zip(row, groups, strict=True):
                title = "all tokens" if group is None else data.group_names[group]
                plot_metric_against_epsilon(panel(runs, kind, group), metric=f"training {kind}", title=title, ax=ax)

    panels = 1 + len(data.group_names)
    save_picture(options.out, draw, size=(3.8 * panels, 7.4), panels=(2, panels))
    privacy = f"σ = {options.sigma:g}, q = {options.sample_rate:g}, C = {options.clip:g}, δ = 1e-5"
    print(f"{data.size} sequences of {data.ids.shape[1]} tokens, {data.vocabulary} different, {privacy}")
    show(runs, data.group_names)
