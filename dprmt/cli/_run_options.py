"""A training run whose privacy is asked for, in one phase or several: from flat options to mechanisms and steps."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from dprmt._validation import ParameterError
from dprmt.accounting import (
    DPSGD,
    Composition,
    CyclicPoisson,
    ExactNorms,
    FixedOrder,
    FixedSize,
    Poisson,
    RandomAllocation,
    Release,
    calibrate,
    fixed,
)
from dprmt.cli._options import Option, grouped, read_options, real
from dprmt.cli._phase_options import phase_options
from dprmt.cli._records import FROM_JSON, SPENT, composition_of, document_of, phases_of, releases_of, stated
from dprmt.cli._sampling_options import SAMPLING, batches_of
from dprmt.cli._value_options import ALSO, BESIDE, NEIGHBOURS, NORMS, analysis_of, neighbours_of, norms_label, norms_of
from dprmt.statements import relation_label

NOISE = Option(
    "--noise-multiplier",
    real(low=1e-3, high=1e6),
    "σ, noise in units of the clipping norm; in [1e-3, 1e6]",
    metavar="SIGMA",
)
DELTA = Option("--delta", real(low=1e-290, high=1.0, high_open=True), "δ, in [1e-290, 1)", metavar="D")
EPSILON = Option("--epsilon", real(low=0.0, high=1e17), "ε, in [0, 1e17]", metavar="E")
_NEEDED = ("delta", "epsilon", "budget")
_OF_A_PHASE = (*grouped("noise and batches", NOISE, *SAMPLING, BESIDE), *NORMS, *NEIGHBOURS)
_KEYS = tuple(option.dest for option in _OF_A_PHASE)
PHASES, PHASE = phase_options(_OF_A_PHASE)
_WHOLE_RUNS = grouped("several phases, or a run from a file", PHASE, PHASES, FROM_JSON)
RUN = (*_OF_A_PHASE, *_WHOLE_RUNS, ALSO, SPENT)
"""Options of a run in one phase or more."""
RUN_WITHOUT_NOISE = tuple(option for option in RUN if option.dest != NOISE.dest)
"""The same where the noise is what is asked for: of the phases without one, or of all by their ratios."""


@dataclass(frozen=True)
class Run:
    """A run in one phase or more, and what is released beside it.

    Attributes
    ----------
    phases : tuple of (DPSGD, int)
        Mechanisms and how many steps each is run.
    in_phases : bool
        Whether they were given as phases.
    releases : tuple of Release
        What is released in addition to training.
    asked : tuple of bool
        Of each phase, whether its noise or its length is what is asked for; the others are fixed.
    spent : Composition or None
        What was spent before.
    """

    phases: tuple[tuple[DPSGD, int], ...]
    in_phases: bool = False
    releases: tuple[Release, ...] = ()
    asked: tuple[bool, ...] = ()
    spent: Composition | None = None

    def composition(self) -> Composition:
        """The phases, and what else is released or was spent before, composed."""
        asked = self.asked or (True,) * len(self.phases)
        phases = [phase if free else fixed(phase) for phase, free in zip(self.phases, asked, strict=True)]
        before = [] if self.spent is None else [fixed(self.spent)]
        return Composition([*phases, *self.releases, *before])

    def calibrated(self, **target: float) -> Run:
        """The same with as little noise as a target in words of :func:`calibrate` allows; phases keep their ratios."""
        before = self.composition()
        after = calibrate(before, **target)
        old, new = ([one for one, _ in run.free_phases() if isinstance(one, DPSGD)] for run in (before, after))
        found = dict(zip(old, new, strict=True))
        asked = self.asked or (True,) * len(self.phases)
        moved = [(found[one] if free else one, steps) for (one, steps), free in zip(self.phases, asked, strict=True)]
        return replace(self, phases=tuple(moved))

    def document(self) -> dict[str, Any]:
        """The run as a JSON object, with its neighbouring relation."""
        described = [_described(mechanism, steps) for mechanism, steps in self.phases]
        whose = {"neighbours": self.composition().neighbours.kind}
        also: dict[str, Any] = {"also": [release.as_dict() for release in self.releases]} if self.releases else {}
        if self.spent is not None:
            also["spent"] = document_of(self.spent)
        return {**({"phases": described} if self.in_phases else described[0]), **also, **whose}

    def label(self) -> str:
        """One line on norms, sampling and neighbouring relation."""
        labels = list(dict.fromkeys(_label(mechanism) for mechanism, _ in self.phases))
        label = f"{len(self.phases)} phases: {'; '.join(labels)}" if self.in_phases else labels[0]
        beside = f", {len(self.releases)} more released" if self.releases else ""
        before = "" if self.spent is None else ", with what was spent before"
        return f"{label}{beside}{before}; {relation_label(self.composition().neighbours)}"


def read_run(
    namespace: argparse.Namespace,
    others: tuple[Option, ...],
    unknown: Mapping[str, str] = MappingProxyType({}),
    targets: tuple[Option, ...] = (),
) -> tuple[Run, dict[str, Any]]:
    """The run, and the values of a command's other options.

    ``unknown``: what is asked for of a phase, with the text to begin with where it is not given; phases that give it
    are fixed where others do not. ``targets``: of which not all are; a record's count where none is.
    """
    if getattr(namespace, FROM_JSON.dest, None) is not None:
        return _from_record(namespace, others, targets)
    for option in others:
        if option.dest in _NEEDED and getattr(namespace, option.dest) is None:
            raise ParameterError(option.dest, None, "given, or in a record that --from-json names")
    releases = read_options(namespace, (ALSO,))[ALSO.dest] or () if hasattr(namespace, ALSO.dest) else ()
    asked = {option.dest: getattr(namespace, option.dest, None) for option in _OF_A_PHASE}
    spent = read_options(namespace, (SPENT,))[SPENT.dest] if hasattr(namespace, SPENT.dest) else None
    tables = _tables(namespace, asked)
    if tables is None:
        instead = "--phases" if hasattr(namespace, PHASES.dest) else "a record that --from-json names"
        run = Run((_phase(asked, unknown, f"given, or {instead}"),), releases=releases, spent=spent)
    else:
        missing = "given in every phase, or for all of them"
        phases = tuple(_phase(table, unknown, missing) for table in tables)
        open_ended = tuple(all(not table.get(name) for name in _lengths(unknown)) for table in tables)
        run = Run(phases, True, releases, open_ended if unknown and any(open_ended) else (), spent)
    values = read_options(namespace, (*others, *targets))
    _note_a_large_delta(namespace, values)
    return run, values


def _lengths(unknown: Mapping[str, str]) -> tuple[str, ...]:
    """Options that say what is asked for."""
    return ("steps", "epochs") if "steps" in unknown else tuple(unknown)


def _note_a_large_delta(namespace: argparse.Namespace, values: dict[str, Any]) -> None:
    samples = getattr(namespace, "samples", None)
    if samples is None or values.get("delta") is None:
        return
    (count,) = (option.read(option.dest, samples) for option in SAMPLING if option.dest == "samples")
    if values["delta"] * count > 1.0:
        said = (
            f"note: delta = {values['delta']:g} is above 1/N = {1 / count:.3g}: publishing one sample would satisfy it"
        )
        sys.stderr.write(said + "\n")


def _tables(namespace: argparse.Namespace, asked: dict[str, Any]) -> list[dict[str, str]] | None:
    """The texts of every phase's options, if phases were given; options of the run are for each ``--phase``."""
    of_all = {name: text for name, text in asked.items() if text is not None}
    given = [option for option in (PHASE, PHASES) if getattr(namespace, option.dest, None) is not None]
    if not given:
        return None
    if PHASES in given:
        for name, text in {**of_all, **({PHASE.dest: "given"} if PHASE in given else {})}.items():
            raise ParameterError(name, text, "left out where --phases is given")
    tables = given[0].read(given[0].dest, getattr(namespace, given[0].dest))
    return [{**of_all, **table} for table in tables]


