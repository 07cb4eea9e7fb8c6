"""Random mechanisms under every relation: replaced samples and groups, held against what shares none of their code.

    python -m benchmarks.relations --count 2000 --checked 0.2 --seconds 600
    python -m benchmarks.relations --again "replace-one, public probes"
    python -m benchmarks.relations --page docs/performance.md
    python -m benchmarks.relations --times

Settings are those of ``benchmarks.sweep``, each with a relation drawn for it: any sample in another's place, or a
group of 2 to 16 with coins of their own. Answers are held against: the same run for one sample that is present or
not, which is never more expensive; one step by quadrature, a coupling and a spectrum that are attained;
dp-accounting's own replaced and mixed Gaussians, from above and from below; and, above, certified curves of one
sample composed (N6).
A results file keeps the answers, so that a long run can be cut into short ones.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, logsumexp, ndtr
from scipy.stats import binom

from benchmarks.sweep import TOLERANCE, Question, chi2_nodes, is_checked, peer_ends, questions, stored, suits_peer
from dprmt.accounting import DPSGD, ExactNorms, Group, Hutchinson, HutchPlusPlus, PrivacyBounds, ReplaceOne, ZeroOut
from dprmt.accounting.basics import UnsoundLawError

RESULTS = Path(__file__).parent / "results" / "relations.jsonl"
SEED, LARGEST_GROUP, LIMIT = 1, 16, 60.0
"""CPU seconds after which a question is given up: counted, never left out."""
BEGIN, END = "<!-- relations: begin -->", "<!-- relations: end -->"
_THRESHOLDS = np.linspace(-40.0, 40.0, 16001)


class GaveUpError(Exception):
    """A question took longer than it may."""


def related_questions(count: int) -> Iterator[Question]:
    """Those of the sweep, each with a relation; the same at every call."""
    rng = np.random.default_rng(SEED)
    for question in questions(SEED, count):
        size = round(math.exp(rng.uniform(math.log(2), math.log(LARGEST_GROUP))))
        neighbours = ReplaceOne() if rng.random() < 0.5 else Group(size)
        mechanism = question.mechanism
        related = DPSGD(mechanism.noise_multiplier, mechanism.sampling, mechanism.norms, neighbours)
        yield Question(related, question.steps, question.delta)


def stratum(mechanism: DPSGD) -> str:
    """Relation and norms."""
    norms = mechanism.norms
    how = "exact norms" if isinstance(norms, ExactNorms) else "secret probes" if norms.secret else "public probes"
    sketched = ", sketch" if isinstance(norms, HutchPlusPlus) else ""
    return f"{'replace-one' if mechanism.neighbours.is_replacement else 'groups'}, {how}{sketched}"


def one_step_epsilon(question: Question) -> float:
    """ε of one step for a spectrum and a coupling that are attained: rank one, equal ratios if probes are public."""
    mechanism, norms = question.mechanism, question.mechanism.norms
    if isinstance(norms, HutchPlusPlus):  # what a sketch leaves is no more than exact norms have
        norms = ExactNorms()
    if isinstance(norms, ExactNorms):
        x, mass = np.ones(1), np.ones(1)
    else:
        x, mass = chi2_nodes(norms.probes)
    shift, q, size = 1.0 / (mechanism.noise_multiplier * np.sqrt(x)), mechanism.sampling.rate, 1
    is_secret = isinstance(norms, Hutchinson) and norms.secret
    if isinstance(mechanism.neighbours, Group):
        size = 1 if is_secret else mechanism.neighbours.size

    def delta(epsilon: float) -> float:
        if mechanism.neighbours.is_replacement:
            of = secret_replaced if is_secret else replaced
            return of(epsilon, shift, mass, q)
        return grouped(epsilon, shift, mass, q, size)

    if delta(0.0) <= question.delta:
        return 0.0
    high = 1e-3
    while delta(high) > question.delta:
        high *= 2
        if high > 600.0:
            return 0.0
    return float(brentq(lambda e: delta(e) - question.delta, 0.0, high, xtol=1e-9 * high))


def replaced(epsilon: float, shift: np.ndarray, mass: np.ndarray, q: float) -> float:
    """δ of (1-q)N(0, 1) + qN(μ, 1) against the same with -μ, over a law of μ that both share."""
    with np.errstate(divide="ignore"):
        ratio = np.log((1.0 - q) * math.expm1(epsilon)) - math.log(2 * q) + shift**2 / 2  # its root in e^{μt}
    t = np.logaddexp(ratio, 0.5 * np.logaddexp(2 * ratio, epsilon)) / shift
    own = (1.0 - q) * ndtr(-t) + q * ndtr(shift - t)
    rest = np.logaddexp(_log(1.0 - q) + log_ndtr(-t), math.log(q) + log_ndtr(-shift - t))
    return float(mass @ np.maximum(own - np.exp(np.minimum(epsilon + rest, 700.0)), 0.0))


def secret_replaced(epsilon: float, shift: np.ndarray, mass: np.ndarray, q: float) -> float:
    """δ where both ratios are drawn apart and not seen: the best half-line of a grid, so from below."""
    t = _THRESHOLDS[:, None]
    few = mass > 1e-14 * mass.max()
    drawn, kept = np.zeros(_THRESHOLDS.size), np.zeros(_THRESHOLDS.size)
    for some in np.array_split(np.flatnonzero(few), 24):
        drawn += ndtr(shift[some] - t) @ mass[some]
        kept += ndtr(-shift[some] - t) @ mass[some]
    plain = (1.0 - q) * ndtr(-_THRESHOLDS)
    return float(np.max(plain + q * drawn - math.exp(epsilon) * (plain + q * kept)))


def grouped(epsilon: float, shift: np.ndarray, mass: np.ndarray, q: float, size: int) -> float:
    """δ of a mixture of N(jμ, 1), j ~ Bin(size, q), against N(0, 1), over a law of μ that all share."""
    j = np.arange(size + 1)
    weight = binom.pmf(j, size, q)
    with np.errstate(divide="ignore"):
        logs = np.log(weight)
    means = np.multiply.outer(shift, j.astype(float))

    def loss(t: np.ndarray) -> np.ndarray:
        return logsumexp(logs + means * t[:, None] - means**2 / 2, axis=1)

    low, high = np.full(shift.size, -60.0), epsilon / shift + size * shift + 60.0 - math.log(q) / shift
    for _ in range(80):
        middle = (low + high) / 2
        below = loss(middle) < epsilon
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    t = high
    value = ndtr(means - t[:, None]) @ weight - np.exp(np.minimum(epsilon + log_ndtr(-t), 700.0))
    return float(mass @ np.maximum(value, 0.0))


def peer_interval(question: Question) -> tuple[float, float] | None:
    """dp-accounting's ε from below and from above, for exact norms and settings that its mesh suits."""
    if not suits_peer(question):
        return None
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    mechanism = question.mechanism
    sigma, q, neighbours = mechanism.noise_multiplier, mechanism.sampling.rate, mechanism.neighbours

    def one_step(**mesh: Any) -> Any:
        if not isinstance(neighbours, Group):
            relation = NeighboringRelation.REPLACE_ONE
            return pld.from_gaussian_mechanism(sigma, sampling_prob=q, neighboring_relation=relation, **mesh)
        weight = binom.pmf(np.arange(neighbours.size + 1), neighbours.size, q)
        kept = np.flatnonzero(weight)
        return pld.from_mixture_gaussian_mechanism(sigma, kept.astype(float).tolist(), weight[kept].tolist(), **mesh)

    return peer_ends(one_step, question)


