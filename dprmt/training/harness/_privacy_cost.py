"""What a run's releases cost, in numbers and in words: norms, the score as a separate release, the privacy report."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from dprmt._files import parse_toml, strict_json, write_whole
from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, GaussianRelease, compose, release_from_dict
from dprmt.statements import PrivacyCard, mechanism_from_dict, privacy_card
from dprmt.statements._sentences import norms_label
from dprmt.training.clipping import ClippingPlan
from dprmt.training.harness._run_folder import CONFIG, read_document, read_run
from dprmt.training.private_run._ledger import FILE, charged_steps, whole_epochs
from dprmt.training.randomness import SecureRandom
from dprmt.training.recipes import Settings

CARD = "privacy_card.json"
FOR_READERS, SCORE = "privacy_card.md", "score.json"
_RELEASED = (
    "the trained parameters after every step: `model/`, and of `checkpoint/` the parameters and the optimizer's state",
    "`metrics.jsonl` and `run.json`, except for what stands there under `private`; `privacy.jsonl`",
)
_SCORES = "scores on validation or test data, which are about those data"
_CHOICE = "the choice of this run, or of its recipe, among several on the same data"
_NOT_COVERED = (
    "what stands under `private` in `metrics.jsonl` and `run.json`: training losses, sizes of batches, a digest of the"
    " data",
    _SCORES,
    _CHOICE,
    "the number of samples, names of labels, and all that the recipe says: public",
    "random states and the draws of an epoch that `checkpoint/` holds until the run is finished",
    "whoever reads the process' memory; timing; rounding of sums, and the law of noise in floating point",
)


def norms_sentence(plan: ClippingPlan) -> str:
    """Count the layers with estimated and with exact norms."""
    estimated, many = [layer.norms for layer in plan.record.estimated], len(plan.record.layers)
    exact = f"exact in {many - len(estimated)} of {many} layers"
    kinds = dict.fromkeys(f"{one.kind} ({norms_label(one)})" if one else "of unknown law" for one in estimated)
    sentence = f"{'; '.join(kinds)} in {len(estimated)} of {many} layers, {exact}" if kinds else exact
    return sentence if plan.regime == "rows" else f"{plan.reason}; norms {sentence}"


def wanted_releases(settings: Settings) -> tuple[GaussianRelease, ...]:
    """List the releases in addition to the steps, with noise in units of the effect of one validation row."""
    noise = settings.evaluation.private_noise
    return () if noise is None else (GaussianRelease(noise),)


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
        score: dict[str, Any] = read_document(folder / SCORE).get("score", {})
        return score  # empty: a crash came between charge and score
    sigma = release.noise_multiplier
    document: dict[str, Any] = {"charged": release.as_dict(), "rows": rows}
    write_whole(folder / SCORE, strict_json(document, indent=1) + "\n")
    if isinstance(generator, SecureRandom):
        normal = float(generator.normal((1,)))
    else:
        normal = float(torch.randn((), generator=generator, dtype=torch.float64))
    noisy = (round(accuracy * rows) + sigma * normal) / rows
    score = {"accuracy": round(noisy, 6), "standard_deviation": sigma / rows, "samples": rows}
    write_whole(folder / SCORE, strict_json(document | {"score": score}, indent=1) + "\n")
    return score


def read_card(folder: str | os.PathLike[str]) -> PrivacyCard:
    """Read the privacy report of a run folder, for all steps recorded so far.

    Parameters
    ----------
    folder : path
        Folder of a finished or unfinished run.

    Returns
    -------
    PrivacyCard
        Report with the digest of the ledger, ``sha256sum privacy.jsonl``.

    Raises
    ------
    ParameterError
        If the folder has no private run, or the run has no recorded step.

    Formal guarantees
    -----------------
    As for :func:`dprmt.training.harness.train`, for the number of steps in the ledger over all starts; random
    allocation counts whole epochs.

    Examples
    --------
    >>> read_card("nowhere")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: run must be the folder of a private run with a recorded step, got ...
    """
    path = Path(folder)
    record, charged = read_run(path), charged_steps(path)
    step = dict(record.get("step", {}))
    if not charged or step.pop("mechanism", None) != DPSGD.__name__:
        raise ParameterError("run", str(folder), "the folder of a private run with a recorded step")
    mechanism = mechanism_from_dict({"kind": DPSGD.kind, **step})
    delta = parse_toml((path / CONFIG).read_bytes())["privacy"]["delta"]
    scores = [] if (score := record.get("score_release")) is None or not (path / SCORE).exists() else [score]
    unit = str(record.get("unit_of_privacy", "one sample of the training set"))
    return privacy_card(
        compose([(mechanism, whole_epochs(charged, mechanism.steps_per_epoch)), *map(release_from_dict, scores)]),
        delta,
        unit=f"{unit}, and one row of the validation set" if scores else unit,
        released=(*_RELEASED, *([f"`{SCORE}`: the accuracy on validation data, with noise"] if scores else [])),
        not_covered=(
            *([] if record.get("noise_is_secret", True) else ["anyone who knows the noise seed: no privacy from them"]),
            *(f"exact {line}" if scores and line == _SCORES else line for line in _NOT_COVERED),
        ),
        ledger={"file": FILE, "charged": charged, "sha256": _digest(path)},
    )


def read_sweep_card(folder: str | os.PathLike[str]) -> PrivacyCard:
    """Read the privacy report of all releases of a sweep, which covers choosing the best run.

    Parameters
    ----------
    folder : path
        A folder of run folders. All runs in it with a recorded step count, including stopped ones.

    Returns
    -------
    PrivacyCard
        Report at the smallest δ of the runs. Its digest covers all ledgers, in the order of the folders' names.

    Raises
    ------
    ParameterError
        If no run has a recorded step, one has no privacy (``privacy.clip_only``), or their noise comes from a seed,
        because releases with equal noise can be subtracted.

    Formal guarantees
    -----------------
    The phases of all runs, and recorded scores, form one composition. So its ε covers choosing a run by its releases,
    including scores of ``evaluation.private_noise``, by any rule. If the number of runs is drawn at random and only
    the best is released, :func:`dprmt.accounting.private_selection` is cheaper. A choice by exact scores depends on
    the validation data, which no ε here covers.

    Examples
    --------
    >>> read_sweep_card("nowhere")
    Traceback (most recent call last):
    ...
    dprmt._validation.ParameterError: folder must be the folder of a sweep with a recorded step, got 'nowhere'
    """
    runs = sorted(path.parent for path in Path(folder).glob(f"*/{FILE}") if charged_steps(path.parent))
    if not runs:
        raise ParameterError("folder", str(folder), "the folder of a sweep with a recorded step")
    for run in runs:
        if not read_run(run).get("noise_is_secret", True):
            allowed = "the folder of runs without a noise seed, because equal noise can be subtracted"
            raise ParameterError("folder", str(run), allowed)
    cards = [read_card(run) for run in runs]
    return privacy_card(
        compose([phase for card in cards for phase in card.run.phases]),
        min(card.delta for card in cards),
        unit="; ".join(dict.fromkeys(card.unit for card in cards)),
        released=(
            f"all {len(runs)} runs, of each:",
            *dict.fromkeys(line for card in cards for line in card.released),
            "the choice of a run by any rule that reads these",
        ),
        not_covered=tuple(dict.fromkeys(line for card in cards for line in card.not_covered if line != _CHOICE)),
        ledger={"runs": len(runs), "charged": sum(card.ledger["charged"] for card in cards), "sha256": _digest(*runs)},
    )


def write_card(folder: Path, card: PrivacyCard) -> None:
    """Write the card of a run or of a sweep, for machines and for readers."""
    write_whole(folder / CARD, strict_json(card.as_dict(), indent=1) + "\n", public=True)
    write_whole(folder / FOR_READERS, card.as_markdown(f"dprmt verify {CARD}"), public=True)


def _digest(*runs: Path) -> str:
    return hashlib.sha256(b"".join((run / FILE).read_bytes() for run in runs)).hexdigest()
