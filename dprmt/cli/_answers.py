"""Answers to privacy questions, as JSON and as lines whose numbers are still bounds."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

from dprmt.accounting import PrivacyBounds
from dprmt.cli._options import Parser
from dprmt.cli._rounding import round_down, round_up
from dprmt.cli._run_options import details, label


def bounds_document(name: str, by_direction: dict[Any, PrivacyBounds], values: dict[str, Any]) -> dict[str, Any]:
    """The larger of both directions under its name, and what decided."""
    worst = larger(by_direction)
    return {
        name: _finite(worst),
        "direction": worst.direction,
        "by_direction": {direction: _finite(bounds) for direction, bounds in by_direction.items()},
        **details(values),
    }


def bounds_lines(symbol: str, by_direction: dict[Any, PrivacyBounds], at: str, values: dict[str, Any]) -> list[str]:
    """The same for readers."""
    worst, how = larger(by_direction), label(values)
    lines = [f"{symbol} <= {round_up(worst.upper)} at {at}  ({how})"]
    if math.isinf(worst.upper):
        lines = [f"no finite {symbol} could be certified at {at}  ({how})"]
    for name, bounds in by_direction.items():
        decides = "  <- decides" if name == worst.direction else ""
        lines.append(f"  {name:<7}{round_down(bounds.lower)} <= {symbol} <= {round_up(bounds.upper)}{decides}")
    return lines


def larger(by_direction: dict[Any, PrivacyBounds]) -> PrivacyBounds:
    """Bounds on the larger of both directions, named after the one whose upper bound is larger."""
    decides = max(by_direction, key=lambda direction: by_direction[direction].upper)
    lower, estimate, upper = (max(ends) for ends in zip(*by_direction.values(), strict=True))
    return PrivacyBounds(lower, estimate, upper, direction=decides)


def add_statement(parser: Parser) -> None:
    """Declare ``--statement``."""
    parser.add_argument("--statement", action="store_true", help="print what may be written in a paper, too")


def print_answer(
    namespace: argparse.Namespace, document: dict[str, Any], lines: list[str], statement: str | None = None
) -> None:
    """One JSON object, or the lines; with the statement where ``--statement`` asks for it."""
    if statement is not None and namespace.statement:
        document, lines = {**document, "statement": statement}, [*lines, "", statement]
    if namespace.json:
        lines = [json.dumps(document, allow_nan=False)]
    sys.stdout.write("\n".join(lines) + "\n")


def _finite(bounds: PrivacyBounds) -> dict[str, float | bool | None]:
    # JSON has no infinity: null says that nothing finite could be certified.
    return {name: value if math.isfinite(value) else None for name, value in bounds.as_dict().items()}
