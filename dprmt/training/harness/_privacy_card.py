"""Privacy report of a run folder, from the folder's files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from dprmt._files import parse_toml, strict_json, write_whole
from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, Release, compose, release_from_dict
from dprmt.statements import PrivacyCard, mechanism_from_dict, privacy_card
from dprmt.training.harness._private_score import SCORE
from dprmt.training.harness._run_folder import CONFIG, read_run
from dprmt.training.private_run._ledger import FILE, charged_steps, whole_epochs

CARD = "privacy_card.json"
FOR_READERS = "privacy_card.md"
_FORM = "the folder of a private run with a recorded step"
_RELEASED = (
    "the trained parameters after every step: `model/`, and of `checkpoint/` the parameters and the optimizer's state",
    "`metrics.jsonl` and `run.json`, except for what stands there under `private`; `privacy.jsonl`, `spectra.npz`",
)
SCORES = "scores on validation or test data, which are about those data"
_EXACT_SCORES = "exact scores, under `private` in `metrics.jsonl`, and scores on test data"
_SCORE_RELEASED = f"`{SCORE}`: the accuracy on validation data, with noise"
CHOICE = "the choice of this run, or of its recipe, among several on the same data"
_NOT_COVERED = (
    "what stands under `private` in `metrics.jsonl` and `run.json`: training losses, sizes of batches, a digest of the"
    " data",
    SCORES,
    CHOICE,
    "the number of samples, names of labels, and all that the recipe says: public",
    "random states and the draws of an epoch that `checkpoint/` holds until the run is finished",
    "whoever reads the process' memory; timing; rounding of sums, and the law of noise in floating point",
)
_CHOSEN = "the choice of a run by any rule that reads what the runs released"
_CHOSEN_BY_SCORES = "a choice by exact scores, which are about the data they are taken on"
_KNOWN = "whoever knows the noise seed: towards them this run has no privacy"


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
        raise ParameterError("run", str(folder), _FORM)
    mechanism = mechanism_from_dict({"kind": DPSGD.kind, **step})
    delta = parse_toml((path / CONFIG).read_bytes())["privacy"]["delta"]
    digest = hashlib.sha256((path / FILE).read_bytes()).hexdigest()
    scores = _scores(path, record)
    unit = str(record.get("unit_of_privacy", "one sample of the training set"))
    return privacy_card(
        compose([(mechanism, whole_epochs(charged, mechanism.steps_per_epoch)), *scores]),
        delta,
        unit=f"{unit}, and one row of the validation set" if scores else unit,
        released=(*_RELEASED, *([_SCORE_RELEASED] if scores else [])),
        not_covered=_not_covered(record, scored=bool(scores)),
        ledger={"file": FILE, "charged": charged, "sha256": digest},
    )


def write_card(folder: Path) -> None:
    """Write a folder's card for machines and for readers."""
    card = read_card(folder)
    write_whole(folder / CARD, strict_json(card.as_dict(), indent=1) + "\n", public=True)
    write_whole(folder / FOR_READERS, card.as_markdown(f"dprmt verify {CARD}"), public=True)


def _scores(path: Path, record: dict[str, Any]) -> list[Release]:
    charged = record.get("score_release")
    return [release_from_dict(charged)] if charged is not None and (path / SCORE).exists() else []


def _not_covered(record: dict[str, Any], *, scored: bool) -> tuple[str, ...]:
    known = () if record.get("noise_is_secret", True) else (_KNOWN,)
    covered = tuple(_EXACT_SCORES if scored and line == SCORES else line for line in _NOT_COVERED)
    return (*known, *covered)


def read_sweep_card(folder: str | os.PathLike[str]) -> PrivacyCard:
    """Read the privacy report of all releases of a sweep, which covers choosing the best run.

    Parameters
    ----------
    folder : path
        The ``out`` folder of :func:`dprmt.training.harness.sweep`. All runs in it with a recorded step count,
        including stopped runs and runs of earlier calls with other values.

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
    released = [line for card in cards for line in card.released]
    beside = [line for card in cards for line in card.not_covered if line not in (CHOICE, SCORES)]
    if any(SCORES in card.not_covered for card in cards):
        beside.insert(0, _CHOSEN_BY_SCORES)
    digest = hashlib.sha256(b"".join((run / FILE).read_bytes() for run in runs)).hexdigest()
    return privacy_card(
        compose([phase for card in cards for phase in card.run.phases]),
        min(card.delta for card in cards),
        unit="; ".join(dict.fromkeys(card.unit for card in cards)),
        released=(f"all {len(runs)} runs, of each:", *dict.fromkeys(released), _CHOSEN),
        not_covered=tuple(dict.fromkeys(beside)),
        ledger={"runs": len(runs), "charged": sum(card.ledger["charged"] for card in cards), "sha256": digest},
    )


def write_sweep_card(folder: Path) -> None:
    """Write it, or take an earlier one away where none can be given."""
    try:
        card = read_sweep_card(folder)
    except ParameterError:
        for name in (CARD, FOR_READERS):
            (folder / name).unlink(missing_ok=True)
        return
    write_whole(folder / CARD, strict_json(card.as_dict(), indent=1) + "\n", public=True)
    write_whole(folder / FOR_READERS, card.as_markdown(f"dprmt verify {CARD}"), public=True)
