"""What is claimed: read from JSON, refused where a word or a number is not known."""

import json
from typing import Any, Literal, NamedTuple

from dprmt_verify._allocation import Allocation
from dprmt_verify._balls import ONE
from dprmt_verify._gaussians import exact
from dprmt_verify._known import KnownProbes
from dprmt_verify._norm_ratio import NormRatio
from dprmt_verify._run import Phase
from dprmt_verify._secret import SecretProbes
from dprmt_verify._sketch import copies
from dprmt_verify._table import Direction, Step

BOTH: tuple[Direction, ...] = ("remove", "add")
_WAYS = {"zero-out": BOTH, "add-remove": BOTH, "remove": BOTH[:1], "add": BOTH[1:]}
_WAYS["replace-one"] = BOTH[:1]  # its pair is its own mirror image
_KEYS = {
    "statement": "mechanism phases steps epochs delta neighbours epsilon by_direction analysis"
    " version direction statement source comment",
    "dpsgd": "noise_multiplier sampling norms neighbours",
    "gaussian": "noise_multiplier",
    "poisson": "rate",
    "allocation": "steps_per_epoch participations",
    "hutchinson": "probes secret rank analysis",
    "hutch++": "probes sketch power_iteration secret",
    "flat spectrum": "probes sketch secret",
    "group": "size of",
}


_ESTIMATED = ("hutchinson", "hutch++", "flat spectrum")


class NotCoveredError(ValueError):
    """A statement that this program cannot read, or a mechanism that it does not know."""


class Claim(NamedTuple):
    """One end: that ε, the largest of these directions, is at most or at least ``value``.

    ``attained``: False of a lower end that may be about a law that no gradient has, which can only be proved.
    """

    end: Literal["upper", "lower"]
    value: float
    directions: tuple[Direction, ...]
    attained: bool

    def __str__(self) -> str:
        whose = "" if len(self.directions) == 2 else f" to {self.directions[0]}"
        return f"ε{whose} {'<=' if self.end == 'upper' else '>='} {self.value!r}"


class Statement(NamedTuple):
    """A run, δ and what is claimed of ε."""

    phases: list[Phase]
    delta: float
    claims: list[Claim]


def read_statement(text: str) -> Statement:
    """From JSON, or from a card that carries it as ``claim``; see docs/theory/verifier.md for the form."""
    found = json.loads(text)
    found = found.get("claim", found) if isinstance(found, dict) else found
    if not isinstance(found, dict):
        raise NotCoveredError("a statement that is no object, or a card that carries no claim")
    document = _object({"statement": {"kind": "statement"} | found}, "statement", "", "statement")
    phases, neighbours, attained = [], set(), True
    for part in document.get("phases", [document]):
        run = _object({"phase": {"kind": "statement"} | dict(part)}, "phase", "", "statement")
        mechanism = _object(run, "mechanism", "", "dpsgd", "gaussian")
        relation = _relation(mechanism if "neighbours" in mechanism else document)
        norms = _object(mechanism, "norms", "exact", "exact", *_ESTIMATED)
        phases.append(_phase(run, mechanism, norms, *relation))
        neighbours.add(relation)
        attained &= norms["kind"] != "hutch++" and "envelope" not in (norms.get("analysis"), document.get("analysis"))
    if len(neighbours) != 1:
        raise NotCoveredError("neighbours that differ between phases, or no phase at all")
    claims = _claims(document, _WAYS[neighbours.pop()[0]], attained)
    return Statement(phases, _number(document, "delta", 1e-300, 1), claims)


def _relation(where: Any) -> tuple[str, int]:
    found = _object(where, "neighbours", "zero-out", "group", *_WAYS)
    if found["kind"] != "group":
        return found["kind"], 1
    return _object(found, "of", "zero-out", *_WAYS)["kind"], _number(found, "size", 1, 64, int)


