"""A training run whose privacy is asked for: from options, from phases, or from what ``--json`` printed before."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dprmt._files import parse_json, parse_toml
from dprmt._validation import ParameterError, check_count, did_you_mean, needing
from dprmt.accounting import (
    DPSGD,
    Composition,
    CyclicPoisson,
    ExactNorms,
    FixedOrder,
    FixedSize,
    RandomAllocation,
    Release,
    calibrate,
    compose,
    fixed,
    release_from_dict,
)
from dprmt.cli._options import Option, grouped, read_options, real
from dprmt.cli._values import (
    ALSO,
    BESIDE,
    NOISE,
    OF_A_PHASE,
    analysis_of,
    neighbours_of,
    norms_label,
    norms_of,
    sampling_of,
)
from dprmt.statements import mechanism_from_dict, relation_label

_OPTIONS = {option.dest: option for option in OF_A_PHASE}
_NEEDED = ("delta", "epsilon", "budget")
_TABLES = "a TOML file with a list of tables [[phases]]"
_PAIRS = "options of a phase without their dashes, such as noise-multiplier=2,steps=100"
_FORM = "a file with what --json printed, or - for standard input"
_OF_A_RUN = "of a run: one with a mechanism and steps, or with phases"
_SCHEMES = {
    CyclicPoisson: ", cyclic Poisson sampling",
    FixedSize: ", fixed-size batches",
    RandomAllocation: ", random allocation",
    FixedOrder: ", fixed order",
}


def read_record(name: str, text: str, command: str, keys: Collection[str] = ()) -> dict[str, Any]:
    """What a command's ``--json`` printed, with any of these keys."""
    try:
        content = sys.stdin.read() if text == "-" else Path(text).read_text(encoding="utf-8")
        record = parse_json(content)
    except (OSError, ValueError) as error:
        raise ParameterError(name, text, f"{_FORM} ({str(error).splitlines()[0]})") from None
    if not isinstance(record, dict) or (keys and not set(keys) & set(record)):
        raise ParameterError(name, text, f"{_FORM}, {command}")
    return record


def of_record(command: str, *keys: str) -> Option:
    """``--from-json`` of a command that answers no question about a run's privacy."""
    words = f"ask again what --json of {command} recorded"
    return Option(
        "--from-json", lambda name, text: read_record(name, text, f"of {command}", keys), words, metavar="FILE"
    )


def _run_record(name: str, text: str) -> dict[str, Any]:
    return read_record(name, text, _OF_A_RUN, ("mechanism", "phases"))


def _spent(name: str, text: str) -> Composition:
    if Path(text).is_dir():
        with needing("train"):
            from dprmt.training.harness import read_card

        return read_card(text).run
    return composition_of(_run_record(name, text))


def _phases_of_file(name: str, text: str) -> list[dict[str, str]]:
    try:
        content = parse_toml(Path(text).read_bytes())
    except (OSError, ValueError) as error:
        raise ParameterError(name, text, f"{_TABLES} ({str(error).splitlines()[0]})") from None
    phases = content.pop("phases", None)
    if not isinstance(phases, list) or not phases or not all(isinstance(phase, dict) for phase in phases):
        raise ParameterError(name, text, _TABLES)
    for key in [*content, *(key for phase in phases for key in phase)]:
        if key not in _OPTIONS:
            raise ParameterError(name, key, f"{_TABLES} whose keys are {', '.join(_OPTIONS)}")
    return [{key: _text(value) for key, value in {**content, **phase}.items()} for phase in phases]


