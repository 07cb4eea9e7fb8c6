"""The calculator's files: the core of the package as an archive, and Python for the browser where it was fetched."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_CORE = ("*.py", "accounting/**/*.py", "statements/**/*.py", "cli/**/*.py")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that equal sources make equal archives


def calculator_files(config: Any, root: Path) -> list[File]:
    """The archive, and the runtime of ``.ci/pyodide`` in ``build/pyodide``, or where DPRMT_PYODIDE says."""
    archive = File.generated(config, "calculator/dprmt.zip", content=core(root))
    place = Path(os.environ.get("DPRMT_PYODIDE", root / "build" / "pyodide"))
    runtime = sorted(place.glob("*")) if place.is_dir() else []
    return [archive, *(File.generated(config, f"pyodide/{path.name}", abs_src_path=str(path)) for path in runtime)]


def core(root: Path) -> bytes:
    """What answers questions about ε: NumPy and SciPy are all that it imports."""
    sources = sorted(path for pattern in _CORE for path in (root / "dprmt").glob(pattern))
    named = {path.relative_to(root).as_posix(): path for path in sources}
    named["answer.py"] = root / "docs" / "calculator" / "answer.py"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in named.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return stream.getvalue()
