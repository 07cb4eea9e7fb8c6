"""Write a picture to a file: whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save_picture(
    path: str | Path, draw: Callable[[Axes], object], size: tuple[float, float] = (6.4, 4.4), dpi: int = 160
) -> None:
    """Draw on fresh axes and save; the file appears only once it is complete.

    Parameters
    ----------
    path : str or Path
        Its suffix decides the format.
    draw : callable
        Gets the axes.
    size : (float, float)
        Inches.
    dpi : int
        Dots per inch for bitmaps.
    """
    from matplotlib.figure import Figure

    path = Path(path)
    figure = Figure(figsize=size, layout="constrained")
    draw(figure.subplots())
    handle, name = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        figure.savefig(name, dpi=dpi)
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
