"""A tokenizer and weights from public text, without privacy: what to fine-tune where no checkpoint is at hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import OneCycleLR

from dprmt._validation import ParameterError, check_count, check_real
from dprmt.training.data import read_rows
from dprmt.training.recipes import DataRecipe
from paper_figures.next_token._tokens import TokenData

WARM_UP, DECAY = 0.1, 0.1
END = "<|endoftext|>"


def public_lines(paths: Sequence[str | Path]) -> list[str]:
    r"""Lines of text files, and of DART's files every reference after its triples.

    Parameters
    ----------
    paths : sequence of str or Path
        ``.json`` and ``.xml`` are DART's layouts, anything else is text.

    Returns
    -------
    list of str
        Without empty lines.

    Raises
    ------
    ParameterError
        If a file is missing, or not DART's where its name says so.

    Examples
    --------
    >>> import json, tempfile
    >>> entry = {"tripleset": [["Aromi", "area", "riverside"]], "annotations": [{"text": "Aromi is by the river."}]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "dart.json").write_text(json.dumps([entry]))
    ...     _ = Path(folder, "more.txt").write_text("A line.\n\nAnother.\n")
    ...     public_lines([Path(folder, "dart.json"), Path(folder, "more.txt")])
    ['Aromi : area : riverside | Aromi is by the river.', 'A line.', 'Another.']
    """
    lines: list[str] = []
    for path in map(Path, paths):
        if path.suffix in (".json", ".xml"):
            recipe = DataRecipe(
                source="files",
                train=(path.name,),
                validation=(path.name,),
                inputs=("tripleset",),
                target="annotations",
            )
            rows = read_rows(recipe, "generation", path.parent).splits["train"]
            lines += [f"{row.inputs[0]} | {row.target}" for row in rows]
        elif path.is_file():
            lines += [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        else:
            raise ParameterError("paths", str(path), "a file")
    return lines


def byte_pair_tokenizer(lines: Sequence[str], size: int) -> Any:
    """A tokenizer of GPT-2's kind, learnt on public text: byte pairs, and a token for the end of a text.

    Parameters
    ----------
    lines : sequence of str
        Public text.
    size : int
        V >= 257: the bytes, the end, and pairs.

    Returns
    -------
    PreTrainedTokenizerFast
        With at most ``size`` tokens; fewer if the text has no more pairs.

    Raises
    ------
    ParameterError
        If ``size`` is out of range.

    Formal guarantees
    -----------------
    None: its tokens give away frequent words of the text.

    Examples
    --------
    >>> tokenizer = byte_pair_tokenizer(["a cat and a cat"] * 9, 270)
    >>> tokenizer.tokenize("a cat"), len(tokenizer), tokenizer.eos_token_id
    (['a', 'Ġcat'], 263, 0)
    """
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        iter(lines), vocab_size=check_count("size", size, low=257), special_tokens=[END], show_progress=False
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token=END, bos_token=END)


def train_on_public(
    model: torch.nn.Module,
    data: TokenData,
    *,
    epochs: int = 4,
    learning_rate: float = 2e-3,
    batch: int = 32,
    seed: int = 0,
    progress: bool = True,
) -> float:
    """Train in place on public text, by AdamW with a warm-up and a cosine decay, gradients clipped at norm 1.

    Parameters
    ----------
    model : Module
        A causal language model, as from `small_gpt2`; left in the mode it is in.
    data : TokenData
        Public sequences, such as from `text_data`.
    epochs : int
        Passes over them.
    learning_rate : float
        η > 0, reached after a tenth of the steps.
    batch : int
        Sequences per step.
    seed : int
        Of their order.
    progress : bool
        Whether to show a bar on a terminal.

    Returns
    -------
    float
        Mean loss per sequence in the last epoch, in nats.

    Raises
    ------
    ParameterError
        If a number is out of its range.

    Formal guarantees
    -----------------
    None. No noise is added: the weights may give away every sequence of ``data``.

    Examples
    --------
    >>> from paper_figures.next_token import small_gpt2, text_data
    >>> data = text_data([1, 2, 3] * 64, length=12, vocabulary=4)
    >>> model = small_gpt2(4, hidden=16, length=12)
    >>> loss = train_on_public(model, data, epochs=20, learning_rate=1e-2, batch=4, progress=False)
    >>> with torch.no_grad():
    ...     start = data.measure(small_gpt2(4, hidden=16, length=12), torch.arange(16)).losses.mean()
    >>> loss < 0.1 < 1.3 < float(start)
    True
    """
    epochs, batch = check_count("epochs", epochs), check_count("batch", batch)
    check_real("learning_rate", learning_rate, low=0.0, low_open=True)
    order = torch.Generator().manual_seed(check_count("seed", seed, low=0))
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ParameterError("model", type(model).__name__, "a model with a trainable parameter")
    steps = epochs * math.ceil(data.size / batch)
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=DECAY)
    schedule = OneCycleLR(optimizer, learning_rate, total_steps=max(steps, 2), pct_start=WARM_UP, cycle_momentum=False)
    total = 0.0
    for number, indices in enumerate(_batches(data.size, batch, epochs, order, progress)):
        losses = data.measure(model, indices).losses
        optimizer.zero_grad(set_to_none=True)
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        total += float(losses.detach().sum()) if number >= steps - steps // epochs else 0.0
    return total / data.size


def _batches(size: int, batch: int, epochs: int, order: torch.Generator, progress: bool) -> Iterable[torch.Tensor]:
    from rich.console import Console
    from rich.progress import track

    batches = [part for _ in range(epochs) for part in torch.randperm(size, generator=order).split(batch)]
    return track(batches, "public text", console=Console(stderr=True), transient=True, disable=not progress)
