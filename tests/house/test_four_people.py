"""The README as its four people follow it: from an empty environment, every line of theirs as it stands.

A copy of the checkout is what they have. The first two install the core, the others ``[demo]``, by the README's own
lines, which build the wheel; each then works in an empty folder, so that nothing but what was installed is found.
Only who compares papers works in the checkout, where papers are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.house.import_graph import ROOT
from tests.house.test_readme import A_TRAINER

pytestmark = pytest.mark.slow
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", README, flags=re.MULTILINE)}
INSTALL_CORE, INSTALL_DEMO = re.findall(r"^pip install .*?(?=  )", README, re.MULTILINE)
NOTEBOOK = """
import json, nbclient, nbformat
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(line) for line in {lines!r}])
nbclient.NotebookClient(book, kernel_name="python3").execute()
print(json.dumps(book.cells[-1].outputs))
"""
_MINUTES = 60.0


def blocks(section: str, language: str) -> list[str]:
    """Of one person's section."""
    return re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[section], re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Person:
    """Somebody with a shell, whose environment began empty."""

    environment: Path
    home: Path

    def runs(self, script: str, at: Path | None = None, minutes: float = 5.0) -> subprocess.CompletedProcess[str]:
        """Lines of a shell, until one fails."""
        path = os.pathsep.join([str(self.environment / "bin"), os.environ["PATH"]])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=at or self.home,
            env={**kept, "PATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=minutes * _MINUTES,
            check=False,
        )

    def says(self, script: str, at: Path | None = None, minutes: float = 5.0) -> str:
        """What lines print that must not fail."""
        done = self.runs(script, at, minutes)
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What somebody has who fetched the repository, and nothing that was built in it."""
    if not (ROOT / ".git").exists():
        pytest.skip("only in a checkout")
    here = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, here / name)
    return here


def newcomer(place: Path, checkout: Path, install: str) -> Person:
    venv.create(place / "environment", with_pip=True)
    (place / "home").mkdir()
    person = Person(place / "environment", place / "home")
    person.says(install, at=checkout, minutes=30)
    return person


@pytest.fixture(scope="module")
def with_the_core(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Person:
    return newcomer(tmp_path_factory.mktemp("core"), checkout, INSTALL_CORE)


@pytest.fixture(scope="module")
def with_demo(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Person:
    return newcomer(tmp_path_factory.mktemp("demo"), checkout, INSTALL_DEMO)


def doctested(person: Person, section: str) -> None:
    """The prompts of a section say what they do when they are typed."""
    (block,) = blocks(section, "python")
    (person.home / "block.txt").write_text(block, encoding="utf-8")
    assert person.says("python -m doctest -o NORMALIZE_WHITESPACE -o ELLIPSIS block.txt") == ""


def test_the_epsilon_of_my_run(with_the_core: Person) -> None:
    section = "The ε of my run"
    installed = {line.split("==")[0].lower() for line in with_the_core.says("pip freeze").split() if "==" in line}
    assert {"numpy", "scipy"} <= installed
    assert not installed - {"numpy", "scipy", "dprmt"}
    doctested(with_the_core, section)
    (script,) = blocks(section, "sh")
    said = with_the_core.says(script)
    (stated,) = re.findall(r"# exact norms: (.*)", script)
    assert said.startswith(f"{stated} at")
    assert "3.81" in said.splitlines()[0]
    # Which split is best moves with the law of a sketch; what the README says of it does not.
    assert re.search(r"^3\.84\d+\s+\d+\s+\d+\s+secret\s+Hutch\+\+", said, re.MULTILINE)
    assert re.search(r"^3\.81\d*\s+-\s+-\s+exact", said, re.MULTILINE)


def test_a_spectrum_in_a_notebook(with_the_core: Person) -> None:
    section = "A spectrum in a notebook"
    doctested(with_the_core, section)
    (command,) = re.findall(r"`(dprmt spectrum [^`]*)`", SECTIONS[section])
    refused = with_the_core.runs(command)  # of a file that is not there
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    (with_the_core.home / "gradients.safetensors").write_bytes(b"")
    refused = with_the_core.runs(command)  # the core does not read these: it says which extra does
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "pip install '.[cli]' in a checkout of dprmt" in refused.stderr
    # The same lines in a notebook, which shows what the last one gives.
    with_the_core.says("pip install -q ipykernel nbclient nbformat", minutes=10)
    lines = re.findall(r"^>>> (.*)", blocks(section, "python")[0], re.MULTILINE)
    lines[-1] = lines[-1].removesuffix(".spikes")
    (with_the_core.home / "notebook.py").write_text(NOTEBOOK.format(lines=lines), encoding="utf-8")
    (shown,) = json.loads(with_the_core.says("python notebook.py").splitlines()[-1])
    assert "<table" in shown["data"]["text/html"]
    assert "<svg" in shown["data"]["text/html"]
    assert "0.664" in shown["data"]["text/html"]


def test_train_my_hugging_face_model(with_demo: Person) -> None:
    section = "Train my Hugging Face model"
    (block,) = blocks(section, "python")
    mine = f"import transformers\nfolder = 'out'\n{A_TRAINER}\n"
    (with_demo.home / "mine.py").write_text(mine + block, encoding="utf-8")
    printed = float(with_demo.says("python mine.py").split()[-1])
    assert 3.5 < printed <= 3.8
    (command,) = re.findall(r"`(dprmt train [^`]*)`", SECTIONS[section])
    said = with_demo.says(command, minutes=60)  # two, on a machine that does nothing else
    assert "hutch++" in said
    summary = json.loads((with_demo.home / "runs" / "first" / "summary.json").read_text(encoding="utf-8"))
    assert summary["steps"] == summary["charged"] == 30
    assert summary["epsilon_of_exact_norms"] < summary["epsilon"] <= 6.7


def test_compare_papers(with_demo: Person, checkout: Path) -> None:
    (script,) = blocks("Compare papers", "sh")
    said = with_demo.says(script, at=checkout, minutes=60)
    page = (checkout / "report").glob("*.html")
    assert [file for file in page if "<svg" in file.read_text(encoding="utf-8")]
    assert "envelope" in said
    assert re.search(r"^envelope: reproduced", said, re.MULTILINE)
