"""The commands about a run's privacy, from ``epsilon`` to ``statement``.

Each reads its run by :func:`read_run`, asks the library one question, and prints bounds or a table.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from dprmt import __version__
from dprmt._files import strict_json
from dprmt._validation import ParameterError, how_to_install
from dprmt.accounting import (
    ExactNorms,
    Poisson,
    PrivacyBounds,
    ProbeChoice,
    choose_probes,
    clt_mu,
    largest_steps,
    worst_of,
)
from dprmt.cli._options import MEANING_IN_SHORT, Commands, Parser, UsageError, add_parser, count, picture, real, refused
from dprmt.cli._run import Run, add_delta, add_phase_options, add_run_options, read_run, record_of_run, refuse_beside
from dprmt.cli._terminal import text_table
from dprmt.statements import privacy_card, relation_label, round_down, round_up, statement
from dprmt.statements._card import between, json_bounds
from dprmt.statements._sentences import norms_label

_SOME_RUN = "--noise-multiplier 1 --sample-rate 2000/67349 --steps 400"
_SOME_EPOCHS = "--samples 67349 --batch-size 2000 --epochs 12"
_EXAMPLES = {
    "epsilon": (
        f"{_SOME_RUN} --delta 1e-5",
        f"{_SOME_RUN} --delta 1e-5 --probes 32 --public-probes",
        "--phases run.toml --delta 1e-5",
        "--sample-rate .03 --delta 1e-5 --phase noise-multiplier=2,steps=99 --phase noise-multiplier=1,steps=300",
    ),
    "delta": (f"--epsilon 2 {_SOME_RUN}", f"--epsilon 2 --noise-multiplier 1 {_SOME_EPOCHS} --json"),
    "steps": (
        "--epsilon 2 --noise-multiplier 1 --sample-rate 2000/67349 --delta 1e-5",
        "--epsilon 2 --noise-multiplier 1 --sample-rate .01 --delta 1e-5 --spent runs/first",
    ),
    "noise": (
        "--epsilon 2 --sample-rate 2000/67349 --steps 400 --delta 1e-5",
        "--epsilon 2 --sample-rate .01 --phase noise-multiplier=1,steps=1000 --phase steps=500 --delta 1e-5",
        "--epsilon 2 --sample-rate .01 --steps 500 --delta 1e-5 --spent runs/first --also gaussian:4",
        f"--advantage 0.1 {_SOME_EPOCHS} --delta 1e-5 --probes 32 --secret-probes",
    ),
    "probes": (
        f"{_SOME_RUN} --delta 1e-5 --budget 64",
        f"--noise-multiplier 1 {_SOME_EPOCHS} --delta 1e-5 --budget 64 --json",
    ),
    "tradeoff": (f"{_SOME_RUN} > curve.csv", f"{_SOME_RUN} --probes 32 --public-probes --plot curve.png"),
    "statement": (f"{_SOME_RUN} --delta 1e-5", f"{_SOME_RUN} --delta 1e-5 --json > card.json", "--run runs/first"),
}
_TARGETS = ("epsilon", "advantage", "true_positive_rate", "false_positive_rate")
_POINTS = 101  # of a trade-off curve, false positive rates

_inside = real(low=0.0, high=1.0, low_open=True, high_open=True)
_positive = real(low=0.0, low_open=True)


def _shapes(text: str) -> list[tuple[int, ...]]:
    try:
        return [tuple(int(side) for side in layer.split("x")) for layer in text.split(",")]
    except ValueError:
        raise refused(text, "tokens x inputs x outputs, as in 1024x4096x4096, with commas between") from None


def _words(text: str) -> str:
    if not text.strip():
        raise refused(repr(text), "a non-empty description")
    return " ".join(text.split())


def add_command(commands: Commands) -> None:
    """The commands of this file, with their options and help."""
    runs = (run_epsilon, run_noise, run_steps, run_delta, run_probes, run_tradeoff, run_statement)
    made: dict[str, Parser] = {}
    for run in runs:
        name = run.__name__.removeprefix("run_")
        made[name] = add_parser(commands, name, run, _EXAMPLES[name], about=MEANING_IN_SHORT)
        if name not in ("delta", "tradeoff"):
            add_delta(made[name])
    add = made["noise"].add_argument
    add("--epsilon", metavar="EPSILON", type=_positive, help="target ε, > 0, at --delta")
    add("--advantage", metavar="ADVANTAGE", type=_inside, help="or an attacker's largest advantage")
    add("--true-positive-rate", metavar="TPR", type=_inside, help="or an attacker's largest one")
    add("--false-positive-rate", metavar="FPR", type=_inside, help="at this false positive rate, below TPR")
    spend, products = "ε that may be spent in all, > 0, at --delta", "products per layer and sample, an integer >= 2"
    made["steps"].add_argument("--epsilon", metavar="EPSILON", type=_positive, help=spend)
    made["delta"].add_argument("--epsilon", metavar="EPSILON", type=real(low=0.0, high=1e17), help="ε, in [0, 1e17]")
    add, layers = made["probes"].add_argument, "linear layers, as in 1024x4096x4096,1024x4096x11008"
    add("--budget", metavar="PRODUCTS", type=count(2, 10**5), help=products)
    add("--layers", metavar="TxPxR,…", type=_shapes, help=layers)
    add, points = made["tradeoff"].add_argument, f"false positive rates (default {_POINTS})"
    add("--points", metavar="POINTS", type=count(2, 100_001), help=points)
    add("--plot", metavar="FILE", type=picture, help="write a picture (png, pdf or svg)")
    add, folder = made["statement"].add_argument, "the folder of a run of dprmt train, finished or not"
    add("--unit", metavar="WORDS", type=_words, help="what one sample is (one row of the training data)")
    add("--run", metavar="RUN", dest="folder", help=folder)
    for name in ("epsilon", "noise", "steps", "delta"):
        made[name].add_argument("--statement", action="store_true", help="also print what may be written in a paper")
    for name, parser in made.items():
        if name != "probes":
            add_run_options(parser, noise=name != "noise")
    add_phase_options(made["probes"], norms=False)
    made["probes"].add_argument(
        "--from-json", metavar="FILE", type=record_of_run, help="a run that --json printed before"
    )


def _print(namespace: argparse.Namespace, document: Mapping[str, Any], lines: list[str]) -> None:
    text = [json.dumps({"version": __version__, **document}, allow_nan=False)] if namespace.json else lines
    sys.stdout.write("\n".join(text) + "\n")


def _print_bounds(
    namespace: argparse.Namespace,
    run: Run,
    name: str = "epsilon",
    document: Mapping[str, Any] = MappingProxyType({}),
    lines: tuple[str, ...] = (),
) -> None:
    """Print ε at ``--delta`` or δ at ``--epsilon``, in both directions, after what a command says besides."""
    composed, of_epsilon = run.composition(), name == "epsilon"
    ask = composed.epsilon_by_direction if of_epsilon else composed.delta_by_direction
    level = namespace.delta if of_epsilon else namespace.epsilon
    by_direction: dict[Any, PrivacyBounds] = ask(level)
    symbol, given, other = ("ε", "δ", "delta") if of_epsilon else ("δ", "ε", "epsilon")
    worst, at, said = worst_of(by_direction), f"{given} = {level:g}", {}
    if namespace.statement:
        bound = f"{symbol} ≤ {round_up(worst.upper, 4)}"
        epsilon, delta = (bound, at) if of_epsilon else (at, bound)
        said = {"statement": statement(worst, composed, epsilon=epsilon, delta=delta)}
    found = {
        **document,
        **run.document(),
        other: level,
        name: json_bounds(worst),
        "direction": worst.direction,
        "by_direction": {direction: json_bounds(bounds) for direction, bounds in by_direction.items()},
    }
    first = f"{symbol} <= {round_up(worst.upper)} at {at}"
    if math.isinf(worst.upper):
        first = f"no finite {symbol} could be certified at {at}"
    shown = [*lines, f"{first}  ({run.label()})"]
    both = worst.direction is None  # samples are replaced: exchanging them changes nothing
    for direction, bounds in [("both", worst)] if both else by_direction.items():
        ends = between(bounds, symbol, "<=")
        shown.append(f"  {direction:<7}{ends}{'  <- decides' if direction == worst.direction else ''}")
    _print(namespace, {**found, **said}, [*shown, *(("", said["statement"]) if said else ())])


def run_epsilon(namespace: argparse.Namespace) -> None:
    """ε at δ, in both directions."""
    _print_bounds(namespace, read_run(namespace, ["delta"]))


def run_delta(namespace: argparse.Namespace) -> None:
    """δ at ε, in both directions."""
    _print_bounds(namespace, read_run(namespace, ["epsilon"]), "delta")


def run_steps(namespace: argparse.Namespace) -> None:
    """How many steps a budget allows, and the ε of so many."""
    run = read_run(namespace, ["delta", "epsilon"], unknown={"steps": 1})
    asked = run.asked or (not run.in_phases,)
    if sum(asked) != 1 or (not run.in_phases and (namespace.steps or namespace.epochs)):
        raise ParameterError("steps", namespace.steps, "left out, and --epochs too, of one phase: the one to be run")
    steps = largest_steps(run.composition(), namespace.epsilon, namespace.delta)
    phases = tuple((one, steps if free else count) for (one, count), free in zip(run.phases, asked, strict=True))
    found = {"largest_steps": steps, "target_epsilon": namespace.epsilon}
    _print_bounds(namespace, replace(run, phases=phases, asked=asked), document=found, lines=(f"steps = {steps}",))


def run_noise(namespace: argparse.Namespace) -> None:
    """The noise multiplier, and the ε that it gives at δ."""
    asked = read_run(namespace, ["delta"], unknown={"noise_multiplier": 1.0}, targets=_TARGETS)
    target = _target(namespace)
    try:
        run = asked.calibrated(**target)
    except ParameterError as error:
        raise ParameterError(error.name.removeprefix("target_"), error.value, error.allowed) from None
    risk, line = _risk(run, namespace)
    noise = [mechanism.noise_multiplier for mechanism, _ in run.phases]
    found: dict[str, Any] = {"noise_multiplier": noise[0]}
    if run.in_phases:
        found = {"noise_multipliers": noise, "fixed": [not free for free in run.asked or (True,) * len(noise)]}
    said = f"noise multiplier{'s' if run.in_phases else ''} = {', '.join(map(round_up, noise))}"
    if len(noise) > 1 and not run.asked:
        said += " (all scaled, in their ratios; phases are fixed where others leave noise-multiplier out)"
    given = {name: getattr(namespace, name) for name in _TARGETS}
    found |= {f"target_{name}": value for name, value in given.items() if value is not None}
    _print_bounds(namespace, run, document=found | risk, lines=(said, *line))


def _target(namespace: argparse.Namespace) -> dict[str, float]:
    """The one that is given, by the library's name."""
    given = [name for name in _TARGETS[:3] if getattr(namespace, name) is not None]
    if not given:
        flags = "--advantage, or --true-positive-rate with --false-positive-rate"
        raise ParameterError("epsilon", None, f"given, or {flags}")
    name, rate = given[0], namespace.false_positive_rate
    if len(given) > 1:
        raise ParameterError(given[1], getattr(namespace, given[1]), f"left out where {namespace.shown(name)} is given")
    if (rate is None) == (name == "true_positive_rate"):
        raise ParameterError("false_positive_rate", rate, "given with --true-positive-rate, and only with it")
    more = {"epsilon": {"delta": namespace.delta}, "true_positive_rate": {"false_positive_rate": rate}}
    return {f"target_{name}": getattr(namespace, name), **more.get(name, {})}


