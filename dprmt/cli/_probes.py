"""``dprmt probes``."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import Any

from dprmt._validation import ParameterError
from dprmt.accounting import ProbeChoice, choose_probes
from dprmt.cli._answers import print_answer
from dprmt.cli._options import Commands, Option, add_command_with, count
from dprmt.cli._rounding import round_up
from dprmt.cli._run_options import DELTA, NOISE
from dprmt.cli._sampling_options import MEANING, POISSON, read_run
from dprmt.cli._spinner import waiting


def _shapes(name: str, text: str) -> list[tuple[int, ...]]:
    try:
        return [tuple(int(side) for side in layer.split("x")) for layer in text.split(",")]
    except ValueError:
        raise ParameterError(
            name, text, "tokens x inputs x outputs, as in 1024x4096x4096, with commas between"
        ) from None


_BUDGET = Option(
    "--budget", count(low=2, high=10**5), "products per layer and sample, an integer >= 2", required=True, metavar="N"
)
_LAYERS = Option(
    "--layers", _shapes, "shapes of linear layers, as in 1024x4096x4096,1024x4096x11008", metavar="TxPxR,..."
)
_OPTIONS = (NOISE, *POISSON, DELTA, _BUDGET, _LAYERS)
_EXAMPLES = """\
examples:
  dprmt probes --noise-multiplier 1 --sample-rate 2000/67349 --steps 400 --delta 1e-5 --budget 64
  dprmt probes --noise-multiplier 1 --examples 67349 --batch-size 2000 --epochs 12 --delta 1e-5 --budget 64 --json
"""


def add_command(commands: Commands) -> None:
    """Declare it."""
    summary = "how to spend a budget of products per layer on sketch and probes, with the ε of each choice"
    add_command_with(commands, "probes", summary, _OPTIONS, run_probes, f"{MEANING}\n{_EXAMPLES}")


def run_probes(namespace: argparse.Namespace) -> None:
    """The best split for each estimator, and exact norms."""
    values = read_run(namespace, _OPTIONS)
    run = (values[name] for name in ("noise_multiplier", "sample_rate", "steps", "delta", "budget"))
    with waiting("trying splits"):
        choices = choose_probes(*run, layers=values["layers"])
    print_answer(namespace, {"choices": [_document(choice) for choice in choices]}, _table(choices))


def _document(choice: ProbeChoice) -> dict[str, Any]:
    bounds = {name: value if math.isfinite(value) else None for name, value in choice.epsilon.as_dict().items()}
    cost = None if choice.cost is None else choice.cost._asdict()
    return {**asdict(choice), "epsilon": bounds, "cost": cost}


def _table(choices: tuple[ProbeChoice, ...]) -> list[str]:
    costs = "" if choices[0].cost is None else f"{'GFLOP':>10}{'MiB':>9}"
    lines = [f"{'norms':<26}{'probes are':<12}{'sketch':>7}{'probes':>8}{'ε <=':>10}{costs}"]
    words = {None: "", "batch": "revealed", "sample": "secret"}
    for choice in choices:
        cost = "" if choice.cost is None else f"{choice.cost.flops / 1e9:>10.3f}{choice.cost.bytes / 2**20:>9.2f}"
        numbers = f"{choice.sketch or '-':>7}{choice.probes or '-':>8}{round_up(choice.epsilon.upper):>10}"
        lines.append(f"{choice.estimator:<26}{words[choice.probe_sharing]:<12}{numbers}{cost}")
    return lines
