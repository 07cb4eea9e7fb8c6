"""The study's tables, as Markdown between two comments of a page."""

from __future__ import annotations

from typing import Any

import numpy as np

from paper_figures._verdict import Interval
from paper_figures.digits._compared import MARGIN, Compared, compared
from paper_figures.digits._nulls import false_alarms
from paper_figures.digits._settings import ADAPTERS, HEADS, SETTINGS
from paper_figures.digits._tuning import NULL

BEGIN = "<!-- from here on written by python -m paper_figures study {} page -->"
END = "<!-- until here -->"
_MATRICES = {"first": "first matrix", "second": "second", "adapter": "the adapter's", "head": "the head's"}


def with_tables(page: str, results: dict[str, Any], study: str = "digits") -> str:
    """The page with the tables of a study's results.

    Raises
    ------
    ValueError
        If the page lacks one of the two comments.
    """
    begin = BEGIN.format(study)
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page needs {begin!r}, and {END!r} after it")
    tables = "\n\n".join(_table(name, results[name]) for name in results)
    return f"{before}{begin}\n\n{tables}\n\n{END}{after}"


def readings(results: dict[str, Any]) -> dict[str, Compared]:
    """Every method of one setting against Adam."""
    methods = results["methods"]
    others = [name for name in methods if name != "Adam"]
    return {name: compared(methods[name]["test"], methods["Adam"]["test"], len(others)) for name in others}


def beside_many(results: dict[str, Any]) -> dict[str, Compared]:
    """Every method of one setting against the mean of Adam's runs with other noises, the nulls' columns."""
    methods, adam = results["methods"], np.array(results["nulls"]).mean(0).tolist()
    others = [name for name in methods if name not in ("Adam", NULL)]
    return {name: compared(methods[name]["test"], adam, len(others)) for name in others}


def corrected(results: dict[str, Any]) -> Compared:
    """What norm correction adds to the gate, each at its own rate; a comparison of its own."""
    methods = results["methods"]
    return compared(methods["gate"]["test"], methods["gate without norm correction"]["test"])


def corrected_blend(results: dict[str, Any]) -> Compared:
    """What norm correction adds to the blend, each at its own rate; a comparison of its own."""
    return compared(results["methods"]["blend"]["test"], results["also"]["blend without norm correction"]["test"])


def _table(name: str, results: dict[str, Any]) -> str:
    setting, methods = {**SETTINGS, **HEADS, **ADAPTERS}[name], results["methods"]
    adam = 100 * np.array(methods["Adam"]["test"])
    over = methods["Adam"]["over"]
    lines = [
        f"**{name[0].upper()}{name[1:]}**: {setting.batch} {setting.of} a step on average, {setting.steps} steps, "
        f"ε ≤ {setting.epsilon:g} at δ = {setting.delta:g}, σ = {results['noise_multiplier']:.3f}. "
        f"Tuned Adam: {adam.mean():.2f} % (± {adam.std(ddof=1):.2f} from seed to seed, {len(adam)} seeds). "
        f"Largest singular values of its clean gradient over the detection threshold, at the start, the middle "
        f"and the end of one run: {_looks(over)}.",
        "",
        "| method | rate | points more than Adam | says | than the mean of Adam's other noises | says |",
        "|---|---|---|---|---|---|",
    ]
    many = beside_many(results) if "nulls" in results else {}
    for method, found in readings(results).items():
        edge = "" if _is_inside(methods[method]) else " (the grid's edge)"
        cells = [method, f"10^{methods[method]['rate'] / 4:g}{edge}", _shown(found), _said(found)]
        cells += [_shown(many[method]), _said(many[method])] if method in many else ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", " ".join(_sentences(results))])


def _sentences(results: dict[str, Any]) -> list[str]:
    sentences = [f"The gate with norm correction less the one without: {_shown(corrected(results))}."]
    if "also" in results:
        sentences.append(f"The blend with it less the one without: {_shown(corrected_blend(results))}.")
    if "nulls" in results:
        found = false_alarms(results)
        count, columns = len(found.differences), len(results["nulls"])
        misses = "misses" if found.missed == 1 else "miss"
        sentences.append(
            f"Adam against itself: {found.missed or 'none'} of {count} further nulls, two other noises each,"
            f" {misses} 0 by a 95 % interval of its own ({_percent(found.share)} of such nulls); of nulls that take"
            f" any two of these {columns} noises, seed by seed, {100 * found.drawn:.1f} % do, and"
            f" {100 * found.drawn_at_once:.2f} % at the level of the table."
            f" The Adam of the table is {_interval(found.lucky)} points above the mean of the {columns}."
        )
    return sentences


def _percent(share: Interval) -> str:
    return f"{100 * share.low:.0f} to {100 * share.high:.0f} %"


def _interval(found: Interval) -> str:
    return f"{(found.low + found.high) / 2:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _shown(found: Compared) -> str:
    return f"{found.mean:+.2f} [{found.interval.low:+.2f}, {found.interval.high:+.2f}]"


def _looks(over: dict[str, list[list[float]]]) -> str:
    of = {name: _values(looks) for name, looks in over.items()}
    if len(of) == 1:
        return next(iter(of.values()))
    return "; ".join(f"{_MATRICES[name]} {looks}" for name, looks in of.items())


def _values(looks: list[list[float]]) -> str:
    return "; ".join(", ".join(f"{value:.1f}" for value in look) for look in looks)


def _said(found: Compared) -> str:
    return found.reading.replace("the margin", f"{MARGIN:g}")


def _is_inside(method: dict[str, Any]) -> bool:
    tried = [int(k) for k in method.get("tried", {})]
    return not tried or min(tried) < method["rate"] < max(tried)
