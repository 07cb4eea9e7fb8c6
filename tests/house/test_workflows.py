"""What checks and releases run: actions by commit, all systems and Pythons, oldest packages, a bill of materials."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.house.import_graph import ROOT

yaml = pytest.importorskip("yaml")
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
if not FILES:
    pytest.skip("not in a checkout", allow_module_level=True)
WORKFLOWS: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES}
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PINNED = re.compile(r"^[\w-]+/[\w.-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_with_their_release_beside(path: Path) -> None:
    used = re.findall(r"uses: *(.*)", path.read_text(encoding="utf-8"))
    assert used
    assert [action for action in used if not PINNED.match(action)] == []


def test_a_tag_is_no_pin() -> None:
    assert not PINNED.match("actions/checkout@v4")
    assert not PINNED.match("actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683")


def test_every_system_and_python_that_is_promised_is_tried() -> None:
    jobs = WORKFLOWS["ci"]["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == PYTHONS
    others = jobs["other-systems"]["strategy"]["matrix"]
    assert others["python"] == PYTHONS
    assert {system.partition("-")[0] for system in others["system"]} == {"macos", "windows"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={PYTHONS[0]}"
    promised = [text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert promised == PYTHONS


def test_a_release_is_attested_with_its_bill_of_materials() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    steps = [step.get("uses", step.get("run", "")).partition("@")[0] for step in jobs["build"]["steps"]]
    order = ["actions/attest-build-provenance", "actions/attest-sbom", "actions/upload-artifact"]
    places = [steps.index(step) for step in order]
    assert places == sorted(places)
    assert jobs["build"]["permissions"]["attestations"] == "write"
    assert jobs["publish"]["needs"] == "build"
    assert set(jobs["publish"]["permissions"]) == {"id-token"}


def test_no_step_is_given_more_than_it_needs() -> None:
    """Reading is the default; whoever writes says so."""
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())


def test_the_recipe_for_conda_says_what_pyproject_does(tmp_path: Path) -> None:
    sdist = tmp_path / "dprmt-0.1.0.tar.gz"
    sdist.write_bytes(b"")
    command = [sys.executable, str(ROOT / ".ci" / "conda_recipe"), str(sdist), "https://example.org/team/dprmt"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout
    _, *lines = text.partition('{% set version = "0.1.0" %}')[2].splitlines()
    recipe = yaml.safe_load(
        "\n".join(lines)
        .replace("{{ version }}", "0.1.0")
        .replace("{{ python_min }}", "3.11")
        .replace("{{ PYTHON }}", "python")
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {text.replace(" ", "") for text in recipe["requirements"]["run"]}
    assert needed == {*project["dependencies"], "python>=3.11"}
    assert "pytorch >=2.6" in recipe["requirements"]["run_constrained"]
    assert recipe["source"]["sha256"] == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert recipe["about"]["home"] == "https://example.org/team/dprmt"
    assert recipe["extra"]["recipe-maintainers"] == ["team"]


@pytest.mark.parametrize("script", ["run", "lowest", "bill_of_materials"])
def test_scripts_are_taken_by_bash(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / script)], check=False).returncode == 0
