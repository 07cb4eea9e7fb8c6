"""``docs/audits.md`` is what the audits found: what is cheap is run again, the rest is as stored."""

from __future__ import annotations

import pytest

from audits import mixing, page

TEXT = page.PAGE.read_text(encoding="utf-8")


def test_the_table_of_mixing_is_what_trying_it_gives() -> None:
    """Every code is refused, and would move the clipped sum by more than C; numbers up to rounding."""
    found = mixing.mixing()
    assert all(finding.moved > 1 for finding in found.values())
    assert all(finding.micro_batch is not None for finding in found.values())
    rows = [line.split(" | ") for line in page.marked(TEXT, "mixing").splitlines()[2:]]
    now = [line.split(" | ") for line in mixing.table(found).splitlines()[2:]]
    for row, expected in zip(rows, now, strict=True):
        assert (row[0], *row[2:]) == (expected[0], *expected[2:])
        assert float(row[1].split()[0]) == pytest.approx(float(expected[1].split()[0]), rel=0.1)


@pytest.mark.parametrize("code", mixing.right_codes(), ids=lambda code: code.what)
def test_what_does_not_mix_is_taken(code: mixing.Code) -> None:
    assert mixing.taken(code)


@pytest.mark.parametrize("name", ["games", "bugs", "kills"])
def test_the_other_tables_are_as_stored(name: str) -> None:
    assert page.marked(TEXT, name) == page.parts()[name]()
