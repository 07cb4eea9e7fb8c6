"""What the frozen part makes of the texts, kept in pieces: it takes longer than many runs, and may be stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

_PIECE = 128


def kept(folder: Path, name: str, texts: Sequence[Any], compute: Callable[[Sequence[Any]], Sequence[Any]]) -> list[Any]:
    """``compute`` of all texts, from files in ``folder`` as far as they are there.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    name : str
        Of the files.
    texts : sequence
        In an order that stays.
    compute : callable
        From some of the texts to as many results, tuples or tensors.

    Returns
    -------
    list
        A result for each text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results: list[Any] = []
    for start in range(0, len(texts), _PIECE):
        file = folder / f"{name}-{start:05d}.pt"
        if not file.exists():
            torch.save(list(compute(texts[start : start + _PIECE])), file.with_suffix(".part"))
            file.with_suffix(".part").replace(file)
        results += torch.load(file)
    return results
