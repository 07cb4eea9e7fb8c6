"""``python -m audits mutations``: plants the bugs of ``mutations.toml`` one at a time, in a copy, and runs the tests.

A bug that its tests do not see survives. What was found is kept beside the list, by a digest of what decides it, so
that a stopped run goes on and an unchanged one is not repeated.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from audits.table import markdown

ROOT = Path(__file__).parents[1]
LIST, RESULTS = ROOT / "audits" / "mutations.toml", ROOT / "audits" / "results" / "mutations.json"
_PARTS = ("dprmt", "tests", "audits", "paper_figures", "docs", "pyproject.toml", "README.md")
# Imported once, before forking: whatever is slow and none of ours.
_HEAVY = ("pytest", "scipy.stats", "torch", "opacus", "transformers", "peft", "safetensors.torch", "rich")
_NAMED = (ast.FunctionDef, ast.ClassDef)
_SEEN, _SURVIVED, _NO_ANSWER = 1, 0, 99  # pytest's words: tests failed, all passed


_WORDS = ("seen", "survived", "not run")


def main(arguments: list[str] | None = None) -> int:
    """Print a line a bug; 1 if one survived or its tests could not be run."""
    parser = argparse.ArgumentParser(prog="python -m audits mutations", description=__doc__)
    parser.add_argument("--only", default="", help="part of the names")
    parser.add_argument(
        "--area", default="", help="gap, clipping, noise, ledger, resume, sampling, projection, accounting"
    )
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no bug after so long")
    options = parser.parse_args(arguments)
    known, started = read_results(), time.monotonic()
    due = [bug for bug in read_list() if options.only in bug["name"] and options.area in bug["area"]]
    with _copy() as copy:
        for bug in due:
            former = known.get(bug["name"], {})
            if (
                former.get("digest") == digest(bug) and not options.again
            ) or time.monotonic() - started > options.seconds:
                continue
            answer = _planted(copy, bug)
            if answer not in (_SEEN, _SURVIVED):
                print(f"pytest ended with {answer} {bug['area']}: {bug['name']}", flush=True)
                continue
            known = {**read_results(), bug["name"]: {"digest": digest(bug), "seen": answer == _SEEN}}
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
            print(f"{'seen' if known[bug['name']]['seen'] else 'SURVIVED':9s} {bug['area']}: {bug['name']}", flush=True)
    known = read_results()
    left = [bug["name"] for bug in due if not known.get(bug["name"], {}).get("seen")]
    print(f"{len(due) - len(left)} of {len(due)} seen")
    return 1 if left else 0


def read_list() -> list[dict[str, Any]]:
    """The bugs, as dicts of area, name, file or its folder, function (none if outside of all), find, put, tests."""
    bugs: list[dict[str, Any]] = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutation"]
    return bugs


def read_results() -> dict[str, dict[str, Any]]:
    """By name: a digest of the bug, and whether its tests saw it."""
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def digest(bug: dict[str, Any]) -> str:
    """Of the bug and its tests by name; the code around it may change."""
    return hashlib.blake2b(json.dumps(bug, sort_keys=True).encode(), digest_size=8).hexdigest()


def mutated(bug: dict[str, Any], source: str) -> str:
    """The file with the bug in it: in the function that it names, wherever that has moved to within its file."""
    first, last = _lines_of(bug.get("function"), source)
    lines = source.splitlines(keepends=True)
    place = "".join(lines[first:last])
    if place.count(bug["find"]) != 1:
        where = f"{bug['file']}, {bug.get('function', 'all of it')}"
        raise ValueError(f"{bug['name']}: {place.count(bug['find'])} places in {where}, not one")
    return "".join([*lines[:first], place.replace(bug["find"], bug["put"]), *lines[last:]])


def place_of(bug: dict[str, Any], root: Path = ROOT) -> Path:
    """Its file; in a folder, the one file in which the function that it names has what is to be found."""
    path = root / bug["file"]
    if not path.is_dir():
        return path
    found = [file for file in sorted(path.rglob("*.py")) if _holds(file, bug)]
    if len(found) != 1:
        raise ValueError(
            f"{bug['name']}: {len(found)} files in {bug['file']}, not one: {[str(file) for file in found]}"
        )
    return found[0]


def _holds(file: Path, bug: dict[str, Any]) -> bool:
    source = file.read_text(encoding="utf-8")
    try:
        return bug["find"] in source and bool(mutated(bug, source))
    except ValueError:
        return False


def _lines_of(function: str | None, source: str) -> tuple[int, int]:
    # Of the function or class with that dotted name.
    node: Any = ast.parse(source)
    if function is None:
        return 0, len(source.splitlines())
    for name in function.split("."):
        found = [child for child in ast.walk(node) if isinstance(child, _NAMED) and child.name == name]
        if not found:
            raise ValueError(f"no {function}: no {name}")
        node = found[0]
    return node.lineno - 1, node.end_lineno


def table() -> str:
    """Count the bugs of each area by what became of them, and name the survivors."""
    results = read_results()
    words = [(bug["area"], bug["name"], _word(results.get(bug["name"]), bug)) for bug in read_list()]
    areas = list(dict.fromkeys(area for area, _, _ in words))
    rows = [(area, *(sum((area, word) == (a, w) for a, _, w in words) for word in _WORDS)) for area in areas]
    rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    unseen = [f"- {area}, {word}: {name}" for area, name, word in words if word == _WORDS[1]]
    counts = markdown(("area", "seen by a test", "survived", "not run"), [tuple(map(str, row)) for row in rows])
    return counts + ("\n" + "\n".join(unseen) + "\n" if unseen else "")


def _word(result: dict[str, Any] | None, bug: dict[str, Any]) -> str:
    if result is None or result["digest"] != digest(bug):
        return _WORDS[2]
    return _WORDS[0] if result["seen"] else _WORDS[1]


@contextmanager
def _copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        copy.mkdir()
        for part in _PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
            else:
                shutil.copy(ROOT / part, copy / part)
        yield copy


def _planted(copy: Path, bug: dict[str, Any]) -> int:
    file = place_of(bug, copy)
    clean = file.read_text(encoding="utf-8")
    file.write_text(mutated(bug, clean), encoding="utf-8")
    try:
        return _in_a_child(copy, bug["tests"])
    finally:
        file.write_text(clean, encoding="utf-8")


def _in_a_child(copy: Path, tests: list[str]) -> int:
    import warnings

    for name in _HEAVY:
        importlib.import_module(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads
        child = os.fork()
    if child == 0:
        try:
            os._exit(_run_tests(copy, tests))
        finally:
            traceback.print_exc()
            os._exit(_NO_ANSWER)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_tests(copy: Path, tests: list[str]) -> int:
    import pytest
    import torch

    for name in [name for name in sys.modules if name.split(".")[0] in ("dprmt", "audits", "tests")]:
        del sys.modules[name]
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    os.environ |= {"PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    sys.dont_write_bytecode = True  # two versions of a file within a second
    torch.set_num_threads(1)
    output = os.open(os.devnull, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    return int(pytest.main([*options, *tests]))


if __name__ == "__main__":
    sys.exit(main())
