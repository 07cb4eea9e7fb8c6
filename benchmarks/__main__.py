"""``python -m benchmarks NAME``: one measurement with its options; without a name, the quick ones in a row."""

from __future__ import annotations

import runpy
import sys

_COMMANDS = ("accounting", "denoiser", "first_step", "frozen", "grape", "step", "sweep", "verified")
_QUICK = ("accounting", "denoiser", "grape")


def main(arguments: list[str]) -> int:
    """Run what is named, as ``python -m benchmarks.NAME`` does."""
    if arguments and arguments[0] not in _COMMANDS:
        print(f"benchmarks: NAME must be one of {', '.join(_COMMANDS)}, got {arguments[0]!r}", file=sys.stderr)
        return 2
    for name in arguments[:1] or _QUICK:
        sys.argv = [f"benchmarks.{name}", *arguments[1:]]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
