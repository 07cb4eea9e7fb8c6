"""``docs/reproduction.md``: what became of every published item, made from the stored results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from paper_figures import forensics
from paper_figures._published import documents, names, published
from paper_figures._reproduction import Stored, load, table_of, verdict_counts
from paper_figures._states import Count, State, counts, states, total
from paper_figures._verdict import WORST, Verdict
from paper_figures.items import ITEMS

PAGE = Path(__file__).parents[1] / "docs" / "reproduction.md"
HEAD = """---
type: results
audience: researchers
summary: Numbers of five papers next to ours, with a verdict for each.
---
# Published figures and tables

We compared the numbers of five papers with ours. Most numbers that we could compare are reproduced. Most of these
follow from other printed numbers, without a new training run.

- **Formulas and tables of bounds** reproduce well. Rounding or a definition often explains a difference.
- **Accuracies** often differ, because our runs use smaller models or other data.
- **Claims of a gain** by denoising, projection or heavy-tail optimizers reproduce in part.

About a quarter of the numbers need models, data or hardware that we do not have.

To see every row of an item with our number, its interval and the published number, run
`python -m paper_figures show NAME`. To measure an item again, run `python -m paper_figures run NAME --again`.
`python -m paper_figures page` writes this page from the stored results.

## Count of published numbers
"""
COUNTED = """A number is *compared* if we hold it against another number, with a margin that was chosen before the run.
Numbers *from print* are compared with other printed numbers only. For two hundred of them, the other number is in
another version of the same table. The verdict of a number is the worst verdict of its rows:

| verdict | meaning |
|---|---|
| reproduced | our interval lies within the margin of the published number |
| compatible, wide | our interval only overlaps this margin |
| **differs** | our interval lies outside of this margin |

Intervals have 95 % confidence where an item has several seeds.

## Measured here

Scale *paper* repeats a published setting. Scale *small* takes minutes on one core, and scale *long* takes all
steps and seeds on a small model. Items that we measured on other data only have no numbers to compare.
"""
PRINTED = """## Checked from print

Each check computes printed numbers from other printed numbers of the same paper.
"""
SHORT = {
    "randomized-clipping": "randomized clipping",
    "denoising": "LoRA, denoising (version 3)",
    "denoising-v1": "denoising (version 1)",
    "adambc": "heavy tails",
    "grape": "DP-GRAPE",
}
OWN = """## Measurements of no paper

