"""``--set KEY=VALUE``: changes of a recipe on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from dprmt._files import parse_toml
from dprmt._validation import ParameterError


def add_changes(parser: argparse.ArgumentParser) -> None:
    """The option ``--set``."""
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change a value, such as training.steps=100; KEY= takes it away",
    )


def recipe_changes(given: Iterable[str]) -> dict[str, Any]:
    """The changes by dotted name."""
    return dict(map(_change, given))


def _change(text: str) -> tuple[str, Any]:
    # The value is TOML; a bare word is a string, nothing takes the key away.
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ParameterError("set", text, "of the form KEY=VALUE")
    if not value.strip():
        return key.strip(), None
    try:
        return key.strip(), parse_toml(f"value = {value}")["value"]
    except ValueError:  # also a number with more digits than Python reads
        return key.strip(), value.strip()
