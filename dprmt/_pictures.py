"""Write a picture to a file: whole, or not at all."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from dprmt._options import UsageError

_SUFFIXES = (".png", ".pdf", ".svg")


def save_picture(
    path: str | Path,
    draw: Callable[[Any], object],
    size: tuple[float, float] = (6.4, 4.4),
    dpi: int = 160,
    panels: tuple[int, int] = (1, 1),
) -> None:
    """Draw on fresh axes and save; the file appears only once it is complete.

    Parameters
    ----------
    path : str or Path
        Its suffix decides the format.
    draw : callable
        Gets the axes, or an array of them if there are several panels.
    size : (float, float)
        Inches.
    dpi : int
        Dots per inch for bitmaps.
    panels : (int, int)
        Rows and columns of axes.

    Raises
    ------
    UsageError
        If the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    draw(figure.subplots(*panels))
    try:
        _write(Path(path), lambda name: figure.savefig(name, dpi=dpi))
    except OSError as error:
        raise UsageError(f"dprmt: {str(path)!r} could not be written: {error.strerror}") from None


def _write(path: Path, save: Callable[[str], object]) -> None:
    handle, name = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # names may be in any script
            save(name)
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def check_picture_name(command: str, name: str) -> None:
    """Refuse, before any work, the value of ``--plot`` if no picture could be written there.

    Raises
    ------
    UsageError
        If the suffix is no picture format, or the place is not one for a new file.
    """
    path = Path(name)
    if path.suffix.lower() not in _SUFFIXES:
        _refuse(command, "a file name that ends in .png, .pdf or .svg", name)
    if not path.parent.is_dir() or path.is_dir():
        _refuse(command, "a file in an existing folder", name)
    if not os.access(path.parent, os.W_OK):
        _refuse(command, "a file in a folder that can be written", name)


def _refuse(command: str, allowed: str, name: str) -> NoReturn:
    raise UsageError(f"{command}: --plot must be {allowed}, got {name!r}")
