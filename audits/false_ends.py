"""``python -m audits false_ends``: bugs that make an end of ε false, and whether the verifier refutes what they claim.

Each bug of ``false_ends.toml`` is planted in a copy, which is asked for ε in both directions. An end is known to be
false if it lies on the wrong side of the whole interval of the clean accountant. The verifier, which knows neither, has
to refute it. Where the bug makes bounds cross, the accountant refuses to answer; it is then asked without this check.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from audits.mutations import ROOT, digest, mutated, place_of
from audits.table import markdown

LIST, RESULTS = ROOT / "audits" / "false_ends.toml", ROOT / "audits" / "results" / "false_ends.json"
UNCHECKED = {
    "name": "bounds may cross",
    "file": "dprmt/accounting",
    "function": "intersection",
    "find": "if lower > upper * (1.0 + 1e-9) + 1e-300:",
    "put": "if False:",
    "also": [
        {
            "file": "dprmt/accounting",
            "function": "intersection",
            "find": "interval(min(lower, upper), upper",
            "put": "interval(lower, upper",
        }
    ],
}
Ends = dict[str, list[float | None]]


def main(arguments: list[str] | None = None) -> int:
    """Print a line a bug; 1 if a false end is not refuted."""
    parser = argparse.ArgumentParser(prog="python -m audits false_ends", description=__doc__)
    parser.add_argument("--only", default="", help="part of the names")
    parser.add_argument("--again", action="store_true", help="also what has a result")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the verifier, for finer meshes, a bug")
    options = parser.parse_args(arguments)
    bugs = [bug for bug in read_list() if options.only in bug["name"]]
    known, missed = read_results(), 0
    with copied() as copy:
        for bug in bugs:
            row = known.get(bug["name"])
            if row is None or row["digest"] != digest(bug) or options.again:
                row = known[bug["name"]] = {"digest": digest(bug)} | judged(bug, copy, options.seconds)
                RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
            missed += row["false"] != row["refuted"]
            print(f"{bug['name']}: {_words(row)}", flush=True)
    print(f"{len(bugs) - missed} of {len(bugs)}: every false end is refuted")
    return int(missed > 0)


def read_list() -> list[dict[str, Any]]:
    """The bugs."""
    bugs: list[dict[str, Any]] = tomllib.loads(LIST.read_text(encoding="utf-8"))["bug"]
    return bugs


def read_results() -> dict[str, Any]:
    """By name: both answers, which ends are false, and which are refuted."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def judged(bug: dict[str, Any], copy: Path, seconds: float) -> dict[str, Any]:
    """A row of the results."""
    clean = answer({**bug, "through": None}, copy)
    assert isinstance(clean, dict), clean
    with planted(bug, copy):
        found = answer(bug, copy)
    caught = found if isinstance(found, str) else None
    if isinstance(found, str) and "InconsistentBoundsError" in found:
        with planted(bug, copy), planted(UNCHECKED, copy):
            found = answer(bug, copy)
    row: dict[str, Any] = {"clean": clean, "caught": caught, "answer": found, "false": [], "refuted": [], "proof": {}}
    if isinstance(found, dict):
        row["false"] = [f"{way} {end}" for way in found for end in false_ends(found[way], clean[way])]
        row["proof"] = {name: _refutation(bug, found, *name.split(), seconds) for name in row["false"]}
        row["refuted"] = [name for name, (word, *_) in row["proof"].items() if word == "refuted"]
    return row


def false_ends(found: list[float | None], clean: list[float | None]) -> Iterator[str]:
    """Those that lie on the wrong side of an interval that holds the truth."""
    (low, high), (least, most) = found, clean
    assert least is not None
    if high is not None and high < least:
        yield "upper"
    if low is not None and most is not None and low > most:
        yield "lower"


def _refutation(bug: dict[str, Any], found: Ends, way: str, end: str, seconds: float) -> tuple[str, float, float]:
    sys.path.append(str(ROOT / "verify"))
    from dprmt_verify import read_statement, verify

    claimed = found[way][end == "upper"]
    relation = json.loads(bug["run"]).get("mechanism", {}).get("neighbours", {}).get("kind")
    ends = {"epsilon": {end: claimed}} if relation == "replace-one" else {"by_direction": {way: {end: claimed}}}
    (verdict,) = verify(read_statement(json.dumps(json.loads(bug["run"]) | ends)), seconds)
    return verdict.word, verdict.at_least, verdict.at_most


