"""The commands about a run's privacy, from ``epsilon`` to ``statement``.

Each reads its run by :func:`read_run`, asks the library one question, and prints an :class:`Answer` or a table.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprmt import __version__
from dprmt._files import strict_json
from dprmt._validation import ParameterError, how_to_install
from dprmt.accounting import (
    ExactNorms,
    Hutchinson,
    HutchPlusPlus,
    Norms,
    Poisson,
    PrivacyBounds,
    ProbeChoice,
    TradeOff,
    choose_probes,
    clt_mu,
    largest_steps,
    worst_of,
)
from dprmt.cli._options import (
    MEANING_IN_SHORT,
    Commands,
    Option,
    UsageError,
    add_command_with,
    check_picture_name,
    count,
    flag,
    named,
    real,
)
from dprmt.cli._runs import DELTA, EPSILON, FROM_JSON, RUN, Run, read_run, refuse_beside
from dprmt.cli._terminal import waiting
from dprmt.cli._text_table import text_table
from dprmt.cli._values import NEIGHBOURS, NOISE, SAMPLING
from dprmt.statements import PrivacyCard, privacy_card, relation_label, round_down, round_up, statement

_SOME_RUN = "--noise-multiplier 1 --sample-rate 2000/67349 --steps 400"
_EXAMPLES = {
    "epsilon": (
        f"{_SOME_RUN} --delta 1e-5",
        f"{_SOME_RUN} --delta 1e-5 --probes 32 --public-probes",
        "--phases run.toml --delta 1e-5",
        "--sample-rate .03 --delta 1e-5 --phase noise-multiplier=2,steps=99 --phase noise-multiplier=1,steps=300",
    ),
    "delta": (
        f"--epsilon 2 {_SOME_RUN}",
        "--epsilon 2 --noise-multiplier 1 --samples 67349 --batch-size 2000 --epochs 12 --json",
    ),
    "steps": (
        "--epsilon 2 --noise-multiplier 1 --sample-rate 2000/67349 --delta 1e-5",
        "--epsilon 2 --noise-multiplier 1 --sample-rate .01 --delta 1e-5 --spent runs/first",
    ),
    "noise": (
        "--epsilon 2 --sample-rate 2000/67349 --steps 400 --delta 1e-5",
        "--epsilon 2 --sample-rate .01 --phase noise-multiplier=1,steps=1000 --phase steps=500 --delta 1e-5",
        "--epsilon 2 --sample-rate .01 --steps 500 --delta 1e-5 --spent runs/first --also gaussian:4",
        "--advantage 0.1 --samples 67349 --batch-size 2000 --epochs 12 --delta 1e-5 --probes 32 --secret-probes",
    ),
    "probes": (
        f"{_SOME_RUN} --delta 1e-5 --budget 64",
        "--noise-multiplier 1 --samples 67349 --batch-size 2000 --epochs 12 --delta 1e-5 --budget 64 --json",
    ),
    "tradeoff": (f"{_SOME_RUN} > curve.csv", f"{_SOME_RUN} --probes 32 --public-probes --plot curve.png"),
    "statement": (f"{_SOME_RUN} --delta 1e-5", f"{_SOME_RUN} --delta 1e-5 --json > card.json", "--run runs/first"),
}


def _shapes(name: str, text: str) -> list[tuple[int, ...]]:
    try:
        return [tuple(int(side) for side in layer.split("x")) for layer in text.split(",")]
    except ValueError:
        allowed = "tokens x inputs x outputs, as in 1024x4096x4096, with commas between"
        raise ParameterError(name, text, allowed) from None


def _words(name: str, text: str) -> str:
    if not text.strip():
        raise ParameterError(name, text, "a non-empty description")
    return " ".join(text.split())


_inside = real(low=0.0, high=1.0, low_open=True, high_open=True)
_positive = real(low=0.0, low_open=True)
_STATEMENT = flag("--statement", "also print what may be written in a paper")
_TO_SPEND = Option("--epsilon", _positive, "ε that may be spent in all, > 0, at --delta", metavar="EPSILON")
_TARGET = Option("--epsilon", _positive, "target ε, > 0, at --delta", metavar="EPSILON")
_ADVANTAGE = Option("--advantage", _inside, "or an attacker's largest advantage", metavar="ADVANTAGE")
_TRUE = Option("--true-positive-rate", _inside, "or an attacker's largest one", metavar="TPR")
_FALSE = Option("--false-positive-rate", _inside, "at this false positive rate, below TPR", metavar="FPR")
_ONE_OF = (_TARGET, _ADVANTAGE, _TRUE)
_TARGETS = (*_ONE_OF, _FALSE)
_BUDGET = Option("--budget", count(2, 10**5), "products per layer and sample, an integer >= 2", metavar="PRODUCTS")
_LAYERS = Option("--layers", _shapes, "linear layers, as in 1024x4096x4096,1024x4096x11008", metavar="TxPxR,…")
_POINTS = Option("--points", count(2, 100_001), "false positive rates (default 101)", default=101, metavar="POINTS")
_PLOT = named("--plot", "FILE", "a file", "write a picture (png, pdf or svg)")
_UNIT = Option("--unit", _words, "what one sample is (one row of the training data)", metavar="WORDS")
_FOLDER = named("--run", "RUN", "a folder", "the folder of a run of dprmt train, finished or not", dest="folder")
_WITHOUT_NOISE = tuple(option for option in RUN if option.dest != NOISE.dest)
_NARROW = 60  # columns, which names in words do not fit into


def add_command(commands: Commands) -> None:
    """The commands of this file, with their options and help."""
    one_phase = tuple(option for option in RUN if option.dest in {o.dest for o in (NOISE, *SAMPLING, *NEIGHBOURS)})
    for name, options, run in (
        ("epsilon", (DELTA, *RUN, _STATEMENT), run_epsilon),
        ("noise", (*_TARGETS, DELTA, *_WITHOUT_NOISE, _STATEMENT), run_noise),
        ("steps", (_TO_SPEND, DELTA, *RUN, _STATEMENT), run_steps),
        ("delta", (EPSILON, *RUN, _STATEMENT), run_delta),
        ("probes", (DELTA, _BUDGET, _LAYERS, *one_phase, FROM_JSON), run_probes),
        ("tradeoff", (_POINTS, _PLOT, *RUN), run_tradeoff),
        ("statement", (DELTA, _UNIT, _FOLDER, *RUN), run_statement),
    ):
        examples = "".join(f"  dprmt {name} {words}\n" for words in _EXAMPLES[name])
        add_command_with(commands, name, options, run, f"{MEANING_IN_SHORT}\nexamples:\n{examples}")


@dataclass(frozen=True)
class Answer:
    """Bounds on ε or δ of a run, in both directions.

    Attributes
    ----------
    run : Run
        Whose.
    name, symbol : str
        Of what: "epsilon", "ε" or "delta", "δ".
    by_direction : dict
        The bounds.
    at : tuple of (str, str, float)
        Name, symbol and value of the other of both.
    """

    run: Run
    name: str
    symbol: str
    by_direction: dict[Any, PrivacyBounds]
    at: tuple[str, str, float]

    def document(self) -> dict[str, Any]:
        """The answer as a JSON object: the run, the question, the deciding direction and all bounds."""
        (name, _, value), worst = self.at, worst_of(self.by_direction)
        return {
            "version": __version__,
            **self.run.document(),
            **({} if name == self.name else {name: value}),
            self.name: _finite(worst),
            "direction": worst.direction,
            "by_direction": {direction: _finite(bounds) for direction, bounds in self.by_direction.items()},
        }

    def lines(self) -> list[str]:
        """The answer as lines of text."""
        how, at, worst = self.run.label(), f"{self.at[1]} = {self.at[2]:g}", worst_of(self.by_direction)
        lines = [f"{self.symbol} <= {round_up(worst.upper)} at {at}  ({how})"]
        if math.isinf(worst.upper):
            lines = [f"no finite {self.symbol} could be certified at {at}  ({how})"]
        both = worst.direction is None  # samples are replaced: exchanging them changes nothing
        for name, bounds in [("both", worst)] if both else self.by_direction.items():
            ends = f"{round_down(bounds.lower)} <= {self.symbol} <= {round_up(bounds.upper)}"
            lines.append(f"  {name:<7}{ends}{'  <- decides' if name == worst.direction else ''}")
        return lines

    def statement(self) -> str:
        """A paragraph that may be written in a paper."""
        worst = worst_of(self.by_direction)
        said = {
            self.symbol: f"{self.symbol} ≤ {round_up(worst.upper, 4)}",
            self.at[1]: f"{self.at[1]} = {self.at[2]:g}",
        }
        return statement(worst, self.run.composition(), epsilon=said["ε"], delta=said["δ"])


def _epsilon_of(run: Run, delta: float) -> Answer:
    return Answer(run, "epsilon", "ε", run.composition().epsilon_by_direction(delta), ("delta", "δ", delta))


def _print_bounds(
    namespace: argparse.Namespace,
    answer: Answer,
    document: Mapping[str, Any] | None = None,
    lines: tuple[str, ...] = (),
) -> None:
    """An answer after what a command says besides; with the statement where ``--statement`` asks for it."""
    if namespace.json:
        stated = {"statement": answer.statement()} if namespace.statement else {}
        _print(namespace, {**(document or {}), **answer.document(), **stated}, [])
    else:
        _print(namespace, {}, [*lines, *answer.lines(), *(["", answer.statement()] if namespace.statement else [])])


def _print(namespace: argparse.Namespace, document: dict[str, Any], lines: list[str]) -> None:
    if namespace.json:
        lines = [json.dumps(document, allow_nan=False)]
    sys.stdout.write("\n".join(lines) + "\n")


def _finite(bounds: PrivacyBounds) -> dict[str, float | bool | None]:
    """Bounds as numbers for JSON; null where nothing finite could be certified."""
    return {name: value if math.isfinite(value) else None for name, value in bounds.as_dict().items()}


def run_epsilon(namespace: argparse.Namespace) -> None:
    """ε at δ, in both directions."""
    run, values = read_run(namespace, (DELTA,))
    with waiting("composing"):
        answer = _epsilon_of(run, values["delta"])
    _print_bounds(namespace, answer)


def run_delta(namespace: argparse.Namespace) -> None:
    """δ at ε, in both directions."""
    run, values = read_run(namespace, (EPSILON,))
    with waiting("composing"):
        by_direction = run.composition().delta_by_direction(values["epsilon"])
    _print_bounds(namespace, Answer(run, "delta", "δ", by_direction, ("epsilon", "ε", values["epsilon"])))


def run_steps(namespace: argparse.Namespace) -> None:
    """How many steps a budget allows, and the ε of so many."""
    run, values = read_run(namespace, (DELTA, _TO_SPEND), unknown={"steps": "1"})
    asked = run.asked or (not run.in_phases,)
    if sum(asked) != 1 or (not run.in_phases and (namespace.steps or namespace.epochs)):
        raise ParameterError("steps", namespace.steps, "left out, and --epochs too, of one phase: the one to be run")
    with waiting("trying numbers of steps"):
        steps = largest_steps(run.composition(), values["epsilon"], values["delta"])
        phases = tuple((one, steps if free else count) for (one, count), free in zip(run.phases, asked, strict=True))
        answer = _epsilon_of(replace(run, phases=phases, asked=asked), values["delta"])
    found = {"largest_steps": steps, "target_epsilon": values["epsilon"]}
    _print_bounds(namespace, answer, found, (f"steps = {steps}",))


def run_noise(namespace: argparse.Namespace) -> None:
    """The noise multiplier, and the ε that it gives at δ."""
    asked, values = read_run(namespace, (DELTA,), unknown={"noise_multiplier": "1"}, targets=_TARGETS)
    target = _target(values)
    with waiting("calibrating"):
        try:
            run = asked.calibrated(**target)
        except ParameterError as error:
            raise ParameterError(error.name.removeprefix("target_"), error.value, error.allowed) from None
        answer = _epsilon_of(run, values["delta"])
        risk, said = _risk(run, values)
    noise = [mechanism.noise_multiplier for mechanism, _ in run.phases]
    found: dict[str, Any] = {"noise_multiplier": noise[0]}
    if run.in_phases:
        found = {"noise_multipliers": noise, "fixed": [not free for free in run.asked or (True,) * len(noise)]}
    line = f"noise multiplier{'s' if run.in_phases else ''} = {', '.join(map(round_up, noise))}"
    given = {f"target_{option.dest}": values[option.dest] for option in _TARGETS if values[option.dest] is not None}
    if len(noise) > 1 and not run.asked:
        line += " (all scaled, in their ratios; phases are fixed where others leave noise-multiplier out)"
    _print_bounds(namespace, answer, {**found, **given, **risk}, (line, *said))


def _target(values: dict[str, Any]) -> dict[str, float]:
    """The one that is given, by the library's name."""
    given = [option for option in _ONE_OF if values[option.dest] is not None]
    if not given:
        raise ParameterError(_TARGET.dest, None, f"given, or {_ADVANTAGE.flag}, or {_TRUE.flag} with {_FALSE.flag}")
    if len(given) > 1:
        raise ParameterError(given[1].dest, values[given[1].dest], f"left out where {given[0].flag} is given")
    rate, name = values[_FALSE.dest], given[0].dest
    if (rate is None) == (given[0] is _TRUE):
        raise ParameterError(_FALSE.dest, rate, f"given with {_TRUE.flag}, and only with it")
    more = {"epsilon": {"delta": values["delta"]}, "true_positive_rate": {"false_positive_rate": rate}}
    return {f"target_{name}": values[name], **more.get(name, {})}


