"""A privacy card as Markdown: a table, a paragraph, two lists and a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dprmt._rounding import round_down, round_up
from dprmt.accounting import Composition, PrivacyBounds
from dprmt.statements._sentences import (
    norms_sentence,
    relation_sentence,
    release_sentence,
    releases,
    sampling_sentence,
    trainings,
)

_NOT_VERIFIED = "No statement for `dprmt verify`: its small program does not know this mechanism or what is released."


class Card(Protocol):
    """What is read of a privacy card."""

    @property
    def run(self) -> Composition: ...
    @property
    def delta(self) -> float: ...
    @property
    def worst(self) -> PrivacyBounds: ...
    @property
    def epsilon(self) -> dict[Any, PrivacyBounds]: ...
    @property
    def gdp_mu(self) -> PrivacyBounds: ...
    @property
    def advantage(self) -> PrivacyBounds: ...
    @property
    def true_positive_rate(self) -> PrivacyBounds: ...
    @property
    def unit(self) -> str: ...
    @property
    def released(self) -> tuple[str, ...]: ...
    @property
    def not_covered(self) -> tuple[str, ...]: ...
    @property
    def ledger(self) -> dict[str, Any]: ...
    def statement(self) -> str: ...


def markdown(card: Card, verify: str | None) -> str:
    """Return the card; ``verify`` is the command that proves its ends, if there is one."""
    rows = [
        ("relation", f"{card.run.neighbours.kind}: {relation_sentence(card.run)}"),
        ("one sample", card.unit),
        *_mechanisms(card),
        (
            "(ε, δ)",
            f"{_between(card.worst, 'ε')} at δ = {card.delta:g}; {card.worst.direction or 'neither direction'} decides",
        ),
        *((f"ε to {way}", _between(bounds, "ε")) for way, bounds in card.epsilon.items()),
        ("μ of Gaussian DP, where δ > 1e-10", _between(card.gdp_mu, "μ")),
        ("attacker's advantage", _between(card.advantage, "A")),
        ("true positive rate at a false positive rate of 1 %", _between(card.true_positive_rate, "β")),
        *_ledger(card),
    ]
    proof = _NOT_VERIFIED
    if verify is not None:
        proof = (
            f"`{verify}`, given this card as JSON, proves or refutes every end of ε above in ball arithmetic, with a"
            " small program that shares no code with the accountant."
        )
    parts = [
        "# Privacy card",
        "| | |\n|---|---|\n" + "\n".join(f"| {name} | {_cell(text)} |" for name, text in rows),
        "## What may be written",
        card.statement(),
        "## Released",
        _bullets([*card.released, *(release_sentence(release, times) for release, times in releases(card.run))]),
        "## Not covered",
        _bullets(card.not_covered),
        "## Verified by",
        proof,
    ]
    return "\n\n".join(parts) + "\n"


def _mechanisms(card: Card) -> list[tuple[str, str]]:
    rows, phases = [], trainings(card.run)
    for number, (mechanism, steps) in enumerate(phases, 1):
        phase = "" if len(phases) == 1 else f", phase {number}"
        by_pairs = "" if mechanism.has_pairs else " (analysis: composed curves)"
        rows += [
            (f"sampling{phase}", sampling_sentence(mechanism.sampling, steps).removeprefix("for ")),
            (f"noise multiplier{phase}", f"{mechanism.noise_multiplier:.6g}"),
            (f"norms and probes{phase}", norms_sentence(mechanism.norms).removeprefix("by ") + by_pairs),
        ]
    return rows


def _ledger(card: Card) -> list[tuple[str, str]]:
    if not card.ledger:
        return []
    words = ", ".join(f"{name} {value}" for name, value in card.ledger.items())
    return [("ledger", words)]


def _between(bounds: PrivacyBounds, symbol: str) -> str:
    return f"{round_down(bounds.lower)} ≤ {symbol} ≤ {round_up(bounds.upper)}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
