"""Privacy report of a run: its claims and their limits, as an object, JSON or Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dprmt import __version__
from dprmt._rounding import round_down, round_up
from dprmt._validation import ParameterError, check_real
from dprmt.accounting import AddRemove, Composition, Group, PrivacyBounds, worst_of
from dprmt.statements._claim import claim
from dprmt.statements._sentences import (
    ONE_RUN,
    norms_sentence,
    relation_sentence,
    release_sentence,
    releases,
    sampling_sentence,
    statement,
    trainings,
)

FALSE_POSITIVE_RATE = 0.01
LEAST_DELTA = 1e-10
RELEASED = ("the trained parameters after every step, and whatever is computed from them",)
_PUBLIC = "the number of samples, names of labels, and all that a recipe says: public"
_PUBLIC_CONSTANTS = "names of labels, and all that a recipe says, chosen without the number of samples: public"
_NOT_VERIFIED = (
    "No statement for `dprmt verify`: a mechanism or a release of this run is outside its small program; the page"
    " `theory/verifier.md` lists which, with the reasons."
)
_VERIFIED = (
    "`{}`, given this card as JSON, proves or refutes every end of ε above in ball arithmetic, with a small program"
    " that shares no code with the accountant."
)
NOT_COVERED = (
    "anything else that is computed from the training data: losses, sizes of batches, norms, times",
    "scores on validation or test data, which are about those data, unless they are listed as released",
    "the choice among several runs on the same data, unless the best of a random number of them was charged",
    _PUBLIC,
    "who knows the seed of the noise, or reads the memory of the machine; timing",
)


@dataclass(frozen=True)
class PrivacyCard:
    """Claims about a run's privacy; made by :func:`privacy_card`.

    Attributes
    ----------
    run : Composition
        Mechanisms and steps, and other releases.
    delta : float
        The δ at which ε is stated.
    epsilon : dict
        Bounds of ε by direction.
    gdp_mu : PrivacyBounds
        The smallest μ of a Gaussian mechanism that is nowhere more private, for δ > 1e-10.
    advantage : PrivacyBounds
        Upper bound on an attacker's true-positive rate minus false-positive rate.
    true_positive_rate : PrivacyBounds
        The largest true-positive rate at a false-positive rate of 1 %.
    unit : str
        Meaning of one sample.
    released, not_covered : tuple of str
        Values that the numbers cover, and values that they do not.
    ledger : dict
        Number of recorded steps and the digest of the ledger file; empty without a ledger.
    """

    run: Composition
    delta: float
    epsilon: dict[Any, PrivacyBounds]
    gdp_mu: PrivacyBounds
    advantage: PrivacyBounds
    true_positive_rate: PrivacyBounds
    unit: str
    released: tuple[str, ...] = RELEASED
    not_covered: tuple[str, ...] = NOT_COVERED
    ledger: dict[str, Any] = field(default_factory=dict)

    @property
    def worst(self) -> PrivacyBounds:
        """Bounds of ε in the direction that decides.

        Returns
        -------
        PrivacyBounds
            The larger of both.
        """
        return worst_of(self.epsilon)

    def statement(self) -> str:
        """Return a paragraph for a paper.

        Returns
        -------
        str
            One paragraph.
        """
        epsilon = f"ε ≤ {round_up(self.worst.upper, 4)}"
        return statement(self.worst, self.run, epsilon=epsilon, delta=f"δ = {self.delta:g}")

    def as_dict(self) -> dict[str, Any]:
        """Convert all fields to JSON values.

        Returns
        -------
        dict
            ``claim`` is what ``dprmt verify`` proves when it is given a file with this document; None where it knows
            the mechanism not.
        """
        also = [release.as_dict() for release, times in releases(self.run) for _ in range(times)]
        return {
            "version": __version__,
            "neighbours": self.run.neighbours.kind,
            "unit": self.unit,
            "phases": [{"mechanism": one.as_dict(), "steps": steps} for one, steps in trainings(self.run)],
            **({"also": also} if also else {}),
            "delta": self.delta,
            "epsilon": json_bounds(self.worst),
            "direction": self.worst.direction,
            "by_direction": {way: json_bounds(bounds) for way, bounds in self.epsilon.items()},
            "gdp_mu": json_bounds(self.gdp_mu) | {"least_delta": LEAST_DELTA},
            "advantage": json_bounds(self.advantage),
            "true_positive_rate": json_bounds(self.true_positive_rate) | {"false_positive_rate": FALSE_POSITIVE_RATE},
            "released": list(self.released),
            "not_covered": list(self.not_covered),
            "ledger": self.ledger or None,
            "statement": self.statement(),
            "claim": claim(self.run, self.delta, self.epsilon),
        }

    def as_markdown(self, verify: str = "dprmt verify privacy_card.json") -> str:
        """Format the report as Markdown for readers.

        Parameters
        ----------
        verify : str
            The command that proves the ends of ε.

        Returns
        -------
        str
            Markdown; every number is a bound as printed.
        """
        rows = [
            ("relation", f"{self.run.neighbours.kind}: {relation_sentence(self.run)}"),
            ("one sample", self.unit),
            *_mechanism_rows(self.run),
            (
                "(ε, δ)",
                f"{between(self.worst, 'ε')} at δ = {self.delta:g};"
                f" {self.worst.direction or 'neither direction'} decides",
            ),
            *((f"ε to {way}", between(bounds, "ε")) for way, bounds in self.epsilon.items()),
            ("μ of Gaussian DP, where δ > 1e-10", between(self.gdp_mu, "μ")),
            ("attacker's advantage", between(self.advantage, "A")),
            ("true positive rate at a false positive rate of 1 %", between(self.true_positive_rate, "β")),
        ]
        if self.ledger:
            rows.append(("ledger", ", ".join(f"{name} {value}" for name, value in self.ledger.items())))
        lines = [f"| {name} | {text.replace('|', chr(92) + '|')} |".replace("\n", " ") for name, text in rows]
        released = [*self.released, *(release_sentence(*one) for one in releases(self.run))]
        is_covered = claim(self.run, self.delta, self.epsilon) is not None
        parts = [
            "# Privacy card",
            "\n".join(["| | |", "|---|---|", *lines]),
            "## What may be written",
            self.statement(),
            "## Released",
            "\n".join(f"- {line}" for line in released),
            "## Not covered",
            "\n".join(f"- {line}" for line in self.not_covered),
            "## Verified by",
            _VERIFIED.format(verify) if is_covered else _NOT_VERIFIED,
        ]
        return "\n\n".join(parts) + "\n"


def privacy_card(
    run: Composition,
    delta: float,
    *,
    unit: str = "one row of the training data",
    released: Sequence[str] = RELEASED,
    not_covered: Sequence[str] = NOT_COVERED,
    ledger: dict[str, Any] | None = None,
) -> PrivacyCard:
    """Compute the privacy report of a run.

    Parameters
    ----------
    run : Composition
        From :func:`dprmt.accounting.compose`: at least one phase of DP-SGD.
    delta : float
        The δ of the statement, in [1e-290, 1).
    unit : str
        Meaning of one sample, for example "one text".
    released, not_covered : sequence of str
        Values that the numbers cover, and values that they do not.
    ledger : dict, optional
        Number of recorded steps and the digest of the ledger file.

    Returns
    -------
    PrivacyCard
        Print it with ``as_markdown()``, or store ``as_dict()``.

    Raises
    ------
    ParameterError
        If ``delta`` lies outside its range, or ``run`` is no composition.

    Formal guarantees
    -----------------
    Bounds are computed by :class:`dprmt.accounting.Composition`, under the conditions of its mechanisms. They hold for
    the named neighbours, for one sample as defined by ``unit``, and for the listed releases.

    Examples
    --------
    >>> from dprmt.accounting import DPSGD, compose
    >>> card = privacy_card(compose([(DPSGD(1.0, 2000 / 67349), 400)]), 1e-5)
    >>> print(f"ε {card.worst:.2f}, μ {card.gdp_mu:.2f}, true positive rate {card.true_positive_rate:.3f}")
    ε 3.82, μ 0.99, true positive rate 0.064
    >>> card.as_markdown().splitlines()[0]
    '# Privacy card'
    """
    delta = check_real("delta", delta, low=1e-290, high=1.0, high_open=True)
    if not isinstance(run, Composition):
        raise ParameterError("run", type(run).__name__, ONE_RUN, "make one report for each run on disjoint data")
    epsilon, mu, advantage, rate = _numbers(run, delta)
    relation = run.neighbours.of if isinstance(run.neighbours, Group) else run.neighbours
    hidden = isinstance(relation, AddRemove)  # (N0): then the number of samples is what neighbours differ in
    uncovered = tuple(_PUBLIC_CONSTANTS if hidden and line == _PUBLIC else line for line in not_covered)
    return PrivacyCard(run, delta, epsilon, mu, advantage, rate, unit, tuple(released), uncovered, ledger or {})


@lru_cache(maxsize=64)
def _numbers(
    run: Composition, delta: float
) -> tuple[dict[Any, PrivacyBounds], PrivacyBounds, PrivacyBounds, PrivacyBounds]:
    mu, rate = run.gdp_mu(least_delta=LEAST_DELTA), run.true_positive_rate(FALSE_POSITIVE_RATE)
    return run.epsilon_by_direction(delta), mu, run.advantage(), rate


def _mechanism_rows(run: Composition) -> list[tuple[str, str]]:
    rows, phases = [], trainings(run)
    for number, (mechanism, steps) in enumerate(phases, 1):
        phase = "" if len(phases) == 1 else f", phase {number}"
        by_pairs = "" if mechanism.has_pairs else " (analysis: composed curves)"
        rows += [
            (f"sampling{phase}", sampling_sentence(mechanism.sampling, steps).removeprefix("for ")),
            (f"noise multiplier{phase}", f"{mechanism.noise_multiplier:.6g}"),
            (f"norms and probes{phase}", norms_sentence(mechanism.norms).removeprefix("by ") + by_pairs),
        ]
    return rows


def between(bounds: PrivacyBounds, symbol: str, at_most: str = "≤") -> str:
    """Return an interval as text, rounded outward."""
    return f"{round_down(bounds.lower)} {at_most} {symbol} {at_most} {round_up(bounds.upper)}"


def json_bounds(bounds: PrivacyBounds) -> dict[str, float | bool | None]:
    """Return bounds for JSON, which has no infinity: null means that nothing finite could be certified."""
    return {name: value if math.isfinite(value) else None for name, value in bounds.as_dict().items()}
