"""Values of the relations that were computed apart from this library, beside its own answers.

``python -m benchmarks.relation_values`` prints the table, ``--page docs/theory/neighbours.md`` writes it there. The
values come from Fourier sums with a mesh of 2e-4 of the losses of rank-one gradients: the truth where norms are exact,
what one gradient attains where they are estimated (so a bound may exceed it, and must not lie below), and, for public
probes, what tails that are multiplied by the number of samples cost, above which a bound would be worthless.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dprmt.accounting import DPSGD, ExactNorms, Group, Hutchinson, PrivacyBounds, ReplaceOne
from dprmt.statements import relation_label

Q = 2000 / 67349
BEGIN, END = "<!-- check values: begin -->", "<!-- check values: end -->"


@dataclass(frozen=True)
class Value:
    """ε of a run as it was computed elsewhere.

    ``way``: of both directions the larger one, or adding. ``is_worst``: whether the value is the worst case itself, or
    what one gradient attains. ``loose``: what multiplied tails cost. ``refuted``: an upper end below the value that
    ``dprmt verify`` proves.
    """

    mechanism: DPSGD
    value: float
    steps: int = 400
    delta: float = 1e-5
    way: Literal["both", "add"] = "both"
    is_worst: bool = True
    loose: float = math.inf
    refuted: float | None = None

    def bounds(self) -> PrivacyBounds:
        """What the library answers."""
        if self.way == "add":
            return self.mechanism.epsilon_by_direction(steps=self.steps, delta=self.delta)["add"]
        return self.mechanism.epsilon(steps=self.steps, delta=self.delta)

    def agrees(self, bounds: PrivacyBounds) -> bool:
        """Inside, up to the digits that were kept; a bound of estimates may exceed what is attained."""
        digit = 0.5 * 10 ** (math.floor(math.log10(self.value)) - 4)
        above = self.value <= bounds.upper + digit and (bounds.upper < self.loose or self.loose == math.inf)
        return above and (not self.is_worst or bounds.lower - digit <= self.value)


def _estimated(probes: int, *, secret: bool = False) -> Hutchinson:
    return Hutchinson(probes, secret=secret)


VALUES = (
    Value(DPSGD(1.0, Q, neighbours=ReplaceOne()), 5.8132),
    Value(DPSGD(0.779078, Q, neighbours=ReplaceOne()), 8.9788),
    Value(DPSGD(2.0, 0.01, neighbours=ReplaceOne()), 1.37454, 1000, 1e-6),
    Value(DPSGD(1.0, 1e-3, neighbours=ReplaceOne()), 2.83967, 100_000, refuted=2.83785),
    *(Value(DPSGD(1.0, Q, neighbours=Group(m)), value) for m, value in ((2, 8.4882), (4, 19.7522), (8, 49.104))),
    *(Value(DPSGD(1.0, Q, neighbours=Group(m)), v, way="add") for m, v in ((2, 5.674), (4, 12.521), (8, 28.547))),
    Value(DPSGD(1.0, Q, _estimated(32, secret=True), ReplaceOne()), 6.1175, is_worst=False),
    Value(DPSGD(1.0, Q, _estimated(32, secret=True), Group(2)), 9.1778, is_worst=False),
    Value(DPSGD(1.0, Q, _estimated(32, secret=True), Group(4)), 21.271, is_worst=False),
    Value(DPSGD(1.0, Q, _estimated(32), ReplaceOne()), 6.424, is_worst=False, loose=7.368),
    Value(DPSGD(1.0, Q, _estimated(128), ReplaceOne()), 5.928, is_worst=False, loose=6.367),
    Value(DPSGD(1.0, Q, _estimated(32), Group(2)), 10.076, is_worst=False),
    Value(DPSGD(1.0, Q, _estimated(32), Group(4)), 22.80, is_worst=False),
)


def rows() -> Iterator[str]:
    """Lines of the table, one a value."""
    yield "| σ, q, T, δ | norms | neighbours | value | lower | upper | width | holds |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in VALUES:
        bounds = one.bounds()
        m = one.mechanism
        setting = f"{m.noise_multiplier:g}, {m.sample_rate:.5g}, {one.steps:g}, {one.delta:g}"
        norms = "exact"
        if not isinstance(m.norms, ExactNorms):
            norms = f"{m.norms.probes} {'secret' if m.norms.secret else 'public'} probes"  # type: ignore[attr-defined]
        relation = relation_label(m.neighbours) + (", added" if one.way == "add" else "")
        value = f"{one.value:g}" if one.is_worst else f"≥ {one.value:g}"
        value += f", < {one.loose:g}" if one.loose < math.inf else ""
        width = f"{(bounds.upper - bounds.lower) / bounds.upper:.1e}" if bounds.upper < math.inf else "inf"
        ends = f"{bounds.lower:.5g} | {bounds.upper:.5g}"
        holds = "yes" if one.agrees(bounds) else "**no**"
        holds += f": ε ≤ {one.refuted} is proved" if one.refuted else ""
        yield f"| {setting} | {norms} | {relation} | {value} | {ends} | {width} | {holds} |"


def main() -> None:
    """Print the table, or write it between the marks of a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path)
    page = parser.parse_args().page
    started = time.process_time()
    table = "\n".join(rows())
    if page is None:
        print(table)
    else:
        text = page.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    print(f"{time.process_time() - started:.1f} CPU-s")


if __name__ == "__main__":
    main()
