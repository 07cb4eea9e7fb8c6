"""What randomized norms save on a layer, by counting, and training times."""

from __future__ import annotations

from collections.abc import Sequence

from paper_figures._published import Cell, Published
from paper_figures._reproduction import Row
from paper_figures._verdict import Reason
from paper_figures.forensics._check import Check, Reader, row, statement

LARGE, SMALL = [8192, 2048], [2048, 512]
ESTIMATORS = {"hutchinson": "Hutchinson", "hutchpp": "Hutch++"}
PRODUCTS = {"hutchinson": 1, "hutchpp": 4}
"""GP and Aᵀ(GP) for each of: the sketch, the sketch's image, its basis, the probes."""
HELD = {"hutchinson": 1, "hutchpp": 3}
"""T × k matrices at the same time."""
UNIT = 0.01


def _setting(table: Published) -> tuple[int, int]:
    return table.setting["tokens"], table.setting["probes"]


def flops(read: Reader) -> Sequence[Row]:
    """Exact norms form the gradient: 2Tdp. A product with k vectors takes 2Tk(d + p)."""
    table, rows = read("efficiency"), []
    tokens, probes = _setting(table)
    for d, p in (LARGE, SMALL):
        for name, label in ESTIMATORS.items():
            printed = table.number(name, shape=[d, p], quantity="FLOPs saved")
            share = PRODUCTS[name] * probes * (d + p) / (d * p)
            title = f"{d}×{p}, {label}: FLOPs saved, {PRODUCTS[name]} × products"
            rows.append(row(title, 100 * (1 - share), printed, margin=UNIT, unit="%"))
            if name == "hutchpp":
                small = 2 * (d + p) * probes**2 / (2 * tokens * d * p)
                title = f"{d}×{p}, {label}: with 2(d + p)k² besides"
                rows.append(row(title, 100 * (1 - share - small), printed, margin=UNIT, unit="%"))
    ratios = [_ratio(table, shape) for shape in (LARGE, SMALL)]
    words = read("text-randomized").number("value", quantity="products of Hutch++ over those of Hutchinson")
    ends = (min(low for low, _ in ratios), max(high for _, high in ratios))
    title = "products of Hutch++ over those of Hutchinson, from the FLOPs of both"
    uses = [table.number(name, shape=LARGE, quantity="FLOPs saved") for name in ESTIMATORS]
    return [*rows, row(title, sum(ends) / 2, words, margin=0.5, ends=ends, uses=uses)]


def _ratio(table: Published, shape: list[int]) -> tuple[float, float]:
    one, plus = (100 - table.number(name, shape=shape, quantity="FLOPs saved") for name in ESTIMATORS)
    half = UNIT / 2
    return (plus - half) / (one + half), (plus + half) / (one - half)


