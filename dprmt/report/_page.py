"""One self-contained HTML page out of sections of sentences, tables and pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

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
        Gets the axes, or an array of them if there are several panels.
    alt : str
        What it shows, for those who do not see it.
    panels : int
        Side by side.
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
        What the table holds.
    header : sequence of str
        Names of the columns; the first names the rows.
    rows : sequence of sequence of str
        As long as the header.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Slider:
    """A number to be chosen by hand, and what is said of each choice.

    Attributes
    ----------
    label : str
        What is chosen.
    texts : sequence of str
        One for each place of the slider.
    """

    label: str
    texts: Sequence[str]


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes
    ----------
    title : str
        Heading.
    sentences : sequence of str
        Paragraphs.
    tables, pictures, sliders : sequence
        What follows them.
    numbers : mapping
        What the section rests on, as JSON values; NaN and infinity become null.
    """

    title: str
    sentences: Sequence[str]
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    sliders: Sequence[Slider] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)


def render_page(
    title: str, introduction: Sequence[str], sections: Sequence[Section], *, warning: str | None = None
) -> str:
    """The page, with its pictures inside and nothing to be fetched."""
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{_text(text)}</p>" for text in introduction)]
    if warning:
        body.append(f'<p class="warning" role="note">{escape(warning)}</p>')
    body.append(_contents(sections))
    body += [_section(section, f"s{number}") for number, section in enumerate(sections)]
    body.append(_glossary())
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_part('page.css')}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + f"\n</main>\n<script>{_part('page.js')}</script>\n</body>\n</html>\n"
    )


@cache
def _part(name: str) -> str:
    return files("dprmt.report").joinpath(name).read_text(encoding="utf-8")


def _contents(sections: Sequence[Section]) -> str:
    entries = [(f"s{number}", section.title) for number, section in enumerate(sections)]
    items = "".join(f'<li><a href="#{place}">{escape(title)}</a></li>' for place, title in entries)
    items += '<li><a href="#glossary">Glossary</a></li><li><a href="numbers.json">All numbers, as JSON</a></li>'
    return f'<nav aria-label="Contents"><ol>{items}</ol></nav>'


def _glossary() -> str:
    entries = "\n".join(f"<dt>{escape(word)}</dt><dd>{_text(meaning)}</dd>" for word, meaning in _GLOSSARY.items())
    return f'<section id="glossary">\n<h2>Glossary</h2>\n<dl>\n{entries}\n</dl>\n</section>'


def plain_numbers(value: Any) -> Any:
    """The value in Python's own types, for ``dprmt._files.strict_json``."""
    if isinstance(value, Mapping):
        return {str(key): plain_numbers(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_numbers(entry) for entry in value]
    return value


def _text(text: str) -> str:
    # A number and its unit stay on one line; papers are links.
    text = escape(text).replace(" %", "&nbsp;%").replace(" = ", "&nbsp;=&nbsp;").replace(" × ", "&nbsp;×&nbsp;")
    return _PAPER.sub(r'<a href="https://arxiv.org/abs/\1">\g<0></a>', text)


def _section(section: Section, place: str) -> str:
    parts = [f'<section id="{place}">\n<h2>{escape(section.title)}</h2>']
    for number, text in enumerate(section.sentences):
        kind = "" if number else ' class="finding"'
        parts.append(f"<p{kind}>{_text(text)}</p>")
    parts += [_table(table) for table in section.tables]
    parts += [_slider(slider) for slider in section.sliders]
    parts += [_picture(picture, f"{place}-{number}") for number, picture in enumerate(section.pictures)]
    return "\n".join([*parts, "</section>"])


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    rows = [
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{_text(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in table.rows
    ]
    return (
        f'<div class="scroll"><table>\n<caption><span>{_text(table.caption)}</span></caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>\n</table></div>"
    )


def _slider(slider: Slider) -> str:
    # Shown by the script, without which it could do nothing.
    texts, last = escape(json.dumps(slider.texts), quote=True), len(slider.texts) - 1
    return (
        f'<div class="slider" hidden data-texts="{texts}"><label>{escape(slider.label)}'
        f' <input type="range" min="0" max="{last}" value="0"></label> <output></output></div>'
    )


def _picture(picture: Picture, place: str) -> str:
    return f"<figure>{drawn_panels(picture.draw, picture.panels, picture.alt, place)}</figure>"