def complaints(question: Question, bounds: PrivacyBounds) -> list[str]:
    """What contradicts the answer; empty if nothing does."""
    from dprmt.accounting.composition._curve import EpsilonAtDelta
    from dprmt.accounting.mechanisms._composition import Composition
    from dprmt.accounting.questions._by_curves import bounds_by_curves

    found, mechanism = [], question.mechanism
    alone = mechanism.of_one_sample().epsilon(steps=question.steps, delta=question.delta)
    if bounds.upper < alone.lower * (1 - 1e-9):
        found.append(f"one sample, present or not, costs {alone.lower:.6g} at least")
    one = one_step_epsilon(question)
    if bounds.upper < one * (1 - 1e-6) - 1e-9:
        found.append(f"one step costs {one:.6g}, more than all of them: {bounds.upper:.6g}")
    peer = peer_interval(question)
    if peer is not None and (bounds.upper < peer[0] * (1 - 1e-6) - 1e-9 or bounds.lower > peer[1] * (1 + 1e-6) + 1e-9):
        found.append(f"dp-accounting has [{peer[0]:.6g}, {peer[1]:.6g}]")
    if mechanism.has_pairs:
        schedule = Composition([(DPSGD(*_plain(mechanism)), question.steps)]).schedule()
        for side in ("remove", "add"):
            asked = EpsilonAtDelta(question.delta)
            curves = bounds_by_curves(schedule, asked, side, mechanism.neighbours, TOLERANCE)  # type: ignore[arg-type]
            mine = mechanism.epsilon_by_direction(steps=question.steps, delta=question.delta)[side]  # type: ignore[index]
            if mine.lower > curves.upper * (1 + 1e-9):
                found.append(f"curves of one sample composed ({side}) have {curves.upper:.6g}, below {mine.lower:.6g}")
    return found


