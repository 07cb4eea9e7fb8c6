"""What another package says of a statement's run, in place of what the statement claims."""

import importlib
import json
from typing import Any

from dprmt_verify._words import NotCoveredError, number, read_object


def claim_of_peer(name: str, text: str) -> str:
    """A statement of the same run whose upper end is the answer of ``dprmt_peers.NAME``."""
    said: Any = json.loads(text)
    said = said.get("claim", said)
    phases = said.get("phases", [said])
    mechanism = read_object(phases[0], "mechanism", "", "dpsgd")
    read_object(mechanism, "norms", "exact", "exact")
    sampling = read_object(mechanism, "sampling", {"kind": "poisson", "rate": 1.0}, "poisson")
    for place in (mechanism, phases[0], said):
        read_object(place, "neighbours", "zero-out", "zero-out", "add-remove")
    if len(phases) > 1 or "at_most" in sampling or "beside" in mechanism:
        raise NotCoveredError("peers are asked about one phase of exact norms and Poisson sampling")
    run = (mechanism["noise_multiplier"], sampling["rate"], number(phases[0], "steps", 1, 10**9, int), said["delta"])
    try:
        answer = importlib.import_module(f"dprmt_peers.{name}").epsilon(*run)
    except Exception as error:
        raise NotCoveredError(f"{name}: {type(error).__name__}: {error}") from error
    return json.dumps({"mechanism": mechanism, "steps": run[2], "delta": run[3], "epsilon": {"upper": answer}})
