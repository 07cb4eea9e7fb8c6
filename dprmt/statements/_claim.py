"""The run and its bounds in the form that ``dprmt verify`` reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dprmt._validation import ParameterError
from dprmt.accounting import (
    DPSGD,
    Composition,
    ExactNorms,
    FixedOrder,
    GaussianRelease,
    Group,
    PrivacyBounds,
    RandomAllocation,
    ReplaceOne,
    neighbours_from_dict,
    norms_from_dict,
    release_from_dict,
    sampling_from_dict,
)

_LARGEST_GROUP = 64


def claim(run: Composition, delta: float, by_direction: Mapping[Any, PrivacyBounds]) -> dict[str, Any] | None:
    """Write the claim that ``dprmt verify`` proves or refutes; None if it does not support the mechanism.

    ``by_direction``: bounds of ε at ``delta``. ``docs/theory/verifier.md`` lists the supported mechanisms.
    """
    phases = [_phase(mechanism, steps) for mechanism, steps in run.phases]
    if None in phases:
        return None
    ends = {way: {"lower": _end(bounds.lower), "upper": _end(bounds.upper)} for way, bounds in by_direction.items()}
    worst = max(by_direction, key=lambda way: by_direction[way].upper)
    if ends[worst]["upper"] is None:
        return None
    lower = max(bounds.lower for bounds in by_direction.values())
    return {
        "neighbours": run.neighbours.as_dict(),
        "phases": phases,
        "delta": delta,
        "epsilon": {"lower": lower, "upper": ends[worst]["upper"]},
        "by_direction": _sides(run, ends),
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
    if isinstance(mechanism, GaussianRelease):
        return {"mechanism": mechanism.as_dict(), "steps": steps}
    if not isinstance(mechanism, DPSGD) or not _is_known(mechanism):
        return None
    described = mechanism.as_dict()
    if isinstance(mechanism.sampling, FixedOrder):  # for one sample: a step of all samples an epoch
        described["sampling"] = {"kind": "poisson", "rate": 1.0}
    return {"mechanism": described, "steps": steps}


def _is_known(mechanism: DPSGD) -> bool:
    whose = mechanism.neighbours
    if isinstance(whose, Group) and whose.size > 1:
        by_pairs = isinstance(mechanism.norms, ExactNorms) and mechanism.has_pairs
        return by_pairs and whose.size <= _LARGEST_GROUP
    if isinstance(whose, ReplaceOne):
        one_step = not isinstance(mechanism.sampling, RandomAllocation)
        return isinstance(mechanism.norms, ExactNorms) and one_step
    return True


def _sides(run: Composition, ends: dict[Any, Any]) -> dict[Any, Any]:
    # Replacement is its own mirror image, which the verifier calls one direction.
    whose = run.neighbours.of if isinstance(run.neighbours, Group) else run.neighbours
    return {} if isinstance(whose, ReplaceOne) else ends


def _end(value: float) -> float | None:
    return value if math.isfinite(value) else None
