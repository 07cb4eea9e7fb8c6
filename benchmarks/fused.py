"""Would a fused kernel, compiled by numba, make answers faster? What numpy's cells cost, and numba's, and of how much.

    pip install numba
    python -m benchmarks.fused

The kernel computes what :meth:`PublicPair.cells` does, without temporary arrays: masses of intervals under many
shifted normal laws, by C's ``erfc``. It is cached on disk, so the second run shows what a process pays to load it.
Beside it, what LAPACK alone takes of the shrinkage of many matrices, and so what a kernel could save there.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.accounting import DELTA, RATE, SIGMA, STEPS, cpu_seconds
from dprmt.accounting import DPSGD, Hutchinson, compose
from dprmt.accounting.basics._loss_grid import graded_indices
from dprmt.accounting.pairs._public_pair import PublicPair, log_shift_ratio
from dprmt.accounting.pairs._secret_lower_pair import SecretLowerPair
from dprmt.accounting.pairs._secret_upper_pair import SecretUpperPair
from dprmt.spectra import denoise


def masses(ratio: Any, shift: Any, mass: Any, absent: Any, present: Any) -> None:
    """Add the masses between consecutive log ratios, without and with the sample, mixed over shifts."""
    half = math.sqrt(0.5)
    for j in range(shift.size):
        before, before_moved, last, last_moved = 0.0, 0.0, -math.inf, -math.inf
        for i in range(ratio.size):
            y = ratio[i] / shift[j] + shift[j] / 2
            z = y - shift[j]
            tail = 0.5 * math.erfc(abs(y) * half) if abs(y) < 38.5 else 0.0
            moved = 0.5 * math.erfc(abs(z) * half) if abs(z) < 38.5 else 0.0
            if i > 0:
                across = (y > 0) != (last > 0)
                across_moved = (z > 0) != (last_moved > 0)
                absent[i - 1] += mass[j] * (1.0 - tail - before if across else abs(tail - before))
                present[i - 1] += mass[j] * (1.0 - moved - before_moved if across_moved else abs(moved - before_moved))
            before, before_moved, last, last_moved = tail, moved, y, z


def compiled() -> tuple[Callable[..., None], float, float]:
    """The kernel, and CPU seconds of the import and of its first call."""
    start = time.process_time()
    numba: Any = importlib.import_module("numba")
    imported = time.process_time()
    kernel = numba.njit(cache=True, nogil=True)(masses)
    one = np.ones(2)
    kernel(one, one, one, np.zeros(1), np.zeros(1))
    return kernel, imported - start, time.process_time() - imported


def share_of_cells(answer: Callable[[], Any]) -> tuple[float, float]:
    """CPU seconds of an answer, and those of them that masses between loss nodes take."""
    spent = 0.0
    kinds = (PublicPair, SecretUpperPair, SecretLowerPair)
    originals = [kind.cells for kind in kinds]

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def cells(pair: Any, nodes: Any) -> Any:
            nonlocal spent
            start = time.process_time()
            found = original(pair, nodes)
            spent += time.process_time() - start
            return found

        return cells

    answer()
    for kind, original in zip(kinds, originals, strict=True):
        setattr(kind, "cells", timed(original))  # noqa: B010
    try:
        whole, _ = cpu_seconds(answer, repeats=1)
    finally:
        for kind, original in zip(kinds, originals, strict=True):
            setattr(kind, "cells", original)  # noqa: B010
    return whole, spent


def shrinkage(count: int = 60, shape: tuple[int, int] = (256, 64)) -> tuple[float, float]:
    """CPU seconds a matrix, of many: denoised in one stack, and one eigendecomposition with three products each."""
    stack = np.random.default_rng(0).standard_normal((count, *shape))

    def bare() -> None:
        for matrix in stack:
            _, vectors = np.linalg.eigh(matrix.T @ matrix)
            (matrix @ vectors) @ vectors.T

    return cpu_seconds(lambda: denoise(stack, 1.0))[0] / count, cpu_seconds(bare)[0] / count


def main() -> None:
    """Print all of it."""
    ours, lapack = shrinkage()
    print(f"shrinkage of 256×64, a matrix of a stack: {1e3 * ours:.2f} ms, by LAPACK alone {1e3 * lapack:.2f} ms")
    kernel, imported, first = compiled()
    print(f"import of numba {1e3 * imported:.0f} ms, first call of the kernel {1e3 * first:.0f} ms")
    _, pair = DPSGD(SIGMA, RATE, Hutchinson(32)).step().pairs(160, 1e-10)
    assert isinstance(pair, PublicPair)
    nodes = graded_indices(math.log1p(-RATE), 15.0, 0.0024, 0.3) * 0.0024
    ratio = np.clip(np.concatenate([[-1e9], log_shift_ratio(nodes, RATE), [1e9]]), -1e9, 1e9)

    def fused() -> Any:
        absent, present = np.zeros(ratio.size - 1), np.zeros(ratio.size - 1)
        kernel(ratio, pair.shift, pair.mass, absent, present)
        return absent, present

    plain, cells = cpu_seconds(lambda: pair.cells(nodes), repeats=20)
    quick, (absent, _) = cpu_seconds(fused, repeats=20)
    off = float(np.max(np.abs(absent[1:-1] - cells.q) / np.maximum(cells.q, 1e-30)))
    print(
        f"cells, {nodes.size} nodes × {pair.shift.size} shifts: numpy {1e3 * plain:.2f} ms, numba {1e3 * quick:.2f} ms",
        end="",
    )
    print(f", relative difference {off:.1g}")
    phases = compose([(DPSGD(sigma, RATE, Hutchinson(32)), 2) for sigma in np.linspace(0.7, 1.3, 20)])
    answers: dict[str, Callable[[], Any]] = {
        "32 public probes (a)": lambda: DPSGD(SIGMA, RATE, Hutchinson(32)).epsilon(STEPS, DELTA),
        "32 secret probes (a)": lambda: DPSGD(SIGMA, RATE, Hutchinson(32, secret=True)).epsilon(STEPS, DELTA),
        "8 public probes (a)": lambda: DPSGD(SIGMA, RATE, Hutchinson(8)).epsilon(STEPS, DELTA),
        "20 phases, 32 probes": lambda: phases.epsilon(DELTA),
    }
    for name, answer in answers.items():
        whole, spent = share_of_cells(answer)
        print(f"{name}: {1e3 * whole:.0f} ms, of which cells {100 * spent / whole:.0f} %")


if __name__ == "__main__":
    main()
