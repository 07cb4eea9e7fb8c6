"""``docs/other_accountants.md``: the verdicts on other accountants' numbers, from the results files alone.

python -m benchmarks.other_accountants_page
"""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.other_accountants import ACCOUNTANTS, ASKED_SECONDS, COUNT, LEAST, MOST, VERIFIED_SECONDS, stored
from benchmarks.why_refuted import RESULTS as WHY

PAGE = Path(__file__).parents[1] / "docs" / "other_accountants.md"
NO_ANSWER = "no answer"
WORDS = ("proved", "refuted", "not settled", NO_ANSWER)
OPTIONS = {
    "Opacus PRV": "`PRVAccountant().get_epsilon(δ)`: ε error .01, δ error δ/1000; removing a sample",
    "Opacus RDP": "`RDPAccountant().get_epsilon(δ)`: 151 orders from 1.1 to 63",
    "dp-accounting PLD, mesh 1e-2": "`from_gaussian_mechanism(σ, sampling_prob=q, value_discretization_interval=1e-2)`",
    "dp-accounting PLD, mesh 1e-3": "the same at 1e-3",
    "dp-accounting PLD, mesh 1e-4": "the same at 1e-4, its default",
    "dp-accounting RDP": "`RdpAccountant()` with a Poisson-sampled Gaussian event, default orders",
    "prv-accountant": "`PRVAccountant(…, eps_error=.01, delta_error=δ/1000)`: an interval; removing a sample",
    "PLD_accounting": "`subsample_pld` of dp-accounting's Gaussian at mesh 1e-3; composed by dp-accounting",
    "riskcal": "`CTDAccountant().get_epsilon(delta=δ)`: dp-accounting PLD at mesh 1e-4",
}
DECADES = range(3, 15)


def verdict(row: dict[str, Any], name: str, end: str = "upper") -> str | None:
    """Of an accountant's end in a row; None if it was not asked, or says nothing of this end."""
    answer = row["answers"].get(name)
    if answer is None:
        return None
    if answer.get(end) is None:
        return NO_ANSWER if end == "upper" else None
    return str(answer[f"{end} is"])


def decade(row: dict[str, Any]) -> int:
    """The exponent of δ, rounded towards 0."""
    return math.floor(-math.log10(row["delta"]) + 1e-9)


def looseness(row: dict[str, Any], name: str) -> float | None:
    """Claimed over the smallest ε that is proved; None where there is nothing to compare."""
    claimed, least = row["answers"].get(name, {}).get("upper"), row["proved"][1]
    return None if claimed is None or least is None else claimed / least


def words(rows: list[dict[str, Any]], name: str) -> Counter[str]:
    """How often each word."""
    return Counter(word for row in rows if (word := verdict(row, name)) is not None)