def _from_record(
    namespace: argparse.Namespace, others: tuple[Option, ...], targets: tuple[Option, ...]
) -> tuple[Run, dict[str, Any]]:
    for option in (*_OF_A_PHASE, PHASE, PHASES, ALSO, SPENT):
        if getattr(namespace, option.dest, None) is not None:
            given = getattr(namespace, option.dest)
            raise ParameterError(option.dest, given, "left out where --from-json is given")
    record = FROM_JSON.read(FROM_JSON.dest, namespace.from_json)
    own = targets if all(getattr(namespace, option.dest) is None for option in targets) else ()
    for option in (*others, *own):
        if getattr(namespace, option.dest) is None:
            setattr(namespace, option.dest, stated(record, option))
            if option in others and option.dest in _NEEDED and getattr(namespace, option.dest) is None:
                raise ParameterError(option.dest, None, "given: the record of --from-json does not state it")
    spent = composition_of(record["spent"]) if isinstance(record.get("spent"), Mapping) else None
    run = Run(phases_of(record), "phases" in record, releases_of(record), spent=spent)
    return run, read_options(namespace, (*others, *targets))


def _phase(texts: dict[str, Any], unknown: Mapping[str, str], missing: str) -> tuple[DPSGD, int]:
    """One phase, from the texts of its options: the one place where options become values."""
    given = {**dict.fromkeys(_KEYS), **texts}
    if all(not given[name] for name in _lengths(unknown)):
        for name, text in unknown.items():
            by_epochs = name == "steps" and given["sampling"] in ("allocation", "fixed-order")
            given["epochs" if by_epochs else name] = text
    if given[NOISE.dest] is None:
        raise ParameterError(NOISE.dest, None, missing)
    values = read_options(argparse.Namespace(**given), _OF_A_PHASE)
    sampling, steps = batches_of(values)
    beside = values[BESIDE.dest] or ()
    return DPSGD(values[NOISE.dest], sampling, norms_of(values), neighbours_of(values), beside), steps


def _described(mechanism: DPSGD, steps: int) -> dict[str, Any]:
    described = {"mechanism": mechanism.as_dict(), "steps": steps, "analysis": _analysis(mechanism)}
    if mechanism.sampling.steps_per_epoch is not None:
        described["epochs"] = steps // mechanism.sampling.steps_per_epoch
    return described


def _analysis(mechanism: DPSGD) -> str:
    if not mechanism.has_pairs:
        return "composed curves"
    # What public probes are charged gives way to curves where these are smaller.
    norms = mechanism.norms
    either = mechanism.neighbours.is_replacement and not isinstance(norms, ExactNorms) and not norms.secret
    return f"{analysis_of(norms)}{' or composed curves' if either else ''}"


def _label(mechanism: DPSGD) -> str:
    words = {
        CyclicPoisson: ", cyclic Poisson sampling",
        FixedSize: ", fixed-size batches",
        RandomAllocation: ", random allocation",
        FixedOrder: ", fixed order",
    }
    sampled = words.get(type(mechanism.sampling), "")
    if isinstance(mechanism.sampling, Poisson) and mechanism.sampling.at_most:
        sampled = f", batches of at most {mechanism.sampling.at_most}"
    beside = f", {len(mechanism.beside)} more of each batch" if mechanism.beside else ""
    by_curves = "" if mechanism.has_pairs else ", composed curves"
    return f"{norms_label(mechanism.norms)}{sampled}{beside}{by_curves}"
