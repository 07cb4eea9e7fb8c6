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
_CLAIMS = "delta neighbours epsilon by_direction analysis version direction statement source comment"
_RUN = "mechanism steps epochs neighbours analysis"
_KEYS = {
    "run": f"{_RUN} {_CLAIMS}",
    "composition": f"phases {_CLAIMS}",
    "phase": _RUN,
    "ends": "lower estimate upper is_narrow",
    "dpsgd": "noise_multiplier sampling norms neighbours",
    "gaussian": "noise_multiplier",
    "poisson": "rate",
    "allocation": "steps_per_epoch participations",
    "hutchinson": "probes secret rank analysis",
    "hutch++": "probes sketch power_iteration secret",
    "flat spectrum": "probes sketch secret",
    "group": "size of",
}
_ALL = {"kind": "poisson", "rate": 1.0}


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
    try:
        document = json.loads(text, object_pairs_hook=_said_once)
        return _statement(document.get("claim", document))
    except (ArithmeticError, AttributeError, RecursionError, TypeError) as error:
        raise NotCoveredError(f"not a statement: {error}") from error


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise NotCoveredError(f"a word is said twice among {', '.join(word for word, _ in pairs)}")
    return dict(pairs)


def _statement(document: Any) -> Statement:
    _known(document, "statement", "composition" if "phases" in document else "run")
    phases, neighbours, attained = [], set(), True
    for run in document.get("phases", [document]):
        if run is not document:
            _known(run, "phase", "phase")
        mechanism = _object(run, "mechanism", "", "dpsgd", "gaussian")
        norms = _object(mechanism, "norms", "exact", "exact", "hutchinson", "hutch++", "flat spectrum")
        relation = _relation([place["neighbours"] for place in (mechanism, run, document) if "neighbours" in place])
        analyses = {place.get("analysis", "exact") for place in (norms, run, document)}
        if analyses - {"exact", "tight", "envelope"}:
            raise NotCoveredError(f"analysis {analyses}: covered are exact, tight and envelope")
        phases.append(_phase(run, mechanism, norms, *relation))
        neighbours.add(relation)
        attained &= norms["kind"] != "hutch++" and "envelope" not in analyses
    if len(neighbours) != 1:
        raise NotCoveredError("neighbours that differ between phases, or no phase at all")
    claims = _claims(document, _WAYS[neighbours.pop()[0]], attained)
    return Statement(phases, _number(document, "delta", 1e-300, 1), claims)


def _relation(said: list[Any]) -> tuple[str, int]:
    """Whose privacy, and how many samples; where it is said more than once, all the same, or the word alone."""
    found = [_object({"neighbours": one}, "neighbours", "", "group", *_WAYS) for one in said or ["zero-out"]]
    first, word = found[0], {"kind": found[0]["kind"]}
    if any(other not in (first, word) for other in found):
        raise NotCoveredError("neighbours that differ between a mechanism, its phase and the statement")
    if first["kind"] != "group":
        return first["kind"], 1
    return _object(first, "of", "zero-out", *_WAYS)["kind"], _number(first, "size", 1, 64, int)


def _phase(run: Any, mechanism: Any, norms: Any, neighbours: str, group: int) -> Phase:
    steps, sampling = (
        _number(run, "steps", 1, 10**9, int),
        _object(mechanism, "sampling", _ALL, "poisson", "allocation"),
    )
    if sampling["kind"] == "poisson":
        return _steps(mechanism, norms, _number(sampling, "rate", 1e-12, 1), steps, neighbours, group)
    if group > 1 or neighbours == "replace-one":
        raise NotCoveredError("random allocation is covered for one sample, present or not")
    size = _number(sampling, "steps_per_epoch", 1, 10**6, int)
    parts = _number({"participations": 1, **sampling}, "participations", 1, size, int)
    if steps % size or size % parts or run.get("epochs", steps // size) != steps // size:
        raise NotCoveredError(f"steps {steps}, steps_per_epoch {size}, participations {parts}: not whole epochs")
    if parts == size:
        return _steps(mechanism, norms, 1.0, steps, neighbours, group)
    inner = _steps(mechanism, norms, 1.0, 1, neighbours, group).build
    epochs = steps // size * parts
    return Phase(epochs, lambda cut, cells: Allocation(inner(cut / 1024, cells), size // parts, cut, cells))


def _steps(mechanism: Any, norms: Any, rate: float, steps: int, neighbours: str, group: int) -> Phase:
    sigma = _number(mechanism, "noise_multiplier", 1e-6, 1e6)
    is_trained = mechanism["kind"] == "dpsgd"
    is_mirrored, group = is_trained and neighbours == "replace-one", group if is_trained else 1
    if norms["kind"] == "exact":
        return Phase(1 if rate == 1 else steps, lambda cut, cells: exact(sigma, rate, group, steps, is_mirrored))
    if is_mirrored or group > 1:
        raise NotCoveredError("estimated norms are covered for one sample, present or not")
    probes, is_secret = _number(norms, "probes", 2, 10**5, int), _flag(norms, "secret")
    sketch = _number(norms, "sketch", 3, 10**4, int) if norms["kind"] != "hutchinson" else 0
    is_charged, is_iterated = norms["kind"] == "hutch++", _flag(norms, "power_iteration")

    def build(cut: float, cells: int) -> Step:
        attained = NormRatio(probes * (sketch or 1), {1: ONE}, cut, 1 / cells, 0.5 if sketch else 0.0)
        charged = NormRatio(probes, copies(sketch, is_iterated), cut, 1 / cells) if is_charged else attained
        return (SecretProbes if is_secret else KnownProbes)(sigma, rate, charged, attained)

    return Phase(steps, build)


def _claims(document: Any, ways: tuple[Direction, ...], attained: bool) -> list[Claim]:
    by_direction: dict[Direction, Any] = document.get("by_direction") or {}
    asked = [(document.get("epsilon"), ways), *((by_direction[way], (way,)) for way in BOTH if way in by_direction)]
    claims = [
        Claim(end, _number(ends, end, -4e4, 4e4), towards, attained or end == "upper")
        for ends, towards in asked
        for end in ("upper", "lower")
        if ends and _known(ends, "epsilon", "ends").get(end) is not None
    ]
    if not claims or set(by_direction) - set(BOTH):
        raise NotCoveredError("epsilon: no end is claimed, or by_direction has another than remove and add")
    return claims


def _flag(where: Any, name: str) -> bool:
    if not isinstance(where.get(name, False), bool):
        raise NotCoveredError(f"{name} {where[name]!r}: neither true nor false")
    return bool(where.get(name))


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
    return {"kind": kind, **_known(value, name, kind)}


def _known(value: Any, name: str, kind: str) -> dict[str, Any]:
    """An object that says nothing that is not known."""
    for key in set(value) - {"kind", *_KEYS.get(kind, "").split()}:
        raise NotCoveredError(f"{name} says {key!r}, which is not covered")
    return dict(value)
