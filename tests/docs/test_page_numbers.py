"""Numbers in pages are held by key: ``<!--n:KEY-->3.82<!--/n-->``, whatever the sentence around them is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dprmt import accounting
from dprmt.accounting import DPSGD, FixedOrder, FixedSize, Group, Hutchinson, HutchPlusPlus, RandomAllocation
from tests.docs.modules import ROOT

MARK = re.compile(r"<!--n:([\w.+-]+)-->(.*?)<!--/n-->")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def epsilon(*, steps: int | None = 400, epochs: int | None = None, sampling: Any = 2000 / 67349, **run: Any) -> str:
    """Return ε of the setting that pages share, rounded upward."""
    return f"{DPSGD(1.0, sampling, **run).epsilon(steps=steps, epochs=epochs, delta=1e-5):.2f}"


def detection(value: float) -> str:
    """Return the largest power at a false-positive rate of 1 %, in per cent and rounded upward."""
    return f"{math.ceil(1000 * (0.01 * math.exp(value) + 1e-5)) / 10:.1f}"


def points(label: str) -> str:
    """Return a difference of accuracies that ``python -m paper_figures show speedup`` prints, without its sign."""
    found = json.loads((ROOT / "paper_figures" / "results" / "speedup.json").read_text(encoding="utf-8"))["found"]
    (value,) = [row["ours"] for row in found["rows"] if row["label"] == label]
    return f"{abs(value):.1f}"


def of_norms(norms: Hutchinson | HutchPlusPlus) -> Callable[[], str]:
    return partial(epsilon, norms=norms)


def of_epochs(sampling: RandomAllocation | FixedOrder) -> Callable[[], str]:
    return partial(epsilon, steps=None, epochs=12, sampling=sampling)


NUMBERS: dict[str, Callable[[], str]] = {
    "zero-out": epsilon,
    "replace-one": partial(epsilon, neighbours=accounting.ReplaceOne()),
    "group-2": partial(epsilon, neighbours=Group(2)),
    "hutch++-secret": of_norms(HutchPlusPlus(34, 15, secret=True)),
    "hutch++-public": of_norms(HutchPlusPlus(34, 15, secret=False)),
    "hutchinson-secret": of_norms(Hutchinson(64, secret=True)),
    "hutchinson-public": of_norms(Hutchinson(64, secret=False)),
    "poisson-405": partial(epsilon, steps=405),
    "poisson-408": partial(epsilon, steps=408),
    "allocation-12": of_epochs(RandomAllocation(34)),
    "fixed-order-12": of_epochs(FixedOrder()),
    "fixed-size": partial(epsilon, sampling=FixedSize(2000, 67349)),
    **{f"detection-{value}": partial(detection, float(value)) for value in ("0.5", "1", "2", "4")},
    "denoised-head": partial(points, "head left alone against denoised: last accuracy, paired"),
    "denoised-behind": partial(points, "denoised, head left alone, against DP-LoRA: last accuracy, paired"),
}
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
SHOWN = [(page, key, shown) for page, text in TEXTS.items() for key, shown in MARK.findall(text)]


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_is_what_is_computed_on_every_page(key: str) -> None:
    shown = {(page, number) for page, name, number in SHOWN if name == key}
    assert shown, "no page has it"
    assert {number for _, number in shown} == {NUMBERS[key]()}, shown


def test_every_mark_has_a_known_key() -> None:
    assert {key for _, key, _ in SHOWN} <= set(NUMBERS)
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert text.count("<!--n:") == text.count("<!--/n-->") == len(SHOWN)
