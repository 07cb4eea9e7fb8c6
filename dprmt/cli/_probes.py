"""``dprmt probes``."""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import replace
from typing import Any

from dprmt import __version__
from dprmt._validation import ParameterError
from dprmt.accounting import ExactNorms, Hutchinson, HutchPlusPlus, Norms, ProbeChoice, choose_probes
from dprmt.cli._answers import finite, print_answer
from dprmt.cli._options import Commands, Option, add_command_with, count
from dprmt.cli._records import FROM_JSON
from dprmt.cli._run_options import DELTA, NOISE, Run, read_run
from dprmt.cli._sampling_options import SAMPLING
from dprmt.cli._summaries import MEANING
from dprmt.cli._terminal import waiting
from dprmt.cli._text_table import text_table
from dprmt.cli._value_options import NEIGHBOURS
from dprmt.statements import relation_label, round_up


def _shapes(name: str, text: str) -> list[tuple[int, ...]]:
    try:
        return [tuple(int(side) for side in layer.split("x")) for layer in text.split(",")]
    except ValueError:
        raise ParameterError(
            name, text, "tokens x inputs x outputs, as in 1024x4096x4096, with commas between"
        ) from None


_BUDGET = Option("--budget", count(low=2, high=10**5), "products per layer and sample, an integer >= 2", metavar="N")
_NARROW = 60  # columns, which names in words do not fit into
_LAYERS = Option(
    "--layers", _shapes, "shapes of linear layers, as in 1024x4096x4096,1024x4096x11008", metavar="TxPxR,..."
)
_ASKED = (DELTA, _BUDGET, _LAYERS)
_OPTIONS = (NOISE, *SAMPLING, *NEIGHBOURS, *_ASKED, FROM_JSON)
_EXAMPLES = """\
examples:
  dprmt probes --noise-multiplier 1 --sample-rate 2000/67349 --steps 400 --delta 1e-5 --budget 64
  dprmt probes --noise-multiplier 1 --samples 67349 --batch-size 2000 --epochs 12 --delta 1e-5 --budget 64 --json
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    add_command_with(commands, "probes", _OPTIONS, run_probes, f"{MEANING}\n{_EXAMPLES}")


def run_probes(namespace: argparse.Namespace) -> None:
    """The best split for each estimator, and exact norms."""
    run, values = read_run(namespace, _ASKED)
    if len(run.phases) != 1 or run.releases:
        raise ParameterError("from_json", namespace.from_json, "of a run in one phase, with nothing released beside it")
    ((mechanism, steps),) = run.phases
    mechanism = replace(mechanism, norms=ExactNorms())  # every choice brings its own
    with waiting("trying splits"):
        choices = choose_probes(mechanism, steps=steps, **values)
    layers = None if values["layers"] is None else ",".join("x".join(map(str, shape)) for shape in values["layers"])
    setting = {"noise_multiplier": mechanism.noise_multiplier, "sampling": mechanism.sampling.as_dict()}
    asked = {"delta": values["delta"], "budget": values["budget"], "layers": layers}
    described = {**Run(((mechanism, steps),)).document(), **setting, **asked}
    document = {"version": __version__, **described, "choices": [_document(choice) for choice in choices]}
    said = f"neighbours that ε is about: {relation_label(mechanism.neighbours)}"
    print_answer(namespace, document, [*_table(choices), said])


def _document(choice: ProbeChoice) -> dict[str, Any]:
    cost = None if choice.cost is None else choice.cost._asdict()
    norms, bounds = choice.norms.as_dict(), finite(choice.epsilon)
    return {"norms": norms, "products": choice.products, "epsilon": bounds, "cost": cost}


def _table(choices: tuple[ProbeChoice, ...]) -> list[str]:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    narrow = width is not None and width < _NARROW
    costs = [] if choices[0].cost is None else ["GFLOP", "MiB"]
    rows = []
    for choice in choices:
        cost = [] if choice.cost is None else [f"{choice.cost.flops / 1e9:.3f}", f"{choice.cost.bytes / 2**20:.2f}"]
        name, secrecy, sketch, probes = _columns(choice.norms)
        named = [_short_name(choice.norms, secrecy)] if narrow else [secrecy, *cost, name]
        rows.append([round_up(choice.epsilon.upper), sketch, probes, *named])
    headings = ["\u03b5 <=", "sketch", "probes", *([] if narrow else ["they are", *costs]), "norms"]
    notes = ["*: power iteration"] if narrow and any("*" in row[-1] for row in rows) else []
    return [*text_table(headings, rows, width=width).splitlines(), *notes]


def _short_name(norms: Norms, secrecy: str) -> str:
    if not isinstance(norms, (Hutchinson, HutchPlusPlus)):
        return "exact norms"
    if isinstance(norms, Hutchinson):
        return f"{secrecy} probes"
    return f"{secrecy} Hutch++{'*' if norms.power_iteration else ''}"


def _columns(norms: Norms) -> tuple[str, str, str, str]:
    if not isinstance(norms, (Hutchinson, HutchPlusPlus)):
        return "exact norms", "", "-", "-"
    secrecy = "secret" if norms.secret else "public"
    if isinstance(norms, Hutchinson):
        return "Hutchinson", secrecy, "-", str(norms.probes)
    passes = "power iteration" if norms.power_iteration else "one pass"
    return f"Hutch++, {passes}", secrecy, str(norms.sketch), str(norms.probes)
