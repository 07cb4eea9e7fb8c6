"""``dprmt verify``: ends of a statement proved or refuted by a small program that shares no code with this one."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprmt import __version__
from dprmt.cli._options import Commands, Option, UsageError, add_command_with, named, read_options, real
from dprmt.cli._runs import of_record

if TYPE_CHECKING:
    from dprmt_verify import Verdict

_SECONDS = Option(
    "--seconds", real(low=0.0, high=1e6), "CPU time for finer meshes, a file (60)", default=60.0, metavar="SECONDS"
)
_FROM_JSON = of_record("dprmt verify", "statements")
_FILES = named("files", "STATEMENT.json", "a file", "what is claimed", nargs="*")
_EPILOG = """\
exit code: 0 if every end is proved; 2: a file cannot be read; 3: an end is not settled or covered; 4: one is refuted

examples:
  dprmt verify statement.json
  dprmt verify others/*.json --seconds 10 --json
"""


def add_command(commands: Commands) -> None:
    """The command, its options and its help."""
    add_command_with(commands, "verify", (_FILES, _SECONDS, _FROM_JSON), run_verify, _EPILOG)


def run_verify(namespace: argparse.Namespace) -> int:
    """A line or an object for each end; the exit code of the worst."""
    from dprmt_verify import NotCoveredError, read_statement, verify
    from dprmt_verify.__main__ import CODES

    texts, record = _statements(namespace)
    if namespace.seconds is None and "seconds" in record:
        namespace.seconds = repr(record["seconds"])
    seconds, found, worst = read_options(namespace, (_SECONDS,))["seconds"], [], 0
    for file, text in texts.items():
        try:
            verdicts = verify(read_statement(text), seconds)
        except (NotCoveredError, ValueError) as error:
            raise UsageError(f"dprmt verify: {file}: {error}") from None
        worst = max([worst, *(CODES[verdict.word] for verdict in verdicts)])
        neighbours = _relation(text)
        found += [_document(file, verdict) | {"neighbours": neighbours} for verdict in verdicts]
        if not namespace.json:
            sys.stdout.writelines(f"{file}: {verdict}; {neighbours}\n" for verdict in verdicts)
    if namespace.json:
        asked = {"seconds": seconds, "statements": {file: json.loads(text) for file, text in texts.items()}}
        sys.stdout.write(json.dumps({"version": __version__, **asked, "claims": found}, allow_nan=False) + "\n")
    return worst


def _relation(text: str) -> str:
    """Of a statement that was read: in full where one of the places that name it says a group's size."""
    document = json.loads(text)
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


def _statements(namespace: argparse.Namespace) -> tuple[dict[str, str], dict[str, Any]]:
    """What is claimed, by file; with the record that it is from, where there is one."""
    record = read_options(namespace, (_FROM_JSON,))[_FROM_JSON.dest]
    if (record is None) == (not namespace.files):
        given = "given, or --from-json" if record is None else "left out where --from-json is given"
        raise UsageError(f"dprmt verify: STATEMENT.json must be {given}, got {namespace.files}")
    if record is not None:
        return {file: json.dumps(claimed) for file, claimed in dict(record["statements"]).items()}, record
    return {file: _text(file) for file in namespace.files}, {}


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"dprmt verify: {file}: {error}") from None


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
