"""The sliders of the notebook on the phase transition, moved as a browser moves them, in a kernel."""

from __future__ import annotations

import nbclient
import nbformat
import pytest

from tests.house.import_graph import ROOT

NOTEBOOK = ROOT / "notebooks" / "02_phase_transition.ipynb"
FIND = """
import gc
from ipywidgets import interactive
(box,) = [thing for thing in gc.get_objects() if isinstance(thing, interactive)]
sliders = {slider.description: slider for slider in box.children[:-1]}
"""
MOVE = "sliders[{label!r}].set_state({{'value': {value}}})  # what a message from the browser calls"
LOOK = """
(picture,) = box.out.outputs
print([slider.value for slider in sliders.values()], hash(picture["data"]["image/png"]))
"""
MOVES = {"λ / λ*": 2.5, "rows": 40, "columns": 80}


@pytest.fixture(scope="module")
def seen() -> list[str]:
    """Places of the sliders and a picture's digest: at first, and after every move."""
    pytest.importorskip("ipywidgets")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    last = max(i for i, cell in enumerate(notebook.cells) if "IntSlider" in cell.source)
    moves = [MOVE.format(label=label, value=value) for label, value in MOVES.items()]
    sources = [FIND, LOOK, *(source for move in moves for source in (move, LOOK))]
    notebook.cells[last + 1 :] = [nbformat.v4.new_code_cell(source) for source in sources]
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    looks = [cell for cell in notebook.cells if cell.source == LOOK]
    return ["".join(output.text for output in cell.outputs) for cell in looks]


def test_a_moved_slider_draws_another_picture(seen: list[str]) -> None:
    places = [line.partition("]")[0] + "]" for line in seen]
    assert places == ["[1.4, 64, 256]", "[2.5, 64, 256]", "[2.5, 40, 256]", "[2.5, 40, 80]"]
    assert len({line.partition("]")[2] for line in seen}) == 4
