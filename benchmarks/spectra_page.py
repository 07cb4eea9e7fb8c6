"""The section on spectra of ``docs/performance.md``, from what ``benchmarks.denoiser`` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parent / "results" / "spectra.json"


def section() -> str:
    """Heading, words and tables; empty where nothing was measured."""
    if not _RESULTS.exists():
        return ""
    rows = json.loads(_RESULTS.read_text())
    return "\n\n".join(("## Spectra", _ABOUT, _denoiser(rows["denoiser"]), _laws(rows["laws"])))


def tables(rows: dict[str, Any]) -> str:
    """In Markdown."""
    return "\n\n".join((_denoiser(rows["denoiser"]), _large(rows["large"]), _laws(rows["laws"])))


def _denoiser(rows: list[dict[str, Any]]) -> str:
    lines = ["| denoiser, float32 | shape | SVD ms | ours ms | ours / SVD | wanted | error | of the SVD |"]
    lines.append("|---" * 8 + "|")
    for row in rows:
        shape = f"{row['count']} × {row['shape'][0]} × {row['shape'][1]}"
        ratio = row["ms"] / row["svd_ms"]
        times = f"{row['svd_ms']:.1f} | {row['ms']:.1f} | {ratio:.2f} | {_met(ratio, row['limit'])}"
        errors = f"{row['error']:.0e} | {row['svd_error']:.0e}"
        lines.append(f"| {row['name']}, {row['library']} | {shape} | {times} | {errors} |")
    return "\n".join(lines)


def _large(rows: list[dict[str, Any]]) -> str:
    lines = ["| few spikes | shape | YYᵀ alone, ms | `lanczos`: on YYᵀ, exact proof, ms |"]
    lines[0] += " PROPACK, 3 triplets, no proof, ms |"
    lines.append("|---" * 5 + "|")
    for row in rows:
        propack = f"{row['propack']:.0f}" if "propack" in row else "–"
        kind = f"{row['name']}, {row['library']} {row['dtype']} | {row['shape'][0]} × {row['shape'][1]}"
        lines.append(f"| {kind} | {row['product']:.0f} | {row['lanczos']:.0f} | {propack} |")
    return "\n".join(lines)


def _laws(rows: list[dict[str, Any]]) -> str:
    lines = ["| laws | CPU ms | wanted |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {row['name']} | {row['ms']:.0f} | {_met(row['ms'], row['limit'])} |" for row in rows)]
    )


def _met(value: float, limit: float) -> str:
    return f"≤ {limit:g}" + ("" if value <= limit else ", **missed**")


_ABOUT = """\
Denoising a matrix with few spikes takes 4 to 12 times less time than a full singular value decomposition, and about the
same time with many spikes. A *spike* is a singular value above the bulk edge. If the shorter side has 129 or more
entries, a Lanczos iteration finds few spikes and proves that there are no others. Errors are against float64.
`python -m benchmarks.denoiser --results benchmarks/results/spectra.json` measures again, also on 4096 × 4096."""
