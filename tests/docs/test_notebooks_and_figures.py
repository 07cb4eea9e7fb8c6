"""Notebooks and figure scripts run from top to bottom."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest

from dprmt import plots

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
    assert len(NOTEBOOKS) >= 11


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