def _risk(run: Run, namespace: argparse.Namespace) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the attacker reaches where that was the target."""
    rate = namespace.false_positive_rate
    if namespace.advantage is not None:
        name, words, bounds = "advantage", "attacker's advantage", run.composition().advantage()
    elif rate is not None:
        name, bounds = "true_positive_rate", run.composition().true_positive_rate(rate)
        words = f"true positive rate at a false positive rate of {rate:g}"
    else:
        return {}, ()
    return {name: json_bounds(bounds)}, (f"{words} <= {round_up(bounds.upper)}",)


def run_probes(namespace: argparse.Namespace) -> None:
    """The best split for each estimator, and exact norms."""
    run = read_run(namespace, ["delta", "budget"])
    if len(run.phases) != 1 or run.releases:
        raise ParameterError("from_json", namespace.from_json, "of a run in one phase, with nothing else released")
    ((mechanism, steps),) = run.phases
    mechanism = replace(mechanism, norms=ExactNorms())  # every choice brings its own
    layers, question = namespace.layers, {"delta": namespace.delta, "budget": namespace.budget}
    choices = choose_probes(mechanism, steps=steps, layers=layers, **question)
    document = {
        **Run(((mechanism, steps),)).document(),
        "noise_multiplier": mechanism.noise_multiplier,
        "sampling": mechanism.sampling.as_dict(),
        **question,
        "layers": None if layers is None else ",".join("x".join(map(str, shape)) for shape in layers),
        "choices": [_choice(choice) for choice in choices],
    }
    said = f"neighbours that ε is about: {relation_label(mechanism.neighbours)}"
    _print(namespace, document, [*_choices_table(choices), said])


def _choice(choice: ProbeChoice) -> dict[str, Any]:
    cost = None if choice.cost is None else choice.cost._asdict()
    norms, bounds = choice.norms.as_dict(), json_bounds(choice.epsilon)
    return {"norms": norms, "products": choice.products, "epsilon": bounds, "cost": cost}


def _choices_table(choices: tuple[ProbeChoice, ...]) -> list[str]:
    rows = []
    for choice in choices:
        cost = [] if choice.cost is None else [f"{choice.cost.flops / 1e9:.3f}", f"{choice.cost.bytes / 2**20:.2f}"]
        rows.append([round_up(choice.epsilon.upper), *cost, norms_label(choice.norms)])
    costs = [] if choices[0].cost is None else ["GFLOP", "MiB"]
    return text_table(["ε <=", *costs, "norms"], rows).splitlines()


def run_tradeoff(namespace: argparse.Namespace) -> None:
    """The curve, at rates that are denser where it bends: near both ends."""
    run = read_run(namespace)
    alpha = (1.0 - np.cos(np.linspace(0.0, np.pi, namespace.points or _POINTS))) / 2.0
    band = run.composition().trade_off(alpha)
    if namespace.plot is not None:
        from dprmt.plots import plot_trade_off
        from dprmt.plots._style import save_picture

        mu, ((first, steps), *more) = None, run.phases
        if not more and isinstance(first.norms, ExactNorms) and first.sampling == Poisson(first.sampling.rate):
            mu = clt_mu(first.joint_noise_multiplier, first.sampling.rate, steps)
        save_picture(namespace.plot, lambda ax: plot_trade_off({run.label(): band}, gaussian_mu=mu, ax=ax))
    curve = {name: getattr(band, name).tolist() for name in ("alpha", "lower", "estimate", "upper")}
    if namespace.json or namespace.plot is not None:
        document = {"points": len(alpha), **curve, **run.document()}
        _print(namespace, document, [f"wrote {namespace.plot}"])
        return
    # Every line names the neighbouring relation, as lines of several curves may come into one table.
    relation, digits = relation_label(run.composition().neighbours), 9
    outward = {"lower": lambda end: round_down(end, digits), "upper": lambda end: round_up(end, digits)}
    shown = [[outward.get(name, f"{{:.{digits}g}}".format)(end) for end in column] for name, column in curve.items()]
    rows = [[*curve, "neighbours"], *([*row, relation] for row in zip(*shown, strict=True))]
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows)


def run_statement(namespace: argparse.Namespace) -> None:
    """The privacy report of a run that options describe, or that a folder holds, as Markdown or as JSON."""
    folder, file = namespace.folder, "card.json"
    if folder is None:
        run = read_run(namespace, ["delta"])
        unit = {} if namespace.unit is None else {"unit": namespace.unit}
        card = privacy_card(run.composition(), namespace.delta, **unit)
    else:
        refuse_beside("--run", namespace, ("delta", "unit"))
        try:
            from dprmt.training.harness import CARD, read_card
        except ModuleNotFoundError as error:
            raise UsageError(f"dprmt statement: --run needs {error.name}: {how_to_install('train')}") from None
        card, file = read_card(folder), f"{folder}/{CARD}"
    text = strict_json(card.as_dict(), indent=1) if namespace.json else card.as_markdown(f"dprmt verify {file}")
    sys.stdout.write(text.rstrip("\n") + "\n")
