"""The library's norms of one layer, in the setting of the paper's efficiency table, and how long they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from paper_figures._published import published

if TYPE_CHECKING:
    import torch

PAPER = published("efficiency")
TOKENS, PROBES = PAPER.setting["tokens"], PAPER.setting["probes"]


def factors(d: int, p: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations and output gradients of one sample."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, TOKENS, d, generator=generator), torch.randn(1, TOKENS, p, generator=generator)


def norms(d: int, p: int) -> dict[str, Callable[[], object]]:
    """By name, each a call without arguments."""
    import torch

    from dprmt.training.norms import exact_squared_norms, hutchinson_squared_norms, hutchpp_squared_norms

    activations, gradients = factors(d, p)
    generator = torch.Generator().manual_seed(1)
    sketch, probes = (torch.randn(p, PROBES, generator=generator) / PROBES**0.5 for _ in range(2))
    return {
        "exact": lambda: exact_squared_norms(activations, gradients),
        "hutchinson": lambda: hutchinson_squared_norms(activations, gradients, probes),
        "hutchpp": lambda: hutchpp_squared_norms(activations, gradients, sketch, probes),
    }


def times(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call, by name: in turn, so that a busy spell hits all of them."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            found[name].append(time.perf_counter() - start)
    return found
