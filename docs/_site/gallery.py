"""The gallery: every picture with the code that draws it."""

from __future__ import annotations

import ast
import io
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from mkdocs.structure.files import File

_HEAD = "# Gallery\n\nEvery picture is drawn by the code below it, when this site is built.\n"


def gallery_pages(config: Any, folder: Path) -> list[File]:
    """The page and its pictures: one for each script of the folder."""
    mpl.use("Agg")
    sys.path.append(str(folder.parents[1]))  # one plot is made by paper_figures, which no installation has
    page, files = _HEAD, []
    for script in sorted(folder.glob("*.py")):
        text = script.read_text(encoding="utf-8")
        what = ast.get_docstring(ast.parse(text)) or script.stem
        picture = f"gallery/{script.stem}.png"
        files.append(File.generated(config, picture, content=_drawn(text, script)))
        code = text.split('"""\n', 2)[-1].strip()
        page += f"\n## {script.stem[3:].replace('_', ' ').capitalize()}\n\n{what}\n\n![{what}]({picture})\n"
        page += f"\n```python\n{code}\n```\n"
    return [File.generated(config, "gallery.md", content=page), *files]


def _drawn(text: str, script: Path) -> bytes:
    from matplotlib import pyplot

    exec(compile(text, script.name, "exec"), {})
    stream = io.BytesIO()
    pyplot.gcf().savefig(stream, format="png", dpi=110)
    pyplot.close("all")
    return stream.getvalue()
