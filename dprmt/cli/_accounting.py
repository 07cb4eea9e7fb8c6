"""The commands about a run's privacy, from ``epsilon`` to ``statement``.

Each reads its run by :func:`read_run`, asks the library one question, and prints bounds or a table.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from dprmt import __version__
from dprmt._files import strict_json
from dprmt._rounding import round_down, round_up
from dprmt._validation import ParameterError
from dprmt.accounting import (
    DPSGD,
    Composition,
    ExactNorms,
    PrivacyBounds,
    calibrate,
    choose_probes,
    compose,
    fixed,
    largest_steps,
    worst_of,
)
from dprmt.cli._options import (
    MEANING_IN_SHORT,
    Commands,
    add_parser,
    count,
    flag_of,
    leave_out,
    name_of,
    picture,
    real,
    record_of_run,
    refused,
)
from dprmt.cli._run import add_phase_options, add_run_options, document_of, label_of, read_run, run_options
from dprmt.cli._terminal import text_table
from dprmt.statements import privacy_card, statement
from dprmt.statements._card import between, json_bounds
from dprmt.statements._sentences import norms_label, relation_label

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
_SYMBOLS = {"epsilon": "ε", "delta": "δ"}
_TARGETS = ("target_epsilon", "target_advantage", "target_true_positive_rate", "false_positive_rate")


def _shapes(text: str) -> list[tuple[int, ...]]:
    try:
        return [tuple(int(side) for side in layer.split("x")) for layer in text.split(",")]
    except ValueError:
        raise refused(text, "tokens x inputs x outputs, as in 1024x4096x4096, with commas between") from None


def add_command(commands: Commands) -> None:
    """The commands of this file, with their options and help."""
    positive, inside = real(low=0.0, low_open=True), real(low=0.0, high=1.0, low_open=True, high_open=True)
    delta = real(low=1e-290, high=1.0, high_open=True)
    options: dict[Callable[..., None], tuple[tuple[str, str, Callable[[str], Any], str], ...]] = {
        run_epsilon: (),
        run_noise: (
            ("target_epsilon", "EPSILON", positive, "target ε, > 0, at --delta"),
            ("target_advantage", "ADVANTAGE", inside, "or an attacker's largest advantage"),
            ("target_true_positive_rate", "TPR", inside, "or an attacker's largest one"),
            ("false_positive_rate", "FPR", inside, "at this false positive rate, below TPR"),
        ),
        run_steps: (("target_epsilon", "EPSILON", positive, "ε that may be spent in all, > 0, at --delta"),),
        run_delta: (("epsilon", "EPSILON", real(low=0.0, high=1e17), "ε, in [0, 1e17]"),),
        run_probes: (
            ("budget", "PRODUCTS", count(2, 10**5), "products per layer and sample, an integer >= 2"),
            ("layers", "TxPxR,…", _shapes, "linear layers, as in 1024x4096x4096,1024x4096x11008"),
            ("from_json", "FILE", record_of_run, "a run that --json printed before"),
        ),
        run_tradeoff: (
            ("points", "POINTS", count(2, 100_001), "false positive rates (default 101)"),
            ("plot", "FILE", picture, "write a picture (png, pdf or svg)"),
        ),
        run_statement: (
            ("unit", "WORDS", name_of("what one sample is"), "what one sample is (one row of the training data)"),
            ("run", "RUN", str, "the folder of a run of dprmt train, finished or not"),
        ),
    }
    for run, own in options.items():
        name = run.__name__.removeprefix("run_")
        parser = add_parser(commands, name, run, _EXAMPLES[name], about=MEANING_IN_SHORT)
        if name not in ("delta", "tradeoff"):
            parser.add_argument("--delta", type=delta, metavar="DELTA", help="δ, in [1e-290, 1)")
        for dest, metavar, kind, words in own:
            parser.add_argument(flag_of(dest), dest=dest, metavar=metavar, type=kind, help=words)
        if name in ("epsilon", "noise", "steps", "delta"):
            parser.add_argument("--statement", action="store_true", help="also print what may be written in a paper")
        if name == "probes":
            add_phase_options(parser, norms=False)
        else:
            add_run_options(parser, noise=name != "noise")


def _print(namespace: argparse.Namespace, document: Mapping[str, Any], lines: Iterable[str]) -> None:
    text = [json.dumps({"version": __version__, **document}, allow_nan=False)] if namespace.json else lines
    sys.stdout.writelines(f"{line}\n" for line in text)


def _print_bounds(
    namespace: argparse.Namespace,
    composed: Composition,
    name: str = "epsilon",
    document: Mapping[str, Any] = MappingProxyType({}),
    lines: Sequence[str] = (),
) -> None:
    """Print ε at ``--delta`` or δ at ``--epsilon``, in both directions, after what a command says besides."""
    other = "delta" if name == "epsilon" else "epsilon"
    symbol, asked = _SYMBOLS[name], {other: getattr(namespace, other)}
    at, ask = f"{_SYMBOLS[other]} = {asked[other]:g}", getattr(composed, f"{name}_by_direction")
    by_direction: dict[Any, PrivacyBounds] = ask(asked[other])
    worst = worst_of(by_direction)
    first = f"{symbol} <= {round_up(worst.upper)} at {at}"
    if math.isinf(worst.upper):
        first = f"no finite {symbol} could be certified at {at}"
    shown = [*lines, f"{first}  ({label_of(composed)})"]
    # Where samples are replaced, exchanging them changes nothing: there is one direction.
    for way, bounds in [("both", worst)] if worst.direction is None else by_direction.items():
        decides = "  <- decides" * (way == worst.direction)
        shown.append(f"  {way:<7}{between(bounds, symbol, '<=')}{decides}")
    found = {
        **document,
        **document_of(composed),
        **asked,
        name: json_bounds(worst),
        "direction": worst.direction,
        "by_direction": {way: json_bounds(bounds) for way, bounds in by_direction.items()},
    }
    if namespace.statement:
        bound = f"{symbol} ≤ {round_up(worst.upper, 4)}"
        found["statement"] = statement(worst, composed, **{name: bound, **dict.fromkeys(asked, at)})
        shown += ["", found["statement"]]
    _print(namespace, found, shown)


def run_epsilon(namespace: argparse.Namespace) -> None:
    """ε at δ, in both directions."""
    _print_bounds(namespace, read_run(namespace, ["delta"]))


def run_delta(namespace: argparse.Namespace) -> None:
    """δ at ε, in both directions."""
    _print_bounds(namespace, read_run(namespace, ["epsilon"]), "delta")


def run_steps(namespace: argparse.Namespace) -> None:
    """How many steps a budget allows, and the ε of so many."""
    run = read_run(namespace, ["delta", "target_epsilon"], unknown={"steps": 1})
    steps = largest_steps(run, namespace.target_epsilon, namespace.delta)
    phases = [(one, steps if isinstance(one, DPSGD) else times) for one, times in run.free_phases()]
    found = {"largest_steps": steps, "target_epsilon": namespace.target_epsilon}
    _print_bounds(namespace, _after(run.fixed, phases), document=found, lines=(f"steps = {steps}",))


def run_noise(namespace: argparse.Namespace) -> None:
    """The noise multiplier, and the ε that it gives at δ."""
    asked = read_run(namespace, ["delta"], unknown={"noise_multiplier": 1.0})
    target = {name: value for name in _TARGETS if (value := getattr(namespace, name)) is not None}
    at_delta = {"delta": namespace.delta} if "target_epsilon" in target else {}
    found = calibrate(asked, **target, **at_delta)
    run = _after(found.fixed, found.free_phases())
    noise = [one.noise_multiplier for one, _ in run.free_phases() if isinstance(one, DPSGD)]
    several = len(noise) > 1
    lines = [f"noise multiplier{'s' * several} = {', '.join(map(round_up, noise))}"]
    if several:
        lines[0] += " (all scaled, in their ratios; phases are fixed where others leave noise-multiplier out)"
    document: dict[str, Any] = {"noise_multipliers": noise} if several else {"noise_multiplier": noise[0]}
    document |= target
    if not at_delta:
        rate = namespace.false_positive_rate
        name = "advantage" if rate is None else "true_positive_rate"
        bounds = run.advantage() if rate is None else run.true_positive_rate(rate)
        document[name] = json_bounds(bounds)
        at = "" if rate is None else f" at a false positive rate of {rate:g}"
        lines.append(f"attacker's {name.replace('_', ' ')}{at} <= {round_up(bounds.upper)}")
    _print_bounds(namespace, run, document=document, lines=lines)


def _after(over: Sequence[Any], phases: Sequence[Any]) -> Composition:
    """Phases after others that are over."""
    return compose([*([fixed(compose(over))] if over else []), *phases])


def run_probes(namespace: argparse.Namespace) -> None:
    """The best split for each estimator, and exact norms."""
    (mechanism, steps), *more = read_run(namespace, ["delta", "budget"]).phases
    if more or not isinstance(mechanism, DPSGD):
        raise ParameterError("from_json", None, "of a run in one phase, with nothing else released")
    mechanism = replace(mechanism, norms=ExactNorms())  # every choice brings its own
    layers, question = namespace.layers, {"delta": namespace.delta, "budget": namespace.budget}
    choices, rows, described = choose_probes(mechanism, steps=steps, layers=layers, **question), [], []
    for norms, products, epsilon, cost in ((one.norms, one.products, one.epsilon, one.cost) for one in choices):
        costs = [] if cost is None else [f"{cost.flops / 1e9:.3f}", f"{cost.bytes / 2**20:.2f}"]
        rows.append([round_up(epsilon.upper), *costs, norms_label(norms)])
        spent = None if cost is None else cost._asdict()
        found = {"norms": norms.as_dict(), "products": products, "epsilon": json_bounds(epsilon), "cost": spent}
        described.append(found)
    document = {
        **document_of(compose([(mechanism, steps)])),
        **question,
        "layers": None if layers is None else ",".join("x".join(map(str, shape)) for shape in layers),
        "choices": described,
    }
    table = text_table(["ε <=", *([] if layers is None else ["GFLOP", "MiB"]), "norms"], rows)
    said = f"neighbours that ε is about: {relation_label(mechanism.neighbours)}"
    _print(namespace, document, [*table.splitlines(), said])


def run_tradeoff(namespace: argparse.Namespace) -> None:
    """The curve, at rates that are denser where it bends: near both ends."""
    run = read_run(namespace)
    band = run.trade_off((1.0 - np.cos(np.linspace(0.0, np.pi, namespace.points or 101))) / 2.0)
    if namespace.plot is not None:
        from dprmt.plots import plot_trade_off
        from dprmt.plots._style import save_picture

        save_picture(namespace.plot, lambda ax: plot_trade_off({label_of(run): band}, ax=ax))
    curve = {name: getattr(band, name).tolist() for name in ("alpha", "lower", "estimate", "upper")}
    if namespace.json or namespace.plot is not None:
        _print(namespace, {"points": len(band.alpha), **curve, **document_of(run)}, [f"wrote {namespace.plot}"])
        return
    # Every line names the neighbouring relation, as lines of several curves may come into one table.
    relation, digits = relation_label(run.neighbours), 9
    outward = {"lower": lambda end: round_down(end, digits), "upper": lambda end: round_up(end, digits)}
    shown = [[outward.get(name, f"{{:.{digits}g}}".format)(end) for end in column] for name, column in curve.items()]
    rows = [[*curve, "neighbours"], *([*row, relation] for row in zip(*shown, strict=True))]
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows)


def run_statement(namespace: argparse.Namespace) -> None:
    """The privacy report of a run that options describe, or that a folder holds, as Markdown or as JSON."""
    folder, file = namespace.run, "card.json"
    if folder is None:
        run = read_run(namespace, ["delta"])
        unit = {} if namespace.unit is None else {"unit": namespace.unit}
        card = privacy_card(run, namespace.delta, **unit)
    else:
        leave_out(vars(namespace), [*run_options(), "from_json", "delta", "unit"], "--run is given")
        from dprmt.training.harness import CARD, read_card

        card, file = read_card(folder), f"{folder}/{CARD}"
    text = strict_json(card.as_dict(), indent=1) if namespace.json else card.as_markdown(f"dprmt verify {file}")
    sys.stdout.write(text.rstrip("\n") + "\n")
