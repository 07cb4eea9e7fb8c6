"""A training run whose privacy is asked for: from options, from phases, or from what ``--json`` printed before.

The options of :func:`add_phase_options` are keys of ``--phase`` and ``--phases``, too. A new sampling scheme is a row
of ``_SCHEMES``; a new release is a row of ``_RELEASES``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dprmt._files import parse_toml
from dprmt._validation import ParameterError, check_count, did_you_mean, needing
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
    fixed,
    release_from_dict,
)
from dprmt.cli._options import Parser, UsageError, count, leave_out, real, record_of_run, refused, rounded
from dprmt.statements import mechanism_from_dict
from dprmt.statements._sentences import norms_label, relation_label, releases, trainings

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


def _as_written(**limits: Any) -> Callable[[str], str]:
    """A reader that checks a number > 0 but keeps its text, which is exact: .03 means 3/100."""
    return lambda text: text if real(**limits)(text) else ""


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
        raise refused(text, f"a release whose {error.name.replace('_', ' ')} is {error.allowed}") from None
    except (TypeError, ValueError):
        raise refused(text, _FORM) from None


def _releases(text: str) -> tuple[Release, ...]:
    return tuple(release for part in text.split("+") for release in _release(part))


def _phase_of(options: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    given = [(f"--{key.strip().replace('_', '-')}", value) for key, value in options if value is not False]
    if wrong := [flag[2:] for flag, _ in given if not flag[2:3].isalpha()]:
        raise refused(repr(wrong[0]), "options with their values, as steps=100,noise-multiplier=2")
    words = [flag if value is True else f"{flag}={value}" for flag, value in given]
    try:
        return {name: value for name, value in vars(_phase_parser().parse_args(words)).items() if value}
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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


def _spent(text: str) -> list[Any]:
    try:
        if not Path(text).is_dir():
            return [fixed(composition_of(record_of_run(text)))]
        with needing("train"):
            from dprmt.training.harness import read_card
        return [fixed(read_card(text).run)]
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
    size, block, epochs = count(high=10**12), count(high=10**7), _as_written(low=0.0, low_open=True, high=1e9)
    rate = _as_written(up=True, low=1e-9, high=1.0)
    add("--sample-rate", metavar="Q", type=rate, help="probability q of a sample, as .03 or 2000/67349")
    add("--steps", metavar="STEPS", type=count(high=10**9), help="number of steps, up to 1e9")
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


@cache
def _phase_parser() -> Parser:
    parser = Parser(prog="--phase", add_help=False)
    add_phase_options(parser)
    return parser


@cache
def _no_phase() -> Mapping[str, Any]:
    return MappingProxyType(vars(_phase_parser().parse_args([])))


def document_of(run: Composition) -> dict[str, Any]:
    """The run as a JSON object, which :func:`composition_of` reads; what is fixed stands under ``spent``."""
    free = run.free_phases()
    phases = [_described(one, steps) for one, steps in free if isinstance(one, DPSGD)]
    document: dict[str, Any] = dict(phases[0]) if len(phases) == 1 else {"phases": phases}
    also = [one.as_dict() for one, times in free if isinstance(one, Release) for _ in range(times)]
    if also:
        document["also"] = also
    if run.fixed:
        document["spent"] = document_of(Composition(run.fixed))
    return {**document, "neighbours": run.neighbours.kind}


def _described(mechanism: DPSGD, steps: int) -> dict[str, Any]:
    described = {"mechanism": mechanism.as_dict(), "steps": steps, "analysis": _analysis(mechanism)}
    if mechanism.sampling.steps_per_epoch is not None:
        described["epochs"] = steps // mechanism.sampling.steps_per_epoch
    return described


def _analysis(mechanism: DPSGD) -> str:
    if not mechanism.has_pairs:
        return "composed curves"
    return "exact" if isinstance(mechanism.norms, ExactNorms) else getattr(mechanism.norms, "analysis", "tight")


def label_of(run: Composition) -> str:
    """One line on norms, sampling and neighbouring relation."""
    labels = [_label(mechanism) for mechanism, _ in trainings(run)]
    label = f"{len(labels)} phases: " * (len(labels) > 1) + ("; ".join(dict.fromkeys(labels)) or "no steps")
    count = sum(times for _, times in releases(run))
    more = f", {count} more released" if count else ""
    return f"{label}{more}; {relation_label(run.neighbours)}"


def _label(mechanism: DPSGD) -> str:
    analysis, most = _analysis(mechanism), getattr(mechanism.sampling, "at_most", None)
    scheme = "" if mechanism.sampling.kind == "poisson" else f", {mechanism.sampling.kind}"
    scheme = f", batches of at most {most}" if most else scheme
    beside = f", {len(mechanism.beside)} more of each batch" if mechanism.beside else ""
    how = "" if analysis == "exact" else f", {analysis}" + " analysis" * mechanism.has_pairs
    return f"{norms_label(mechanism.norms)}{scheme}{beside}{how}"


def composition_of(stated: Mapping[str, Any]) -> Composition:
    """The run of a record."""
    try:
        phases = [(mechanism_from_dict(one["mechanism"]), one["steps"]) for one in stated.get("phases", [stated])]
        also = [release_from_dict(release) for release in stated.get("also", ())]
        spent = stated.get("spent")
        return Composition([*([fixed(composition_of(spent))] if isinstance(spent, Mapping) else []), *phases, *also])
    except (KeyError, TypeError, AttributeError) as error:
        raise ParameterError("from_json", f"a record without {error}", "a file with what --json printed") from None


def read_run(
    namespace: argparse.Namespace, needed: Sequence[str] = (), unknown: Mapping[str, Any] = MappingProxyType({})
) -> Composition:
    """The run, after the command's other options were completed from the record of ``--from-json``, if there is one.

    ``needed``: names of options without which there is no question. ``unknown``: what is asked for of a phase, with the
    value to begin with where it is not given; phases that give it are fixed where others do not.
    """
    stated, missing = namespace.from_json, "given, or in a record that --from-json names"
    if stated is not None:
        leave_out(vars(namespace), run_options(), "--from-json is given")
        for action in namespace.parser._actions:
            name, found = action.dest, stated.get(action.dest)
            if getattr(namespace, name, 0) is None and name not in _no_phase() and isinstance(found, int | float | str):
                text = found if isinstance(found, str) else repr(found)
                setattr(namespace, name, namespace.parser.read(name, action.type or str, text))
        missing = "given: the record of --from-json does not state it"
    for name in needed:
        if getattr(namespace, name) is None:
            raise ParameterError(name, None, missing)
    run = _from_options(namespace, unknown) if stated is None else composition_of(stated)
    samples, delta = getattr(namespace, "samples", None), getattr(namespace, "delta", None)
    if samples and delta is not None and delta * samples > 1.0:
        level = f"delta = {delta:g} is above 1/N = {1 / samples:.3g}"
        sys.stderr.write(f"note: {level}: publishing one sample would satisfy it\n")
    return run


def run_options() -> list[str]:
    """The names of the options of a run."""
    return [*_no_phase(), "phase", "phases", "also", "spent"]


def _from_options(namespace: argparse.Namespace, unknown: Mapping[str, Any]) -> Composition:
    of_all = {name: value for name, value in vars(namespace).items() if name in _no_phase() and value}
    found = [*(getattr(namespace, "phase", None) or ()), *_read(namespace, "phases", _phases_of_file)]
    tables = [{**_no_phase(), **of_all, **table} for table in found or [{}]]
    names = ("steps", "epochs") if "steps" in unknown else tuple(unknown)
    is_open = [bool(unknown) and not any(values[name] for name in names) for values in tables]
    if "steps" in unknown and sum(is_open) != 1:
        raise ParameterError("steps", namespace.steps, "left out, and --epochs too, of one phase: the one to be run")
    phases: list[Any] = []
    for values, is_asked in zip(tables, is_open, strict=True):
        if is_asked:
            by_epochs = "steps" in unknown and values["sampling"] in ("allocation", "fixed-order")
            values |= {"epochs": unknown["steps"]} if by_epochs else unknown
        if values["noise_multiplier"] is None:
            raise ParameterError("noise_multiplier", None, "given, for every phase, or in what --from-json names")
        sampling, steps = _sampling_of(values)
        norms, neighbours = _norms_of(values), _neighbours_of(values)
        phase = DPSGD(values["noise_multiplier"], sampling, norms, neighbours, values["beside"] or ()), steps
        phases.append(fixed(phase) if any(is_open) and not is_asked else phase)
    return Composition([*_read(namespace, "spent", _spent), *phases, *(getattr(namespace, "also", None) or ())])


def _read(namespace: argparse.Namespace, name: str, reader: Callable[[str], Sequence[Any]]) -> Sequence[Any]:
    # What an option's file has, read after the command line was understood; nothing without the option.
    file = getattr(namespace, name, None)
    return () if file is None else namespace.parser.read(name, reader, file)


def _sampling_of(values: Mapping[str, Any]) -> tuple[Sampling, int]:
    """The scheme by which samples get into batches, and the number of steps; however the two were given."""
    scheme = values["sampling"] or "poisson"
    needed, meaningless = _SCHEMES[scheme]
    leave_out(values, meaningless, f"--sampling is {scheme}", needed)
    epochs, steps, most = Fraction(values["epochs"] or 0), values["steps"], values["at_most"]
    if scheme in ("allocation", "fixed-order"):
        in_order = FixedOrder() if scheme == "fixed-order" else None
        drawn = in_order or RandomAllocation(values["steps_per_epoch"], values["participations"] or 1)
        return drawn, drawn.run_length(None, int(epochs) if epochs.denominator == 1 else values["epochs"])
    if values["sample_rate"] is None:
        leave_out(values, (), "--sample-rate is not", ("samples", "batch_size"))
        exact = Fraction(check_count("batch_size", values["batch_size"], high=values["samples"]), values["samples"])
        rate = rounded(exact, up=True)
    else:
        leave_out(values, ("batch_size",) if most else ("samples", "batch_size"), "--sample-rate is given")
        rate, exact = real(up=True)(values["sample_rate"]), Fraction(values["sample_rate"])
    if steps is None:
        leave_out(values, (), "--epochs is not", () if epochs else ("steps",))
        steps = math.ceil(epochs / exact)
    else:
        leave_out(values, ("epochs",), "--steps is given")
    if scheme == "fixed-size":
        return FixedSize(values["batch_size"], values["samples"]), steps
    if scheme == "cyclic-poisson":
        return CyclicPoisson(rate, values["bands"]), steps
    leave_out(values, (), "--at-most is", ("samples",) if most else ())
    return Poisson(rate, most, values["samples"] if most else None), steps


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
    meaningless = ("rank", "analysis") if values["analysis"] == "envelope" else ("rank",)
    leave_out(values, meaningless, "--sketch is given: part of the norm is exact then")
    return HutchPlusPlus(probes, sketch, power_iteration=values["power_iteration"], secret=secret)


def _neighbours_of(values: Mapping[str, Any]) -> Neighbours:
    relation = _RELATIONS[values["neighbours"] or "zero-out"]
    if isinstance(relation, AddRemove) and values["samples"] is not None and values["sample_rate"] is None:
        # (N0): this rate differs between neighbours, and the scale of the noise with it.
        allowed = "left out where --neighbours is add-remove: a rate B/N tells N; give --sample-rate, chosen without it"
        raise ParameterError("samples", values["samples"], allowed)
    return relation if values["group"] is None else Group(values["group"], relation)
