"""How fast a machine multiplies, draws and moves numbers: what turns counts of a step into time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dprmt._validation import check_real

_SIDE, _TOKENS, _MANY = 768, 512, 1 << 24  # more numbers than caches hold
_ROUNDS = 4


@dataclass(frozen=True)
class Rates:
    """Operations and bytes of a device in a second, float32.

    Parameters
    ----------
    flops : float
        Additions and multiplications in products of matrices, > 0. By default one core's of a CPU, as the others.
    normals : float
        Normal numbers drawn, > 0.
    bytes : float
        Read or written where numbers are added one by one, > 0.

    Raises
    ------
    ParameterError
        If one is not positive and finite.

    Examples
    --------
    >>> Rates(flops=2e12).flops
    2000000000000.0
    """

    flops: float = 1e11
    normals: float = 1.6e8
    bytes: float = 8e9

    def __post_init__(self) -> None:
        for name in ("flops", "normals", "bytes"):
            object.__setattr__(self, name, check_real(name, getattr(self, name), low=0.0, low_open=True))


def measured_rates(device: torch.device | str = "cpu") -> Rates:
    """The rates of this machine, measured for some tenths of a second: the best of a few goes.

    Parameters
    ----------
    device : torch.device or str
        Where.

    Returns
    -------
    Rates
        With as many threads as torch uses now.

    Examples
    --------
    >>> measured_rates().flops > 1e8
    True
    """
    left, right = torch.ones(_TOKENS, _SIDE, device=device), torch.ones(_SIDE, _SIDE, device=device)
    numbers, others = torch.ones(_MANY, device=device), torch.ones(_MANY, device=device)
    generator = torch.Generator(device)
    return Rates(
        2 * _TOKENS * _SIDE * _SIDE / _seconds(lambda: left @ right, device),
        _MANY / _seconds(lambda: torch.normal(0.0, 1.0, (_MANY,), device=device, generator=generator), device),
        12 * _MANY / _seconds(lambda: others.add_(numbers), device),
    )


def _seconds(work: Callable[[], object], device: torch.device | str) -> float:
    found = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return min(found)
