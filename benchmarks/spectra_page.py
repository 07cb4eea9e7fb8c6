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
    return "\n\n".join(("## Spectra", _ABOUT, tables(json.loads(_RESULTS.read_text()))))


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
Written by `python -m benchmarks.denoiser --results benchmarks/results/spectra.json`: CPU time on one thread, the best
of a few runs that take turns with a full decomposition and the same shrinkage. Spikes are singular values above the
bulk edge; errors are against float64. Matrices of 4096 × 4096 were measured in a run of their own (`--only 4096`), on a
busier machine.

From a shorter side of 129 on, a Lanczos iteration on YYᵀ finds few spikes, with an exact proof that there are no
others."""
