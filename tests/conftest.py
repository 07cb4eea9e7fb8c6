"""Shared test set-up: hypothesis profiles, chosen with HYPOTHESIS_PROFILE, the order and choice of tests, and commands:
what one prints, as text and as JSON, and the line by which it refuses.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import hypothesis
import pytest

from dprmt.cli import main
from tests.share import pytest_addoption as pytest_addoption
from tests.share import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.share import pytest_configure as pytest_configure
from tests.share import pytest_runtest_logstart as pytest_runtest_logstart
from tests.share import pytest_runtest_makereport as pytest_runtest_makereport

_COMMON = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("quick", derandomize=True, max_examples=10, **_COMMON)
hypothesis.settings.register_profile("ci", derandomize=True, max_examples=25, **_COMMON)
hypothesis.settings.register_profile("thorough", max_examples=500, **_COMMON)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

Say: TypeAlias = Callable[..., str]
Ask: TypeAlias = Callable[..., dict[str, Any]]


def words_of(*words: str | Path | list[str]) -> list[str]:
    """Words of a command line: texts are split, lists taken as they are."""
    parts = (shlex.split(w) if isinstance(w, str) else w if isinstance(w, list) else [str(w)] for w in words)
    return [part for some in parts for part in some]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """What a command prints."""

    def said(*words: str | Path | list[str]) -> str:
        assert main(words_of(*words)) == 0, words
        return capsys.readouterr().out

    return said


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """The one JSON object that a command prints, with nothing on stderr."""

    def asked(*words: str | Path | list[str]) -> dict[str, Any]:
        assert main([*words_of(*words), "--json"]) == 0, words
        out, err = capsys.readouterr()
        assert err == ""
        found: dict[str, Any] = json.loads(out)
        return found

    return asked


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Say:
    """The one line on stderr of a command that ends with exit code 2 and prints nothing else."""

    def refused(*words: str | Path | list[str]) -> str:
        given = words_of(*words)
        assert main(given) == 2, words
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        return err.rstrip("\n")

    return refused
