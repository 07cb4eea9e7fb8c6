"""Which tests run, and in which order: slowest first, with ``--quick`` fewer of them.

``make test`` is quick: it leaves out tests of over five seconds, and in files of over ten those of over a fifth of a
second, except for tests that see a planted bug of ``audits/mutations.toml`` by name, and tests of up to two seconds in
files that are listed as a whole, here or there. ``make test-all`` has everything. What a test takes, in seconds of CPU,
is in ``durations.json``, written by ``pytest --write-durations``; tests without a measured duration run.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
_LONG_TEST, _LONG_FILE, _LONG_OF_ORACLES, _CHEAP = 5.0, 10.0, 2.0, 0.2  # seconds
_ORACLES = {
    *("tests/accounting/test_balls.py", "tests/accounting/test_sketch_law.py", "tests/accounting/test_audit.py"),
    *("tests/accounting/test_properties.py", "tests/accounting/test_pld.py", "tests/accounting/test_prv.py"),
}
"""Files that see bugs in adapters and questions, which the list of planted ones has none of."""
_OF_PAGES = {Path("tests/docs"), Path("tests/paper_figures"), Path("paper_figures")}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("choice")
    group.addoption("--quick", action="store_true", help="leave out what is long and alone guards nothing")
    group.addoption("--write-durations", action="store_true", help=f"store what tests take in {DURATIONS.name}")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Any:
    """Mark what is about pages; after -m and -k have chosen, put the slowest first."""
    for item in items:
        if any(config.rootpath / folder in item.path.parents for folder in _OF_PAGES):
            item.add_marker("docs")
    yield
    seconds = known_durations()
    if config.getoption("--quick", False):
        kept = quick([item.nodeid for item in items], seconds, guards(config.rootpath))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]
    by_file: dict[Path, float] = {}
    for item in items:  # tests of a file share what its fixtures made
        by_file[item.path] = by_file.get(item.path, 0.0) + seconds.get(item.nodeid, 0.0)
    items.sort(key=lambda item: -by_file[item.path])


Guards = Mapping[str, Sequence[Sequence[str]]]
"""By file, words that a test's name has all of where it guards something; no word where the whole file does."""


def guards(root: Path) -> Guards:
    """The tests that see a planted bug, and the oracles."""
    found: dict[str, list[list[str]]] = {file: [[]] for file in _ORACLES}
    for bug in tomllib.loads((root / "audits" / "mutations.toml").read_text(encoding="utf-8"))["mutation"]:
        *places, chosen = bug["tests"] if "-k" in bug["tests"] else [*bug["tests"], ""]
        clauses = [re.findall(r"(?<!not )\b(?!and\b|not\b)\w+", clause) for clause in chosen.split(" or ")]
        for place in places:
            file, _, test = place.partition("::")
            if file.endswith(".py"):
                found.setdefault(file, []).extend([[test]] if test else clauses)
    return found


def quick(names: Sequence[str], durations: Mapping[str, float], guarding: Guards) -> set[str]:
    """Short tests in short files, those that guard something by name, and all but the long ones of whole files."""
    of_file: dict[str, float] = {}
    for name in names:
        file = name.partition("::")[0]
        of_file[file] = of_file.get(file, 0.0) + durations.get(name, 0.0)
    kept = set()
    for name in names:
        file, _, test = name.partition("::")
        seconds = durations.get(name, 0.0)
        is_short = seconds <= (_LONG_TEST if of_file[file] <= _LONG_FILE else _CHEAP)
        guarded = (bool(words) or seconds <= _LONG_OF_ORACLES for words in guarding.get(file, ()) if _has(test, words))
        if is_short or any(guarded):
            kept.add(name)
    return kept


def _has(test: str, words: Sequence[str]) -> bool:
    return all(word in test for word in words)


@functools.cache
def known_durations() -> dict[str, float]:
    """Seconds by test."""
    found: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}
    return found


_began = 0.0  # CPU seconds of this process and its children where the present phase of a test began


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def pytest_runtest_logstart() -> None:
    """A test begins."""
    global _began
    _began = _cpu_seconds()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> None:
    """Each phase's report carries its CPU seconds, which another process' load does not change."""
    global _began
    now = _cpu_seconds()
    item.user_properties[:] = [("cpu", now - _began)]
    _began = now


def pytest_configure(config: pytest.Config) -> None:
    """With xdist the process that sees all reports writes."""
    if config.getoption("--write-durations", False) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(), "durations")


class _Writer:
    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Setup, call and teardown."""
        seconds = dict(report.user_properties).get("cpu", 0.0)
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + seconds

    def pytest_sessionfinish(self) -> None:
        """Those of other tests stay; what takes no time is not listed."""
        found = {**known_durations(), **{name: round(seconds, 1) for name, seconds in self._seconds.items()}}
        listed = {name: seconds for name, seconds in sorted(found.items()) if seconds}
        DURATIONS.write_text(json.dumps(listed, indent=0, ensure_ascii=False) + "\n", "utf-8")
