"""A small GPT-2 from public text, without privacy: the checkpoint that the study ``next-token --model`` starts from.

Usage: ``python -m paper_figures study public-model FOLDER TEXT… [--vocabulary V] [--epochs E] …``

TEXT are text files or DART's (json, xml). Where the hub can be reached, ``--model gpt2`` is the better start.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from paper_figures.next_token import (
    byte_pair_tokenizer,
    public_lines,
    small_gpt2,
    text_data,
    train_on_public,
)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m paper_figures study public-model", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args(arguments)
    folder = Path(options.folder)
    if folder.exists():
        parser.error(f"{folder} is there already")
    lines = public_lines(options.text)
    tokenizer = byte_pair_tokenizer(lines, options.vocabulary)
    ids = [token for line in tokenizer(lines)["input_ids"] for token in (*line, tokenizer.eos_token_id)]
    data = text_data(ids, options.length, len(tokenizer))
    model = small_gpt2(len(tokenizer), layers=options.layers, hidden=options.hidden, length=options.length)
    loss = train_on_public(model, data, epochs=options.epochs)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:  # the folder is there whole or not at all
        whole = Path(scratch) / folder.name
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        whole.rename(folder)
    print(f"{len(lines)} lines, {len(ids)} tokens, {len(tokenizer)} different; last epoch's loss {loss:.3f}")