def answer(bug: dict[str, Any], copy: Path) -> Ends | str:
    """Both ends in each direction from the package in ``copy``, or what it says instead; in a process of its own."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside idle threads
        child = os.fork()
    if child == 0:
        os.close(read)
        try:
            said: Any = _asked(bug, copy)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(write, json.dumps(said).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        data = stream.read()
    os.waitpid(child, 0)
    found: Ends | str = json.loads(data) if data else "nothing"
    return found


def _asked(bug: dict[str, Any], copy: Path) -> Ends:
    for name in [name for name in sys.modules if name.split(".")[0] == "dprmt"]:
        del sys.modules[name]
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True  # two versions of a file within a second
    statement = json.loads(bug["run"])
    if bug.get("through") == "opacus":
        return _through_opacus(statement)
    from dprmt.accounting import compose

    phases = [(_mechanism(part["mechanism"]), part["steps"]) for part in statement.get("phases", [statement])]
    if "phases" in statement:
        found = compose(phases).epsilon_by_direction(statement["delta"])
    else:
        ((mechanism, steps),) = phases
        found = mechanism.epsilon_by_direction(steps=steps, delta=statement["delta"])
    return {way: [_finite(bounds.lower), _finite(bounds.upper)] for way, bounds in found.items()}


def _mechanism(told: dict[str, Any]) -> Any:
    from dprmt.accounting import DPSGD, Group, Hutchinson, ReplaceOne

    norms, neighbours = told.get("norms"), told.get("neighbours", {})
    words: dict[str, Any] = {}
    if norms:
        words["norms"] = Hutchinson(norms["probes"], secret=norms.get("secret", False))
    if neighbours:
        words["neighbours"] = ReplaceOne() if neighbours["kind"] == "replace-one" else Group(neighbours["size"])
    return DPSGD(told["noise_multiplier"], told["sampling"]["rate"], **words)


def _through_opacus(statement: dict[str, Any]) -> Ends:
    """Of removing: Opacus gives the upper end of the larger direction, which here is this one, and no lower end."""
    from dprmt.accounting import ExactNorms
    from dprmt.accounting.opacus import RandomizedClippingAccountant

    accountant = RandomizedClippingAccountant()
    for part in statement["phases"]:
        told = part["mechanism"]
        for _ in range(part["steps"]):
            accountant.step(noise_multiplier=told["noise_multiplier"], sample_rate=told["sampling"]["rate"])
    upper = float(accountant.get_epsilon(statement["delta"], norms=ExactNorms()))
    return {"remove": [None, upper]}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


@contextmanager
def copied() -> Iterator[Path]:
    """A folder with a copy of the package."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "dprmt", Path(folder, "dprmt"), ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(folder)


@contextmanager
def planted(bug: dict[str, Any], copy: Path) -> Iterator[None]:
    """The copy with a bug in it, in all its places."""
    places = [bug, *({"name": bug["name"], **place} for place in bug.get("also", []))]
    clean = {place_of(place, copy): place_of(place, copy).read_text(encoding="utf-8") for place in places}
    try:
        for place in places:
            file = place_of(place, copy)
            file.write_text(mutated(place, file.read_text(encoding="utf-8")), encoding="utf-8")
        yield
    finally:
        for file, text in clean.items():
            file.write_text(text, encoding="utf-8")


def table() -> str:
    """Bugs, with the end that each makes false, and the proved bound that refutes it."""
    rows, results = [], read_results()
    for bug in read_list():
        row = results.get(bug["name"])
        rows.append((bug["name"], "not run" if row is None else _words(row)))
    return markdown(("planted", "what it claims, and what is proved"), rows)


def _words(row: dict[str, Any]) -> str:
    if not isinstance(row["answer"], dict):
        return f"no answer: {row['answer'][:60]}"
    said = []
    for name, (word, least, most) in row["proof"].items():
        way, end = name.split()
        claimed, bound = row["answer"][way][end == "upper"], least if end == "upper" else most
        sign, other = ("≤", "≥") if end == "upper" else ("≥", "≤")
        said.append(f"ε {sign} {claimed:.6g} ({way}) **{word}**: ε {other} {bound:.6g}")
    own = "; the accountant refuses by itself" if row["caught"] else ""
    return ("; ".join(said) or "no end is certainly false") + own


if __name__ == "__main__":
    sys.exit(main())
