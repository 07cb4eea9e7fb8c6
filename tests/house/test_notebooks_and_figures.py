"""Notebooks and figure scripts run from top to bottom."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_stores_no_output(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot

    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] for cell in cells)
    namespace: dict[str, object] = {}
    for cell in cells:
        source = "".join(cell["source"])
        assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.walk(ast.parse(source)))
        exec(compile(source, path.name, "exec"), namespace)
    assert pyplot.get_fignums()
    pyplot.close("all")


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 2


def test_noise_multiplier_table(capsys: pytest.CaptureFixture[str]) -> None:
    script = runpy.run_path(str(ROOT / "paper_figures" / "randomized_clipping_noise_multiplier.py"))
    found = script["noise_multipliers"]()
    for name, published in script["PUBLISHED"].items():
        assert found[name] == pytest.approx(published, abs=4e-3)
    script["main"]()
    assert "4.354" in capsys.readouterr().out


def test_denoising_spectra_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = tmp_path / "spectra.png"
    monkeypatch.setattr(sys, "argv", ["denoising_spectra.py", str(picture)])
    runpy.run_path(str(ROOT / "paper_figures" / "denoising_spectra.py"), run_name="__main__")
    assert picture.read_bytes().startswith(b"\x89PNG")
