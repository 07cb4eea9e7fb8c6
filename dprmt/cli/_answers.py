"""Answers to privacy questions, as JSON and as lines whose numbers are still bounds."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from typing import Any

from dprmt import __version__
from dprmt.accounting import PrivacyBounds, worst_of
from dprmt.cli._options import Option, yes_or_no
from dprmt.cli._run_options import Run
from dprmt.statements import round_down, round_up, statement


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
            self.name: finite(worst),
            "direction": worst.direction,
            "by_direction": {direction: finite(bounds) for direction, bounds in self.by_direction.items()},
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


STATEMENT = Option("--statement", yes_or_no, "print what may be written in a paper, too", is_flag=True)
"""Of every command that prints bounds."""


def print_bounds(
    namespace: argparse.Namespace, answer: Answer, document: dict[str, Any] | None = None, lines: tuple[str, ...] = ()
) -> None:
    """An answer after what a command says besides; with the statement where ``--statement`` asks for it."""
    if namespace.json:
        stated = {"statement": answer.statement()} if namespace.statement else {}
        print_answer(namespace, {**(document or {}), **answer.document(), **stated}, [])
    else:
        stated_lines = ["", answer.statement()] if namespace.statement else []
        print_answer(namespace, {}, [*lines, *answer.lines(), *stated_lines])


def print_answer(namespace: argparse.Namespace, document: dict[str, Any], lines: list[str]) -> None:
    """One JSON object or lines of text on stdout."""
    if namespace.json:
        lines = [json.dumps(document, allow_nan=False)]
    sys.stdout.write("\n".join(lines) + "\n")


def finite(bounds: PrivacyBounds) -> dict[str, float | bool | None]:
    """Bounds as numbers for JSON; null where nothing finite could be certified."""
    return {name: value if math.isfinite(value) else None for name, value in bounds.as_dict().items()}
