"""What telemetry costs: the page has the stored benchmark, and says where the aim is missed."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_stored_costs() -> None:
    page = (ROOT / "docs" / "theory" / "telemetry.md").read_text(encoding="utf-8")
    costs = json.loads((ROOT / "benchmarks" / "results" / "telemetry.json").read_text(encoding="utf-8"))["costs"]
    for cost in costs:
        row = [cost["model"], f"{cost['step_ms']:.0f} ms", f"{cost['optimizer_ms']:.2f} ms"]
        row += [f"{cost['telemetry_ms']:.2f} ms", f"{100 * cost['share']:.1f} %"]
        row += [f"{cost['gradients_kept']:.2f}", f"{cost['first_reading_ms']:.0f} ms"]
        assert "| " + " | ".join(row) + " |" in page
    (missed,) = [cost for cost in costs if cost["share"] > 0.03]
    assert missed["model"] == "784-10, Adam, batch 400"
    own, step = missed["optimizer_ms"], missed["step_ms"]
    assert f"takes {step:.0f} ms: there telemetry takes {missed['telemetry_ms'] / own:.1f} times" in page
    assert f"alone is {100 * own / step:.1f} % of such a step" in page
    assert own > 0.03 * step  # what the page says: the optimizer alone takes more than the aim