def _plain(mechanism: DPSGD) -> tuple[Any, ...]:
    return mechanism.noise_multiplier, mechanism.sampling, mechanism.norms, ZeroOut()


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """CPU time after which what stands within is given up."""

    def stop(*_: object) -> None:
        raise GaveUpError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def answered(number: int, question: Question, check: bool) -> dict[str, Any]:
    """The answer to one question with its CPU time and what contradicts it, as a row of the results file."""
    row = {
        "number": number,
        "mechanism": repr(question.mechanism),
        "steps": question.steps,
        "delta": question.delta,
        "stratum": stratum(question.mechanism),
        "has_pair": question.mechanism.has_pairs,
        "checked": check,
    }
    start = time.process_time()
    try:
        with at_most(LIMIT):
            bounds = question.mechanism.epsilon(steps=question.steps, delta=question.delta, tolerance=TOLERANCE)
    except (GaveUpError, UnsoundLawError) as error:
        seconds, found = round(time.process_time() - start, 3), [str(error)] if str(error) else []
        return {**row, "lower": 0.0, "upper": None, "seconds": seconds, "gave_up": True, "complaints": found}
    seconds = time.process_time() - start
    upper = bounds.upper if math.isfinite(bounds.upper) else None
    row |= {"lower": bounds.lower, "upper": upper, "seconds": round(seconds, 3), "gave_up": False}
    try:
        with at_most(2 * LIMIT):
            return {**row, "complaints": complaints(question, bounds) if check else []}
    except GaveUpError:  # then it was not checked
        return {**row, "checked": False, "complaints": []}


def run(path: Path, count: int, checked: float, seconds: float) -> list[dict[str, Any]]:
    """Ask what the file does not answer yet, and write it there; stop after so many seconds."""
    rows = stored(path)
    done, start = {row["number"] for row in rows}, time.monotonic()
    for number, question in enumerate(related_questions(count)):
        if time.monotonic() - start > seconds:
            break
        if number not in done:
            rows.append(answered(number, question, is_checked(SEED, number, checked)))
            with path.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return rows


def forget(path: Path, strata: list[str]) -> int:
    """Take out the answers of these strata, which are asked again then.

    Returns: their number. A stratum that no answer has is refused: it is misspelt, or there is nothing to ask again.
    """
    rows = stored(path)
    known = {row["stratum"] for row in rows}
    if unknown := sorted(set(strata) - known):
        raise SystemExit(f"--again must be of {', '.join(sorted(known))}; got {', '.join(unknown)}")
    kept = [row for row in rows if row["stratum"] not in strata]
    shorter = path.with_name(f"{path.name}.part")
    shorter.write_text("".join(json.dumps(row) + "\n" for row in kept))
    shorter.replace(path)
    return len(rows) - len(kept)


def relative_width(row: dict[str, Any]) -> float:
    """Of the interval, relative to ε where that is above 1."""
    return math.inf if row["upper"] is None else (row["upper"] - row["lower"]) / max(1.0, row["upper"])


