"""What is released: an sdist with what is needed to check it, a wheel from it that installs and answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.docs.modules import ROOT


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and a wheel made of it."""
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, capture_output=True)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_the_sdist_has_tests_documents_and_notebooks(packed: tuple[Path, Path]) -> None:
    with tarfile.open(packed[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = "tests/conftest.py docs/theory/randomized_clipping.md notebooks/02_phase_transition.ipynb Makefile"
    needed += " paper_figures/README.md docs/gallery/05_spike_map.py CITATION.cff constraints.txt"
    assert names >= set(needed.split())
    assert not any(name.endswith(".pyc") for name in names)


@pytest.mark.slow
def test_the_wheel_has_what_the_report_and_the_recipes_read(packed: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packed[1]) as archive:
        names = set(archive.namelist())
    needed = "py.typed report/page.css report/page.html training/recipes/library/minilm-docstrings.toml"
    assert names >= {f"dprmt/{name}" for name in needed.split()}
    assert not any(name.startswith(("tests/", "docs/", "notebooks/")) for name in names)


@pytest.mark.slow
def test_the_wheel_answers_in_an_empty_environment(packed: tuple[Path, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "new", with_pip=True)
    python = str(tmp_path / "new" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(packed[1])]
    subprocess.run(install, check=True, capture_output=True, cwd=tmp_path)
    question = ["epsilon", "--noise-multiplier", "2", "--sample-rate", "0.1", "--steps", "5", "--delta", "1e-5"]
    done = subprocess.run([python, "-m", "dprmt", *question], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.startswith("ε <= ")


@pytest.mark.slow
def test_a_release_with_an_address_has_no_relative_link(packed: tuple[Path, Path], tmp_path: Path) -> None:
    address = "https://example.org/team/dprmt"
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
        env={**os.environ, "DPRMT_ADDRESS": address},
    )
    (wheel,) = tmp_path.glob("*.whl")
    with_address, without = _metadata(wheel), _metadata(packed[1])
    for kind in ("Homepage", "Source", "Issues", "Changelog", "Guarantees"):
        assert f"Project-URL: {kind}, {address}" in with_address
    assert f"estimates and Opacus]({address}/raw/main/docs/images/" in with_address
    links = re.findall(r"\]\(([^)]+)\)", with_address)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", without)) > 5
    assert all(link.startswith("https://") for link in links)
    for link in links:
        if link.startswith(address):
            assert (ROOT / link.split("/main/")[1].split("#")[0]).exists(), link
    assert "Project-URL" not in without


def _metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return archive.read(name).decode()
