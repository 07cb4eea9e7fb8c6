"""The section on a compiled kernel of ``docs/performance.md``, from what ``benchmarks.fused`` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parent / "results" / "fused.json"


def table(rows: dict[str, Any]) -> str:
    """In Markdown."""
    one, ms = rows["shrinkage"], 1e3
    lines = ["| work | numpy, CPU ms | numba, CPU ms | gain |", "|---|---|---|---|"]
    if "numba" not in rows:
        lines.append("| cells, and settings of the sweep | – | numba is not installed | |")
    else:
        cells, sweep, loaded = rows["cells"], rows["sweep"], rows["numba"]
        name = f"cells of one step, {cells['nodes']} nodes × {cells['shifts']} shifts, off by {cells['off']:.0e}"
        lines.append(f"| {name} | {_both(cells)} |")
        lines.append(f"| {sweep['settings']} settings of the sweep, whole answers | {_both(sweep)} |")
        start = f"{ms * loaded['import']:.0f} + {ms * loaded['first']:.0f}"
        lines.append(f"| importing numba, and the kernel from its cache | 0 | {start} | |")
    times = f"{ms * one['ours']:.2f} | LAPACK alone {ms * one['lapack']:.2f}"
    lines.append(
        f"| shrinkage, a matrix of 256 × 64 of a stack | {times} | {one['ours'] / one['lapack']:.2f} × at most |"
    )
    lines += ["", "| answer | CPU ms | of which cells |", "|---|---|---|"]
    for name, row in rows["shares"].items():
        lines.append(f"| {name} | {ms * row['whole']:.0f} | {100 * row['cells'] / row['whole']:.0f} % |")
    return "\n".join(lines)


def _both(row: dict[str, float]) -> str:
    return f"{1e3 * row['numpy']:.2f} | {1e3 * row['numba']:.2f} | {row['numpy'] / row['numba']:.2f} ×"


def section() -> str:
    """Of ``docs/performance.md``, from what is stored; empty where nothing is."""
    return (
        "\n\n".join(["## A compiled kernel", _ABOUT, table(json.loads(_RESULTS.read_text()))])
        if _RESULTS.exists()
        else ""
    )


_ABOUT = """\
Written by `python -m benchmarks.fused --results benchmarks/results/fused.json`, with numba installed for it: CPU time
on one thread of a busy machine. The kernel computes what public probes spend most of their time on, without temporary
arrays. A gain of 1.5 × is what would make numba an extra; of the shrinkage LAPACK's part is what no kernel can
save."""
