"""One self-contained HTML page out of sections of sentences, tables and pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from dprmt._validation import needing
from dprmt.report._figure import drawn_panels

_PAPER = re.compile(r"arXiv:(\d{4}\.\d{5})(?:v\d+)?")
_GLOSSARY = {
    "noise multiplier σ": "Standard deviation of the noise in units of the clipping norm C.",
    "bulk edge": "σ(√m + √n): near it is the largest singular value of m × n noise, in one draw of eight above.",
    "threshold": "Detection threshold σ(mn)^¼: a clean singular value below it leaves no trace in the noisy matrix.",
    "Eq. 3, F(λ)": "Where a clean singular value λ above the threshold shows in the noisy matrix (arXiv:2510.01137).",
    "called": "A matrix whose top singular value is above what noise alone exceeds in 1 % of draws.",
    "false alarm": "A matrix that is called although no clean singular value of it is above the threshold.",
    "overlap": "Squared inner product of a noisy singular vector with the clean one (Eqs. 4 and 5), in [0, 1].",
    "gate κ": "A matrix is denoised only if its top singular value is above κ times the bulk edge (Eq. 10).",
    "Improvement": "Cosine of the gradient with the clean one after denoising minus before.",
    "norm correction": "Scaling a denoised matrix back to the length of the noisy one.",
    "randomized norm": "A per-sample gradient norm estimated from random probes (arXiv:2605.24879).",
    "envelope": "The largest distribution function that an estimated norm can have, over all spectra of a gradient.",
    "ε, δ": "Bounds on what anybody can find out about one sample being in the training data or not.",
}


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
                drawn_panels(picture.draw, picture.panels, picture.alt, f"s{place}-{number}")
                for number, picture in enumerate(section.pictures)
            ],
        }
        for place, section in enumerate(sections)
    ]
    said = {"title": title, "introduction": introduction, "warning": warning}
    return _template().render(**said, parts=parts, glossary=_GLOSSARY, style=_file("page.css"))


@cache
def _template() -> Any:
    with needing("cli"):
        from jinja2 import Environment, StrictUndefined
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["prose"] = _prose
    return environment.from_string(_file("page.html"))


def _file(name: str) -> str:
    return files("dprmt.report").joinpath(name).read_text(encoding="utf-8")


def _prose(text: str) -> Any:
    """Keep a number and its unit on one line, and link articles."""
    from markupsafe import Markup

    text = escape(text).replace(" %", "&nbsp;%").replace(" = ", "&nbsp;=&nbsp;").replace(" × ", "&nbsp;×&nbsp;")
    return Markup(_PAPER.sub(r'<a href="https://arxiv.org/abs/\1">\g<0></a>', text))


def plain_numbers(value: Any) -> Any:
    """Return the value in Python's own types, for ``dprmt._files.strict_json``."""
    if isinstance(value, Mapping):
        return {str(key): plain_numbers(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_numbers(entry) for entry in value]
    return value
