"""Files of a run about itself, in addition to its ledger."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

from dprmt._files import parse_json, read_lines
from dprmt._validation import ParameterError
from dprmt.training.harness._run_folder import METRICS, RUN, SUMMARY
from dprmt.training.private_run._clip_only import SENTENCE
from dprmt.training.recipes import DENOISERS, NORMS, OPTIMIZERS, Settings

NOT_REPLAYED = (
    "no: losses were not given as a function of the batch, so samples that mix without a gradient were not looked for"
)
"""In place of the rate, in a run whose task gives its step tensors or sums."""


def read_run(path: Path) -> dict[str, Any]:
    """Read ``run.json``; empty if there is none."""
    file = path / RUN
    try:
        document: dict[str, Any] = parse_json(file.read_bytes()) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise ParameterError("resume", str(file), f"given for a run whose record can be read ({error})") from None
    if file.exists() and not _is_record(document):
        raise ParameterError("resume", str(file), "given for a run whose record can be read (it holds something else)")
    return document


def _is_record(document: Any) -> bool:
    if not isinstance(document, dict) or not isinstance(document.get("private", {}), dict):
        return False
    starts, sigma = document.get("starts"), document.get("noise_multiplier")
    if document.get("privacy") == SENTENCE:
        return type(starts) is int and starts > 0 and sigma == 0
    return type(starts) is int and starts > 0 and isinstance(sigma, int | float) and 0 < sigma < math.inf


def other_packages(settings: Settings) -> dict[str, dict[str, str]]:
    """List the other installed packages that registered names of the recipe."""
    asked = {
        "privacy.norms.kind": NORMS.source(settings.privacy.norms.kind),
        "optimizer.name": OPTIMIZERS.source(settings.optimizer.name),
        "denoising.method": DENOISERS.source(settings.denoising.method),
    }
    found = {key: package for key, package in asked.items() if package is not None}
    return {"other_packages": found} if found else {}


def steps_seen(path: Path) -> int:
    """Count the steps in metrics and summary: each of them was recorded."""
    steps = len(read_lines(path / METRICS))
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        steps = max(steps, int(parse_json((path / SUMMARY).read_bytes())["charged"]))
    return steps
