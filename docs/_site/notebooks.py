"""Notebooks as pages of the site: executed, their outputs beside the code.

``DPRMT_NOTEBOOKS``: names of those that are executed, for a build that looks at pages and links; else all are.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from cross_links import spaced
from mkdocs.structure.files import File
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

FOLDER = "tutorials"
_SECONDS = 600  # for one cell, on a busy machine
_AT_ONCE = 2


def notebook_pages(config: Any, folder: Path) -> list[File]:
    """A page and its pictures for every notebook of a folder."""
    paths = sorted(folder.glob("*.ipynb"))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rendered = pool.map(lambda path: _rendered(path, path.read_text(encoding="utf-8")), paths)
    files = []
    for path, (page, pictures) in zip(paths, rendered, strict=True):
        files.append(File.generated(config, f"{FOLDER}/{path.stem}.md", content=page))
        files += [
            File.generated(config, f"{FOLDER}/{path.stem}/{name}", content=data) for name, data in pictures.items()
        ]
    return files


@cache
def _rendered(path: Path, text: str) -> tuple[str, dict[str, bytes]]:
    """Markdown, and pictures by name. The text decides whether an open server executes a notebook again."""
    notebook = nbformat.reads(text, as_version=4)
    executed = os.environ.get("DPRMT_NOTEBOOKS", path.stem).split(",")
    quiet = ["--log-level=ERROR"]
    place = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=_SECONDS, extra_arguments=quiet, resources=place, coalesce_streams=True)
    if path.stem in executed:  # notebook 11 imports paper_figures, which no installation has
        known = [str(path.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        client.execute(env=os.environ | {"PYTHONPATH": os.pathsep.join(known)})
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = spaced(cell.source)
        elif "interactive" in cell.metadata.get("tags", []):
            cell.outputs = []
    exporter = MarkdownExporter()
    page, resources = exporter.from_notebook_node(notebook)
    name = path.stem + "/"
    page = page.replace("](output_", f"]({name}output_").replace("![png]", "![what the code above draws]")
    ran = "as it ran when this site was built" if path.stem in executed else "not executed in this copy of the site"
    note = f"*`notebooks/{path.name}`, {ran}.*"
    return f"{page}\n\n{note}\n", dict(resources["outputs"])
