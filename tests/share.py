"""``pytest --share SECONDS``: as many of the chosen tests as take so long, drawn by the commit.

For the slow ones, which no commit waits for: each runs a part of them, another commit another part. What a test takes
is in ``durations.json``, written by ``pytest --write-durations``.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
UNKNOWN = 10.0  # seconds of a test that nobody has measured
_LEAST = 0.1  # seconds that starting any test takes


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options."""
    group = parser.getgroup("share")
    group.addoption("--share", type=float, metavar="SECONDS", help="a part of the tests, drawn by the commit")
    group.addoption("--write-durations", action="store_true", help=f"store what tests take in {DURATIONS.name}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not drawn, after -m and -k have chosen."""
    budget = config.getoption("--share", None)
    if budget is not None:
        drawn = draw([item.nodeid for item in items], known_durations(), budget, commit(config.rootpath))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in drawn])
        items[:] = [item for item in items if item.nodeid in drawn]


def pytest_configure(config: pytest.Config) -> None:
    """With xdist the process that sees all reports writes."""
    if config.getoption("--write-durations", False) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(), "durations")


def draw(names: Sequence[str], durations: Mapping[str, float], budget: float, key: str) -> set[str]:
    """Tests in an order that the key decides, until they fill the budget; the last one may exceed it.

    A test that would not fit is not passed over: the long ones would come more rarely than the short ones. One that
    alone takes longer than the budget is never drawn.
    """
    drawn, filled = set(), 0.0
    able = [name for name in names if durations.get(name, UNKNOWN) <= budget]
    for name in sorted(able, key=lambda name: hashlib.sha256(f"{key} {name}".encode()).digest()):
        if filled >= budget:
            break
        drawn.add(name)
        filled += max(_LEAST, durations.get(name, UNKNOWN))
    return drawn


def known_durations() -> dict[str, float]:
    """Seconds by test."""
    found: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}
    return found


def commit(folder: Path) -> str:
    """The present one's hash; empty where there is no repository."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class _Writer:
    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Setup, call and teardown."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Those of other tests stay."""
        found = {**known_durations(), **{name: round(seconds, 1) for name, seconds in self._seconds.items()}}
        DURATIONS.write_text(json.dumps(dict(sorted(found.items())), indent=0, ensure_ascii=False) + "\n", "utf-8")
