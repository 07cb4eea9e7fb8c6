"""Time and peak memory of whole private steps over plain torch, beside Opacus, at five shapes and with its options.

``python -m benchmarks.step`` measures what ``benchmarks/results/step.json`` has not, a cell (a way at a shape) after
the other, each in processes of its own, and prints the tables; ``--again`` measures all of the named cells anew. Time
is CPU time on one thread, the median of ratios within pairs: a plain step and a step of the way take turns. Memory is
the growth of the peak resident set over what the process held before its first step, in a process that gives freed
memory back at once, over plain's. The first step is apart: ours looks for what mixes samples.

``--device cuda`` measures on a GPU, in ms of its own events and GiB of its own allocator, into
``benchmarks/results/step_cuda.json``: see ``make gpu``. A batch that the device's memory does not hold
is halved until it does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from audits.table import markdown

RESULTS = Path(__file__).parent / "results"
WAYS = (
    "plain",
    "exact",
    "ghost",
    "hutchinson",
    "hutch++",
    "opacus hooks",
    "opacus ghost",
    "opacus fast",
)
"""Ours are those between plain and Opacus'; "fast" is Opacus' two passes with formed gradients in place of Gram's."""
TABLE = ("roberta-base", "roberta-4", "lora", "wide", "qwen3")
LENGTHS = ("qwen3-1k", "qwen3-4k", "qwen3-16k")
FRONT = ("layers-128", "layers-1024", "layers-4096")
OPTIONS = ("decoder", "decoder+checkpointing", "decoder+autocast", "decoder+compile")
OF_LENGTHS = ("plain", "exact", "ghost", "hutchinson", "hutch++", "opacus ghost")
OF_OPTIONS = ("plain", "exact", "ghost", "hutchinson", "opacus ghost")
LIMIT = 600
"""Seconds that a process may take."""


@dataclass(frozen=True)
class Cell:
    """A way of taking a step at a shape."""

    shape: str
    way: str
    device: str = "cpu"
    batch: int | None = None
    tokens: int | None = None
    rounds: int = 3

    @property
    def key(self) -> str:
        """Under which it is stored."""
        sizes = "" if self.tokens is None else f" {self.batch}×{self.tokens}"
        return f"{self.shape}{sizes}: {self.way}"


def measured(cell: Cell, whats: Sequence[str] = ("time", "memory")) -> dict[str, Any]:
    """What two processes say of a cell, or the last line of why one failed.

    On a GPU there is no need for processes: its allocator says what is held, and a model takes half a minute to start.
    """
    found: dict[str, Any] = {}
    if cell.device != "cpu":
        return _measured_here(cell, whats)
    for what in whats:
        command = [sys.executable, "-m", "benchmarks.step", "--cell", json.dumps([what, asdict(cell)])]
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | (GIVES_BACK if what == "memory" else {})
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                timeout=LIMIT,
                cwd=Path(__file__).parents[1],
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"takes longer than {LIMIT} s"}
        if done.returncode:
            return {"failed": (done.stderr.strip().splitlines() or ["killed"])[-1][:300]}
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def _measured_here(cell: Cell, whats: Sequence[str]) -> dict[str, Any]:
    import torch

    from benchmarks.step_cell import run

    try:
        found = {name: value for what in whats for name, value in run(what, cell).items()}
    except Exception as error:  # out of memory, or a way that refuses the shape: both are results
        found = {"failed": str(error).strip().splitlines()[-1][:300] if str(error).strip() else repr(error)}
    gc.collect()
    torch.cuda.empty_cache()
    return found


def halved(cell: Cell) -> dict[str, Any]:
    """The same at the largest batch that goes into the device's memory: the cell's own, or half of it as often."""
    found = measured(cell)
    while "out of memory" in found.get("failed", "") and cell.batch is not None and cell.batch > 1:
        cell = replace(cell, batch=cell.batch // 2)
        found = measured(cell)
    return found | ({} if cell.batch is None else {"batch": cell.batch})


GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16), "MALLOC_TRIM_THRESHOLD_": "0"}  # of the C library's allocator


