"""Token sequences from a text file or from the E2E table, as a task with groups by token frequency."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dprmt._validation import ParameterError, check_count
from paper_figures.studies import GroupTask, Measured
from paper_figures.studies._groups import frequency_groups

UNKNOWN = 0
_WORDS = re.compile(r"\w+|[^\w\s]")
_POWERS = (100_000, 10_000, 1_000, 100, 10, 0)


@dataclass(frozen=True)
class TokenData(GroupTask):
    """Sequences of equal length; a task for `studies.train_privately`, one sample per sequence.

    Attributes
    ----------
    ids : Tensor of int64, shape (n, T)
        Token numbers.
    counted : Tensor of bool, shape (n, T)
        Which tokens are to be predicted from those before; never the first of a sequence, never padding.
    token_groups : Tensor of int64, shape (V,)
        Frequency group of every token, 0 for the most frequent.
    group_names : tuple of str
        Such as "100 to 999 times".
    """

    ids: torch.Tensor
    counted: torch.Tensor
    token_groups: torch.Tensor
    group_names: tuple[str, ...]

    @property
    def size(self) -> int:  # type: ignore[override]  # what is an attribute may be computed
        """Number of sequences."""
        return len(self.ids)

    @property
    def vocabulary(self) -> int:
        """Number of different tokens, V."""
        return len(self.token_groups)

    def measure(self, model: torch.nn.Module, indices: torch.Tensor) -> Measured:
        """Cross entropy of the counted tokens, in nats; a sequence's loss is their mean.

        Parameters
        ----------
        model : Module
            A causal language model.
        indices : Tensor of int64, shape (B,)
            Which sequences.

        Returns
        -------
        Measured
            With the graph of each sequence's loss; its items are the counted tokens.
        """
        ids, counted = self.ids[indices], self.counted[indices, 1:]
        logits = model(input_ids=ids).logits[:, :-1]
        return measured_tokens(logits, ids[:, 1:], counted, self.token_groups)


def measured_tokens(
    logits: torch.Tensor, targets: torch.Tensor, counted: torch.Tensor, token_groups: torch.Tensor
) -> Measured:
    """Losses of sequences and of their tokens.

    Parameters
    ----------
    logits : Tensor, shape (B, T, V)
        Predictions.
    targets : Tensor of int64, shape (B, T)
        What came.
    counted : Tensor of bool, shape (B, T)
        Which of them count.
    token_groups : Tensor of int64, shape (V,)
        Frequency groups.

    Returns
    -------
    Measured
        A sequence without counted tokens has loss 0.
    """
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    losses = flat.view(targets.shape)  # classes last is twice as fast
    weights = counted / counted.sum(1, keepdim=True).clamp_min(1)
    return Measured(
        (losses * weights).sum(1),
        losses[counted],
        (logits.argmax(2) == targets)[counted],
        token_groups[targets[counted]],
    )


def word_vocabulary(text: str, size: int) -> dict[str, int]:
    """The most frequent words and signs of a text, numbered from 1; 0 is left for all others.

    Parameters
    ----------
    text : str
        Where to count.
    size : int
        V >= 2, the 0 included.

    Returns
    -------
    dict of int
        By word; ties in alphabetical order.

    Raises
    ------
    ParameterError
        If ``size`` is out of range.

    Formal guarantees
    -----------------
    None: a vocabulary that is counted on private text reveals what is in it. Use one from elsewhere, such as that
    of a pretrained tokenizer, where this matters.

    Examples
    --------
    >>> word_vocabulary("the cat, the dog", 3)
    {'the': 1, ',': 2}
    """
    size = check_count("size", size, low=2)
    counts = Counter(_WORDS.findall(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[: size - 1], start=1)}


def word_encoder(vocabulary: Mapping[str, int]) -> Callable[[str], list[int]]:
    """The function from text to token numbers that belongs to a vocabulary.

    Parameters
    ----------
    vocabulary : mapping of str to int
        As from `word_vocabulary`.

    Returns
    -------
    callable
        Unknown words become 0.

    Examples
    --------
    >>> word_encoder({"the": 1, ",": 2})("the cat, the dog")
    [1, 0, 2, 1, 0]
    """
    return lambda text: [vocabulary.get(word, UNKNOWN) for word in _WORDS.findall(text)]


def pretrained_encoder(name_or_folder: str) -> tuple[Callable[[str], list[int]], int, int]:
    """The tokenizer of a pretrained model.

    Parameters
    ----------
    name_or_folder : str
        A name on the model hub such as "gpt2", or a local folder.

    Returns
    -------
    encode : callable
        From text to token numbers, without special tokens.
    vocabulary : int
        V.
    end : int
        The number of the token that ends a text; 0 if the tokenizer has none.

    Examples
    --------
    By name it is ``pretrained_encoder("gpt2")``, which downloads; from a folder, here with a tokenizer of bytes:

    >>> import tempfile
    >>> from dprmt.training.models import byte_tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = byte_tokenizer().save_pretrained(folder)
    ...     encode, vocabulary, end = pretrained_encoder(folder)
    >>> encode("a cat"), vocabulary, end
    ([68, 224, 70, 68, 87], 260, 2)
    """
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(name_or_folder)
    end = tokenizer.eos_token_id
    encode = partial(tokenizer, add_special_tokens=False)
    return lambda text: list(encode(text)["input_ids"]), len(tokenizer), UNKNOWN if end is None else int(end)


def text_data(ids: Sequence[int], length: int, vocabulary: int, *, lowest: Sequence[int] = _POWERS) -> TokenData:
    """Cut a text into sequences of equal length; a rest is left out.

    Parameters
    ----------
    ids : sequence of int
        The text in tokens.
    length : int
        T >= 2.
    vocabulary : int
        V.
    lowest : sequence of int
        The smallest token count of every frequency group, decreasing to 0.

    Returns
    -------
    TokenData
        All tokens but the first of each sequence count.

    Raises
    ------
    ParameterError
        If a number is out of range or the text is shorter than one sequence.

    Examples
    --------
    >>> data = text_data([1, 2, 1, 1, 0, 1, 2], length=3, vocabulary=3, lowest=[2, 0])
    >>> data.ids.tolist(), data.token_groups.tolist(), data.group_names
    ([[1, 2, 1], [1, 0, 1]], [1, 0, 1], ('2 times or more', '0 to 1 times'))
    """
    length = check_count("length", length, low=2)
    kept = len(ids) - len(ids) % length
    if not kept:
        raise ParameterError("ids", len(ids), f"at least {length} tokens; their number")
    table = torch.tensor(ids[:kept]).reshape(-1, length)
    counted = torch.ones_like(table, dtype=torch.bool)
    counted[:, 0] = False
    return _grouped(table, counted, vocabulary, lowest)


def e2e_data(
    path: str | Path,
    encode: Callable[[str], list[int]],
    vocabulary: int,
    *,
    length: int = 96,
    end: int = UNKNOWN,
    rows: int | None = None,
    lowest: Sequence[int] = _POWERS,
) -> TokenData:
    r"""The E2E set: every row's meaning, a separator and its reference; only the reference is to be predicted.

    Parameters
    ----------
    path : str or Path
        A csv file with the columns mr and ref.
    encode : callable
        From text to token numbers.
    vocabulary : int
        V.
    length : int
        T; longer rows are cut, shorter ones padded with ``end``.
    end : int
        The token at the end of a reference, which is to be predicted as well.
    rows : int, optional
        Take the first ones only.
    lowest : sequence of int
        As in `text_data`; counts are of the tokens to be predicted.

    Returns
    -------
    TokenData
        One sample per row.

    Raises
    ------
    ParameterError
        If the columns are not there, the file has no rows, or a token number is out of range.

    Examples
    --------
    >>> import tempfile
    >>> encode = word_encoder({"name": 1, "[": 2, "]": 3, "Aromi": 4, "a": 5, "pub": 6})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "e2e.csv")
    ...     _ = file.write_text("mr,ref\nname[Aromi],Aromi a pub\n")
    ...     data = e2e_data(file, encode, 7, length=12, lowest=[1, 0])
    >>> data.ids[0].tolist()  # meaning, separator, reference, end, padding
    [1, 2, 4, 3, 0, 4, 5, 6, 0, 0, 0, 0]
    >>> data.ids[data.counted].tolist(), data.group_names
    ([4, 5, 6, 0], ('1 times or more', '0 to 0 times'))
    """
    length, end = check_count("length", length, low=2), check_count("end", end, low=0)
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"mr", "ref"} <= set(reader.fieldnames or ()):
            raise ParameterError("path", list(reader.fieldnames or ()), "a csv file with the columns mr and ref")
        pairs = [(row["mr"], row["ref"]) for row in reader][: None if rows is None else check_count("rows", rows)]
    if not pairs:
        raise ParameterError("path", str(path), "a csv file with rows")
    table = torch.full((len(pairs), length), end)
    counted = torch.zeros(len(pairs), length, dtype=torch.bool)
    for i, (meaning, reference) in enumerate(pairs):
        prompt = encode(f"{meaning} |")
        tokens = [*prompt, *encode(f" {reference}"), end][:length]
        table[i, : len(tokens)] = torch.tensor(tokens)
        counted[i, max(1, len(prompt)) : len(tokens)] = True
    return _grouped(table, counted, vocabulary, lowest)


def _grouped(table: torch.Tensor, counted: torch.Tensor, vocabulary: int, lowest: Sequence[int]) -> TokenData:
    vocabulary = check_count("vocabulary", vocabulary)
    if not 0 <= int(table.min()) <= int(table.max()) < vocabulary:
        raise ParameterError("ids", [int(table.min()), int(table.max())], f"token numbers in [0, {vocabulary - 1}]")
    counts = torch.bincount(table[counted], minlength=vocabulary)
    edges = list(lowest)
    while len(edges) > 1 and edges[0] > int(counts.max()):
        edges = edges[1:]  # groups that no token is frequent enough for
    groups = frequency_groups(counts, edges)
    names = [f"{edges[0]:,} times or more"]
    names += [f"{low:,} to {high - 1:,} times" for high, low in itertools.pairwise(edges)]
    return TokenData(table, counted, groups, tuple(names))
