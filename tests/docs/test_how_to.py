"""The how-to pages: their programs run, their commands are commands."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest

from dprmt.accounting import DPSGD
from dprmt.cli import build_parser, main
from tests.docs.modules import ROOT

PAGES = sorted((ROOT / "docs" / "how_to").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(path: Path, language: str) -> list[str]:
    """Of one language, in order."""
    return [body for kind, body in BLOCK.findall(path.read_text(encoding="utf-8")) if kind == language]


def test_there_are_pages_and_each_is_in_the_site() -> None:
    assert len(PAGES) > 12
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"how_to/{page.name}" not in nav] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_programs_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {"__name__": "page"}
    assert blocks(path, "python")
    if "import lightning" in path.read_text(encoding="utf-8"):
        pytest.importorskip("lightning")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch|lightning")  # gloo on machines with odd networks; few workers
        for block in blocks(path, "python"):
            exec(compile(block, path.name, "exec"), namespace)
    if path.stem == "test_your_variant":  # every fault of the page is found
        assert capsys.readouterr().out.count("fails at") == 5
    if path.stem == "watch_a_run":
        assert namespace["z"] > 2  # type: ignore[operator]  # it learns
    if path.stem == "lightning_module":  # every step was private and charged
        private = namespace["module"].private  # type: ignore[attr-defined]
        assert private.steps_charged == private.steps_taken == 10
        assert private.epsilon(delta=1e-5) == DPSGD(1.2, private.mechanism.sampling).epsilon(steps=10, delta=1e-5)


@pytest.mark.parametrize("path", [*PAGES, ROOT / "docs" / "quickstart_epsilon.md"], ids=lambda path: path.stem)
def test_commands_parse_and_those_for_epsilon_answer(path: Path) -> None:
    for line in "\n".join(blocks(path, "sh")).splitlines():
        words = shlex.split(line.partition(" > ")[0], comments=True)
        if "dprmt" in words:
            words = words[words.index("dprmt") + 1 :]
            assert vars(build_parser().parse_args(words))  # else: exit code 2
            assert words[0] != "epsilon" or main(words) == 0


def test_shell_and_python_ask_for_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The noise of both examples is that of one run: 12 epochs are 405 steps in either."""
    page = ROOT / "docs" / "how_to" / "choose_noise.md"
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(blocks(page, "python")[0], page.name, "exec"), namespace)
    line = blocks(page, "sh")[0].splitlines()[0]
    assert main([*shlex.split(line)[1:], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["steps"], answer["noise_multiplier"]) == (namespace["steps"], namespace["sigma"])
