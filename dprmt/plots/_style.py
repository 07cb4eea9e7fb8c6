"""Colours, line styles, the axes to draw on, and how a picture is saved: shared by all plots."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprmt._files import replacing
from dprmt._validation import needing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe & Ito's colours: distinct with any colour vision, and ordered so that neighbours differ in grey."""

LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))
"""One line style per colour, so that curves stay apart in grey."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""One marker per colour."""


def ink(ax: Axes, share: float = 1.0) -> tuple[float, float, float]:
    """Return the colour of text on the axes' background, mixed with it: the dark or light grey that a style sheet
    needs.
    """
    from matplotlib import rcParams
    from matplotlib.colors import to_rgb

    text, paper = to_rgb(rcParams["text.color"]), to_rgb(ax.get_facecolor())
    mixed = [share * one + (1 - share) * other for one, other in zip(text, paper, strict=True)]
    return mixed[0], mixed[1], mixed[2]


_LABEL_INCHES = 0.47  # ticks and label of a horizontal axis


def axes_or_new(ax: Axes | None, width: float = 6.0, height: float = 4.0) -> Axes:
    """Return the given axes, or the axes of a new figure of the current backend."""
    if ax is not None:
        return ax
    with needing("plots"):
        from matplotlib import pyplot

    figure, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
    del figure
    return ax


def finish(ax: Axes, title: str | None = None) -> Axes:
    """Draw a light grid and no box, and the title if there is one."""
    ax.grid(True, color=ink(ax, 0.12), linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if title:
        ax.set_title(title)
    return ax


def legend_below(ax: Axes, columns: int = 2, **entries: Any) -> None:
    """Put a legend under the axis label, where no curve passes; a constrained layout makes space for it.

    ``entries``: handles, labels and title, if they differ from the axes' entries.
    """
    from matplotlib.transforms import ScaledTranslation

    below = ax.transAxes + ScaledTranslation(0, -_LABEL_INCHES, ax.figure.dpi_scale_trans)
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    ax.legend(frameon=False, fontsize="small", ncols=columns, **place, **entries)


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
