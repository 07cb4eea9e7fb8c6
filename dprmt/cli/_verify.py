"""``dprmt verify``: ends of a statement proved or refuted by a small program that shares no code with this one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dprmt import __version__
from dprmt._files import strict_json
from dprmt._validation import needing
from dprmt.cli._options import Commands, UsageError, add_parser, real

_CODES = """\
exit code: 0 if every end is proved; 2: a file cannot be read; 3: an end is not settled or covered; 4: one is refuted
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    examples = ("statement.json", "others/*.json --seconds 10 --json")
    parser = add_parser(commands, "verify", run_verify, examples, about=_CODES, usage="STATEMENT.json ... [options]")
    add, seconds = parser.add_argument, "CPU time for finer meshes, a file (60)"
    add("files", metavar="STATEMENT.json", nargs="+", help="what is claimed")
    add("--seconds", metavar="SECONDS", type=real(low=0.0, high=1e6), default=60.0, help=seconds)


def run_verify(namespace: argparse.Namespace) -> int:
    """A line or an object for each end; the exit code of the worst."""
    with needing("verify"):
        from dprmt_verify import NotCoveredError, read_statement, verify
        from dprmt_verify.__main__ import CODES

    found = []
    for file in namespace.files:
        try:
            verdicts = verify(read_statement(Path(file).read_text(encoding="utf-8")), namespace.seconds)
        except (NotCoveredError, OSError, ValueError) as error:
            raise UsageError(f"{file}: {error}") from None
        if not namespace.json:
            sys.stdout.writelines(f"{file}: {verdict}\n" for verdict in verdicts)
        for claim, word, at_least, at_most in verdicts:
            found.append({"file": file, **claim._asdict(), "verdict": word, "at_least": at_least, "at_most": at_most})
    if namespace.json:
        document = {"version": __version__, "seconds": namespace.seconds, "claims": found}
        sys.stdout.write(strict_json(document) + "\n")
    return max(CODES[one["verdict"]] for one in found)
