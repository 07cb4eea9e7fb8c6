"""The paper on heavy tails: sizes of its generated data, and leads in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from paper_figures._reproduction import Row
from paper_figures._verdict import Reason
from paper_figures.forensics._check import Check, Reader, row

E2E_ROWS = 42_061
ACCURACY = "accuracy, classes of 8"
LEADS = "lead of DP-AdamBC in accuracy, classes of 8"
OTHERS = ("gd", "gdm", "adam")


def sizes(read: Reader) -> Sequence[Row]:
    """Samples n = m2^m, dimensions d = 2^m + n and 2^(m+1) - 1 classes."""
    setting = read("heavy-tail").setting
    n, d, c = (setting[name] for name in ("samples", "dimension", "classes"))
    m = log2(c + 1) - 1
    rows = [
        Row("m of 2^(m+1) - 1 = 255 classes", m),
        Row("m of d - n = 2^m", log2(d - n)),
        Row("n = m2^m at the m of the classes", m * 2**m, claim=f"{n}", interval=(m * 2**m,) * 2, within=(n, n)),
        Row(
            "groups of 1,024 samples each in n",
            n / 1024,
            claim="m + 1 groups",
            interval=(n / 1024,) * 2,
            within=(m + 1,) * 2,
        ),
    ]
    words = read("text-adambc").number("value", quantity="E2E, training rows")
    return [*rows, row("E2E: rows of its training file", E2E_ROWS, words, margin=100.0)]


def leads(read: Reader) -> Sequence[Row]:
    """About 8 and about 5 points in words."""
    linear, images, words = read("heavy-tail"), read("barcode"), read("text-adambc")
    printed = [linear.number(name, quantity=LEADS) for name in OTHERS]
    mean = sum(printed) / len(printed)
    about = words.number("value", quantity="more accuracy on the least frequent classes, about, generated")
    rows = [row("generated data: mean of the three leads", mean, about, margin=0.5, uses=printed)]
    best = linear.number("adambc", quantity=ACCURACY)
    rows += [
        Row(f"generated data, {name}: accuracy that its lead leaves", best - lead)
        for name, lead in zip(OTHERS, printed, strict=True)
    ]
    accuracy = {name: images.number(name, quantity="accuracy, least frequent") for name in (*OTHERS, "adambc")}
    about = words.number("value", quantity="more accuracy on the least frequent classes, about, images")
    best_other = max((accuracy[name] for name in OTHERS), key=float)
    lead = accuracy["adambc"] - best_other
    title = "images: lead of DP-AdamBC over the best of the others"
    rows.append(row(title, lead, about, margin=0.5, uses=[accuracy["adambc"], best_other]))
    return rows


CHECKS = (
    Check(
        "sizes",
        "Sizes of the generated data",
        "Section 3: n = m2^m samples in m groups, d = 2^m + n, 2^(m+1) - 1 classes.",
        sizes,
        (
            Reason(
                "tested",
                "255 classes are m = 7, 1,024 more dimensions than samples are m = 10, and no m gives 8,192 samples as"
                " m2^m; 8 groups of 1,024 give all printed numbers.",
                "python -m paper_figures forensics sizes",
            ),
        ),
    ),
    Check("leads", "Leads of DP-AdamBC in words", "About 8 and about 5 points, from the accuracies.", leads),
)
