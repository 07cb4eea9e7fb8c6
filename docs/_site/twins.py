"""Every page as plain Markdown beside its HTML, and ``llms.txt``, the list of them: for readers that are programs."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

_DIRECTIVE = re.compile(r"^::: (dprmt[\w.]*)\n(?:(?: {4}.*)?\n)*", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="[^"]*"></a>\n*')
_CROSS = re.compile(r"\[(`[^`]+`)\]\[[\w.]+\]")


def twin(markdown: str) -> str:
    """A page's Markdown as it can be read alone: signatures and docstrings in place of directives, no links by name."""
    written = _DIRECTIVE.sub(lambda match: _described(match[1]), markdown + "\n")
    return _CROSS.sub(r"\1", _ANCHOR.sub("", written)).strip() + "\n"


def write_twins(site: Path, pages: dict[str, tuple[str, str]], sections: list[tuple[str, list[str]]]) -> None:
    """The files, and the list by the sections of the navigation; ``pages``: title and Markdown by address."""
    lines = ["# dprmt", "", f"> {_summary(pages)}", ""]
    for section, addresses in sections:
        lines += [f"## {section}", ""]
        lines += [f"- [{pages[address][0]}]({_plain(address)})" for address in addresses if address in pages]
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    for address, (_, markdown) in pages.items():
        place = site / _plain(address)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(twin(markdown), encoding="utf-8")


def sections_of(navigation: Any) -> list[tuple[str, list[str]]]:
    """Headings of the navigation with the addresses of their pages; single pages under "Pages"."""
    singles = [item.file.dest_uri for item in navigation.items if item.is_page]
    found = [("Pages", singles)] if singles else []
    for item in navigation.items:
        if item.is_section:
            found.append((item.title, [page.file.dest_uri for page in _pages(item)]))
    return found


def _pages(section: Any) -> list[Any]:
    return [page for child in section.children for page in ([child] if child.is_page else _pages(child))]


def _plain(address: str) -> str:
    return address.removesuffix(".html") + ".md"


def _summary(pages: dict[str, tuple[str, str]]) -> str:
    # The first paragraph of the first page.
    _, _, text = pages["index.html"][1].partition("\n\n")
    return " ".join(text.partition("\n\n")[0].split())


def _described(name: str) -> str:
    module, _, rest = name, "", ""
    while True:
        try:
            value: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
    for part in filter(None, rest.split(".")):
        value = getattr(value, part)
    if not inspect.ismodule(value):
        return _of_one(name, value)
    names = [_of_one(f"{name}.{own}", getattr(value, own)) for own in value.__all__]
    return "\n".join([f"## {name}", "", inspect.getdoc(value) or "", "", *names])


def _of_one(name: str, value: Any) -> str:
    try:
        signature = str(inspect.signature(value)) if callable(value) else ""
    except (TypeError, ValueError):
        signature = ""
    return f"### {name}\n\n```python\n{name.rpartition('.')[2]}{signature}\n```\n\n{inspect.getdoc(value) or ''}\n"