def table(rows: list[dict[str, Any]]) -> str:
    """The rows by stratum, in Markdown."""
    names = ["of them by pairs", "≤ .1 %", "≤ 1 %", "≤ 5 %", "no upper", "given up", "median s", "slowest s"]
    names += ["checked", "contradicted"]
    lines = [f"| relation, norms | number | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for name in [*sorted({row["stratum"] for row in rows}), "all"]:
        some = [row for row in rows if name in (row["stratum"], "all")]
        paired = np.array([relative_width(row) for row in some if row["has_pair"] and not row["gave_up"]])
        seconds = np.array([row["seconds"] for row in some])
        cells = [len(some), sum(row["has_pair"] for row in some)]
        cells += [int(np.sum(paired <= limit)) for limit in (1e-3, 1e-2, 5e-2)]
        cells += [sum(row["upper"] is None and not row["gave_up"] for row in some), sum(row["gave_up"] for row in some)]
        contradicted = sum(bool(row["complaints"]) and not row["gave_up"] for row in some)
        last = [sum(row["checked"] for row in some), contradicted]
        times = [f"{np.median(seconds):.2f}", f"{seconds.max():.0f}"]
        lines.append(f"| {name} | {' | '.join(map(str, [*cells, *times, *last]))} |")
    return "\n".join(lines)


def page(rows: list[dict[str, Any]]) -> str:
    """The section of the page."""
    lines = table(rows).splitlines()
    short = "\n".join([*lines[:2], lines[-1]])
    return f"""{BEGIN}

## Random mechanisms under every relation

We asked for {len(rows)} more settings, each for replace-one or for a group of 2 to {LARGEST_GROUP}. Where dominating
pairs cannot answer, composed curves do, and their lower end is that of one sample. Some answers have no upper end.
References checked some answers and contradicted none: the ε of one sample, one step by quadrature, dp-accounting, and
composed curves. An answer is *given up* after {LIMIT:.0f} s. Widths are those of answers by pairs.
`python -m benchmarks.relations --count 2000 --checked 0.2` prints a row for each relation and norm method.

{short}
{_named(rows)}
{END}"""


def _named(rows: list[dict[str, Any]]) -> str:
    def line(row: dict[str, Any]) -> str:
        asked = f"`{row['mechanism']}`, T = {row['steps']}, δ = {row['delta']:.3g}"
        return f"\n- {row['number']}: {asked}: {'; '.join(row['complaints'])}"

    some = [row for row in rows if row["complaints"]]
    return "".join(map(line, some)) + ("\n" if some else "")


def write_page(path: Path, rows: list[dict[str, Any]]) -> None:
    """Put the section where it stands, or at the page's end."""
    text = path.read_text(encoding="utf-8")
    if BEGIN in text:
        text = text[: text.index(BEGIN)] + page(rows) + text[text.index(END) + len(END) :]
    else:
        text = text.rstrip() + "\n\n" + page(rows) + "\n"
    path.write_text(text, encoding="utf-8")


TIMED = [
    ("exact norms", ExactNorms(), ReplaceOne()),
    ("exact norms", ExactNorms(), Group(8)),
    ("32 secret probes", Hutchinson(32, secret=True), ReplaceOne()),
    ("32 secret probes", Hutchinson(32, secret=True), Group(8)),
    ("16 secret probes", Hutchinson(16, secret=True), Group(8)),
    ("32 public probes", Hutchinson(32, secret=False), ReplaceOne()),
    ("128 public probes", Hutchinson(128, secret=False), ReplaceOne()),
    ("32 public probes", Hutchinson(32, secret=False), Group(2)),
    ("32 public probes", Hutchinson(32, secret=False), Group(8)),
]


def times(repeats: int = 5) -> str:
    """CPU seconds of ε at the first setting, and how many times those of zero-out, in turns."""
    lines = ["| norms | neighbours | ε | CPU-s | of zero-out |", "|---|---|---|---|---|"]
    for name, norms, neighbours in TIMED:
        spent: dict[bool, list[float]] = {True: [], False: []}
        for repeat in range(repeats):
            for is_related in (False, True):
                rate = 2000 / 67349 * (1.0 + 1e-9 * repeat)  # another run, so that no table of an earlier one serves
                run = DPSGD(1.0, rate, norms, neighbours if is_related else ZeroOut())
                start = time.process_time()
                shown = run.epsilon(steps=400, delta=1e-5)
                spent[is_related].append(time.process_time() - start)
        related, plain = (sorted(spent[which])[repeats // 2] for which in (True, False))
        width = (shown.upper - shown.lower) / shown.upper
        lines.append(
            f"| {name} | {neighbours!r} | [{shown.lower:.5g}, {shown.upper:.5g}], width {width:.1e} | {related:.3f} "
            f"| {related / plain:.1f} × |"
        )
    return "\n".join(lines)


def main() -> None:
    """Continue the run, print the table and every contradiction; with ``--page`` write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--checked", type=float, default=0.2, help="share of the mechanisms held against references")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="a file to go on from; a line is added per answer"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long, to go on later")
    parser.add_argument(
        "--again", action="append", default=[], metavar="STRATUM", help="forget its answers first; may be given again"
    )
    parser.add_argument("--page", type=Path, help="write the section from what is stored, ask nothing")
    parser.add_argument("--times", action="store_true", help="times at the first setting alone")
    arguments = parser.parse_args()
    if arguments.times:
        print(times())
        return
    if arguments.page is not None:
        write_page(arguments.page, stored(arguments.results))
        return
    if arguments.again:
        print(f"{forget(arguments.results, arguments.again)} answers are asked again")
    rows = run(arguments.results, arguments.count, arguments.checked, arguments.seconds)
    print(table(rows))
    for row in rows:
        if row["complaints"]:
            print(row["number"], row["mechanism"], row["steps"], row["delta"], *row["complaints"])


if __name__ == "__main__":
    main()
