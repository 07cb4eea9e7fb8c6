"""A run's privacy card, which carries what it claims."""

from typing import Any

from dprmt_verify._words import NotCoveredError


def claim_of_card(card: Any) -> Any:
    """What a card claims. Whatever it says of the same run and its ends must be the same; all else is not read."""
    claim = card["claim"]
    said, claimed = _told(card), _told(claim)
    for what, value in said.items():
        is_told = claimed[what] is not None or "direction" not in what  # a claim of replacement has one direction
        if value is not None and is_told and value != claimed[what]:
            raise NotCoveredError(f"a card of {what} {value!r} that claims {claimed[what]!r}")
    return claim


def _told(document: Any) -> dict[str, Any]:
    whose = document.get("neighbours")
    phases = document.get("phases", [document] if "mechanism" in document else [])
    phases = [phase for phase in phases if phase["mechanism"].get("kind", "dpsgd") == "dpsgd"]
    found = {
        "neighbours": whose["kind"] if isinstance(whose, dict) else whose,
        "delta": document.get("delta"),
        "steps": [phase["steps"] for phase in phases] or None,
        "noise_multiplier": [phase["mechanism"]["noise_multiplier"] for phase in phases] or None,
    }
    for end in ("lower", "upper"):
        found[end] = document.get("epsilon", {}).get(end)
        ways = (document.get("by_direction") or {}).items()
        found[f"{end} by direction"] = {way: bounds[end] for way, bounds in ways} or None
    return found
