"""What telemetry costs: the page has the stored benchmark, and says where the aim is missed."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_stored_costs() -> None:
    page = (ROOT / "docs" / "theory" / "telemetry.md").read_text(encoding="utf-8")
    costs = json.loads((ROOT / "benchmarks" / "results" / "telemetry.json").read_text(encoding="utf-8"))["costs"]
    for cost in costs:
        row = [cost["model"], f"{cost['step_ms']:.0f} ms", f"{cost['telemetry_ms']:.2f} ms"]
        row += [f"{100 * cost['share']:.1f} %", f"{cost['gradients_kept']:.2f}", f"{cost['first_reading_ms']:.0f} ms"]
        assert "| " + " | ".join(row) + " |" in page
    missed = [cost for cost in costs if cost["share"] > 0.03]
    assert [cost["model"] for cost in missed] == ["784-10, Adam, batch 400"]
    assert round(missed[0]["step_ms"]) == 8
    assert all(0.6 <= cost["telemetry_ms"] <= 0.85 for cost in costs[:3])
