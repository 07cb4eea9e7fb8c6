"""One self-contained HTML page of sentences, tables and pictures, which are SVG in the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from dprmt._validation import needing

_POINTS = 72  # units of SVG in an inch
_GREY = re.compile(r"#([0-9a-f]{2})\1\1\b")
_COLOURS = {"#0072b2": "blue", "#d55e00": "red", "#009e73": "green"}
_COLOURS |= {"#cc79a7": "pink", "#e69f00": "amber", "#56b4e9": "sky"}
_NAMES = re.compile(r'(\bid="|href="#|url\(#)')
_PAPER = re.compile(r"arXiv:(\d{4}\.\d{5})(?:v\d+)?")


@dataclass(frozen=True)
class Picture:
    """A picture to be drawn.

    Attributes
    ----------
    draw : callable
        Draws on the axes, or on an array of them if there are several panels.
    alt : str
        Text for readers who cannot see the picture.
    panels : int
        Number of panels side by side.
    """

    draw: Callable[[Any], object]
    alt: str
    panels: int = 1


@dataclass(frozen=True)
class Table:
    """Text in rows.

    Attributes
    ----------
    caption : str
        Caption of the table.
    header : sequence of str
        Names of the columns; the first names the rows.
    rows : sequence of sequence of str
        As long as the header.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, caption: str, records: Iterable[Any], columns: Mapping[str, Callable[[Any], str]]) -> Table:
        """Return a table of records: for each column its heading and the function that gives its cell."""
        return cls(caption, list(columns), [[cell(record) for cell in columns.values()] for record in records])


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes
    ----------
    title : str
        Heading.
    sentences : sequence of str
        Paragraphs.
    tables, pictures : sequence
        Elements after the sentences.
    numbers : mapping
        Numbers behind the section, as JSON values; NaN and infinity become null.
    """

    title: str
    sentences: Sequence[str]
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)


def render_page(
    title: str, introduction: Sequence[str], sections: Sequence[Section], *, warning: str | None = None
) -> str:
    """Return the page, with its pictures inside and nothing to be fetched."""
    parts = [
        {
            "section": section,
            "pictures": [
                _panels(picture.draw, picture.panels, picture.alt, f"s{place}-{number}")
                for number, picture in enumerate(section.pictures)
            ],
        }
        for place, section in enumerate(sections)
    ]
    with needing("cli"):
        from jinja2 import Environment, StrictUndefined
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["prose"] = _prose
    said = {"title": title, "introduction": introduction, "warning": warning, "parts": parts}
    return str(environment.from_string(_file("page.html")).render(**said, style=_file("page.css")))


def _file(name: str) -> str:
    return files("dprmt.report").joinpath(name).read_text(encoding="utf-8")


def _prose(text: str) -> Any:
    """Keep a number and its unit on one line, and link articles."""
    from markupsafe import Markup

    text = escape(text).replace(" %", "&nbsp;%").replace(" = ", "&nbsp;=&nbsp;").replace(" × ", "&nbsp;×&nbsp;")
    return Markup(_PAPER.sub(r'<a href="https://arxiv.org/abs/\1">\g<0></a>', text))


def _panels(draw: Any, panels: int, alt: str, prefix: str) -> str:
    """Draw one SVG for each panel, so that they stack on a narrow page."""
    import numpy as np
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix, "figure.dpi": _POINTS}):
        figures = [Figure(figsize=(6.0, 4.1), dpi=_POINTS, layout="constrained") for _ in range(panels)]
        axes = [figure.subplots() for figure in figures]
        draw(axes[0] if panels == 1 else np.array(axes, dtype=object))
        return "".join(_svg(figure, alt, f"{prefix}-{number}-") for number, figure in enumerate(figures))


def along_steps(ax: Any, ylabel: str) -> None:
    """Prepare axes and legend of curves with one point per step."""
    ax.set(xlabel="step", ylabel=ylabel)
    ax.locator_params(axis="x", integer=True)
    ax.grid(True, color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)


def _svg(figure: Any, alt: str, prefix: str) -> str:
    stream = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(stream, format="svg", metadata=nothing, transparent=True)
    text = stream.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL).replace("xlink:href", "href")
    body = _NAMES.sub(rf"\g<1>{prefix}", _themed(body))
    width, height = (side * _POINTS for side in figure.get_size_inches())
    label = f'role="img" aria-label="{escape(alt, quote=True)}"'
    return f'<svg {label} viewBox="0 0 {width:g} {height:g}">{body}'


def _themed(body: str) -> str:
    # Greys between the page's text and its background, the palette as the page's variables.
    for colour, name in _COLOURS.items():
        body = body.replace(colour, f"var(--{name})")

    def mixed(grey: re.Match[str]) -> str:
        return f"color-mix(in srgb, var(--text) {round(100 * (1 - int(grey[1], 16) / 255))}%, var(--back))"

    return re.sub(r"font: ([^;\"]*?)'[^;\"]*", r"font: \1system-ui, sans-serif", _GREY.sub(mixed, body))
