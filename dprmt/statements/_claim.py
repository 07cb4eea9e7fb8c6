"""The run and its bounds in the form that ``dprmt verify`` reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dprmt._validation import ParameterError
from dprmt.accounting import (
    DPSGD,
    Composition,
    Group,
    PrivacyBounds,
    ReplaceOne,
    neighbours_from_dict,
    norms_from_dict,
    release_from_dict,
    sampling_from_dict,
)


def claim(run: Composition, delta: float, by_direction: Mapping[Any, PrivacyBounds]) -> dict[str, Any] | None:
    """Write the claim that ``dprmt verify`` proves or refutes; None if it does not support the mechanism.

    ``by_direction``: bounds of ε at ``delta``. ``docs/theory/verifier.md`` lists the supported mechanisms.
    """
    phases = [_phase(mechanism, steps) for mechanism, steps in run.phases]
    lower, upper = (max(getattr(bounds, end) for bounds in by_direction.values()) for end in ("lower", "upper"))
    if None in phases or math.isinf(upper):
        return None
    ends = {way: {"lower": bounds.lower, "upper": bounds.upper} for way, bounds in by_direction.items()}
    whose = run.neighbours.of if isinstance(run.neighbours, Group) else run.neighbours
    return {
        "neighbours": run.neighbours.as_dict(),
        "phases": phases,
        "delta": delta,
        "epsilon": {"lower": lower, "upper": upper},
        # Replacement is its own mirror image, which the verifier calls one direction.
        "by_direction": {} if isinstance(whose, ReplaceOne) else ends,
    }


def mechanism_from_dict(record: Mapping[str, Any]) -> DPSGD:
    """Return the mechanism that ``as_dict`` described.

    Parameters
    ----------
    record : mapping
        ``kind``, "dpsgd", noise multiplier, sampling, norms, neighbours and, where there is any, ``beside``.

    Returns
    -------
    DPSGD
        The value, checked.

    Raises
    ------
    ParameterError
        If the record is of something else, has other keys, or a value lies outside its range.
    KeyError
        If one is missing.

    Examples
    --------
    >>> mechanism_from_dict(DPSGD(1.0, 0.01).as_dict())
    DPSGD(1.0, Poisson(0.01))
    """
    parts = dict(record)
    if parts.pop("kind", None) != "dpsgd":
        raise ParameterError("mechanism", record.get("kind"), "of a run of DP-SGD: one whose mechanism is 'dpsgd'")
    made = DPSGD(
        parts.pop("noise_multiplier"),
        sampling_from_dict(parts.pop("sampling")),
        norms_from_dict(parts.pop("norms")),
        neighbours_from_dict(parts.pop("neighbours")),
        [release_from_dict(one) for one in parts.pop("beside", ())],  # type: ignore[misc]  # checked there
    )
    if parts:
        raise ParameterError("mechanism", sorted(parts), "one whose keys this version knows")
    return made


def _phase(mechanism: Any, steps: int) -> dict[str, Any] | None:
    described = mechanism.as_dict()
    if isinstance(mechanism, DPSGD):
        if not _is_known(mechanism):
            return None
        if mechanism.sampling.kind == "fixed-order":  # for one sample: a step of all samples an epoch
            described["sampling"] = {"kind": "poisson", "rate": 1.0}
    elif mechanism.kind != "gaussian":
        return None
    return {"mechanism": described, "steps": steps}


def _is_known(mechanism: DPSGD) -> bool:
    whose, exact = mechanism.neighbours, mechanism.norms.kind == "exact"
    if isinstance(whose, Group) and whose.size > 1:
        return exact and mechanism.has_pairs and whose.size <= 64  # the verifier's limit
    return not isinstance(whose, ReplaceOne) or (exact and mechanism.sampling.kind != "allocation")
