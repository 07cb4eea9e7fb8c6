"""What is claimed: read from JSON, refused where a word or a number is not known."""

import json
from typing import Any, Literal, NamedTuple

from dprmt_verify._gaussians import exact
from dprmt_verify._run import Phase
from dprmt_verify._table import Direction
from dprmt_verify._words import NotCoveredError, known, number, read_object

BOTH: tuple[Direction, ...] = ("remove", "add")
_SAMPLINGS = ("poisson", "cyclic-poisson", "fixed-size", "allocation")
_WAYS = {"zero-out": BOTH, "add-remove": BOTH, "remove": BOTH[:1], "add": BOTH[1:]}
_WAYS["replace-one"] = BOTH[:1]  # its pair is its own mirror image


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
        if "claim" in document:
            from dprmt_verify.further._card import claim_of_card

            document = claim_of_card(document)
        return _statement(document)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise NotCoveredError(f"not a statement: {error}") from error


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise NotCoveredError(f"a word is said twice among {[word for word, _ in pairs]}")
    return dict(pairs)


def _statement(document: Any) -> Statement:
    known(document, "statement", "composition" if "phases" in document else "run")
    phases, neighbours, attained = [], set(), True
    for run in document.get("phases", [document]):
        known(run, "phase", "run" if run is document else "phase")
        mechanism = read_object(run, "mechanism", "", "dpsgd", "gaussian")
        norms = read_object(mechanism, "norms", "exact", "exact", "hutchinson", "hutch++", "flat spectrum")
        relation = _relation([place["neighbours"] for place in (mechanism, run, document) if "neighbours" in place])
        places = (norms, run, document)
        analyses = [read_object(place, "analysis", "exact", "exact", "tight", "envelope")["kind"] for place in places]
        phases.append(_phase(run, mechanism, norms, *relation))
        neighbours.add(relation)
        attained &= norms["kind"] != "hutch++" and "envelope" not in analyses
    if len(neighbours) != 1:
        raise NotCoveredError("neighbours that differ between phases, or no phase at all")
    return Statement(phases, number(document, "delta", 1e-300, 1), _claims(document, neighbours.pop()[0], attained))


def _relation(said: list[Any]) -> tuple[str, int]:
    """Whose privacy, and how many samples; where it is said more than once, all the same, or the word alone."""
    found = [read_object({"neighbours": one}, "neighbours", "", "group", *_WAYS) for one in said or ["zero-out"]]
    more = {json.dumps(one, sort_keys=True) for one in found if len(one) > 1}
    if len({one["kind"] for one in found}) > 1 or len(more) > 1:
        raise NotCoveredError("neighbours that differ between a mechanism, its phase and the statement")
    one = max(found, key=len)
    if one["kind"] != "group":
        return one["kind"], 1
    return read_object(one, "of", "zero-out", *_WAYS)["kind"], number(one, "size", 1, 64, int)


def _phase(run: Any, mechanism: Any, norms: Any, neighbours: str, group: int) -> Phase:
    steps = number(run, "steps", 1, 10**9, int)
    sampling = read_object(mechanism, "sampling", {"kind": "poisson", "rate": 1.0}, *_SAMPLINGS)
    if sampling["kind"] != "allocation" and "epochs" in run:
        raise NotCoveredError("epochs, of which Poisson sampling has none")

    def drawn(rate: Any, count: int) -> Phase:
        return _steps(mechanism, norms, rate, count, neighbours, group)

    if sampling["kind"] == "poisson" and "at_most" not in sampling:
        return drawn(number(sampling, "rate", 1e-12, 1), steps)
    if group > 1 or (neighbours == "replace-one" and sampling["kind"] == "allocation"):
        raise NotCoveredError("covered but for Poisson sampling is one sample, present or not, or some replaced")
    from dprmt_verify.further._phases import allocated, in_turn, sized

    if sampling["kind"] == "allocation":
        return allocated(run, sampling, steps, drawn)
    if sampling["kind"] == "cyclic-poisson":
        return in_turn(sampling, steps, drawn)
    return sized(sampling, norms, _noises(mechanism), steps, neighbours)


def _steps(mechanism: Any, norms: Any, rate: Any, steps: int, neighbours: str, group: int) -> Phase:
    sigma, is_trained = number(mechanism, "noise_multiplier", 1e-6, 1e6), mechanism["kind"] == "dpsgd"
    noises = _noises(mechanism)
    is_mirrored, group = is_trained and neighbours == "replace-one", group if is_trained else 1
    if norms["kind"] == "exact":
        return Phase(1 if rate == 1 else steps, lambda cut, cells: exact(noises, rate, group, steps, is_mirrored))
    if len(noises) > 1:
        raise NotCoveredError("beside is covered with exact norms")
    if is_mirrored or group > 1:
        raise NotCoveredError("estimated norms are covered for one sample, present or not")
    from dprmt_verify.further._phases import estimated

    return Phase(steps, estimated(norms, sigma, rate))


def _noises(mechanism: Any) -> list[float]:
    """Of the sum, and of what is released beside it."""
    beside = [read_object({"beside": one}, "beside", "", "gaussian") for one in mechanism.get("beside", [])]
    return [number(one, "noise_multiplier", 1e-6, 1e6) for one in (mechanism, *beside)]


def _claims(document: Any, neighbours: str, attained: bool) -> list[Claim]:
    asked = [(document["epsilon"], _WAYS[neighbours])] if "epsilon" in document else []
    by_direction = known(document.get("by_direction", {}), "by_direction", "sides")
    covered = BOTH if neighbours == "replace-one" else _WAYS[neighbours]  # either stands for the other one
    if "direction" in document and document["direction"] not in by_direction:
        raise NotCoveredError("direction, without its ends by_direction: say it by neighbours, remove or add")
    if set(by_direction) - set(covered):
        raise NotCoveredError(f"by_direction {[*by_direction]}: covered of {neighbours} are {covered}")
    asked += [(by_direction[way], (way,)) for way in covered if way in by_direction]
    claims = [
        Claim(end, number(ends, end, -4e4, 4e4), towards, attained or end == "upper")
        for ends, towards in asked
        for end in ("upper", "lower")
        if known(ends, "epsilon", "ends").get(end) is not None
    ]
    if not claims:
        raise NotCoveredError("epsilon: no end is claimed")
    return claims
