"""What all plots share: checks of the numbers, colours and line styles, the axes, and how a picture is saved."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dprmt._files import replacing
from dprmt._validation import ParameterError, needing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED = "#0072B2", "#D55E00"
PALETTE = ("#000000", BLUE, RED, "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe & Ito's colours: distinct with any colour vision, and ordered so that neighbours differ in grey."""

LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))
"""One line style per colour, so that curves stay apart in grey."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""One marker per colour."""

OPAQUE = {"loc": "lower right", "frameon": True, "framealpha": 1.0, "edgecolor": "none"}
"""Options of a legend that curves may pass behind."""

DASHES = (0, (6, 2))
"""Line style of what has no noise, and of the bulk edge; matplotlib's own dashes are finer."""

Floats = NDArray[np.float64]


def as_floats(values: object) -> Floats:
    """Convert arrays, lists, and tensors of any dtype, device and graph to float64."""
    if isinstance(values, (list, tuple)):
        return np.array([as_floats(value) for value in values], dtype=np.float64)
    if hasattr(values, "detach"):  # a torch tensor: NumPy takes neither bfloat16 nor what requires a gradient
        values = values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def finite_values(
    name: str, values: object, low: float = -np.inf, high: float = np.inf, *, count: int = -1, allow: str = ""
) -> Floats:
    """Return the values as a non-empty array of finite floats within ``[low, high]``.

    ``count``: if given, the shape is (count,). ``allow``: "draws" for shape (draws, count), too, "NaN" for NaN.
    """
    allowed = f"finite numbers in [{low:g}, {high:g}]" + " or NaN" * (allow == "NaN")
    try:
        array = as_floats(values)
    except (TypeError, ValueError):
        raise ParameterError(name, values, allowed) from None
    if array.size == 0 or (count >= 0 and (array.shape[-1:] != (count,) or array.ndim > 1 + (allow == "draws"))):
        rows = f" or (draws, {count})" * (allow == "draws")
        shape = f", of shape ({count},){rows}" if count >= 0 else ", at least one"
        raise ParameterError(name, array.shape, allowed + shape)
    good = np.isfinite(array) & (array >= low) & (array <= high) | (np.isnan(array) & (allow == "NaN"))
    if not good.all():
        raise ParameterError(name, float(array[~good][0]) if array.ndim else values, allowed)
    return array


def by_label(name: str, given: object, of: str, kind: type | tuple[type, ...] = object) -> Mapping[Any, Any]:
    """Return a mapping of at least one label to what is drawn, each of a kind."""
    values = given.values() if isinstance(given, Mapping) else ()
    wrong = [type(one) for one in values if not isinstance(one, kind)]
    if wrong or not values:
        raise ParameterError(name, wrong[0] if wrong else given, f"a mapping of at least one label to {of}")
    return given  # type: ignore[return-value]


def columns(name: str, given: object, names: Sequence[str], low: float, high: float, **options: Any) -> list[Floats]:
    """Return the arrays that one argument holds: places >= 0 of shape (k,), and values in [low, high] there.

    ``names``: of the places and of the values. ``options``: of `finite_values`, for the values.
    """
    try:
        arrays: list[Any] = [*given]  # type: ignore[misc]
    except TypeError:
        arrays = []
    if len(arrays) != len(names):
        raise ParameterError(name, given, f"{len(names)} arrays: {', '.join(names)}")
    x = np.ravel(finite_values(names[0], arrays[0], 0.0))
    others = zip(names[1:], arrays[1:], strict=True)  # sums of shares may exceed 1 by rounding
    return [x, *(finite_values(*one, low, high + 1e-9, count=len(x), **options) for one in others)]


def descending(name: str, values: object) -> Floats:
    """Return the values, numbers >= 0 along one axis, in decreasing order."""
    array = finite_values(name, values, 0.0)
    if array.ndim != 1:
        raise ParameterError(name, array.shape, "an array of shape (k,)")
    return np.sort(array)[::-1]


def ink(ax: Axes, share: float = 1.0) -> tuple[float, float, float]:
    """Return the colour of text on the axes' background, mixed with it: the dark or light grey that a style sheet
    needs.
    """
    from matplotlib import rcParams
    from matplotlib.colors import to_rgb

    text, paper = to_rgb(rcParams["text.color"]), to_rgb(ax.get_facecolor())
    red, green, blue = (share * one + (1 - share) * other for one, other in zip(text, paper, strict=True))
    return red, green, blue


def axes_or_new(ax: Axes | None, width: float = 6.0, height: float = 4.0) -> Axes:
    """Return the given axes, or the axes of a new figure of the current backend."""
    if ax is not None:
        if not hasattr(ax, "spines"):  # such as a figure, or an array of axes
            raise ParameterError("ax", ax, "one matplotlib axes")
        return ax
    with needing("plots"):
        from matplotlib import pyplot

    return pyplot.figure(figsize=(width, height), layout="constrained").subplots()


def look(ax: Axes, number: int, shift: int = 0) -> dict[str, Any]:
    """Return color, line style and marker of a curve by its number; ``shift`` the colors, of which the first is the
    text's.
    """
    place = (number + shift) % len(PALETTE)
    color = PALETTE[place] if place else ink(ax)
    return {"color": color, "linestyle": LINES[number % len(LINES)], "marker": MARKERS[number % len(MARKERS)]}


def level(ax: Axes, value: float, label: str = "_", *, upright: bool = False, style: Any = "-.", **more: Any) -> Any:
    """Draw a thin grey line across the axes."""
    draw = ax.axvline if upright else ax.axhline
    return draw(value, **{"color": ink(ax, 0.7), "linestyle": style, "linewidth": 1.0, "label": label, **more})


def points(ax: Axes, x: Any, y: Any, color: Any, marker: str, label: str, **more: Any) -> Any:
    """Draw hollow markers without a line."""
    hollow: dict[str, Any] = {"markersize": 4.5, "markerfacecolor": "none", "markeredgewidth": 1.0, "linestyle": "none"}
    return ax.plot(x, y, **{**hollow, "color": color, "marker": marker, "label": label, **more})[0]


def log_ticks(axis: Any) -> None:
    """Label 1, 2 and 5 of every decade of a logarithmic axis with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def finish(ax: Axes, legend: Mapping[str, Any] | None = None, **settings: Any) -> Axes:
    """Draw a light grid and no box, and the legend if there is one.

    ``settings``: of ``ax.set``, such as labels and limits.
    """
    ax.set(**settings)
    ax.grid(True, color=ink(ax, 0.12), linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if legend is not None:
        ax.legend(**{"frameon": False, **legend})
    return ax


def legend_below(ax: Axes, columns: int = 2, **entries: Any) -> None:
    """Put a legend under the axis label, where no curve passes; a constrained layout makes space for it.

    ``entries``: handles, labels and title, if they differ from the axes' entries.
    """
    from matplotlib.transforms import ScaledTranslation

    below = ax.transAxes + ScaledTranslation(0, -0.47, ax.figure.dpi_scale_trans)  # inches of ticks and label
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    ax.legend(frameon=False, fontsize="small", ncols=columns, **place, **entries)


def save_picture(
    path: str | Path,
    draw: Callable[[Any], object],
    size: tuple[float, float] = (6.4, 4.4),
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
        figure.savefig(fresh, dpi=160)
