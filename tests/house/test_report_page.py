"""The page: self-contained, well-formed, escaped; and the numbers beside it."""

from __future__ import annotations

import base64
import json
import math
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from dprmt._files import strict_json
from dprmt.report._page import Picture, Section, Table, plain_numbers, render_page

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
        "pictures": [Picture(lambda ax: ax.plot([0, 1]), 'Alt "text" & more')],
    }
    return Section(**{**fields, **changes})


def test_page_is_well_formed_and_nothing_in_it_is_fetched() -> None:
    page = render_page("T & U", ["Intro <b>."], [section(), section(title="Other")], warning="Beware <of> it")
    checked = Checked(page)
    assert checked.open == []
    assert page.startswith("<!DOCTYPE html>")
    kinds = {name for name, _ in checked.tags}
    assert kinds.isdisjoint({"script", "link", "iframe", "object", "b", "i", "of"})
    assert "http" not in page
    assert "url(" not in page
    assert "prefers-color-scheme: dark" in page
    assert len(checked.named("h1")) == 1
    assert len(checked.named("h2")) == len(checked.named("table")) == len(checked.named("img")) == 2
    assert "A < B & C" in checked.text
    assert 'Second <script>alert("x")</script>' in checked.text
    assert "3\N{NO-BREAK SPACE}%" in checked.text
    assert "Beware <of> it" in checked.text


def test_pictures_are_inside_with_their_alternative_text() -> None:
    (image,) = Checked(render_page("T", [], [section()])).named("img")
    assert image["alt"] == 'Alt "text" & more'
    head, data = image["src"].split(",")
    assert head == "data:image/png;base64"
    assert base64.b64decode(data, validate=True).startswith(b"\x89PNG")


def test_panels_are_drawn_side_by_side() -> None:
    drawn: list[Any] = []
    render_page("T", [], [section(pictures=[Picture(drawn.append, "alt", panels=2)])])
    assert drawn[0].shape == (2,)
    assert drawn[0][0].get_position().x0 < drawn[0][1].get_position().x0


def test_tables_have_headers_for_rows_and_columns() -> None:
    checked = Checked(render_page("T", [], [section()]))
    assert [attributes["scope"] for attributes in checked.named("th")] == ["col", "col", "row", "row"]
    assert len(checked.named("td")) == 2


def test_numbers_become_json() -> None:
    values = {"a": np.float32(0.5), "b": np.array([1.0, math.nan]), "c": (1, math.inf), 2: None, "d": True, "e": "x"}
    plain = json.loads(strict_json(plain_numbers(values)))
    assert plain == {"a": 0.5, "b": [1.0, None], "c": [1, None], "2": None, "d": True, "e": "x"}
    with pytest.raises((TypeError, ValueError)):
        strict_json(plain_numbers(object()))
