"""Links between theory and API: labels are anchors, public names lead to their pages, docstrings to the proofs."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

_TRAINING = ("norms", "clipping", "denoising", "optimizers", "subspaces", "recipes", "data", "models", "harness")
ROOMS = ("accounting", "spectra", "plots", "report", *(f"training.{room}" for room in _TRAINING))
_LABEL = re.compile(r"^\*\*\(([A-Z]\d?'*)\)\*\*", re.MULTILINE)
_SECTION = re.compile(r"^## (\d+)\. (.+)$", re.MULTILINE)
_DISPLAYED = re.compile(r"\s*\$\$(.+?)\$\$[ \t]*\n?", re.DOTALL)
_LIST = re.compile(r"^(?![*-] |[|>#\s])(.+)\n(?=[*-] )", re.MULTILINE)
_NAME = re.compile(r"(?<!\[)`(dprmt(?:\.\w+)+)`(?!\])")
_CITED = re.compile(r"``?(?:docs/)?theory/(\w+)\.md``?(?:, (?:§(\d+)|(?:equations? )?([A-Z]\d'*)))?")


def public_names() -> dict[str, object]:
    """All that can be linked to, by its dotted name."""
    found = {}
    for room in ROOMS:
        module = importlib.import_module(f"dprmt.{room}")
        found |= {f"dprmt.{room}.{name}": getattr(module, name) for name in module.__all__}
    return found


def spaced(markdown: str) -> str:
    """Displayed formulas and lists as blocks of their own, which is how Markdown knows them."""
    markdown = _DISPLAYED.sub(lambda match: f"\n\n$$\n{match[1].strip()}\n$$\n\n", markdown)
    return _LIST.sub(r"\1\n\n", markdown)


def linked_theory(markdown: str, stem: str) -> str:
    """A page of theory with anchors at its labels and sections, and the public names that rest on it."""
    markdown = _LABEL.sub(lambda match: f'<a id="{match[1]}"></a>{match[0]}', markdown)
    markdown = _SECTION.sub(lambda match: f'<a id="s{match[1]}"></a>\n\n{match[0]}', markdown)
    users = [name for name, value in public_names().items() if f"theory/{stem}.md" in _source(value)]
    if not users:
        return markdown
    return f"{markdown}\n\n## In the API\n\n" + "\n".join(f"- [`{name}`][{name}]" for name in users) + "\n"


def linked_names(markdown: str) -> str:
    """Public names in code font as links to where they are documented."""
    known = public_names()
    return _NAME.sub(lambda match: f"[{match[0]}][{match[1]}]" if match[1] in known else match[0], markdown)


def linked_citations(docstring: str) -> str:
    """Pages of theory in a docstring as links, to the label or section where one follows."""

    def link(match: re.Match[str]) -> str:
        page, section, label = match.groups()
        place = f"s{section}" if section else label or ""
        words = ", ".join(filter(None, (page.replace("_", " "), f"§{section}" if section else label)))
        return f"[{words}](../theory/{page}.md#{place})" if place else f"[{words}](../theory/{page}.md)"

    return _CITED.sub(link, docstring)


_PAPER = re.compile(r"(?<![\w\[/`])arXiv:(\d{4}\.\d{4,5}(?:v\d+)?)(?![`\]\w])")
_OUTSIDE = re.compile(r"(^```.*?^```|`[^`\n]*`|\[[^\]\n]*\]\([^)\n]*\))", re.DOTALL | re.MULTILINE)


def linked_papers(markdown: str) -> str:
    """Numbers of papers as links to them, but in code and in links."""
    parts = _OUTSIDE.split(markdown)
    parts[::2] = [_PAPER.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", part) for part in parts[::2]]
    return "".join(parts)


_OWN = re.compile(r"^::: (dprmt[\w.]*\.[A-Za-z]\w*)$", re.MULTILINE)
_OTHERS = re.compile(r"^::: (dprmt[\w.]*) others$", re.MULTILINE)


def with_others(markdown: str) -> str:
    """A page of the API with what its room has beside the names that it puts first, in the place of ``others``."""
    first = set(_OWN.findall(markdown))

    def rest(match: re.Match[str]) -> str:
        names = [f"{match[1]}.{name}" for name in importlib.import_module(match[1]).__all__]
        return "\n\n".join(f"::: {name}" for name in names if name not in first)

    return _OTHERS.sub(rest, markdown)


def _source(value: object) -> str:
    # Of the module that defines it: where the code cites what it implements.
    try:
        return Path(inspect.getfile(value)).read_text(encoding="utf-8")  # type: ignore[arg-type]
    except (TypeError, OSError):
        return ""
