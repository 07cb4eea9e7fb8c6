"""``dprmt noise``."""

from __future__ import annotations

import argparse
from typing import Any

from dprmt._validation import ParameterError
from dprmt.cli._answers import STATEMENT, Answer, finite, print_bounds
from dprmt.cli._options import Commands, Option, add_command_with, real
from dprmt.cli._run_options import DELTA, RUN_WITHOUT_NOISE, Run, read_run
from dprmt.cli._summaries import MEANING
from dprmt.cli._terminal import waiting
from dprmt.statements import round_up

_inside = real(low=0.0, high=1.0, low_open=True, high_open=True)
_EPSILON = Option("--epsilon", real(low=0.0, low_open=True), "target ε, > 0, at --delta", metavar="E")
_ADVANTAGE = Option(
    "--advantage",
    _inside,
    "in place of ε: an attacker's largest true minus false positive rate",
    metavar="A",
)
_TRUE = Option(
    "--true-positive-rate",
    _inside,
    "in place of ε: an attacker's largest one at --false-positive-rate",
    metavar="B",
)
_FALSE = Option("--false-positive-rate", _inside, "of attackers, in (0, --true-positive-rate)", metavar="A")
_ONE_OF = (_EPSILON, _ADVANTAGE, _TRUE)
_TARGETS = (*_ONE_OF, _FALSE)
_OPTIONS = (*_TARGETS, *RUN_WITHOUT_NOISE, DELTA)
_EXAMPLES = """\
examples:
  dprmt noise --epsilon 2 --sample-rate 2000/67349 --steps 400 --delta 1e-5
  dprmt noise --epsilon 2 --sample-rate .01 --phase noise-multiplier=1,steps=1000 --phase steps=500 --delta 1e-5
  dprmt noise --epsilon 2 --sample-rate .01 --steps 500 --delta 1e-5 --spent runs/first --also gaussian:4
  dprmt noise --advantage 0.1 --sample-rate 2000/67349 --steps 400 --delta 1e-5
  dprmt noise --epsilon 2 --samples 67349 --batch-size 2000 --epochs 12 --delta 1e-5 --probes 32 --secret-probes
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    add_command_with(commands, "noise", (*_OPTIONS, STATEMENT), run_noise, f"{MEANING}\n{_EXAMPLES}")


def run_noise(namespace: argparse.Namespace) -> None:
    """The noise multiplier, and the ε that it gives at δ."""
    asked, values = read_run(namespace, (DELTA,), unknown={"noise_multiplier": "1"}, targets=_TARGETS)
    target = _target(values)
    with waiting("calibrating"):
        run = _calibrated(asked, target)
        by_direction = run.composition().epsilon_by_direction(values["delta"])
        risk, said = _risk(run, values)
    noise = [mechanism.noise_multiplier for mechanism, _ in run.phases]
    answer = Answer(run, "epsilon", "ε", by_direction, ("delta", "δ", values["delta"]))
    found: dict[str, Any] = {"noise_multiplier": noise[0]}
    if run.in_phases:
        found = {"noise_multipliers": noise, "fixed": [not free for free in run.asked or (True,) * len(noise)]}
    line = f"noise multiplier{'s' if run.in_phases else ''} = {', '.join(map(round_up, noise))}"
    given = {f"target_{option.dest}": values[option.dest] for option in _TARGETS if values[option.dest] is not None}
    if len(noise) > 1 and not run.asked:
        line += " (all scaled, in their ratios; phases are fixed where others leave noise-multiplier out)"
    print_bounds(namespace, answer, {**found, **given, **risk}, (line, *said))


def _target(values: dict[str, Any]) -> dict[str, float]:
    """The one that is given, in words of the library."""
    given = [option for option in _ONE_OF if values[option.dest] is not None]
    if not given:
        raise ParameterError(_EPSILON.dest, None, f"given, or {_ADVANTAGE.flag}, or {_TRUE.flag} with {_FALSE.flag}")
    if len(given) > 1:
        raise ParameterError(given[1].dest, values[given[1].dest], f"left out where {given[0].flag} is given")
    rate, name = values[_FALSE.dest], given[0].dest
    if (rate is None) == (given[0] is _TRUE):
        raise ParameterError(_FALSE.dest, rate, f"given with {_TRUE.flag}, and only with it")
    beside = {"epsilon": {"delta": values["delta"]}, "true_positive_rate": {"false_positive_rate": rate}}
    return {f"target_{name}": values[name], **beside.get(name, {})}


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
    return {name: finite(bounds)}, (f"{words} <= {round_up(bounds.upper)}",)


def _calibrated(run: Run, target: dict[str, float]) -> Run:
    try:
        return run.calibrated(**target)
    except ParameterError as error:
        raise ParameterError(error.name.removeprefix("target_"), error.value, error.allowed) from None
