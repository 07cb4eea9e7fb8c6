"""``dprmt verify``: ends of a statement proved or refuted by a small program that shares no code with this one."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprmt import __version__
from dprmt._validation import needing
from dprmt.cli._options import Commands, UsageError, add_parser, real

if TYPE_CHECKING:
    from dprmt_verify import Verdict

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

    seconds = namespace.seconds
    found, worst = [], 0
    for file in namespace.files:
        try:
            text = Path(file).read_text(encoding="utf-8")
            verdicts = verify(read_statement(text), seconds)
        except (NotCoveredError, OSError, ValueError) as error:
            raise UsageError(f"dprmt verify: {file}: {error}") from None
        relation = _relation(json.loads(text))
        worst = max([worst, *(CODES[verdict.word] for verdict in verdicts)])
        found += [_document(file, verdict) | {"neighbours": relation} for verdict in verdicts]
        if not namespace.json:
            sys.stdout.writelines(f"{file}: {verdict}; {relation}\n" for verdict in verdicts)
    if namespace.json:
        document = {"version": __version__, "seconds": seconds, "claims": found}
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    return worst


def _relation(document: dict[str, Any]) -> str:
    """Of a statement that was read: in full where one of the places that name it says a group's size."""
    document = document.get("claim", document)
    phase = document.get("phases", [document])[0]
    places = (phase.get("mechanism"), phase, document)
    said = [place["neighbours"] for place in places if isinstance(place, dict) and "neighbours" in place]
    whose = next((one for one in said if isinstance(one, dict)), {"kind": said[0] if said else "zero-out"})
    if "size" not in whose:
        return str(whose["kind"])
    each = whose.get("of", "zero-out")
    each = each.get("kind", "zero-out") if isinstance(each, dict) else each
    return f"{each}, groups of {whose['size']}"


def _document(file: str, verdict: Verdict) -> dict[str, Any]:
    claim, at_most = verdict.claim, verdict.at_most
    return {
        "file": file,
        "end": claim.end,
        "value": claim.value,
        "directions": list(claim.directions),
        "verdict": verdict.word,
        "at_least": verdict.at_least,
        "at_most": at_most if math.isfinite(at_most) else None,
    }
