"""Append-only files of JSON lines, which a crash at any point leaves readable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append one line, after ending one that a crash left unfinished.

    Parameters
    ----------
    path : Path
        Created if it does not exist.
    row : mapping of str to JSON values
        Finite numbers only.
    """
    line = json.dumps(dict(row), allow_nan=False) + "\n"
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write(line.encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete lines of the file, none if it does not exist.

    Parameters
    ----------
    path : Path
        A file of `append_line`.

    Returns
    -------
    list of dict
        In order. What a crash left unfinished is skipped.
    """
    rows = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
