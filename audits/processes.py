"""Work in several processes of one machine that torch's ``gloo`` joins."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def in_processes(size: int, work: Callable[[int, int], Any], folder: Path, limit: float = 120.0) -> list[Any]:
    """What each of so many processes returns, given its rank and their number; an error as its words.

    ``folder``: where they meet. ``limit``: seconds until one of them must have said something.
    """
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads
        store = str(folder / f"store-{size}")
        group = [context.Process(target=_enter, args=(rank, size, store, work, said)) for rank in range(size)]
        for process in group:
            process.start()
    found = dict(said.get(timeout=limit) for _ in group)
    for process in group:
        process.join(60)
    return [found[rank] for rank in range(size)]


def _enter(rank: int, size: int, store: str, work: Callable[[int, int], Any], said: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        said.put((rank, work(rank, size)))
    except BaseException as error:
        said.put((rank, f"{type(error).__name__}: {error}"))
        raise
    finally:
        torch.distributed.destroy_process_group()
