"""The section on whole steps of ``docs/performance.md``, from what ``benchmarks.step`` stored."""

from __future__ import annotations

from typing import Any


def tables(cells: dict[str, Any]) -> str:
    """In Markdown."""
    return str(len(cells))
