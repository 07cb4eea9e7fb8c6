"""``python -m audits NAME``: an attack, games by default, or the page of what was found."""

from __future__ import annotations

import importlib
import sys

_COMMANDS = ("games", "mutations", "kills", "fuzz", "mixing", "device", "page")


def main(arguments: list[str]) -> int:
    """Run one of them."""
    named = bool(arguments) and arguments[0] in _COMMANDS
    command, rest = (arguments[0], arguments[1:]) if named else (_COMMANDS[0], arguments)
    return int(importlib.import_module(f"audits.{command}").main(rest))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
