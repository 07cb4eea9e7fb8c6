"""Three papers' numbers in words: accuracies of randomized clipping, the data of DP-AdamBC, gaps of DP-GRAPE."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, sqrt

from paper_figures._published import Cell
from paper_figures._reproduction import Row
from paper_figures._verdict import Reason
from paper_figures.forensics._check import Check, Reader, row, statement

ARTICLES, RUNS = 1000, 3
"""BBC has 2,225 articles, of which 1,225 are trained on; the text says three seeds."""


def means_of_three(read: Reader) -> Sequence[Row]:
    """A mean of three accuracies on 1,000 articles is a multiple of 1/30 %: the nearest one."""
    table, rows = read("accuracy-llama"), []
    for at, printed in enumerate(table.rows):
        if printed["task"] != "BBC":
            continue
        mean = Cell(printed["value"], f"{table.name}.{at}.value")
        total = round(mean / 100 * ARTICLES * RUNS)
        where = f"{printed['method']}" + (f", ε = {printed['epsilon']:g}" if "epsilon" in printed else "")
        nearest = 100 * total / ARTICLES / RUNS
        rows.append(row(f"{where}: nearest mean of three runs", nearest, mean, margin=0.005, unit="%"))
    return rows


def lead(read: Reader) -> Sequence[Row]:
    """Six points in words."""
    table = read("accuracy-low-budget")
    plain, plus = (table.number("accuracy", method=name) for name in ("hutchinson", "hutch++"))
    words = read("text-randomized").number("value", quantity="points of Hutch++ over Hutchinson at ε = 0.7")
    spreads = [table.number("spread", method=name) for name in ("hutchinson", "hutch++")]
    error = sqrt(sum(spread**2 for spread in spreads) / RUNS)
    return [
        row("Hutch++ less Hutchinson", plus - plain, words, margin=0.5, uses=[plus, plain], unit="points"),
        Row(f"standard error of that difference, of {RUNS} runs each", error, unit="points"),
    ]


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


def gaps(read: Reader) -> Sequence[Row]:
    """12.1 points behind DP-Adam, of which DP-GRAPE is within one: 11.1 to 12.1 behind DP-GRAPE."""
    mean = read("grape-order").number("value", quantity="points")
    within = read("grape-accuracy").number("value", quantity="points")
    words = read("text-grape")
    least, most = (
        words.number("value", quantity=f"naive DP-GaLore behind DP-GRAPE, {end} points") for end in ("least", "most")
    )
    label = "naive DP-GaLore behind DP-Adam on MNIST, less the most that DP-GRAPE is"
    claim = f"{least:g} to {most:g} points behind DP-GRAPE, after Table 6"
    return [statement(label, mean - within, claim, (least, most), [mean, within, least, most], unit="points")]


def savings(read: Reader) -> Sequence[Row]:
    """About 60 % for a ViT, and 63 to 70 % for all."""
    low, high = (
        read("grape-memory").number("value", quantity=f"memory saved, {end}") for end in ("smallest", "largest")
    )
    vit = read("grape-vit").number("value", quantity="memory saved, about")
    claim = f"{low:g} to {high:g} %, to 5 points, since it is said to be about"
    return [statement("ViT-Base on CIFAR-10", vit, claim, (low - 5, high + 5), [vit, low, high], unit="%")]


CHECKS = (
    Check(
        "means-of-three",
        "BBC: means of three runs",
        f"Three seeds, as printed, on {ARTICLES:,} articles, BBC's other ones than those that are trained on: sums of"
        " counts are whole numbers, so that a mean of two decimals fits in three of ten cases.",
        means_of_three,
        (
            Reason(
                "open",
                "cut off instead of rounded, the mean would be the printed one; the test set's size is not printed.",
            ),
        ),
    ),
    Check("low-budget-lead", "Hutch++ ahead of Hutchinson at ε = 0.7", "Six points in words.", lead),
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
    Check(
        "grape-gaps",
        "Gaps of the naive order",
        "12.1 points behind DP-Adam in section 5.1; DP-GRAPE is within one point of DP-Adam; 5 to 10 points behind"
        " DP-GRAPE are expected after Table 6.",
        gaps,
        (Reason("open", "the notes do not have Table 6; 12.1 is of MNIST, and 5 to 10 of a task that is not named."),),
    ),
    Check("grape-savings", "Memory saved, in two places", "About 60 % beside 63 to 70 %.", savings),
)
