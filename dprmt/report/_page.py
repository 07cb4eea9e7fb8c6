"""One self-contained HTML page out of sections of sentences, tables and pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any


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
class Section:
    """One part of the page.

    Attributes
    ----------
    title : str
        Heading.
    sentences : sequence of str
        Paragraphs.
    tables, pictures : sequence
        What follows them.
    numbers : mapping
        What the section rests on, as JSON values; NaN and infinity become null.
    """

    title: str
    sentences: Sequence[str]
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)


_STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --back: #fdfdfd; --line: #c9c9c9; --soft: #f1f1f1; --dim: #555; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --back: #17181a; --line: #45484d; --soft: #23262a; --dim: #a8a8a8; }
}
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; color: var(--text); background: var(--back);
  font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p { margin: .6rem 0; max-width: 50rem; }
.finding { font-weight: 600; }
.note { color: var(--dim); font-size: .92rem; }
.warning { border-left: .3rem solid #d55e00; background: var(--soft); padding: .6rem .9rem; max-width: 48rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--dim); padding-bottom: .4rem; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { vertical-align: bottom; }
tbody th { font-weight: 400; }
figure { margin: 1rem 0; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: .3rem; }
code { background: var(--soft); padding: .1rem .3rem; border-radius: .2rem; overflow-wrap: anywhere; }
"""


def render_page(
    title: str, introduction: Sequence[str], sections: Sequence[Section], *, warning: str | None = None
) -> str:
    """The page, with its pictures inside and nothing to be fetched."""
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{_text(text)}</p>" for text in introduction)]
    if warning:
        body.append(f'<p class="warning" role="note">{escape(warning)}</p>')
    for section in sections:
        body.append(_section(section))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


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
    # A number and its unit stay on one line.
    return escape(text).replace(" %", "&nbsp;%").replace(" = ", "&nbsp;=&nbsp;").replace(" × ", "&nbsp;×&nbsp;")


def _section(section: Section) -> str:
    parts = [f"<section>\n<h2>{escape(section.title)}</h2>"]
    for number, text in enumerate(section.sentences):
        kind = "" if number else ' class="finding"'
        parts.append(f"<p{kind}>{_text(text)}</p>")
    parts += [_table(table) for table in section.tables]
    parts += [_picture(picture) for picture in section.pictures]
    return "\n".join([*parts, "</section>"])


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    rows = [
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{_text(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in table.rows
    ]
    return (
        f'<div class="scroll"><table>\n<caption>{_text(table.caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(rows) + "\n</tbody>\n</table></div>"
    )


def _picture(picture: Picture) -> str:
    from matplotlib.figure import Figure

    width = 6.4 if picture.panels == 1 else 5.5 * picture.panels
    figure = Figure(figsize=(width, 4.3), layout="constrained")
    picture.draw(figure.subplots(1, picture.panels))
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=150)
    data = base64.b64encode(stream.getvalue()).decode()
    image = f'<img width="{round(96 * width)}" src="data:image/png;base64,{data}"'
    return f'<figure>{image} alt="{escape(picture.alt, quote=True)}"></figure>'
