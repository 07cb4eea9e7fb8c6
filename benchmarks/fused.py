"""Would a fused kernel, compiled by numba, make answers faster? What numpy's cells cost, and numba's, and of how much.

    pip install numba                 # without it, what needs it is left out, and said to be
    python -m benchmarks.fused
    python -m benchmarks.fused --results benchmarks/results/fused.json     # a section of docs/performance.md

The kernel computes what :meth:`PublicPair.cells` does, without temporary arrays: masses of intervals under many
shifted normal laws, by C's ``erfc``. It is cached on disk, so the second run shows what a process pays to load it.
Beside it, what LAPACK alone takes of the shrinkage of many matrices, and so what a kernel could save there.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accounting import DELTA, RATE, SIGMA, STEPS, cpu_seconds
from benchmarks.fused_page import table
from benchmarks.sweep import TOLERANCE, Question, questions
from dprmt.accounting import DPSGD, Hutchinson
from dprmt.accounting.basics._loss_grid import graded_indices
from dprmt.accounting.pairs import ClippingStep, _public_pair
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

    return cpu_seconds(lambda: denoise(stack, 1.0, method="paper"))[0] / count, cpu_seconds(bare)[0] / count


def cells_by_both(kernel: Callable[..., None]) -> dict[str, float]:
    """CPU seconds of the cells of one step, numpy's and the kernel's, and by how much these differ."""
    _, pair = DPSGD(SIGMA, RATE, Hutchinson(32, secret=False)).step().pairs(160, 1e-10)
    assert isinstance(pair, PublicPair)
    nodes = graded_indices(math.log1p(-RATE), 15.0, 0.0024, 0.3) * 0.0024
    fused = by_kernel(kernel)
    plain, cells = cpu_seconds(lambda: pair.cells(nodes), repeats=10)
    quick, (absent, _) = cpu_seconds(lambda: fused(nodes, pair.shift, pair.mass[:, None], RATE), repeats=10)
    off = float(np.max(np.abs(absent[1:-1, 0] - cells.q) / np.maximum(cells.q, 1e-30)))
    return {"nodes": nodes.size, "shifts": pair.shift.size, "numpy": plain, "numba": quick, "off": off}


def by_kernel(kernel: Callable[..., None]) -> Callable[..., Any]:
    """What takes the place of ``masses_by_shift``."""

    def masses_by_shift(nodes: Any, shift: Any, mass: Any, sample_rate: float) -> Any:
        ratio = np.concatenate([[-1e9], log_shift_ratio(nodes, sample_rate), [1e9]])
        ratio = np.clip(ratio, -1e9, 1e9)
        absent, present = np.zeros((2, mass.shape[1], ratio.size - 1))
        for column, each in enumerate(mass.T):
            kernel(ratio, shift, np.ascontiguousarray(each), absent[column], present[column])
        return absent.T, present.T

    return masses_by_shift


def sweep_by_both(kernel: Callable[..., None], number: int = 30) -> dict[str, float]:
    """CPU seconds of the sweep's first settings with public probes, without and with the kernel in every answer."""
    chosen = [each for each in questions(0, 10 * number) if asks_for_cells(each)][:number]

    def answer_all() -> None:
        for each in chosen:
            each.mechanism.epsilon(steps=each.steps, delta=each.delta, tolerance=TOLERANCE)

    original, seconds = _public_pair.masses_by_shift, {}
    for name, function in (("numpy", original), ("numba", by_kernel(kernel))):
        setattr(_public_pair, "masses_by_shift", function)  # noqa: B010
        try:
            seconds[name] = min(cpu_seconds(answer_all, repeats=1)[0] for _ in range(3))
        finally:
            setattr(_public_pair, "masses_by_shift", original)  # noqa: B010
    return {"settings": len(chosen), **seconds}


def asks_for_cells(question: Question) -> bool:
    """Whether probes are public, more than a few and the noise not small: such settings are answered soon."""
    mechanism = question.mechanism
    step = mechanism.step()
    return isinstance(step, ClippingStep) and not (step.is_exact or step.secret or step.has_few_probes)


def measured() -> dict[str, Any]:
    """All of it; without what needs numba where it is not installed."""
    ours, lapack = shrinkage()
    rows: dict[str, Any] = {"shrinkage": {"ours": ours, "lapack": lapack}}
    answers: dict[str, Callable[[], Any]] = {
        "32 public probes (a)": lambda: DPSGD(SIGMA, RATE, Hutchinson(32, secret=False)).epsilon(
            steps=STEPS, delta=DELTA
        ),
        "32 secret probes (a)": lambda: DPSGD(SIGMA, RATE, Hutchinson(32, secret=True)).epsilon(
            steps=STEPS, delta=DELTA
        ),
        "8 public probes (a)": lambda: DPSGD(SIGMA, RATE, Hutchinson(8, secret=False)).epsilon(
            steps=STEPS, delta=DELTA
        ),
    }
    rows["shares"] = {}
    for name, answer in answers.items():
        whole, spent = share_of_cells(answer)
        rows["shares"][name] = {"whole": whole, "cells": spent}
    if importlib.util.find_spec("numba") is None:
        return rows
    kernel, imported, first = compiled()
    loaded = {"import": imported, "first": first}
    return rows | {"numba": loaded, "cells": cells_by_both(kernel), "sweep": sweep_by_both(kernel)}


def main() -> None:
    """Print the tables, and store what they say where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="a JSON file to write")
    arguments = parser.parse_args()
    rows = measured()
    print(table(rows))
    if arguments.results:
        arguments.results.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