These figures answer questions of this project.
"""
OWN_FINDINGS = {
    "overhead-by-probes": "The tight analysis and secret probes reduce the cost of estimated norms. Hutch++ with a"
    " sketch as wide as its probes costs least.",
    "hutchpp-price": "At an equal number of products, secret Hutch++ is the cheapest of the four estimators.",
    "denoisers": "Over a grid of synthetic signals, only the blend never reduces the cosine by more than 0.01.",
    "adam-bound-steps": "The corrected bound on a step of Adam holds in all 21 settings, but it is negative in each."
    " The bound in the geometry of the preconditioner is positive in each.",
    "random-allocation": "Random allocation needs slightly less ε than Poisson sampling on all curves. It can need"
    " more in the adding direction alone.",
}
WHY = {
    "efficiency": "The printed FLOPs include 2(d + p)k² more operations. Savings of memory depend on how exact norms"
    " are computed; ours are blockwise and need little.",
    "latency": "Hutch++ takes four products for one of Hutchinson. We timed a CPU, the paper an A100.",
    "supremum-2003": "The second printed digit is wrong: direct maximization finds a larger value at 0.1602.",
    "improvement": "On SST-2, no clean gradient of an adapter reaches the detection threshold, so there is almost"
    " nothing to denoise.",
    "improvement-by-data": "Few gradients reach the detection threshold: 0 of 1008 on SST-2, 8 of 112 on docstrings.",
    "speedup": "Denoising loses 6.9 points, and 1.3 if it leaves the output layer alone. With tuned rates, the second"
    " loss is inconclusive. Model and data differ from the paper.",
    "steps-to-reference": "These are the runs of `speedup`.",
    "generation-50": "With denoising ROUGE-L is higher, NIST is lower, and three scores are inconclusive. At twice the"
    " rate, the baseline has a lower loss than the denoiser.",
    "generation-counts": "The tables have fewer combinations than the text counts. One tie explains step 50, but not"
    " step 400.",
    "adam-bound": "The printed proof needs a premise that is not stated. A counter-example has two dimensions.",
    "heavy-tail": "Rates, stability constants and numbers of steps are not printed.",
    "heavy-tail-small": "Open: we do not know why a smaller instance orders the optimizers differently.",
    "barcode": "No run predicts the rarest classes correctly in 40 steps; a lower loss there is a flatter prediction.",
    "grape-memory": "Batches and ranks of each model are unknown to us.",
    "grape-order": "The gap depends on the rank, which is unknown: 27.4 points at rank 16, 13.9 at rank 64.",
    "grape-vit": "Batch and rank decide the saving: 64.6 to 76.7 % over those that we tried.",
    "epsilon-saved": "The four values of QQP follow at δ = 10⁻⁶. The appendix specifies 10⁻⁵.",
    "flops": "2(d + p)k² more operations explain the digits. The text counts three times the products, the table four.",
    "memory": "The savings imply inputs of 1.53 gradients; the two factors of a layer take 2.5.",
    "means-of-three": "Truncation instead of rounding would give the printed mean.",
    "steps-of-accuracies": "Version 1 prints one run of each, version 3 a mean.",
    "versions": "Version 1 does not specify how many runs it averages.",
    "counts": "As for `generation-counts`.",
    "nearly-equal-rows": "Two rows of different models agree to one digit, as if one run were printed twice.",
    "sizes": "The printed formula gives 896 samples. Eight groups of 1,024 give all printed numbers.",
    "grape-gaps": "The two statements may be about different tasks.",
}
NUMBERLESS = """## Statements without numbers

Some statements of the papers have no number to compare: LoRA with randomized clipping, probes of ±1, DP-SGD-JL (not
implemented here), parameter counts in names of models, Theorem D.10 of DP-GRAPE, and projectors that depend
on the data.
"""


def write_page(path: Path) -> None:
    """Write the text to a file."""
    path.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the whole text."""
    stored = {name: load(name) for name in ITEMS}
    for name, result in stored.items():
        if result is not None:
            details(name, result)  # raises an error on a row without its interval, and a difference without a reason
    return "\n".join(
        [
            HEAD,
            _counts(stored),
            COUNTED,
            _measured({name: result for name, result in stored.items() if name in names()}),
            PRINTED,
            _printed(),
            NUMBERLESS,
            OWN,
            *(_own(name, result) for name, result in stored.items() if name not in names() and result is not None),
        ]
    )


def cell_states(stored: Mapping[str, Stored | None]) -> dict[str, State]:
    """Return what became of every printed number, by the stored results and what follows from print."""
    measured = [row for result in stored.values() if result is not None for row in result.found.rows]
    return states(measured, [row for kept in forensics.stored().values() for row in kept.rows])


