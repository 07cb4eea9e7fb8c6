"""What became of every printed number: compared, a setting, or not computable here and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from paper_figures._published import documents, names, published
from paper_figures._reproduction import Row
from paper_figures._verdict import WORST, Verdict

Kind = Literal["compared", "setting", "not computable here"]


@dataclass(frozen=True)
class State:
    """Of one number."""

    kind: Kind
    verdict: Verdict | None = None
    """The worst of all rows that compare it."""
    measured: bool = False
    """Whether a row compares it with a measurement, not only with other printed numbers."""
    why: str = ""
    """Why it cannot be computed here."""


class StatelessError(ValueError):
    """A printed number that is neither compared nor excused."""


def states(measured: Iterable[Row], forensic: Iterable[Row]) -> dict[str, State]:
    """Of all numbers in ``published.toml``, by key.

    Raises
    ------
    StatelessError
        If one has no state, an excuse is for numbers that are compared, or a row compares what is not in the file, or
        with another number than the file has.
    """
    measured, forensic = tuple(measured), tuple(forensic)
    by_kind = {True: _verdicts(measured), False: _verdicts(forensic)}
    found: dict[str, State] = {}
    printed: dict[str, float] = {}
    for name in names():
        item = published(name)
        printed |= {cell.key: float(cell) for cell in (*item.settings(), *item.results())}
        found |= {cell.key: State("setting") for cell in item.settings()}
        for cell in item.results():
            verdicts = {kind: of.get(cell.key, set()) for kind, of in by_kind.items()}
            every = verdicts[True] | verdicts[False]
            if every:
                worst = next(verdict for verdict in WORST if verdict in every)
                found[cell.key] = State("compared", worst, bool(verdicts[True]))
            elif item.why_absent(cell.key):
                found[cell.key] = State("not computable here", why=item.why_absent(cell.key))
            else:
                raise StatelessError(f"{cell.key} is neither compared nor has a reason in `absent`")
    _check_rows(found, by_kind)
    _check_numbers(printed, (*measured, *forensic))
    _check_excuses(found)
    return found


def _verdicts(rows: Iterable[Row]) -> dict[str, set[Verdict]]:
    found: dict[str, set[Verdict]] = {}
    for row in rows:
        verdict = row.verdict()
        for key in row.cells if verdict is not None else ():
            found.setdefault(key, set()).add(verdict)  # type: ignore[arg-type]
    return found


def _check_rows(found: Mapping[str, State], by_kind: Mapping[bool, Mapping[str, set[Verdict]]]) -> None:
    for verdicts in by_kind.values():
        unknown = sorted(verdicts.keys() - found.keys())
        if unknown:
            raise StatelessError(f"a row compares {unknown[0]}, which is not in the file")


def _check_numbers(printed: Mapping[str, float], rows: Iterable[Row]) -> None:
    for row in rows:
        if row.verdict() is not None and row.published is not None:
            values = [printed[key] for key in row.cells]
            if not any(math.isclose(value, row.published, rel_tol=1e-12) for value in values):
                raise StatelessError(f"{row.label}: compared with {row.published:g}, and the file has {values}")


def _check_excuses(found: Mapping[str, State]) -> None:
    used = {(key.split(".")[0], state.why) for key, state in found.items() if state.why}
    for name in names():
        for column, why in published(name).absent.items():
            if (name, why) not in used:
                raise StatelessError(f"{name}: absent.{column} excuses nothing")


@dataclass(frozen=True)
class Count:
    """Of one document."""

    settings: int
    results: int
    compared: int
    measured: int
    """Of those that are compared: with a measurement."""
    verdicts: Mapping[Verdict, int]

    @property
    def absent(self) -> int:
        """Not computable here."""
        return self.results - self.compared


def counts(found: Mapping[str, State]) -> dict[str, Count]:
    """By the document's title."""
    titles = documents()
    of = {name: titles[published(name).short] for name in names()}
    return {
        title: _count([s for key, s in found.items() if of[key.split(".")[0]] == title]) for title in titles.values()
    }


def total(counted: Mapping[str, Count]) -> Count:
    """Over all documents."""
    of = list(counted.values())
    verdicts: Counter[Verdict] = Counter()
    for count in of:
        verdicts.update(count.verdicts)
    settings, results, compared, measured = (
        sum(getattr(count, name) for count in of) for name in ("settings", "results", "compared", "measured")
    )
    return Count(settings, results, compared, measured, dict(verdicts))


def _count(of: list[State]) -> Count:
    compared = [state for state in of if state.kind == "compared"]
    settings = sum(state.kind == "setting" for state in of)
    verdicts = Counter(state.verdict for state in compared if state.verdict)
    return Count(settings, len(of) - settings, len(compared), sum(s.measured for s in compared), dict(verdicts))
