"""The score of a run as a separate release, recorded before its noise is drawn, once per folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dprmt._files import parse_json, strict_json, write_whole
from dprmt.accounting import GaussianRelease
from dprmt.training.randomness import SecureRandom
from dprmt.training.recipes import Settings

SCORE = "score.json"
_DIGITS = 6


def wanted_releases(settings: Settings) -> tuple[GaussianRelease, ...]:
    """List the releases in addition to the steps, with noise in units of the effect of one validation row."""
    noise = settings.evaluation.private_noise
    return () if noise is None else (GaussianRelease(noise),)


def charged_releases(folder: Path | None, settings: Settings) -> tuple[GaussianRelease, ...]:
    """List the releases that a run folder has recorded in addition to the steps."""
    return wanted_releases(settings) if folder is not None and (folder / SCORE).exists() else ()


def read_score(folder: Path) -> dict[str, Any]:
    """Return the score that was released; empty where none was, or where a crash came between charge and score."""
    try:
        document = parse_json((folder / SCORE).read_bytes())
        return dict(document.get("score", {}))
    except (OSError, ValueError, AttributeError):
        return {}


def release_score(
    folder: Path, accuracy: float, rows: int, release: GaussianRelease, generator: torch.Generator | SecureRandom
) -> dict[str, Any]:
    """Return the accuracy with noise: the value released in this folder before, or a new one.

    Formal guarantees
    -----------------
    The hits among ``rows`` rows, a public number, are counted. A row without a prediction, or a replaced row, changes
    the count by at most 1. It gets N(0, σ²) and is divided by ``rows``: a `GaussianRelease` of σ. The record is on the
    disk before the noise is drawn; a value lost in a crash after that is not drawn again.
    """
    if (folder / SCORE).exists():
        return read_score(folder)
    sigma = release.noise_multiplier
    document: dict[str, Any] = {"charged": release.as_dict(), "rows": rows}
    write_whole(folder / SCORE, strict_json(document, indent=1) + "\n")
    noisy = (round(accuracy * rows) + sigma * _normal(generator)) / rows
    score = {"accuracy": round(noisy, _DIGITS), "standard_deviation": sigma / rows, "samples": rows}
    write_whole(folder / SCORE, strict_json(document | {"score": score}, indent=1) + "\n")
    return score


def _normal(generator: torch.Generator | SecureRandom) -> float:
    if isinstance(generator, SecureRandom):
        return float(generator.normal((1,)))
    return float(torch.randn((), generator=generator, dtype=torch.float64))
