"""The command line, ``dprmt``."""

from __future__ import annotations


def main() -> int:
    """Run the command line.

    Returns
    -------
    int
        The exit code.
    """
    return 0
