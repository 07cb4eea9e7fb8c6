"""The report's table of ε: certified numbers, and the sentence about them."""

from __future__ import annotations

from functools import cache

from dprmt.accounting import DPSGD, HutchPlusPlus
from dprmt.report._privacy import Row, Run, privacy_curves, privacy_rows, privacy_section

SMALL = Run(name="small", sample_rate=0.05, steps=20, probes=(16,), curve_steps=(5, 20))


@cache
def small_rows() -> list[Row]:
    return privacy_rows(SMALL)


def test_rows_hold_certified_numbers_in_the_expected_order() -> None:
    exact, row = small_rows()
    upper = {label: bounds.upper for label, bounds in row.epsilon.items()}
    assert exact.epsilon["exact"] == DPSGD(1.0, 0.05).epsilon(steps=20, delta=1e-5)
    assert upper["published"] >= upper["tight"] > upper["tight, secret probes"] > exact.epsilon["exact"].upper
    assert upper["tight, secret probes"] > upper["Hutch++, secret probes"] > exact.epsilon["exact"].upper
    assert (
        upper["Hutch++, secret probes"]
        == DPSGD(1.0, 0.05, HutchPlusPlus(8, 4, secret=True)).epsilon(steps=20, delta=1e-5).upper
    )
    assert row.extra_noise["tight, secret probes"] > row.extra_noise["Hutch++, secret probes"] > 0
    assert row.extra_noise["published"] > row.extra_noise["tight, secret probes"] > 0
    section = privacy_section(SMALL, [exact, row], privacy_curves(SMALL))
    assert "zero-out" in section.tables[0].caption
    assert section.numbers["neighbours"] == "zero-out"
    assert section.numbers["rows"][1]["epsilon"]["tight"]["upper"] == upper["tight"]
    assert section.numbers["curves"]["exact norms"][1]["upper"] == exact.epsilon["exact"].upper


def test_printed_bounds_are_rounded_up() -> None:
    rows = small_rows()
    table = privacy_section(SMALL, rows, {}).tables[0]
    printed = float(table.rows[0][1])
    assert 0 <= printed - rows[0].epsilon["exact"].upper < 1e-3
    assert table.rows[1][0] == "16 probes"
    assert 0 <= float(table.rows[1][2].split()[0]) - rows[1].epsilon["tight"].upper < 1e-3
