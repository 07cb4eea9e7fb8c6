"""A training run whose privacy is asked for: from options, from phases, or from what ``--json`` printed before.

The options of :func:`add_phase_options` are keys of ``--phase`` and ``--phases``, too. A new sampling scheme is a row
of ``_SCHEMES``; a new release is a row of ``_RELEASES``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dprmt._files import parse_toml
from dprmt._validation import ParameterError, check_count, check_real, did_you_mean, needing
from dprmt.accounting import (
    DPSGD,
    AddRemove,
    ApproximateRelease,
    Composition,
    CyclicPoisson,
    ExactNorms,
    FixedOrder,
    FixedSize,
    GaussianDPRelease,
    GaussianRelease,
    Group,
    Hutchinson,
    HutchPlusPlus,
    LaplaceRelease,
    Neighbours,
    Norms,
    Poisson,
    RandomAllocation,
    Release,
    RenyiRelease,
    ReplaceOne,
    Sampling,
    ZCDPRelease,
    ZeroOut,
    calibrate,
    fixed,
    release_from_dict,
)
from dprmt.cli._options import Parser, UsageError, count, leave_out, real, record_of_run, refused, rounded_up
from dprmt.statements import mechanism_from_dict
from dprmt.statements._sentences import norms_label, relation_label

_MOST_STEPS = 10**9
_RATE = "a number or a fraction such as 2000/67349 in [1e-09, 1]"
_TABLES = "a TOML file with a list of tables [[phases]]"
_RELATIONS = {relation.kind: relation for relation in (ZeroOut(), AddRemove(), ReplaceOne())}
_RELEASES: dict[str, Callable[..., Release]] = {
    "gaussian": GaussianRelease,
    "laplace": LaplaceRelease,
    "sampled-laplace": LaplaceRelease,
    "approximate": ApproximateRelease,
    "gaussian-dp": GaussianDPRelease,
    "zcdp": ZCDPRelease,
}
_FORM = (
    "gaussian:SIGMA, laplace:SCALE (in units of what neighbours can change), sampled-laplace:SCALE:RATE, "
    "approximate:EPSILON:DELTA, gaussian-dp:MU, zcdp:RHO or renyi:ORDER=VALUE:…; 9xlaplace:SCALE for nine"
)
_POISSON = ("sample_rate", "steps", "samples", "batch_size")
_EPOCHS = ("steps_per_epoch", "participations")
_MORE = ("at_most", "bands")
_SCHEMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "poisson": ((), (*_EPOCHS, "bands")),
    "cyclic-poisson": (("bands",), (*_EPOCHS, "at_most")),
    "fixed-size": (("samples", "batch_size"), ("sample_rate", *_EPOCHS, *_MORE)),
    "allocation": (("steps_per_epoch", "epochs"), (*_POISSON, *_MORE)),
    "fixed-order": (("epochs",), (*_POISSON, *_EPOCHS, *_MORE)),
}
"""Of every sampling scheme: the options that it needs, and those that mean nothing with it."""
_NORMS = ("sketch", "power_iteration", "secret_probes", "public_probes", "rank", "analysis")


def _rate(text: str) -> float:
    try:
        value = rounded_up(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ArithmeticError):
        value = math.nan
    if not 1e-9 <= value <= 1.0:
        raise refused(text, _RATE)
    return value


def _release(text: str) -> tuple[Release, ...]:
    times, sign, one = text.partition("x")
    if sign and times.isdecimal():
        return _release(one) * count(high=10**5)(times)  # a record lists each
    word, *numbers = text.split(":")
    if word not in (*_RELEASES, "renyi"):
        raise refused(text, f"{_FORM}{did_you_mean(word, [*_RELEASES, 'renyi'])}")
    try:
        if word == "renyi":
            pairs = [tuple(map(float, pair.split("="))) for pair in numbers]
            return (RenyiRelease(*zip(*pairs, strict=True)),)
        return (_RELEASES[word](*map(float, numbers)),)
    except ParameterError as error:
        raise refused(text, f"one with {error}") from None
    except (TypeError, ValueError):
        raise refused(text, _FORM) from None


def _releases(text: str) -> tuple[Release, ...]:
    return tuple(release for part in text.split("+") for release in _release(part))


def _phase_of(options: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    given = ((f"--{key.strip().replace('_', '-')}", value) for key, value in options if value is not False)
    words = [flag if value is True else f"{flag}={value}" for flag, value in given]
    try:
        values = vars(_phase_parser().parse_args(words))
        return {name: value for name, value in values.items() if value}
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error).partition(": ")[2]) from None


def _one_phase(text: str) -> dict[str, Any]:
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return _phase_of((key, value.strip() if sign else True) for key, sign, value in pairs)


def _phases_of_file(text: str) -> list[dict[str, Any]]:
    try:
        content = parse_toml(Path(text).read_bytes())
        phases = [content | phase for phase in content.pop("phases")]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise refused(text, f"{_TABLES} ({str(error).splitlines()[0]})") from None
    if not phases:
        raise refused(text, _TABLES)
    return [_phase_of(phase.items()) for phase in phases]


def _spent(text: str) -> Composition:
    if Path(text).is_dir():
        with needing("train"):
            from dprmt.training.harness import read_card

        return read_card(text).run
    try:
        return composition_of(record_of_run(text))
    except ParameterError as error:
        raise refused(text, f"a record of a run ({error})") from None


def add_phase_options(parser: Parser, *, noise: bool = True, norms: bool = True) -> None:
    """Declare the options that describe one phase of a run."""
    add = parser.add_argument_group("noise and batches").add_argument
    if noise:
        sigma = "σ, standard deviation of the noise in units of the clipping norm; in [1e-3, 1e6]"
        add("--noise-multiplier", metavar="SIGMA", type=real(low=1e-3, high=1e6), help=sigma)
    scheme = (
        "poisson (default), cyclic-poisson (from groups in turn), fixed-size (B of N every step), allocation (a random"
        " step of each epoch), fixed-order"
    )
    size, block, epochs = count(high=10**12), count(high=10**7), real(low=0.0, low_open=True, high=1e9)
    add("--sample-rate", metavar="Q", type=_rate, help="probability q of a sample, as .03 or 2000/67349")
    add("--steps", metavar="STEPS", type=count(high=_MOST_STEPS), help="number of steps, up to 1e9")
    add("--samples", metavar="N", type=size, help="with --batch-size, for a rate of q = B/N")
    add("--batch-size", metavar="B", type=size, help="expected number of samples in a step, at most N")
    add("--epochs", metavar="EPOCHS", type=epochs, help="instead of --steps, rounded up")
    add("--sampling", metavar="SCHEME", choices=tuple(_SCHEMES), help=scheme)
    add("--steps-per-epoch", metavar="LENGTH", type=block, help="t of allocation, up to 1e7")
    add("--participations", metavar="R", type=block, help="r blocks an epoch of allocation (default 1)")
    add("--at-most", metavar="MOST", type=size, help="largest batch of poisson from --samples N")
    add("--bands", metavar="BANDS", type=count(high=10**6), help="number of groups of cyclic-poisson")
    if norms:
        beside = "noisy sums of the same batches, as gaussian:2+gaussian:3"
        add("--beside", metavar="RELEASES", type=_releases, help=beside)
        add = parser.add_argument_group("norm method (default: exact norms)").add_argument
        add("--probes", metavar="K", type=count(2, 10**5), help="Gaussian probes per layer, at least 2")
        add("--sketch", metavar="S", type=count(3, 10**4), help="columns of the sketch of Hutch++, at least 3")
        add("--power-iteration", action="store_true", help="every sketch is of MᵀMS (3S + K products)")
        add("--secret-probes", action="store_true", help="separate probes for every sample, never released")
        add("--public-probes", action="store_true", help="the same probes for all samples, may be known")
        add("--rank", metavar="RANK", type=count(), help="for the envelope, if every norm is estimated")
        analyses, tight = ("tight", "envelope"), "tight (default) or envelope (as published)"
        add("--analysis", metavar="ANALYSIS", choices=analyses, help=tight)
    who = "zero-out (default: one sample has no gradient), replace-one or add-remove (q chosen without N)"
    add = parser.add_argument_group("neighbouring relation").add_argument
    add("--neighbours", metavar="RELATION", choices=tuple(_RELATIONS), help=who)
    add("--group", metavar="M", type=count(high=1000), help="up to M samples of one person change together")


def add_run_options(parser: Parser, *, noise: bool = True) -> None:
    """Declare all options of a run, in one phase or more."""
    add_phase_options(parser, noise=noise)
    add = parser.add_argument_group("several phases, or what else is or was released").add_argument
    keys, form = "steps=100,noise-multiplier=2, repeatable", "gaussian:σ, laplace:SCALE, approximate:ε:δ,"
    add("--phase", metavar="KEY=VALUE,…", type=_one_phase, action="append", help=keys)
    add("--phases", metavar="FILE", help="TOML file of [[phases]]")
    add("--from-json", metavar="FILE", type=record_of_run, help="a run that --json printed before")
    add("--also", metavar="RELEASE", type=_releases, action="extend", help=f"{form} gaussian-dp:μ, zcdp:ρ, …")
    add("--spent", metavar="PLACE", help="run folder, privacy report or --json output")


def add_delta(parser: Parser) -> None:
    """Declare ``--delta``."""
    kind = real(low=1e-290, high=1.0, high_open=True)
    parser.add_argument("--delta", type=kind, metavar="DELTA", help="δ, in [1e-290, 1)")


@cache
def _phase_parser() -> Parser:
    parser = Parser(prog="--phase", add_help=False)
    add_phase_options(parser)
    return parser


@cache
def _no_phase() -> Mapping[str, Any]:
    return MappingProxyType(vars(_phase_parser().parse_args([])))


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

    @property
    def _free(self) -> tuple[bool, ...]:
        return self.asked or (True,) * len(self.phases)

    def composition(self) -> Composition:
        """The phases, and what else is released or was spent before, composed."""
        phases = [phase if free else fixed(phase) for phase, free in zip(self.phases, self._free, strict=True)]
        return Composition([*phases, *self.releases, *([] if self.spent is None else [fixed(self.spent)])])

    def calibrated(self, **target: float) -> Run:
        """The same with as little noise as a target in words of :func:`calibrate` allows; phases keep their ratios."""
        before = self.composition()
        after = calibrate(before, **target)
        old, new = ([one for one, _ in run.free_phases() if isinstance(one, DPSGD)] for run in (before, after))
        found = dict(zip(old, new, strict=True))
        phases = zip(self.phases, self._free, strict=True)
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


def _described(mechanism: DPSGD, steps: int) -> dict[str, Any]:
    described = {"mechanism": mechanism.as_dict(), "steps": steps, "analysis": _analysis(mechanism)}
    if mechanism.sampling.steps_per_epoch is not None:
        described["epochs"] = steps // mechanism.sampling.steps_per_epoch
    return described


def _analysis(mechanism: DPSGD) -> str:
    if not mechanism.has_pairs:
        return "composed curves"
    return "exact" if isinstance(mechanism.norms, ExactNorms) else getattr(mechanism.norms, "analysis", "tight")


def _label(mechanism: DPSGD) -> str:
    analysis, most = _analysis(mechanism), getattr(mechanism.sampling, "at_most", None)
    scheme = "" if mechanism.sampling.kind == "poisson" else f", {mechanism.sampling.kind}"
    scheme = f", batches of at most {most}" if most else scheme
    beside = f", {len(mechanism.beside)} more of each batch" if mechanism.beside else ""
    how = "" if analysis == "exact" else f", {analysis}" + " analysis" * mechanism.has_pairs
    return f"{norms_label(mechanism.norms)}{scheme}{beside}{how}"


def run_of(stated: Mapping[str, Any]) -> Run:
    """The run of a record."""
    try:
        phases = tuple(
            (mechanism_from_dict(phase["mechanism"]), check_count("steps", phase["steps"]))
            for phase in stated.get("phases", [stated])
        )
        releases = tuple(release_from_dict(release) for release in stated.get("also", ()))
        spent = stated.get("spent")
        before = composition_of(spent) if isinstance(spent, Mapping) else None
    except (KeyError, TypeError, AttributeError) as error:
        raise ParameterError("from_json", f"a record without {error}", "a file with what --json printed") from None
    return Run(phases, "phases" in stated, releases, spent=before)


def composition_of(stated: Mapping[str, Any]) -> Composition:
    """The whole run of a record."""
    return run_of(stated).composition()


def document_of(run: Composition) -> dict[str, Any]:
    """A record of a whole run, which :func:`composition_of` reads."""
    also = [release.as_dict() for release, times in run.phases if isinstance(release, Release) for _ in range(times)]
    phases = [{"mechanism": one.as_dict(), "steps": steps} for one, steps in run.phases if isinstance(one, DPSGD)]
    return {"phases": phases, "also": also}


def read_run(
    namespace: argparse.Namespace,
    needed: Sequence[str] = (),
    unknown: Mapping[str, Any] = MappingProxyType({}),
    targets: Sequence[str] = (),
) -> Run:
    """The run, after the command's other options were completed from the record of ``--from-json``, if there is one.

    ``needed``: names of options without which there is no question. ``unknown``: what is asked for of a phase, with the
    value to begin with where it is not given; phases that give it are fixed where others do not. ``targets``: options
    of which not all are given, and which a record completes where none is.
    """
    stated, missing = namespace.from_json, "given, or in a record that --from-json names"
    if stated is not None:
        refuse_beside("--from-json", namespace, without=("from_json",))
        complete(namespace, stated, targets)
        missing = "given: the record of --from-json does not state it"
    for name in needed:
        if getattr(namespace, name) is None:
            raise ParameterError(name, None, missing)
    run = _from_options(namespace, unknown) if stated is None else run_of(stated)
    samples, delta = getattr(namespace, "samples", None), getattr(namespace, "delta", None)
    if samples and delta is not None and delta * samples > 1.0:
        level = f"delta = {delta:g} is above 1/N = {1 / samples:.3g}"
        sys.stderr.write(f"note: {level}: publishing one sample would satisfy it\n")
    return run


def complete(namespace: argparse.Namespace, stated: Mapping[str, Any], targets: Sequence[str] = ()) -> None:
    """Set the options of a question that are not given to what a record states under their name, or as their target."""
    left_out = {*_no_phase(), *(targets if any(getattr(namespace, name) is not None for name in targets) else ())}
    for action in namespace.parser._actions:
        name = action.dest
        for found in (stated.get(name), stated.get(f"target_{name}")):
            if getattr(namespace, name, 0) is None and name not in left_out and isinstance(found, int | float | str):
                text = found if isinstance(found, str) else repr(found)
                setattr(namespace, name, namespace.parser.read(name, action.type or str, text))


def refuse_beside(
    flag: str, namespace: argparse.Namespace, names: Collection[str] = (), without: Collection[str] = ()
) -> None:
    """Refuse the options of a run, and others by name, that mean nothing next to a flag."""
    for name in (*_no_phase(), "phase", "phases", "from_json", "also", "spent", *names):
        given = getattr(namespace, name, None)
        if given and name not in without:
            raise ParameterError(name, "given" if given is True else given, f"left out where {flag} is given")


def _from_options(namespace: argparse.Namespace, unknown: Mapping[str, Any]) -> Run:
    of_all = {name: value for name, value in vars(namespace).items() if name in _no_phase() and value}
    tables, in_file = getattr(namespace, "phase", None), getattr(namespace, "phases", None)
    if in_file is not None:
        for name, value in (of_all | ({"phase": "given"} if tables else {})).items():
            raise ParameterError(name, value, "left out where --phases is given")
        tables = namespace.parser.read("phases", _phases_of_file, in_file)
    names = ("steps", "epochs") if "steps" in unknown else tuple(unknown)
    also, spent = tuple(getattr(namespace, "also", None) or ()), getattr(namespace, "spent", None)
    spent = None if spent is None else namespace.parser.read("spent", _spent, spent)
    if not tables:
        instead = "--phases" if hasattr(namespace, "phases") else "a record that --from-json names"
        return Run((_phase(of_all, unknown, names, f"given, or {instead}"),), False, also, (), spent)
    tables = [of_all | table for table in tables]
    phases = tuple(_phase(table, unknown, names, "given in every phase, or for all of them") for table in tables)
    open_ended = tuple(not any(table.get(name) for name in names) for table in tables)
    return Run(phases, True, also, open_ended if unknown and any(open_ended) else (), spent)


def _phase(
    given: Mapping[str, Any], unknown: Mapping[str, Any], names: Sequence[str], missing: str
) -> tuple[DPSGD, int]:
    """One phase, from the values of its options."""
    values = {**_no_phase(), **given}
    if not any(values[name] for name in names):
        for name, value in unknown.items():
            by_epochs = name == "steps" and values["sampling"] in ("allocation", "fixed-order")
            values["epochs" if by_epochs else name] = value
    if values["noise_multiplier"] is None:
        raise ParameterError("noise_multiplier", None, missing)
    sampling, steps = _sampling_of(values)
    norms, neighbours = _norms_of(values), _neighbours_of(values)
    return DPSGD(values["noise_multiplier"], sampling, norms, neighbours, values["beside"] or ()), steps


def _sampling_of(values: Mapping[str, Any]) -> tuple[Sampling, int]:
    """The scheme by which samples get into batches, and the number of steps; however the two were given."""
    scheme = values["sampling"] or "poisson"
    needed, meaningless = _SCHEMES[scheme]
    leave_out(values, meaningless, f"--sampling is {scheme}", needed)
    if scheme in ("allocation", "fixed-order"):
        if not float(values["epochs"]).is_integer():
            raise ParameterError("epochs", values["epochs"], f"an integer where --sampling is {scheme}")
        in_order = FixedOrder() if scheme == "fixed-order" else None
        drawn = in_order or RandomAllocation(values["steps_per_epoch"], values["participations"] or 1)
        return drawn, drawn.run_length(None, int(values["epochs"]))
    exact = _exact_rate(values)
    rate, steps = rounded_up(exact), _steps(values, exact)
    if scheme == "fixed-size":
        return FixedSize(values["batch_size"], values["samples"]), steps
    if scheme == "cyclic-poisson":
        check_real("sample_rate", rate, low=1e-9, high=1.0 / values["bands"])
        return CyclicPoisson(rate, values["bands"]), steps
    if values["at_most"] is not None:
        leave_out(values, (), "--at-most is", ("samples",))
    return Poisson(rate, values["at_most"], values["samples"] if values["at_most"] else None), steps


def _exact_rate(values: Mapping[str, Any]) -> Fraction:
    if values["sample_rate"] is not None:
        leave_out(values, ("batch_size",) if values["at_most"] else ("samples", "batch_size"), "--sample-rate is given")
        return Fraction(values["sample_rate"])
    if values["samples"] is None and values["batch_size"] is None:
        leave_out(values, (), "--sampling is poisson, or --samples with --batch-size", ("sample_rate",))
    for name in ("samples", "batch_size"):
        leave_out(values, (), "the other of --samples and --batch-size is", (name,))
    return Fraction(check_count("batch_size", values["batch_size"], high=values["samples"]), values["samples"])


def _steps(values: Mapping[str, Any], rate: Fraction) -> int:
    if values["steps"] is not None:
        leave_out(values, ("epochs",), "--steps is given")
        return int(values["steps"])
    if values["epochs"] is None:
        leave_out(values, (), "--sampling is poisson, or --epochs", ("steps",))
    steps = math.ceil(Fraction(values["epochs"]) / rate)
    if steps > _MOST_STEPS:
        raise ParameterError("epochs", values["epochs"], f"at most {_MOST_STEPS:g} steps long")
    return steps


def _norms_of(values: Mapping[str, Any]) -> Norms:
    probes, sketch, secret = values["probes"], values["sketch"], values["secret_probes"]
    if probes is None:
        leave_out(values, _NORMS, "--probes is not given")
        return ExactNorms()
    if secret:
        leave_out(values, ("public_probes",), "--secret-probes is given")
    elif not values["public_probes"]:
        raise ParameterError("secret_probes", None, "given where --probes is, or --public-probes: ε depends on it")
    if sketch is None:
        leave_out(values, ("power_iteration",), "--sketch is not given")
        return Hutchinson(probes, secret=secret, rank=values["rank"], analysis=values["analysis"] or "tight")
    leave_out(values, ("rank",), "--sketch is given: part of the norm is exact then")
    if values["analysis"] == "envelope":
        allowed = "'tight' where --sketch is given, which the envelope cannot credit"
        raise ParameterError("analysis", "envelope", allowed)
    return HutchPlusPlus(probes, sketch, power_iteration=values["power_iteration"], secret=secret)


def _neighbours_of(values: Mapping[str, Any]) -> Neighbours:
    relation = _RELATIONS[values["neighbours"] or "zero-out"]
    if isinstance(relation, AddRemove) and values["samples"] is not None and values["sample_rate"] is None:
        # (N0): this rate differs between neighbours, and the scale of the noise with it.
        allowed = "left out where --neighbours is add-remove: a rate B/N tells N; give --sample-rate, chosen without it"
        raise ParameterError("samples", values["samples"], allowed)
    if values["group"] is None:
        return relation
    if isinstance(relation, ReplaceOne):
        raise ParameterError("group", values["group"], "left out where --neighbours is replace-one")
    return Group(values["group"], relation)