def _text(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _phases_of_texts(name: str, texts: Sequence[str]) -> list[dict[str, str]]:
    return [dict(_pair(name, pair) for pair in text.split(",")) for text in texts]


def _pair(name: str, text: str) -> tuple[str, str]:
    key, given, value = (part.strip() for part in text.partition("="))
    option = _OPTIONS.get(key.replace("-", "_"))
    if option is None:
        close = did_you_mean(key, [option.flag.lstrip("-") for option in OF_A_PHASE])
        raise ParameterError(name, text, f"{_PAIRS}{close}")
    if not given and option.is_flag:
        return option.dest, "yes"
    if not value:
        raise ParameterError(name, text, f"{_PAIRS}, each with its value")
    return option.dest, value


DELTA = Option("--delta", real(low=1e-290, high=1.0, high_open=True), "δ, in [1e-290, 1)", metavar="DELTA")
EPSILON = Option("--epsilon", real(low=0.0, high=1e17), "ε, in [0, 1e17]", metavar="EPSILON")
_PHASES = Option("--phases", _phases_of_file, "TOML file of [[phases]]", metavar="FILE")
_PHASE = Option(
    "--phase",
    _phases_of_texts,
    "steps=100,noise-multiplier=2, repeatable",
    metavar="KEY=VALUE,…",
    is_list=True,
)
FROM_JSON = Option("--from-json", _run_record, "a run that --json printed before", metavar="FILE")
SPENT = Option("--spent", _spent, "run folder, privacy report or --json output", metavar="PLACE")
RUN = (
    *OF_A_PHASE,
    *grouped("several phases, or what else is or was released", _PHASE, _PHASES, FROM_JSON, ALSO, SPENT),
)
"""Options of a run in one phase or more."""


@dataclass(frozen=True)
class Run:
    """A run in one phase or more, and what is released in addition.

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

    def _free(self) -> tuple[bool, ...]:
        return self.asked or (True,) * len(self.phases)

    def composition(self) -> Composition:
        """The phases, and what else is released or was spent before, composed."""
        phases = [phase if free else fixed(phase) for phase, free in zip(self.phases, self._free(), strict=True)]
        return Composition([*phases, *self.releases, *([] if self.spent is None else [fixed(self.spent)])])

    def calibrated(self, **target: float) -> Run:
        """The same with as little noise as a target in words of :func:`calibrate` allows; phases keep their ratios."""
        before = self.composition()
        after = calibrate(before, **target)
        old, new = ([one for one, _ in run.free_phases() if isinstance(one, DPSGD)] for run in (before, after))
        found = dict(zip(old, new, strict=True))
        phases = zip(self.phases, self._free(), strict=True)
        return replace(self, phases=tuple((found[one] if free else one, steps) for (one, steps), free in phases))

    def document(self) -> dict[str, Any]:
        """The run as a JSON object, with its neighbouring relation."""
        described = [_described(mechanism, steps) for mechanism, steps in self.phases]
        document: dict[str, Any] = {"phases": described} if self.in_phases else dict(described[0])
        if self.releases:
            document["also"] = [release.as_dict() for release in self.releases]
        if self.spent is not None:
            document["spent"] = document_of(self.spent)
        return {**document, "neighbours": self.composition().neighbours.kind}

    def label(self) -> str:
        """One line on norms, sampling and neighbouring relation."""
        labels = list(dict.fromkeys(_label(mechanism) for mechanism, _ in self.phases))
        label = f"{len(self.phases)} phases: {'; '.join(labels)}" if self.in_phases else labels[0]
        more = f", {len(self.releases)} more released" if self.releases else ""
        before = "" if self.spent is None else ", with what was spent before"
        return f"{label}{more}{before}; {relation_label(self.composition().neighbours)}"


def phases_of(record: Mapping[str, Any]) -> tuple[tuple[DPSGD, int], ...]:
    """A record's mechanisms and numbers of steps."""
    stated = record.get("phases", [record])
    try:
        return tuple((_mechanism(phase["mechanism"]), check_count("steps", phase["steps"])) for phase in stated)
    except (KeyError, TypeError, AttributeError) as error:
        raise _incomplete(error) from None


def _mechanism(record: Mapping[str, Any]) -> DPSGD:
    try:
        return mechanism_from_dict(record)
    except ParameterError as error:
        name = "from_json" if error.name == "mechanism" else error.name
        raise ParameterError(name, error.value, error.allowed, error.fix) from None


def releases_of(record: Mapping[str, Any]) -> tuple[Release, ...]:
    """What a record says is released in addition."""
    try:
        return tuple(release_from_dict(release) for release in record.get("also", ()))
    except (TypeError, ValueError) as error:
        raise _incomplete(error) from None


def _spent_of(record: Mapping[str, Any]) -> Composition | None:
    return composition_of(record["spent"]) if isinstance(record.get("spent"), Mapping) else None


def composition_of(record: Mapping[str, Any]) -> Composition:
    """The whole run of a record."""
    spent = _spent_of(record)
    return compose([*phases_of(record), *releases_of(record), *([] if spent is None else [spent])])


def document_of(run: Composition) -> dict[str, Any]:
    """A record of a whole run, which :func:`composition_of` reads."""
    also = [release.as_dict() for release, times in run.phases if isinstance(release, Release) for _ in range(times)]
    phases = [{"mechanism": one.as_dict(), "steps": steps} for one, steps in run.phases if isinstance(one, DPSGD)]
    return {"phases": phases, "also": also}


def _incomplete(error: Exception) -> ParameterError:
    return ParameterError("from_json", f"a record without {error}", _FORM)


def read_run(
    namespace: argparse.Namespace,
    others: tuple[Option, ...],
    unknown: Mapping[str, str] = MappingProxyType({}),
    targets: tuple[Option, ...] = (),
) -> tuple[Run, dict[str, Any]]:
    """The run, and the values of a command's other options.

    ``unknown``: what is asked for of a phase, with the text to begin with where it is not given; phases that give it
    are fixed where others do not. ``targets``: options of which not all are given; a record's count where none is.
    """
    if getattr(namespace, FROM_JSON.dest, None) is not None:
        return _from_record(namespace, others, targets)
    for option in others:
        if option.dest in _NEEDED and getattr(namespace, option.dest) is None:
            raise ParameterError(option.dest, None, "given, or in a record that --from-json names")
    whole = read_options(namespace, (ALSO, SPENT))
    texts = {name: getattr(namespace, name, None) for name in _OPTIONS}
    tables = _tables(namespace, {name: text for name, text in texts.items() if text is not None})
    phases: tuple[tuple[DPSGD, int], ...]
    asked: tuple[bool, ...] = ()
    if tables is None:
        instead = "--phases" if hasattr(namespace, _PHASES.dest) else "a record that --from-json names"
        phases = (_phase(texts, unknown, f"given, or {instead}"),)
    else:
        phases = tuple(_phase(table, unknown, "given in every phase, or for all of them") for table in tables)
        open_ended = tuple(all(not table.get(name) for name in _asked_names(unknown)) for table in tables)
        asked = open_ended if unknown and any(open_ended) else ()
    run = Run(phases, tables is not None, whole[ALSO.dest] or (), asked, whole[SPENT.dest])
    values = read_options(namespace, (*others, *targets))
    samples = texts["samples"] and _OPTIONS["samples"].value(texts["samples"])
    if samples and values.get("delta") is not None and values["delta"] * samples > 1.0:
        level = f"delta = {values['delta']:g} is above 1/N = {1 / samples:.3g}"
        sys.stderr.write(f"note: {level}: publishing one sample would satisfy it\n")
    return run, values


def _asked_names(unknown: Mapping[str, str]) -> tuple[str, ...]:
    return ("steps", "epochs") if "steps" in unknown else tuple(unknown)


def _tables(namespace: argparse.Namespace, of_all: dict[str, str]) -> list[dict[str, str]] | None:
    """The texts of every phase's options, if phases were given; options of the run are for each ``--phase``."""
    given = [option for option in (_PHASE, _PHASES) if getattr(namespace, option.dest, None) is not None]
    if not given:
        return None
    if _PHASES in given:
        for name, text in {**of_all, **({_PHASE.dest: "given"} if _PHASE in given else {})}.items():
            raise ParameterError(name, text, "left out where --phases is given")
    return [{**of_all, **table} for table in given[0].value(getattr(namespace, given[0].dest))]


def _from_record(
    namespace: argparse.Namespace, others: tuple[Option, ...], targets: tuple[Option, ...]
) -> tuple[Run, dict[str, Any]]:
    refuse_beside("--from-json", namespace, (option for option in RUN if option.dest != FROM_JSON.dest))
    record = FROM_JSON.value(namespace.from_json)
    own = targets if all(getattr(namespace, option.dest) is None for option in targets) else ()
    for option in (*others, *own):
        if getattr(namespace, option.dest) is None:
            setattr(namespace, option.dest, _stated(record, option))
            if option in others and option.dest in _NEEDED and getattr(namespace, option.dest) is None:
                raise ParameterError(option.dest, None, "given: the record of --from-json does not state it")
    run = Run(phases_of(record), "phases" in record, releases_of(record), spent=_spent_of(record))
    return run, read_options(namespace, (*others, *targets))


def refuse_beside(flag: str, namespace: argparse.Namespace, options: Any) -> None:
    """Refuse options that mean nothing next to a flag."""
    for option in options:
        given = getattr(namespace, option.dest, None)
        if given is not None:
            raise ParameterError(option.dest, given, f"left out where {flag} is given")


def _stated(record: Mapping[str, Any], option: Option) -> str | None:
    """What the record states under an option's name, or as its target, as the option's text."""
    for name in (option.dest, f"target_{option.dest}"):
        value = record.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return repr(value)
    return None


def _phase(texts: dict[str, Any], unknown: Mapping[str, str], missing: str) -> tuple[DPSGD, int]:
    """One phase, from the texts of its options: the one place where options become values."""
    given = {**dict.fromkeys(_OPTIONS), **texts}
    if all(not given[name] for name in _asked_names(unknown)):
        for name, text in unknown.items():
            by_epochs = name == "steps" and given["sampling"] in ("allocation", "fixed-order")
            given["epochs" if by_epochs else name] = text
    if given[NOISE.dest] is None:
        raise ParameterError(NOISE.dest, None, missing)
    values = read_options(argparse.Namespace(**given), OF_A_PHASE)
    sampling, steps = sampling_of(values)
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
    by_curves = "" if mechanism.has_pairs else ", composed curves"
    most = getattr(mechanism.sampling, "at_most", None)
    scheme = f", batches of at most {most}" if most else _SCHEMES.get(type(mechanism.sampling), "")
    beside = f", {len(mechanism.beside)} more of each batch" if mechanism.beside else ""
    return f"{norms_label(mechanism.norms)}{scheme}{beside}{by_curves}"