def cells(shapes: Sequence[str], ways: Sequence[str], **options: Any) -> Iterator[Cell]:
    """All that are wanted, plain first at every shape."""
    for shape in shapes:
        own = OF_LENGTHS if shape in (*LENGTHS, *FRONT) else OF_OPTIONS if shape in OPTIONS else WAYS
        yield from (Cell(shape, way, **options) for way in WAYS if way in ways and way in own)


def load(path: Path) -> dict[str, Any]:
    """What is stored; empty if nothing is."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {"cells": {}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not stored, and print the tables; or run the one cell that :func:`measured` asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=[*TABLE, *LENGTHS, *FRONT, *OPTIONS])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--rounds", type=int, default=3, help="pairs of steps")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=8, help="samples, with --tokens")
    parser.add_argument("--tokens", type=int, nargs="+", default=[None], help="in place of the shapes' own")
    parser.add_argument("--again", action="store_true", help="measure what is stored, too")
    parser.add_argument("--out", type=Path, help="benchmarks/results/step.json, or step_cuda.json of a GPU")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cell:
        from benchmarks.step_cell import run

        what, cell = json.loads(options.cell)
        print(json.dumps(run(what, Cell(**cell))))
        return
    path = options.out or RESULTS / ("step.json" if options.device == "cpu" else "step_cuda.json")
    for tokens in options.tokens:
        sizes = {} if tokens is None else {"batch": options.batch, "tokens": tokens}
        for cell in cells(options.shapes, options.ways, rounds=options.rounds, device=options.device, **sizes):
            if options.again or cell.key not in load(path)["cells"]:
                found = halved(cell)
                print(cell.key, found, flush=True)
                kept = load(path)
                kept["cells"][cell.key] = found
                path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(tables(load(path)["cells"]) if options.device == "cpu" else gpu_table(load(path)["cells"]))


def tables(found: dict[str, Any]) -> str:
    """What is stored of a CPU, in Markdown: time, peak and first peak over plain's; the first step in later ones."""
    parts = ((TABLE, WAYS), ((*LENGTHS, *FRONT), OF_LENGTHS), (OPTIONS, OF_OPTIONS))
    return "\n".join(_table(found, shapes, ways) for shapes, ways in parts)


def _table(found: dict[str, Any], shapes: Sequence[str], ways: Sequence[str]) -> str:
    shapes = [shape for shape in shapes if f"{shape}: plain" in found]
    rows = [[way, *(_cell(found, shape, way) for shape in shapes)] for way in ways]
    return markdown(["time ×; peak ×, first peak ×; first step", *shapes], rows)


def _cell(found: dict[str, Any], shape: str, way: str) -> str:
    own, plain = found.get(f"{shape}: {way}"), found[f"{shape}: plain"]
    if own is None:
        return "–"
    if "failed" in own:
        return f"fails: {own['failed'].partition(':')[0]}"
    if way == "plain":
        return f"{own['seconds']:.2f} s; {own['mib']:.0f} MiB"
    peaks = f"{own['mib'] / plain['mib']:.2f}, {own['first_mib'] / plain['mib']:.2f}"
    return f"{own['ratio']:.2f}; {peaks}; {own['first_seconds'] / own['seconds']:.1f}"


def gpu_table(found: dict[str, Any]) -> str:
    """What is stored of a GPU, in Markdown: every way at the largest batch that fits."""
    lines = []
    for key, own in found.items():
        shape, _, way = key.partition(": ")
        numbers = [f"fails: {own.get('failed', '').partition(':')[0]}", "–", "–"]
        if "failed" not in own:
            numbers = [f"{1e3 * own['seconds']:.0f}", f"{own['ratio']:.2f}", f"{own['mib'] / 1024:.1f}"]
        where = f"{own.get('device', '–')}, {own.get('date', '–')}"
        lines.append([where, shape, way, str(own.get("batch", "–")), *numbers])
    return markdown(["device, date", "shape", "way", "batch", "ms", "times plain", "GiB"], lines)


if __name__ == "__main__":
    main()
