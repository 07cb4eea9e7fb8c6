"""Words of a statement: what is not known, or of another type or size, is refused, never ignored."""

from typing import Any

_CLAIMS = "$schema delta neighbours epsilon by_direction analysis version direction statement source comment"
_RUN = "mechanism steps epochs neighbours analysis"
_KEYS = {
    "run": f"{_RUN} {_CLAIMS}",
    "composition": f"phases {_CLAIMS}",
    "phase": _RUN,
    "sides": "remove add",
    "ends": "lower estimate upper is_narrow",
    "dpsgd": "noise_multiplier sampling norms neighbours beside",
    "gaussian": "noise_multiplier",
    "poisson": "rate at_most samples",
    "cyclic-poisson": "rate bands",
    "fixed-size": "batch_size samples",
    "allocation": "steps_per_epoch participations",
    "hutchinson": "probes secret rank analysis",
    "hutch++": "probes sketch power_iteration secret",
    "flat spectrum": "probes sketch secret",
    "group": "size of",
}


class NotCoveredError(Exception):
    """A statement that this program cannot read, or a mechanism that it does not know."""


def flag(where: Any, name: str) -> bool:
    """True or false, or false where nothing is said."""
    if not isinstance(where.get(name, False), bool):
        raise NotCoveredError(f"{name} {where[name]!r}: neither true nor false")
    return bool(where.get(name))


def number(where: Any, name: str, low: float, high: float, kind: Any = float) -> Any:
    """Of this kind, between two numbers, both of them included."""
    value = where.get(name)
    if isinstance(value, bool) or not isinstance(value, int | kind) or not low <= value <= high:
        raise NotCoveredError(f"{name} {value!r}: not a {'whole ' * (kind is int)}number from {low:g} to {high:g}")
    return kind(value)


def read_object(where: Any, name: str, default: Any, *kinds: str) -> dict[str, Any]:
    """One of these kinds, whose keys are all known; a word alone stands for an object of that kind."""
    value = where.get(name, default)
    value = {"kind": value} if isinstance(value, str) else value
    kind = value.get("kind", kinds[0]) if isinstance(value, dict) else None
    if kind not in kinds:
        from dprmt_verify.further._outside import why

        raise NotCoveredError(f"{name} {value!r}: covered are {', '.join(kinds)}{why(kind)}")
    return {"kind": kind, **known({word: one for word, one in value.items() if word != "kind"}, name, kind)}


def known(value: Any, name: str, kind: str) -> dict[str, Any]:
    """An object that says nothing that is not known."""
    if not isinstance(value, dict):
        raise NotCoveredError(f"not a statement: {name} {value!r} is no object")
    for key in value.keys() - _KEYS.get(kind, "").split():
        from dprmt_verify.further._outside import why

        raise NotCoveredError(f"{name} says {key!r}, which is not covered{why(key)}")
    return value
