"""Notebooks and figure scripts run from top to bottom."""

from __future__ import annotations

import ast
import json
import runpy
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest

from dprmt import plots
from paper_figures._pieces import raw_file
from paper_figures._reproduction import RESULTS
from paper_figures.items import hutchpp_price

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
        assert not any(map(is_library_code, ast.walk(ast.parse(source))))
        exec(compile(source, path.name, "exec"), namespace)
    assert pyplot.get_fignums()
    pyplot.close("all")


def is_library_code(node: ast.AST) -> bool:
    """A class, or a function that does more than name one expression."""
    return isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and len(node.body) > 1)


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 12


def test_price_of_hutchpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture is drawn from stored numbers, one of which is computed again."""
    (line,) = raw_file(RESULTS, "hutchpp-price", "paper").read_text(encoding="utf-8").splitlines()
    stored = json.loads(line)["value"]
    monkeypatch.setattr(hutchpp_price, "measured", lambda: stored)
    (picture,) = hutchpp_price.measure("paper", tmp_path).pictures
    assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    place, name = stored["products"].index(64), "Hutch++, secret"
    mechanism = replace(hutchpp_price.ONE_SIGMA, norms=hutchpp_price.CURVES[name](64))
    assert mechanism.epsilon(steps=hutchpp_price.STEPS, delta=hutchpp_price.DELTA).upper == pytest.approx(
        stored[name]["epsilon"][place], abs=3e-3
    )
    assert all(len(stored[curve]["noise ratio"]) == len(hutchpp_price.FEWER) for curve in hutchpp_price.CURVES)


GALLERY = sorted((ROOT / "docs" / "gallery").glob("*.py"))


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_gallery_script_draws_one_picture(path: Path) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot

    runpy.run_path(str(path))
    assert len(pyplot.get_fignums()) == 1
    pyplot.close("all")


def test_every_public_plot_is_in_the_gallery() -> None:
    shown = "".join(path.read_text(encoding="utf-8") for path in GALLERY)
    assert [name for name in plots.__all__ if name.startswith("plot_") and f"\n{name}(" not in shown] == []
