"""The score of a run as a release of its own: charged, durably, before its noise is drawn, once in a folder."""

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
    """What will be released beside the steps, in units of what one validation row can change."""
    noise = settings.evaluation.private_noise
    return () if noise is None else (GaussianRelease(noise),)


def charged_releases(folder: Path | None, settings: Settings) -> tuple[GaussianRelease, ...]:
    """What a run folder has been charged for beside the steps."""
    return wanted_releases(settings) if folder is not None and (folder / SCORE).exists() else ()


def read_score(folder: Path) -> dict[str, Any]:
    """The score that was released; empty where none was, or where a crash came between charge and score."""
    try:
        document = parse_json((folder / SCORE).read_bytes())
        return dict(document.get("score", {}))
    except (OSError, ValueError, AttributeError):
        return {}


def release_score(
    folder: Path, accuracy: float, rows: int, release: GaussianRelease, generator: torch.Generator | SecureRandom
) -> dict[str, Any]:
    """The accuracy with noise, as it was released in this folder before, or now for the first time.

    Formal guarantees
    -----------------
    Of ``rows`` rows, a public number, the hits are counted; a row that is left without a prediction, or replaced,
    changes the count by at most 1. It gets N(0, σ²) and is divided by ``rows``: a `GaussianRelease` of σ. The file that
    says that it is charged is on the disk before the noise is drawn; what a crash takes after that is not drawn again.
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
