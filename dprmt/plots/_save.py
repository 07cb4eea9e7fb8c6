"""Write a picture to a file: whole, or not at all."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dprmt._files import replacing
from dprmt._validation import needing


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
    OSError
        If the file cannot be written; what was there before is left as it was.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_picture(Path(folder) / "line.png", lambda ax: ax.plot([0, 1]))
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['line.png']
    """
    with needing("plots"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    draw(figure.subplots(*panels))
    with replacing(Path(path), public=True) as fresh, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # names may be in any script
        figure.savefig(fresh, dpi=dpi)