def _counts(stored: Mapping[str, Stored | None]) -> str:
    """Return one column for each paper, by its short name."""
    by_title = counts(cell_states(stored))
    columns = [by_title[title] for title in documents().values()]
    columns.append(total(by_title))
    rows: dict[str, Callable[[Count], int]] = {
        "numbers": lambda count: count.settings + count.results,
        "of these settings": lambda count: count.settings,
        "results": lambda count: count.results,
        "compared": lambda count: count.compared,
        "measured here": lambda count: count.measured,
        "from print": lambda count: count.compared - count.measured,
        "not computable here": lambda count: count.absent,
        **{verdict: partial(_with_verdict, verdict) for verdict in reversed(WORST)},
    }
    head = ["", *(SHORT[key] for key in documents()), "all"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {row} | {' | '.join(str(number(column)) for column in columns)} |" for row, number in rows.items()]
    return "\n".join([*lines, ""])


def _with_verdict(verdict: Verdict, count: Count) -> int:
    return count.verdicts.get(verdict, 0)


def _measured(stored: Mapping[str, Stored | None]) -> str:
    tables: dict[str, list[str]] = {}
    form_only: dict[str, list[str]] = {}
    for name, result in stored.items():
        document, title = published(name).document, ITEMS[name].title
        lines = tables.setdefault(document, [])
        if result is None:
            lines.append(f"| `{name}` | {title} | – | not run | |")
        elif result.state() == "form only":
            form_only.setdefault(document, []).append(f"{title} (`{name}`)")
        else:
            tally, why = verdict_counts(result.found.rows), _why(name, result.disagrees)
            lines.append(f"| `{name}` | {title} | {result.scale} | {tally} | {why} |")
    head = ["| name | item | scale | rows | reason for a difference |", "|---|---|---|---|---|"]
    parts = []
    for document, lines in tables.items():
        parts += [f"### {document}", "", *head, *lines, ""]
        if document in form_only:
            parts += [f"Measured on other data only, so not compared: {'; '.join(form_only[document])}.", ""]
    return "\n".join(parts)


def _printed() -> str:
    lines = ["| name | check | rows | reason for a difference |", "|---|---|---|---|"]
    agree = []
    for name, check in forensics.CHECKS.items():
        rows = forensics.stored()[name].rows
        differs = any(row.verdict() == "differs" for row in rows)
        if differs and not check.reasons:
            raise ValueError(f"{name}: a row differs, and no reason is given")
        why = _why(name, differs)
        if differs:
            lines.append(f"| `{name}` | {check.title} | {verdict_counts(rows)} | {why} |")
        else:
            agree.append(f"`{name}` ({verdict_counts(rows)})")
    return "\n".join([*lines, "", f"Checks in which no row differs: {', '.join(agree)}.", ""])


def _why(name: str, differs: bool) -> str:
    if differs != (name in WHY):
        raise ValueError(f"{name}: WHY needs an entry for what differs, and none for anything else")
    return WHY.get(name, "")


def _own(name: str, result: Stored) -> str:
    pictures = [f"![{ITEMS[name].title}](../paper_figures/results/{picture})" for picture in result.found.pictures]
    return "\n".join([f"**{ITEMS[name].title}** (`{name}`). {OWN_FINDINGS[name]}", "", *pictures, ""])


def details(name: str, result: Stored) -> str:
    """Return all rows of an item, with what differs, and why."""
    found = result.found
    source = published(name) if name in names() else None
    lines = [f"## {ITEMS[name].title}", ""]
    lines.append(f"{source.document}: {source.place}." if source else "Not in a paper.")
    if result.found.missing:
        return "\n".join([*lines, "", f"Not run: needs {result.found.missing}.", ""])
    if source and source.note:
        lines[-1] += f" Note: {source.note}."
    lines += ["", *table_of(found.rows), "", found.differs]
    if result.disagrees and not found.reasons:
        raise ValueError(f"{name}: a row differs, and no reason is given")
    if result.disagrees:
        lines += ["", *(f"- {reason.sentence()}" for reason in found.reasons)]
    made = [
        f"Scale {result.scale}: `{result.command}`",
        f"{result.wall_seconds:.0f} s wall, {result.cpu_seconds:.0f} s CPU",
    ]
    made += [text for text in (found.model, found.data) if text] + ([f"{found.seeds} seeds"] if found.seeds > 1 else [])
    made += [f"replayed {result.replayed}"] if result.replayed else []
    lines += ["", "; ".join(made) + ".", *(f"Plot: paper_figures/results/{picture}" for picture in found.pictures)]
    return "\n".join(lines) + "\n"
