"""Tokenised splits and how their items become a batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch

from dprmt._validation import ParameterError, check_choice
from dprmt.training.data._rows import Row, read_rows
from dprmt.training.recipes import DataRecipe

_ONE_ITEM = "one item of the training split"
_ONE_OF_KEPT = "one of the items kept by data.limit; an item of the table counts as two"
IGNORED = -100  # label of a position that has no loss
Item = dict[str, Any]


class TokenDataset(list[Item]):
    r"""One split: items of token ids and label(s).

    Parameters
    ----------
    items : sequence of dict
        As in `TaskData`.
    rows : sequence of Row
        The same samples as text, in the same order.

    Attributes
    ----------
    rows : list of Row
        The same samples as text.

    Examples
    --------
    >>> import tempfile
    >>> from dprmt.training.models import byte_tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "films.csv")
    ...     _ = file.write_text("text,label\na fine film,good\na dull film,bad\n")
    ...     where = DataRecipe("files", train=[str(file)], validation=[str(file)], inputs=["text"], target="label")
    ...     split = load_data(where, byte_tokenizer(), "classification").train
    >>> len(split), sorted(split[0]), split.rows[0].inputs, split.rows[0].target
    (2, ['input_ids', 'labels'], ('a fine film',), 'good')
    """

    def __init__(self, items: Sequence[Item], rows: Sequence[Row]) -> None:
        super().__init__(items)
        self.rows = list(rows)


@dataclass(frozen=True)
class TaskData:
    """The splits of a task, ready for training.

    Attributes
    ----------
    train, validation, test : TokenDataset
        Empty where the source has none. Items are dicts with ``input_ids`` (list of int) and ``labels`` (an int, or
        for generation a list as long as the ids with -100 at the prompt).
    labels : tuple of str or None
        Names of the classes.
    task : {"classification", "generation"}
        The task.
    pad_token : int
        Token that fills up short texts.
    pair_types : bool
        Whether the model wants to know the sentence of each token (``token_type_ids``).
    max_tokens : int
        Largest number of tokens of an item.
    unit_of_privacy : str
        What a sample of the training split is.
    """

    train: TokenDataset
    validation: TokenDataset
    test: TokenDataset
    labels: tuple[str, ...] | None
    task: str
    pad_token: int
    pair_types: bool
    max_tokens: int
    unit_of_privacy: str

    def collate(self, items: Sequence[Item]) -> dict[str, torch.Tensor]:
        """Return a batch of items, padded on the right.

        Parameters
        ----------
        items : sequence of dict
            B >= 1 items of a split.

        Returns
        -------
        dict of Tensor
            ``input_ids`` and ``attention_mask`` (B, T), ``token_type_ids`` (B, T) if the model wants it,
            ``labels`` (B,) or (B, T), all int64. T is the longest item's length, rounded up to a multiple of 8, but no
            more than ``max_tokens``.

        Raises
        ------
        ParameterError
            If there is no item.

        Notes
        -----
        T has no influence on a sample's own gradient, up to rounding: a padded position is masked from
        attention, comes after all others, and has no loss, so its output gradient is 0 in every layer.
        """
        if not items:
            raise ParameterError("items", items, "at least one item")
        ids = [item["input_ids"] for item in items]
        longest = max(1, *map(len, ids))  # texts may be without a token
        length = max(longest, min(-(-longest // 8) * 8, self.max_tokens))

        def padded(rows: Iterable[Sequence[int]], filling: int) -> torch.Tensor:
            return torch.tensor([[*row, *([filling] * (length - len(row)))] for row in rows])

        batch = {"input_ids": padded(ids, self.pad_token), "attention_mask": padded(([1] * len(row) for row in ids), 0)}
        if self.pair_types:
            batch["token_type_ids"] = padded((item["token_type_ids"] for item in items), 0)
        labels = [item["labels"] for item in items]
        return batch | {"labels": padded(labels, IGNORED) if self.task == "generation" else torch.tensor(labels)}


def load_data(data: DataRecipe, tokenizer: Any, task: str, *, base_folder: str | Path | None = None) -> TaskData:
    r"""Read and tokenise the splits of a task.

    Parameters
    ----------
    data : DataRecipe
        Location of the rows.
    tokenizer : PreTrainedTokenizerBase
        Tokenizer of the model; see `dprmt.training.models.load_tokenizer`.
    task : {"classification", "generation"}
        Kind of task. For generation every pair of an input and a reference is an item. The model learns the reference
        and the end of text, after the input and a line break.
    base_folder : str or Path or None
        Folder of relative file names; the current folder by default.

    Returns
    -------
    TaskData
        The splits.

    Raises
    ------
    ParameterError
        If a file, split or column is missing or cannot be read, a label is unknown, or the tokenizer has no
        padding token.

    Formal guarantees
    -----------------
    Holds if: one item of ``train`` is one row of a table, and for generation one pair of input and reference. This
    item is the unit of privacy. A person with several items is protected as a group. With ``data.unit`` the unit is
    all items with one value of that column, and the number of units replaces the number of items. The number of
    training items, which determines sampling rate and expected batch size, the names of the labels and the summary
    numbers are public: two neighbouring tables are compared under the same numbers.

    With ``data.fraction`` each row is chosen independently, and the unit is still an item of the table. With
    ``data.limit`` a removed row admits another. The unit is then one of the kept items, and an item of the table is
    protected as a group of two.

    Examples
    --------
    >>> import tempfile
    >>> from dprmt.training.models import byte_tokenizer
    >>> where = {"train": ["train.csv"], "validation": ["dev.csv"], "inputs": ["text"], "target": "label"}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("train.csv", "dev.csv"):
    ...         _ = Path(folder, name).write_text("text,label\na fine film,good\na dull film,bad\n")
    ...     data = load_data(DataRecipe("files", **where), byte_tokenizer(), "classification", base_folder=folder)
    >>> data.labels, len(data.train), data.train[1]["labels"]
    (('bad', 'good'), 2, 0)
    >>> batch = data.collate([data.train[0], data.train[1]])  # 11 and 11 bytes, padded to a multiple of 8
    >>> batch["input_ids"].shape, batch["labels"]
    (torch.Size([2, 16]), tensor([1, 0]))
    """
    check_choice("task", task, ("classification", "generation"))
    if tokenizer.pad_token_id is None:
        raise ParameterError("tokenizer.pad_token", None, "set")
    found = read_rows(data, task, None if base_folder is None else Path(base_folder))
    labels = None
    if task == "classification":
        labels = found.label_names or _label_names(found.splits["train"])
    splits = {}
    for split, rows in found.splits.items():
        kept = rows
        if split == "train":
            kept = [rows[i] for i in kept_rows(rows, fraction=data.fraction, limit=data.limit)]
            if rows and not kept:
                raise ParameterError("data.fraction", data.fraction, "large enough to keep a row")
        if labels is not None:
            items = _classification_items(kept, labels, tokenizer, data.max_tokens, split)
        else:
            items = _generation_items(kept, tokenizer, data.max_tokens)
        splits[split] = TokenDataset(items, kept)
    unit = _ONE_OF_KEPT if data.limit is not None else _ONE_ITEM
    if data.unit is not None:
        unit = f"all items of the training split that have one value of {data.unit!r}"
    return TaskData(
        **splits,
        labels=labels,
        task=task,
        pad_token=tokenizer.pad_token_id,
        pair_types="token_type_ids" in tokenizer.model_input_names,
        max_tokens=data.max_tokens,
        unit_of_privacy=unit,
    )


def _label_names(rows: Sequence[Row]) -> tuple[str, ...]:
    found = [row.target for row in rows]
    values = {value for value in found if isinstance(value, (int, str))}
    odd = {str(value) for value in found if not isinstance(value, (int, str))}
    if odd or len(values) < 2:
        seen = sorted({*map(str, values), *odd})[:5]
        raise ParameterError("data.target", seen, "a column of at least two labels, integers or strings")
    return tuple(str(value) for value in sorted(values, key=lambda value: (isinstance(value, str), value)))


def _classification_items(
    rows: Sequence[Row], labels: tuple[str, ...], tokenizer: Any, max_tokens: int, split: str
) -> list[Item]:
    if not rows:
        return []
    numbers = {name: i for i, name in enumerate(labels)}
    columns = zip(*(row.inputs for row in rows), strict=True)
    encoded = tokenizer(*map(list, columns), truncation=True, max_length=max_tokens)
    items = []
    for i, row in enumerate(rows):
        label = numbers.get(str(row.target), row.target)
        if not isinstance(label, int) or not 0 <= label < len(labels):
            raise ParameterError(f"data.{split}", row.target, "labels out of " + ", ".join(labels))
        item = {key: encoded[key][i] for key in ("input_ids", "token_type_ids") if key in encoded}
        items.append(item | {"labels": label})
    return items


def prompt_ids(text: str, tokenizer: Any) -> list[int]:
    r"""Tokenize the prompt: the start of text if the tokenizer sets one, the input, and a line break.

    Parameters
    ----------
    text : str
        The input.
    tokenizer : PreTrainedTokenizerBase
        Of Transformers.

    Returns
    -------
    list of int
        The tokens.

    Examples
    --------
    >>> from dprmt.training.models import byte_tokenizer
    >>> tokenizer = byte_tokenizer()
    >>> tokenizer.decode(prompt_ids("a film", tokenizer), skip_special_tokens=True)
    'a film\n'
    """
    ids = tokenizer(f"{text}\n", add_special_tokens=False)["input_ids"]
    marked = tokenizer("a")["input_ids"][:1]
    return [*marked, *ids] if tokenizer.bos_token_id is not None and marked == [tokenizer.bos_token_id] else ids


def _generation_items(rows: Sequence[Row], tokenizer: Any, max_tokens: int) -> list[Item]:
    if tokenizer.eos_token_id is None:
        raise ParameterError("tokenizer.eos_token", None, "set")
    items = []
    for row in rows:
        prompt = prompt_ids(row.inputs[0], tokenizer)
        target = [*tokenizer(row.target, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        kept = prompt[: max(max_tokens - len(target), max_tokens // 2)]  # so that there is always a target token
        ids = (kept + target)[:max_tokens]
        labels = ([IGNORED] * len(kept) + target)[:max_tokens]
        items.append({"input_ids": ids, "labels": labels})
    return items


# Public: it only makes the choice unrelated to whatever order or hash the table itself was made with.
_KEY = b"dprmt rows v1"


def kept_rows(rows: Sequence[Row], *, fraction: float | None = None, limit: int | None = None) -> list[int]:
    """Return numbers of the rows that stay, in their order.

    ``fraction``: in (0, 1]: a row stays if its digest, as a number in [0, 1), is below it.

    Formal guarantees
    -----------------
    ``fraction`` alone: the rows kept of a table without one of its rows are those kept of the table, without that
    row. ``limit``: they are those without that row and, if it was kept, with at most one other, so that a row removed
    from the table is a row *replaced* among the kept ones. Both as multisets: rows with the same inputs and target
    have the same digest, so under ``fraction`` all of them stay or none.
    """
    digests = [_digest(row) for row in rows]
    numbers = list(range(len(rows)))
    if fraction is not None:
        below = ceil(fraction * 2**128)
        numbers = [number for number in numbers if digests[number] < below]
    if limit is not None:
        numbers = sorted(sorted(numbers, key=lambda number: digests[number])[:limit])
    return numbers


def _digest(row: Row) -> int:
    # The part, a file's name, is left out: a table that is split over other files keeps the same rows.
    content = json.dumps([row.inputs, row.target], default=str).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=16, key=_KEY).digest(), "big")
