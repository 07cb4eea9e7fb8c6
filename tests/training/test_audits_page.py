"""``docs/audits.md`` is what the audits found: what is cheap is run again, the rest is as stored."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")

from audits import coverage, page

TEXT = page.PAGE.read_text(encoding="utf-8")


def test_the_table_of_layers_is_what_trying_them_gives() -> None:
    found = coverage.coverage()
    assert not any("wrong" in word for words in found.values() for word in words)
    assert page.marked(TEXT, "layers") == coverage.table(found)


@pytest.mark.parametrize("name", ["games", "bugs", "kills"])
def test_the_other_tables_are_as_stored(name: str) -> None:
    assert page.marked(TEXT, name) == page.parts()[name]()
