"""Figures 6 to 8 of the paper on DP-AdamBC: next-token prediction, by token frequency.

Usage: ``python paper_figures/next_token.py OUT.png TEXT [--model NAME_OR_FOLDER] [--lora] [--steps T] …``

TEXT is a text file, or a csv file with the columns mr and ref (E2E). With --model, a pretrained GPT-2 and its
tokenizer; without, a small GPT-2 with random weights on a vocabulary of words counted on the text. The output head
alone is trained, with per-sample clipping in closed form, or with --lora the adapters, by Opacus' hooks.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from dprmt._pictures import save_picture
from dprmt.plots import plot_metric_against_epsilon
from dprmt.training.studies import GroupRecord, PrivateSettings, train_privately
from dprmt.training.studies.next_token import (
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

LABELS = {"gd": "DP-GD", "gdm": "DP-GDM", "adam": "DP-Adam", "adambc": "DP-AdamBC"}
RATES = {"gd": 5.0, "gdm": 1.0, "adam": 5e-3, "adambc": 5e-3}


def tokens(options: argparse.Namespace) -> TokenData:
    """The set, cut to --rows sequences."""
    text = Path(options.text).read_text(encoding="utf-8")
    if options.model:
        encode, size = pretrained_encoder(options.model)
    else:
        vocabulary = word_vocabulary(text, options.vocabulary)
        encode, size = word_encoder(vocabulary), options.vocabulary
    if options.text.endswith(".csv"):
        return e2e_data(options.text, encode, size, length=options.length, rows=options.rows)
    return text_data(encode(text)[: options.rows * options.length], options.length, size)


def train(optimizer: str, rate: float, data: TokenData, folder: Path, options: argparse.Namespace) -> list[GroupRecord]:
    """One run."""
    settings = PrivateSettings(
        optimizer,
        rate,
        clipping_norm=options.clip,
        noise_multiplier=options.sigma,
        stability=1e-3 if optimizer == "adam" else 0.1,
        micro_batch=32,
        seed=options.seed,
    )
    if options.model:
        model = pretrained_gpt2(options.model)
    else:
        model = small_gpt2(data.vocabulary, length=options.length, seed=options.seed)
    if options.lora:
        return train_privately(with_lora(model, seed=options.seed), data, settings, options.steps, folder)
    head, features = head_and_features(model, data.ids)
    return train_privately(head, HeadData(features, data), settings, options.steps, folder)


def panel(
    runs: dict[str, list[GroupRecord]], kind: str, group: int | None
) -> dict[str, tuple[list[float], list[float]]]:
    """ε and values of one panel."""
    name = kind if group is None else f"group_{kind}"
    values = {
        label: [getattr(record, name) if group is None else getattr(record, name)[group] for record in records]
        for label, records in runs.items()
    }
    return {label: ([record.epsilon for record in runs[label]], values[label]) for label in runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("text")
    parser.add_argument("--model")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--vocabulary", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder")
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = tokens(options)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(options.folder or scratch)
        runs = {
            LABELS[optimizer]: train(optimizer, rate, data, place / optimizer, options)
            for optimizer, rate in RATES.items()
        }

    def draw(axes: np.ndarray) -> None:
        for row, kind in zip(axes, ("loss", "accuracy"), strict=True):
            groups = (None, *range(len(data.group_names)))
            for ax, group in zip(row, groups, strict=True):
                title = "all tokens" if group is None else data.group_names[group]
                plot_metric_against_epsilon(panel(runs, kind, group), metric=f"training {kind}", title=title, ax=ax)

    panels = 1 + len(data.group_names)
    save_picture(options.out, draw, size=(3.8 * panels, 7.4), panels=(2, panels))
    print(f"{data.size} sequences of {data.ids.shape[1]} tokens, {data.vocabulary} different, σ = {options.sigma:g}")
    for label, records in runs.items():
        last = records[-1]
        cells = "  ".join(
            f"{name}: {loss:.2f} {100 * accuracy:.1f} %"
            for name, loss, accuracy in zip(data.group_names, last.group_loss, last.group_accuracy, strict=True)
        )
        print(f"{label:<10} step {last.step}, ε {last.epsilon:.1f}, loss {last.loss:.3f}  {cells}")


if __name__ == "__main__":
    main()
