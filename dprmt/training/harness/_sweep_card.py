"""The privacy card of all runs of a sweep: what a choice among them costs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from dprmt._files import strict_json, write_whole
from dprmt._validation import ParameterError
from dprmt.accounting import compose
from dprmt.statements import PrivacyCard, privacy_card
from dprmt.training.harness._privacy_card import CARD, CHOICE, FOR_READERS, SCORES, read_card
from dprmt.training.harness._run_record import read_run
from dprmt.training.private_run._ledger import FILE, charged_steps

_RELEASED = "the choice of a run by any rule that reads what the runs released"
_EXACT_SCORES = "a choice by exact scores, which are about the data they are taken on"


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
    dprmt._validation.ParameterError: folder must be that of a sweep with a step that was charged, got 'nowhere'
    """
    runs = sorted(path.parent for path in Path(folder).glob(f"*/{FILE}") if charged_steps(path.parent))
    if not runs:
        raise ParameterError("folder", str(folder), "that of a sweep with a step that was charged")
    for run in runs:
        if not read_run(run).get("noise_is_secret", True):
            allowed = "that of runs whose noise was drawn, not made of a seed: what shares its noise can be subtracted"
            raise ParameterError("folder", str(run), allowed)
    cards = [read_card(run) for run in runs]
    released = [line for card in cards for line in card.released]
    beside = [line for card in cards for line in card.not_covered if line not in (CHOICE, SCORES)]
    if any(SCORES in card.not_covered for card in cards):
        beside.insert(0, _EXACT_SCORES)
    digest = hashlib.sha256(b"".join((run / FILE).read_bytes() for run in runs)).hexdigest()
    return privacy_card(
        compose([phase for card in cards for phase in card.run.phases]),
        min(card.delta for card in cards),
        unit="; ".join(dict.fromkeys(card.unit for card in cards)),
        released=(f"all {len(runs)} runs, of each:", *dict.fromkeys(released), _RELEASED),
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