def _risk(run: Run, values: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What the attacker reaches where that was the target."""
    if values[_ADVANTAGE.dest] is not None:
        name, words, bounds = "advantage", "attacker's advantage", run.composition().advantage()
    elif values[_TRUE.dest] is not None:
        rate = values[_FALSE.dest]
        name, bounds = "true_positive_rate", run.composition().true_positive_rate(rate)
        words = f"true positive rate at a false positive rate of {rate:g}"
    else:
        return {}, ()
    return {name: _finite(bounds)}, (f"{words} <= {round_up(bounds.upper)}",)


def run_probes(namespace: argparse.Namespace) -> None:
    """The best split for each estimator, and exact norms."""
    run, values = read_run(namespace, (DELTA, _BUDGET, _LAYERS))
    if len(run.phases) != 1 or run.releases:
        raise ParameterError("from_json", namespace.from_json, "of a run in one phase, with nothing else released")
    ((mechanism, steps),) = run.phases
    mechanism = replace(mechanism, norms=ExactNorms())  # every choice brings its own
    with waiting("trying splits"):
        choices = choose_probes(mechanism, steps=steps, **values)
    layers = None if values["layers"] is None else ",".join("x".join(map(str, shape)) for shape in values["layers"])
    setting = {"noise_multiplier": mechanism.noise_multiplier, "sampling": mechanism.sampling.as_dict()}
    asked = {"delta": values["delta"], "budget": values["budget"], "layers": layers}
    described = {**Run(((mechanism, steps),)).document(), **setting, **asked}
    document = {"version": __version__, **described, "choices": [_choice(choice) for choice in choices]}
    said = f"neighbours that ε is about: {relation_label(mechanism.neighbours)}"
    _print(namespace, document, [*_choices_table(choices), said])


def _choice(choice: ProbeChoice) -> dict[str, Any]:
    cost = None if choice.cost is None else choice.cost._asdict()
    norms, bounds = choice.norms.as_dict(), _finite(choice.epsilon)
    return {"norms": norms, "products": choice.products, "epsilon": bounds, "cost": cost}


def _choices_table(choices: tuple[ProbeChoice, ...]) -> list[str]:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    narrow = width is not None and width < _NARROW
    costs = [] if choices[0].cost is None else ["GFLOP", "MiB"]
    rows = []
    for choice in choices:
        cost = [] if choice.cost is None else [f"{choice.cost.flops / 1e9:.3f}", f"{choice.cost.bytes / 2**20:.2f}"]
        secrecy, sketch, probes, short, name = _norms_row(choice.norms)
        rows.append([round_up(choice.epsilon.upper), sketch, probes, *([short] if narrow else [secrecy, *cost, name])])
    headings = ["ε <=", "sketch", "probes", *([] if narrow else ["they are", *costs]), "norms"]
    notes = ["*: power iteration"] if narrow and any("*" in row[-1] for row in rows) else []
    return [*text_table(headings, rows, width=width).splitlines(), *notes]


def _norms_row(norms: Norms) -> tuple[str, str, str, str, str]:
    if not isinstance(norms, (Hutchinson, HutchPlusPlus)):
        return "", "-", "-", "exact norms", "exact norms"
    secrecy = "secret" if norms.secret else "public"
    if isinstance(norms, Hutchinson):
        return secrecy, "-", str(norms.probes), f"{secrecy} probes", "Hutchinson"
    passes, star = ("power iteration", "*") if norms.power_iteration else ("one pass", "")
    return secrecy, str(norms.sketch), str(norms.probes), f"{secrecy} Hutch++{star}", f"Hutch++, {passes}"


def run_tradeoff(namespace: argparse.Namespace) -> None:
    """The curve, at rates that are denser where it bends: near both ends."""
    run, values = read_run(namespace, (_POINTS,))
    if namespace.plot is not None:
        check_picture_name("dprmt tradeoff", namespace.plot)
    alpha = (1.0 - np.cos(np.linspace(0.0, np.pi, values["points"]))) / 2.0
    with waiting("composing"):
        band = run.composition().trade_off(alpha)
    if namespace.plot is not None:
        _draw(namespace.plot, band, run)
    columns = {"alpha": band.alpha, "lower": band.lower, "estimate": band.estimate, "upper": band.upper}
    curve = {name: column.tolist() for name, column in columns.items()}
    document = {"version": __version__, "points": len(alpha), **curve, **run.document()}
    lines = [f"wrote {namespace.plot}"] if namespace.plot is not None else _csv(columns, run)
    _print(namespace, document, lines)


def _draw(place: str, band: TradeOff, run: Run) -> None:
    from dprmt.plots import plot_trade_off, save_picture

    mu, ((first, steps), *more) = None, run.phases
    if not more and isinstance(first.norms, ExactNorms) and first.sampling == Poisson(first.sampling.rate):
        mu = clt_mu(first.joint_noise_multiplier, first.sampling.rate, steps)
    save_picture(place, lambda ax: plot_trade_off({run.label(): band}, gaussian_mu=mu, ax=ax))


def _csv(columns: dict[str, np.ndarray], run: Run) -> list[str]:
    """Every line names the neighbouring relation, as lines of several curves may come into one table."""
    relation = relation_label(run.composition().neighbours)
    outward = {"lower": lambda end: round_down(end, 9), "upper": lambda end: round_up(end, 9)}
    shown = [[outward.get(name, "{:.9g}".format)(end) for end in column] for name, column in columns.items()]
    rows = [[*row, relation] for row in zip(*shown, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[*columns, "neighbours"], *rows])
    return text.getvalue().splitlines()


def run_statement(namespace: argparse.Namespace) -> None:
    """The privacy report of a run that options describe, or that a folder holds, as Markdown or as JSON."""
    card, file = (_described if namespace.folder is None else _kept)(namespace)
    text = strict_json(card.as_dict(), indent=1) if namespace.json else card.as_markdown(f"dprmt verify {file}")
    sys.stdout.write(text.rstrip("\n") + "\n")


def _described(namespace: argparse.Namespace) -> tuple[PrivacyCard, str]:
    run, values = read_run(namespace, (DELTA, _UNIT))
    more = {} if values["unit"] is None else {"unit": values["unit"]}
    with waiting("composing"):
        return privacy_card(run.composition(), values["delta"], **more), "card.json"


def _kept(namespace: argparse.Namespace) -> tuple[PrivacyCard, str]:
    refuse_beside("--run", namespace, (*RUN, DELTA, _UNIT))
    try:
        from dprmt.training.harness import CARD, read_card
    except ModuleNotFoundError as error:
        raise UsageError(f"dprmt statement: --run needs {error.name}: {how_to_install('train')}") from None
    with waiting("composing"):
        return read_card(namespace.folder), f"{namespace.folder}/{CARD}"
