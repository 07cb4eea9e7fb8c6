"""The library's norms of one layer, in the setting of the paper's efficiency table, and how long they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from paper_figures._published import published

PAPER = published("efficiency")
TOKENS, PROBES = PAPER.setting["tokens"], PAPER.setting["probes"]
REPEATS = 5


def norms(d: int, p: int) -> dict[str, Callable[[], object]]:
    import torch

    from dprmt.training.norms import exact_squared_norms, hutchinson_squared_norms, hutchpp_squared_norms

    generator = torch.Generator().manual_seed(0)
    activations, gradients = (torch.randn(1, TOKENS, side, generator=generator) for side in (d, p))
    sketch, probes = (torch.randn(p, PROBES, generator=generator) / PROBES**0.5 for _ in range(2))
    return {
        "exact": lambda: exact_squared_norms(activations, gradients),
        "hutchinson": lambda: hutchinson_squared_norms(activations, gradients, probes),
        "hutchpp": lambda: hutchpp_squared_norms(activations, gradients, sketch, probes),
    }


def least_times(functions: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds by name, the least of a few calls: interleaved, so that a busy spell hits all of them."""
    least = dict.fromkeys(functions, float("inf"))
    for _ in range(REPEATS):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            least[name] = min(least[name], time.perf_counter() - start)
    return least