def totals(rows: list[dict[str, Any]]) -> str:
    """A line for each accountant."""
    lines = ["| accountant | asked as | proved | refuted | not settled | no answer | median claimed / proved |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name in ACCOUNTANTS:
        found, loose = words(rows, name), [x for row in rows if (x := looseness(row, name)) is not None]
        if found:
            cells = " | ".join(str(found[word]) for word in WORDS)
            lines.append(f"| {name} | {OPTIONS[name]} | {cells} | {np.median(loose):.4f} |")
    return "\n".join(lines)


def by_decade(rows: list[dict[str, Any]]) -> str:
    """Proved / refuted / not settled / no answer, and the median looseness, for each decade of δ."""
    ranges = [f"1e-{n} … {n + 1}" for n in DECADES]
    lines = [f"| δ | {' | '.join(ranges)} |", "|---" * (len(ranges) + 1) + "|"]
    for name in ACCOUNTANTS:
        if not words(rows, name):
            continue
        cells = []
        for number in DECADES:
            some = [row for row in rows if decade(row) == number]
            found, loose = words(some, name), [x for row in some if (x := looseness(row, name)) is not None]
            counts = " / ".join(
                f"**{found[word]}**" if word == "refuted" and found[word] else str(found[word]) for word in WORDS
            )
            cells.append(f"{counts}{f'; {np.median(loose):.3f}' if loose else ''}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def refuted(rows: list[dict[str, Any]]) -> str:
    """Every refuted answer, those at the largest δ first."""
    lines = ["| accountant | δ | σ | q | T | claimed | ε is at least | T·2⁻⁵³ / δ | of removing alone |"]
    lines.append("|---" * 9 + "|")
    for name in ACCOUNTANTS:
        for row in sorted(rows, key=lambda row: -float(row["delta"])):
            if verdict(row, name) == "refuted":
                answer = row["answers"][name]
                cells = [f"{row[key]:g}" for key in ("delta", "noise_multiplier", "rate", "steps")]
                cells += [f"{answer['upper']:.6g}", f"{row['proved'][0]:.6g}", f"{rounding(row):.2g}"]
                lines.append(f"| {name} | {' | '.join(cells)} | {answer['upper is, of removing']} |")
    return "\n".join(lines) if len(lines) > 2 else "None."


def rounding(row: dict[str, Any]) -> float:
    """What a T-th power in doubles errs by, in units of δ."""
    return float(row["steps"] * 2.0**-53 / row["delta"])


def onset(rows: list[dict[str, Any]]) -> str:
    """Where each begins to fail, in units of T·2⁻⁵³/δ."""
    lines = ["| accountant | refuted, of those with T·2⁻⁵³/δ < .001 | .001 … .01 | .01 … .1 | .1 … 1 | above 1 |"]
    lines.append("|---" * 6 + "|")
    edges = [0.0, 1e-3, 1e-2, 1e-1, 1.0, math.inf]
    for name in ACCOUNTANTS:
        cells = []
        for low, high in pairwise(edges):
            found = words([row for row in rows if low <= rounding(row) < high], name)
            cells.append(f"{found['refuted']} of {sum(found.values()) - found[NO_ANSWER]}")
        if words(rows, name):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def largest(rows: list[dict[str, Any]]) -> str:
    """The largest δ of a refuted answer, as a sentence."""
    wrong = [row for row in rows if any(verdict(row, name) == "refuted" for name in ACCOUNTANTS)]
    if not wrong:
        return "No answer is refuted."
    at, least = max(row["delta"] for row in wrong), min(rounding(row) for row in wrong)
    sound = sum(row["delta"] > at for row in rows)
    return (
        f"No answer is refuted at the {sound} settings with δ above {at:g}, nor at any where T·2⁻⁵³ is less than"
        f" {least:.2g} of δ."
    )


def unsettled(rows: list[dict[str, Any]]) -> str:
    """How near the answers that are not settled are to the truth, as a sentence."""
    widths = [1 - row["proved"][0] / row["proved"][1] for row in rows if row["proved"][1]]
    near = [
        row["proved"][1] / row["answers"][name]["upper"] - 1
        for row in rows
        for name in ACCOUNTANTS
        if verdict(row, name) == "not settled" and row["proved"][1]
    ]
    return (
        f"The interval that is proved is {np.median(widths):.1g} of ε wide in the median, {max(widths):.1g} at most;"
        f" an answer inside it is not settled. Of {len(near)} such answers half are within {np.median(near):.1g} of the"
        f" smallest ε that is proved, all within {max(near):.1g}: they are answers on fine meshes, whose own error is"
        " smaller than the verifier's. With more CPU-seconds (`VERIFIED_SECONDS`) more of them are settled."
    )


def _seconds(row: dict[str, Any]) -> float:
    given = (answer.get("seconds", ASKED_SECONDS) for answer in row["answers"].values())
    return float(row["seconds"] + sum(given))


def lower_ends(rows: list[dict[str, Any]]) -> str:
    """What was said of prv-accountant's lower ends, the only ones that are claimed."""
    found = Counter(word for row in rows if (word := verdict(row, "prv-accountant", "lower")) is not None)
    return ", ".join(f"{found[word]} {word}" for word in WORDS[:3])


def errors(rows: list[dict[str, Any]]) -> str:
    """Why there was no answer."""
    lines = ["| accountant | why there was no answer | settings |", "|---|---|---|"]
    for name in ACCOUNTANTS:
        said = [answer for row in rows if (answer := row["answers"].get(name)) and answer.get("upper") is None]
        found = Counter(str(answer.get("error", "an infinite ε")).replace("|", "/") for answer in said)
        lines += [f"| {name} | {why} | {count} |" for why, count in found.most_common()]
    return "\n".join(lines)


def why() -> str:
    """The same accountant with one thing changed."""
    found = json.loads(WHY.read_text())
    lines = ["| dp-accounting PLD, mesh 1e-3: σ, q, T, δ | claimed | the same law, composed exactly |"]
    lines[0] += " error of P(loss > x) | T·2⁻⁵³ |"
    lines.append("|---" * 5 + "|")
    for row in found["google"]:
        cells = [f"{row['claimed']:.6g}", f"{row['composed exactly']:.6g}"]
        cells += [f"{row['error of P(loss > x)']:.2g}", f"{row['steps times unit roundoff']:.2g}"]
        lines.append(f"| {', '.join(f'{value:g}' for value in row['setting'])} | {' | '.join(cells)} |")
    lines += ["", "| Opacus PRV: σ, q, T, δ | claimed | the same in long doubles | its guard refuses δ below |"]
    lines[-1] += " in doubles it would below |"
    lines.append("|---" * 5 + "|")
    for row in found["opacus"]:
        cells = [f"{row['claimed']:.6g}", f"{row['long doubles']:.6g}"]
        cells += [f"{row['guard asks for δ above']:.2g}", f"{row['in doubles']:.2g}"]
        lines.append(f"| {', '.join(f'{value:g}' for value in row['setting'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    """In Markdown."""
    rows = stored()
    number = f"{len(rows)} of {COUNT}" if len(rows) < COUNT else str(COUNT)
    used = {(name, version) for row in rows for name, version in row["versions"].items() if version}
    installed = ", ".join(f"{name} {version}" for name, version in sorted(used))
    sampled = sum(row["rate"] < 1 for row in rows)
    text = _TEXT.format(
        number=number,
        whole=len(rows) - sampled,
        versions=installed,
        least=LEAST,
        most=MOST,
        asked=ASKED_SECONDS,
        verified=VERIFIED_SECONDS,
        totals=totals(rows),
        by_decade=by_decade(rows),
        onset=onset(rows),
        refuted=refuted(rows),
        why=why(),
        lower=lower_ends(rows),
        errors=errors(rows),
        spent=sum(_seconds(row) for row in rows) / 60,
        largest=largest(rows),
        unsettled=unsettled(rows),
        untruncated=json.loads(WHY.read_text())["google"][0]["not truncated"],
    )
    return text.strip() + "\n"


_TEXT = """
# What other accountants say, proved or refuted

Written by `python -m benchmarks.other_accountants_page` from what `python -m benchmarks.other_accountants` stored:
{number} settings of exact norms and Poisson sampling, {whole} of them without sampling (q = 1). σ is drawn from .5 … 4,
q from 1e-4 … .1, T from 1 … 1e5, all log-uniformly, δ from 1e-3 down to 1e-15, one decade after the other; a draw is
repeated until our ε lies between {least:g} and {most:g}, where people ask. Seeds are fixed (`drawn(number)`); the
command goes on where it stopped. CPU time: {spent:.0f} minutes.

Every answer is a claim "ε is at most this" about adding or removing one sample, and goes to
[the verifier](theory/verifier.md), which shares no code with any of these packages nor with ours and proves what it
says in ball arithmetic. It gets {verified:g} CPU-seconds a setting, and a mesh that it has begun is finished.
**Proved**: ε is at most that. **Refuted**: it is more, by a proved lower bound. **Not settled**: the answer is nearer
to the truth than the verifier came. **No answer**: an error of its own, an infinite ε, or more than {asked}
CPU-seconds. "Claimed / proved" is an answer divided by the smallest ε that is proved; a little below 1 need not be
false.

Versions: {versions}. In a checkout: `pip install '.[verify]' opacus dp-accounting prv-accountant PLD_accounting
riskcal`; what is not installed is left out.

{totals}

{unsettled}

Of prv-accountant's lower ends: {lower}.

## By δ
In each cell proved / refuted / not settled / no answer; then the median of claimed / proved.

{by_decade}

## Where they begin to fail
{largest} Refuted answers, of all that were given, by how large T·2⁻⁵³ is against δ:

{onset}

{refuted}

## Why
`python -m benchmarks.why_refuted` asks the same accountants again with one thing changed.

{why}

*dp-accounting* (`self_compose`) raises a discrete Fourier transform to the T-th power in double precision. A number
that is known up to a relative error of 2⁻⁵³ has a T-th power that is known up to T·2⁻⁵³, so probabilities of the sum
err by about that much, of either sign, however small δ is: the table's fourth and fifth columns. A claim is too small
where the error is negative and not small against δ. The law of one step is not to blame, composed exactly it gives a
valid and tight answer; nor is truncation, whose 1e-15 is charged (without it the first row's is {untruncated:.6g}).
*PLD_accounting*, where it subsamples, and *riskcal* compose with dp-accounting and share this.

*Opacus* took its accountant over from prv-accountant, which works in long doubles (with 64 bits of mantissa on x86);
Opacus' copy works in doubles. What it adds to ε, .01, hides the error at most settings. Its guard ("Floating point
errors will dominate for such small values of delta", in prv-accountant since its pull request 18) still asks for the
precision of long doubles: asking for that in which it works, it would have refused both settings above.

*prv-accountant* and the RDP accountants: see the table; the latter are loose by construction.

## To be fair
No documentation of these packages names a smallest δ. dp-accounting's `tail_mass_truncation`, 1e-15 by default, says
that δ near that is not meant to be resolved; Opacus and prv-accountant refuse what their guard catches. Few ask for δ
below 1e-10. Opacus' and prv-accountant's analysis is of removing a sample; the last column of the list of refuted
answers says whether one is refuted for removing alone, so that none is blamed for a direction that it does not look at.
With more time some of what has no answer here would have one.

{errors}
"""


def main() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
