"""A run's privacy card, which carries what it claims."""

from typing import Any

from dprmt_verify._words import NotCoveredError


def claim_of_card(card: Any) -> Any:
    """What a card claims; its own δ and upper end must be the same, all else that it says is not read."""
    claim = card["claim"]
    if card.get("delta", claim["delta"]) != claim["delta"]:
        raise NotCoveredError(f"a card of delta {card['delta']!r} that claims {claim['delta']!r}")
    said = card.get("epsilon", {}).get("upper")
    if said is not None and said != claim["epsilon"]["upper"]:
        raise NotCoveredError(f"a card that says upper {said!r} and claims {claim['epsilon']['upper']!r}")
    return claim
