"""``python -m benchmarks.noise``: secure noise and coins against torch's, in CPU time on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from dprmt.training.randomness import SecureRandom

ENTRIES = 4_000_000


def main() -> None:
    torch.set_num_threads(1)
    secure, plain = SecureRandom(), torch.Generator().manual_seed(0)
    mib = ENTRIES * 4 / 2**20
    print(f"{ENTRIES:,} numbers ({mib:.0f} MiB in float32)")
    for name, ours, theirs in (
        ("noise", lambda: secure.normal((ENTRIES,)), lambda: torch.randn(ENTRIES, generator=plain)),
        ("coins", lambda: secure.poisson_sample(ENTRIES, 0.001), lambda: _coins(plain)),
    ):
        mine, torchs = _nanoseconds(ours), _nanoseconds(theirs)
        print(f"{name}: {mine:.1f} ns a number, torch {torchs:.1f} ns, ratio {mine / torchs:.1f}")


def _coins(generator: torch.Generator) -> list[int]:
    return (torch.rand(ENTRIES, generator=generator) < 0.001).nonzero().flatten().tolist()


def _nanoseconds(work: Callable[[], object]) -> float:
    work()
    started = time.process_time()
    work()
    return 1e9 * (time.process_time() - started) / ENTRIES


if __name__ == "__main__":
    main()