def _phase(run: Any, mechanism: Any, norms: Any, neighbours: str, group: int) -> Phase:
    steps = _number(run, "steps", 1, 10**9, int)
    whole = {"kind": "poisson", "rate": 1.0}
    sampling = _object(mechanism, "sampling", whole, "poisson", "allocation")
    if sampling["kind"] == "allocation":
        if group > 1 or neighbours == "replace-one":
            raise NotCoveredError("random allocation is covered for one sample, present or not")
        size = _number(sampling, "steps_per_epoch", 1, 10**6, int)
        parts = _number({"participations": 1, **sampling}, "participations", 1, size, int)
        if steps % size or size % parts or run.get("epochs", steps // size) != steps // size:
            raise NotCoveredError(f"steps {steps}, steps_per_epoch {size}, participations {parts}: not whole epochs")
        unsampled = _step(mechanism, norms, 1.0, 1, neighbours, group).build
        if parts < size:

            def epoch(cut: float, cells: int) -> Step:
                return Allocation(unsampled(cut / 1024, cells), size // parts, cut, cells)

            return Phase(steps // size * parts, epoch)
        sampling = whole
    return _step(mechanism, norms, _number(sampling, "rate", 1e-12, 1), steps, neighbours, group)


def _step(mechanism: Any, norms: Any, rate: float, steps: int, neighbours: str, group: int) -> Phase:
    sigma = _number(mechanism, "noise_multiplier", 1e-6, 1e6)
    is_mirrored = neighbours == "replace-one" and mechanism["kind"] == "dpsgd"
    if norms["kind"] == "exact":
        group = group if mechanism["kind"] == "dpsgd" else 1
        return Phase(1 if rate == 1 else steps, lambda cut, cells: exact(sigma, rate, group, steps, is_mirrored))
    probes, secret = _number(norms, "probes", 2, 10**5, int), norms.get("secret", False)
    sketch = _number(norms, "sketch", 3, 10**4, int) if norms["kind"] != "hutchinson" else 0
    if is_mirrored or group > 1:
        raise NotCoveredError("estimated norms are covered for one sample, present or not")

    def build(cut: float, cells: int) -> Step:
        if sketch:
            charged = attained = NormRatio(probes * sketch, {1: ONE}, cut, 1 / cells, exact=0.5)
        else:
            charged = attained = NormRatio(probes, {1: ONE}, cut, 1 / cells)
        if norms["kind"] == "hutch++":
            charged = NormRatio(probes, copies(sketch, norms.get("power_iteration") is True), cut, 1 / cells)
        return (SecretProbes if secret else KnownProbes)(sigma, rate, charged, attained)

    return Phase(steps, build)


def _claims(document: Any, ways: tuple[Direction, ...], attained: bool) -> list[Claim]:
    by_direction: dict[Direction, Any] = document.get("by_direction") or {}
    asked = [(document.get("epsilon"), ways), *((by_direction[way], (way,)) for way in BOTH if way in by_direction)]
    claims = [
        Claim(end, _number(ends, end, -4e4, 4e4), towards, attained or end == "upper")
        for ends, towards in asked
        for end in ("upper", "lower")
        if ends and ends.get(end) is not None
    ]
    if not claims or set(by_direction) - set(BOTH):
        raise NotCoveredError("epsilon: no end is claimed, or by_direction has another than remove and add")
    return claims


def _number(where: Any, name: str, low: float, high: float, kind: Any = float) -> Any:
    value = where.get(name)
    if isinstance(value, bool) or not isinstance(value, int | kind) or not low <= value <= high:
        word = "a whole number" if kind is int else "a number"
        raise NotCoveredError(f"{name} {value!r}: not {word} from {low:g} to {high:g}")
    return kind(value)


def _object(where: Any, name: str, default: Any, *kinds: str) -> dict[str, Any]:
    """One of these kinds, whose keys are all known; a word alone stands for an object of that kind."""
    value = where.get(name, default)
    value = {"kind": value} if isinstance(value, str) else value
    kind = value.get("kind", kinds[0]) if isinstance(value, dict) else None
    if kind not in kinds:
        raise NotCoveredError(f"{name} {value!r}: covered are {', '.join(kinds)}")
    for key in set(value) - {*_KEYS.get(kind, "").split(), "kind"}:
        raise NotCoveredError(f"{name} says {key!r}, which is not covered")
    return {"kind": kind, **value}