def memory(read: Reader) -> Sequence[Row]:
    """Without inputs 1 - kT/(dp); with inputs both savings are parts of the same sum."""
    table, words, rows = read("efficiency"), read("text-randomized"), []
    tokens, probes = _setting(table)
    d, p = LARGE
    without, within = "peak memory without inputs, saved", "peak memory with inputs, saved"
    for name, label in ESTIMATORS.items():
        saved = 100 * (1 - HELD[name] * probes * tokens / (d * p))
        printed = table.number(name, shape=LARGE, quantity=without)
        rows.append(row(f"{d}×{p}, {label}: memory without inputs saved", saved, printed, margin=UNIT, unit="%"))
    bare, plus_bare = (table.number(name, shape=LARGE, quantity=without) for name in ESTIMATORS)
    full, plus_full = (table.number(name, shape=LARGE, quantity=within) for name in ESTIMATORS)
    title = f"{d}×{p}, Hutch++: memory with inputs saved, from its other three"
    rows.append(row(title, full * plus_bare / bare, plus_full, margin=UNIT, uses=[full, bare, plus_bare], unit="%"))
    implied = bare / full - 1
    rows.append(Row(f"{d}×{p}: inputs in gradients of the layer, that the printed savings imply", implied))
    for width, height in (LARGE, SMALL):
        inputs = tokens * (width + height) / (width * height)
        rows.append(Row(f"{width}×{height}: both factors, T(d + p), in gradients of the layer", inputs))
        saved = 100 * (1 - probes * tokens / (width * height)) / (1 + inputs)
        if [width, height] == LARGE:
            printed = full
        else:
            printed = words.number("value", shape=SMALL, quantity="peak memory saved, about")
        title = f"{width}×{height}, Hutchinson: memory saved beside both factors, by counting"
        rows.append(row(title, saved, printed, margin=1.0, unit="%"))
    about = words.number("value", quantity="peak memory saved in the largest layers, about")
    rows.append(row("the largest layer's saving in words", full, about, margin=1.0, uses=[full], unit="%"))
    ceiling = words.number("value", quantity="probes whose matrices use up what is saved")
    title = f"{d}×{p}: probes k at which kT = dp, so that nothing is saved"
    return [*rows, row(title, d * p / tokens, ceiling, margin=0.0)]


def overheads(read: Reader) -> Sequence[Row]:
    """Training times and their overheads, either from the other."""
    table, words, rows = read("overhead"), read("text-denoising"), []
    for model in ("RoBERTa-base", "RoBERTa-large"):
        plain = table.number("seconds", model=model, method="none")
        for method in ("one by one", "batched"):
            seconds, share = (table.number(name, model=model, method=method) for name in ("seconds", "overhead"))
            title = f"{model}, {method}: overhead"
            rows.append(row(title, 100 * (seconds / plain - 1), share, margin=UNIT, uses=[seconds, plain], unit="%"))
    largest = {
        method: max(table.number("overhead", model=model, method=method) for model in ("RoBERTa-base", "RoBERTa-large"))
        for method in ("one by one", "batched")
    }
    bound = words.number("value", quantity="overhead, batched, less than")
    rows.append(_below("largest overhead, batched", largest["batched"], bound, bound))
    nearly = words.number("value", quantity="overhead, one by one, just short of")
    return [*rows, _below("largest overhead, one by one", largest["one by one"], nearly, 0.2)]


def _below(label: str, ours: float, printed: Cell, reach: float) -> Row:
    claim = f"less than {printed:g}" + ("" if reach == printed else f", by at most {reach:g}")
    return statement(label, ours, claim, (printed - reach, printed), [printed], unit="%")


CHECKS = (
    Check(
        "flops",
        "FLOPs that randomized norms save",
        "Exact norms form a layer's gradient, 2Tdp FLOPs; a product of it with k vectors takes 2Tk(d + p). The norms of"
        " this package, counted as they run in `efficiency`, print 92.18 and 68.73 for Hutch++: its products and the"
        " projection of the probes, 4pk², but no factorisation.",
        flops,
        (
            Reason(
                "tested",
                "what the four products leave, .02 and .06 points, is 2(d + p)k² in both shapes; which operations of"
                " Hutch++ the paper counts there is not printed.",
                "python -m paper_figures forensics flops",
            ),
            Reason("open", "the text has three times the products of Hutchinson, the table four."),
        ),
    ),
    Check(
        "memory",
        "Memory that randomized norms save",
        "Without inputs the products GP stand in place of the gradient, kT and 3kT numbers for dp. With inputs the same"
        " numbers are saved of a larger sum, so that both pairs have one ratio.",
        memory,
        (
            Reason(
                "open",
                "the printed savings imply inputs of 1.53 gradients, where the two factors of a layer take 2.5; what"
                " the paper holds beside a gradient is not printed, and without it neither 39.18 nor about 15 follows.",
            ),
        ),
    ),
    Check(
        "overheads", "Table 3 of version 3: overheads from times", "Seconds over those without denoising.", overheads
    ),
)
