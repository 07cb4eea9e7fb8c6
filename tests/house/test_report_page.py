"""The page: self-contained, well-formed, escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from dprmt.report._page import Picture, Section, Table, render_page

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Checked(HTMLParser):
    """Keeps what was opened and whether all was closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, Any]]:
        """Attributes of all tags of a kind."""
        return [attributes for name, attributes in self.tags if name == tag]


def section(**changes: Any) -> Section:
    fields: dict[str, Any] = {
        "title": "A < B & C",
        "sentences": ["First: 3 %.", 'Second <script>alert("x")</script>'],
        "tables": [Table("Caption <i>", ["name", "value"], [["a & b", "−1"], ["c", "2"]])],
        "pictures": [Picture(lambda ax: ax.plot([0, 1], color="#0072B2"), 'Alt "text" & more')],
    }
    return Section(**{**fields, **changes})


def test_page_is_well_formed_and_nothing_in_it_is_fetched() -> None:
    page = render_page("T & U", ["Intro <b>."], [section(), section(title="Other")], warning="Beware <of> it")
    checked = Checked(page)
    assert checked.open == []
    assert page.startswith("<!DOCTYPE html>")
    kinds = {name for name, _ in checked.tags}
    assert kinds.isdisjoint({"link", "script", "iframe", "object", "img", "b", "i", "of"})
    assert not any("src" in attributes for _, attributes in checked.tags)
    assert re.findall(r"url\((?!#)", page) == []
    assert "prefers-color-scheme: dark" in page
    assert len(checked.named("h1")) == 1
    assert len(checked.named("h2")) == 3  # two sections and the glossary
    assert len(checked.named("table")) == len(checked.named("svg")) == 2
    assert "A < B & C" in checked.text
    assert 'Second <script>alert("x")</script>' in checked.text
    assert "3\N{NO-BREAK SPACE}%" in checked.text
    assert "Beware <of> it" in checked.text
