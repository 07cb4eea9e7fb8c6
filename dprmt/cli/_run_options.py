"""A training run whose privacy is asked for, in one phase or several: from flat options to mechanisms and steps."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any, cast

from dprmt._validation import ParameterError
from dprmt.accounting import (
    DPSGD,
    Composition,
    ExactNorms,
    FixedOrder,
    RandomAllocation,
    Release,
    calibrate,
)
from dprmt.cli._options import Option, grouped, read_options, real
from dprmt.cli._phase_options import phase_options
from dprmt.cli._records import FROM_JSON, phases_of, releases_of, stated
from dprmt.cli._sampling_options import SAMPLING, batches_of
from dprmt.cli._value_options import ALSO, NEIGHBOURS, NORMS, analysis_of, neighbours_of, norms_label, norms_of
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
_OF_A_PHASE = (*grouped("noise and batches", NOISE, *SAMPLING), *NORMS, *NEIGHBOURS)
_KEYS = tuple(option.dest for option in _OF_A_PHASE)
PHASES, PHASE = phase_options(_OF_A_PHASE)
_WHOLE_RUNS = grouped("several phases, or a run from a file", PHASE, PHASES, FROM_JSON)
RUN = (*_OF_A_PHASE, *_WHOLE_RUNS, ALSO)
"""Options of a run in one phase or more."""
RUN_WITHOUT_NOISE = (*_OF_A_PHASE[1:], *_WHOLE_RUNS)
"""The same where the noise is what is asked for; that of phases then counts by its ratios."""


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
        What is released beside training.
    """

    phases: tuple[tuple[DPSGD, int], ...]
    in_phases: bool = False
    releases: tuple[Release, ...] = ()

    def composition(self) -> Composition:
        """The phases, and what else is released, composed."""
        return Composition([*self.phases, *self.releases])

    def calibrated(self, **target: float) -> Run:
        """The same with as little noise as a target in words of :func:`calibrate` allows; phases keep their ratios."""
        before = self.composition()
        after = calibrate(before, **target)
        found = {old: new for (old, _), (new, _) in zip(before.phases, after.phases, strict=True)}
        return replace(self, phases=tuple((cast("DPSGD", found[old]), steps) for old, steps in self.phases))

    def document(self) -> dict[str, Any]:
        """The run as a JSON object, with its neighbouring relation."""
        described = [_described(mechanism, steps) for mechanism, steps in self.phases]
        whose = {"neighbours": self.composition().neighbours.kind}
        also = {"also": [release.as_dict() for release in self.releases]} if self.releases else {}
        return {**({"phases": described} if self.in_phases else described[0]), **also, **whose}

    def label(self) -> str:
        """One line on norms, sampling and neighbouring relation."""
        labels = list(dict.fromkeys(_label(mechanism) for mechanism, _ in self.phases))
        label = f"{len(self.phases)} phases: {'; '.join(labels)}" if self.in_phases else labels[0]
        beside = f", {len(self.releases)} more released" if self.releases else ""
        return f"{label}{beside}; {relation_label(self.composition().neighbours)}"


def read_run(
    namespace: argparse.Namespace,
    others: tuple[Option, ...],
    noise_multiplier: str | None = None,
    targets: tuple[Option, ...] = (),
) -> tuple[Run, dict[str, Any]]:
    """The run, and the values of a command's other options.

    ``noise_multiplier``: where none is given. ``targets``: of which not all are; a record's count where none is.
    """
    if getattr(namespace, FROM_JSON.dest, None) is not None:
        return _from_record(namespace, others, targets)
    for option in others:
        if option.dest in _NEEDED and getattr(namespace, option.dest) is None:
            raise ParameterError(option.dest, None, "given, or in a record that --from-json names")
    releases = read_options(namespace, (ALSO,))[ALSO.dest] or () if hasattr(namespace, ALSO.dest) else ()
    asked = {option.dest: getattr(namespace, option.dest, None) for option in _OF_A_PHASE}
    tables = _tables(namespace, asked)
    if tables is None:
        instead = "--phases" if hasattr(namespace, PHASES.dest) else "a record that --from-json names"
        run = Run((_phase(asked, noise_multiplier, f"given, or {instead}"),), releases=releases)
    else:
        missing = "given in every phase, or for all of them"
        run = Run(tuple(_phase(table, noise_multiplier, missing) for table in tables), True, releases)
    return run, read_options(namespace, (*others, *targets))


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
    for option in (*_OF_A_PHASE, PHASE, PHASES, ALSO):
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
    run = Run(phases_of(record), "phases" in record, releases_of(record))
    return run, read_options(namespace, (*others, *targets))


def _phase(texts: dict[str, Any], noise_multiplier: str | None, missing: str) -> tuple[DPSGD, int]:
    """One phase, from the texts of its options: the one place where options become values."""
    given = {**dict.fromkeys(_KEYS), **texts}
    given[NOISE.dest] = given[NOISE.dest] or noise_multiplier
    if given[NOISE.dest] is None:
        raise ParameterError(NOISE.dest, None, missing)
    values = read_options(argparse.Namespace(**given), _OF_A_PHASE)
    sampling, steps = batches_of(values)
    return DPSGD(values[NOISE.dest], sampling, norms_of(values), neighbours_of(values)), steps


def _described(mechanism: DPSGD, steps: int) -> dict[str, Any]:
    described = {"mechanism": mechanism.as_dict(), "steps": steps, "analysis": _analysis(mechanism)}
    if mechanism.sampling.steps_per_epoch is not None:
        described["epochs"] = steps // mechanism.sampling.steps_per_epoch
    return described


def _analysis(mechanism: DPSGD) -> str:
    if not mechanism.has_pairs:
        return "composed curves"
    # Potentials of public probes give way to curves where these are smaller.
    norms = mechanism.norms
    either = mechanism.neighbours.is_replacement and not isinstance(norms, ExactNorms) and not norms.secret
    return f"{analysis_of(norms)}{' or composed curves' if either else ''}"


def _label(mechanism: DPSGD) -> str:
    words = {RandomAllocation: ", random allocation", FixedOrder: ", fixed order"}
    sampled = words.get(type(mechanism.sampling), "")
    by_curves = "" if mechanism.has_pairs else ", composed curves"
    return f"{norms_label(mechanism.norms)}{sampled}{by_curves}"
