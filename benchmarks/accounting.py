"""Accounting speed: CPU time of common questions, and of other accountants for the same ones in the same run.

    python -m benchmarks.accounting                          # prints the table, a few minutes
    python -m benchmarks.accounting --results benchmarks/results/accounting.json
    python -m benchmarks.accounting --page docs/performance.md --results benchmarks/results/accounting.json

The others answer an easier question: exact norms only; prv-accountant one direction. Each is asked at several
accuracies, and its answer stands beside ours, which is an interval that holds the truth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import relations, spectra_page, step_page
from benchmarks.sweep import compared, misses, stored, table
from dprmt.accounting import DPSGD, Hutchinson, calibrate, compose

SIGMA, RATE, STEPS, DELTA = 0.779078, 2000 / 67349, 400, 1e-5
PROBES = ("public", "secret")
SETTINGS = {
    "(a)": (SIGMA, RATE, STEPS, DELTA),
    "(b)": (1.0, 1e-3, 100_000, 1e-6),
    "(c)": (0.406531, 64 / 42000, 400, 1e-5),
}
_SWEEP = Path(__file__).parent / "results" / "sweep.jsonl"
_EARLIER = _SWEEP.with_name("sweep_before.jsonl")
_SLOW = 1.0

Interval = tuple[float, float]


def cpu_seconds(work: Callable[[], Any], repeats: int = 5) -> tuple[float, Any]:
    """Smallest CPU time of a few runs, fewer of slow ones, and the answer."""
    best, answer = float("inf"), None
    for _ in range(repeats):
        start = time.process_time()
        answer = work()
        best = min(best, time.process_time() - start)
        if best > _SLOW:
            break
    return best, answer


def ours() -> dict[str, Callable[[], Any]]:
    """Questions to this package; every interval holds for both directions."""
    questions: dict[str, Callable[[], Any]] = {}
    for name, (sigma, rate, steps, delta) in SETTINGS.items():
        questions[f"ε, exact norms {name}"] = lambda s=sigma, q=rate, t=steps, d=delta: DPSGD(s, q).epsilon(
            steps=t, delta=d
        )
    for name in ("(a)", "(c)"):
        sigma, rate, steps, delta = SETTINGS[name]
        for who in PROBES:
            run = DPSGD(sigma, rate, Hutchinson(32, secret=who == "secret"))
            questions[f"ε, 32 {who} probes {name}"] = lambda r=run, t=steps, d=delta: r.epsilon(steps=t, delta=d)
    few, quiet = DPSGD(SIGMA, RATE, Hutchinson(8, secret=False)), DPSGD(0.5, RATE, Hutchinson(32, secret=False))
    questions["ε, 8 public probes (a)"] = lambda: few.epsilon(steps=STEPS, delta=DELTA)
    questions["ε, 32 public probes (a), σ = 0.5"] = lambda: quiet.epsilon(steps=STEPS, delta=DELTA)
    target = {"steps": STEPS, "target_epsilon": 2.0, "delta": DELTA}
    questions["calibration to ε = 2, exact norms"] = lambda: calibrate(DPSGD(1.0, RATE), **target)
    for who in PROBES:
        asked = DPSGD(1.0, RATE, Hutchinson(32, secret=who == "secret"))
        questions[f"calibration to ε = 2, 32 {who} probes"] = lambda run=asked: calibrate(run, **target)
    for probes in (None, 32):
        name = "exact norms" if probes is None else f"{probes} probes"
        phases = [(_mechanism(sigma, probes), 2) for sigma in np.linspace(0.7, 1.3, 200)]
        schedule = compose(phases)
        questions[f"ε, 200 phases, {name}"] = lambda s=schedule: s.epsilon(DELTA)
    for who in PROBES:
        questions[f"ε, 100 phases, 32 {who} probes, T = 400 in all"] = _phases(who == "secret")
    polynomial = DPSGD(2.32, 0.001237, Hutchinson(2, secret=False, rank=2, analysis="envelope"))
    questions["ε, 2 public probes, σ = 2.32, q = 0.001237, T = 363,816, δ = 1.4e-10"] = lambda: polynomial.epsilon(
        steps=363_816, delta=1.4e-10
    )
    rare = DPSGD(0.4096, 3.388e-6, Hutchinson(14, secret=False))
    questions["ε, 14 public probes, σ = 0.4096, q = 3.388e-6, T = 618,735, δ = 3.36e-7"] = lambda: rare.epsilon(
        steps=618_735, delta=3.36e-7
    )
    return questions


def _phases(secret: bool) -> Callable[[], Any]:
    """Another σ each time, by a billionth: what phases share is kept, and would be found the second time."""
    asked = itertools.count()

    def ask() -> Any:
        noise = np.linspace(0.7, 1.3, 100) * (1.0 + 1e-9 * next(asked))
        return compose([(DPSGD(float(sigma), RATE, Hutchinson(32, secret=secret)), 4) for sigma in noise]).epsilon(
            DELTA
        )

    return ask


def _mechanism(sigma: float, probes: int | None) -> DPSGD:
    return DPSGD(sigma, RATE) if probes is None else DPSGD(sigma, RATE, Hutchinson(probes, secret=False))


_LONG = 10_000
_BLOCK = 1_000
_FIRST = 64  # what a run of training asks first


def many() -> dict[str, tuple[Callable[[], Any], int]]:
    """Many answers of one question, for a time per answer: the question, and how many it stands for."""
    questions: dict[str, tuple[Callable[[], Any], int]] = {}
    for probes in (None, 32):
        name = "exact norms" if probes is None else f"{probes} probes"
        run = _mechanism(SIGMA, probes)
        for steps in (_BLOCK, _LONG):
            questions[f"ε after each of {steps:,} steps, {name}"] = (
                lambda r=run, t=steps: r.epsilon(steps=np.arange(1, t + 1), delta=DELTA),
                steps,
            )
        questions[f"ε after each of the first {_FIRST} steps, {name}"] = _first(run)
        questions[f"δ at 100 ε, {name} (a)"] = (
            lambda r=run: r.delta(steps=STEPS, epsilon=np.linspace(0.1, 12.0, 100)),
            100,
        )
        questions[f"trade-off at 100 points, {name} (a)"] = (
            lambda r=run: r.trade_off(steps=STEPS, alpha=np.linspace(0, 1, 100)),
            100,
        )
    secret = DPSGD(SIGMA, RATE, Hutchinson(32, secret=True))
    questions[f"ε after each of the first {_FIRST} steps, 32 secret probes"] = _first(secret)
    return questions


def _first(run: DPSGD) -> tuple[Callable[[], Any], int]:
    return lambda: run.epsilon(steps=np.arange(1, _FIRST + 1), delta=DELTA), _FIRST


def first_calls() -> dict[str, float]:
    """CPU seconds of a first answer in a fresh process, after the import; the best of three."""
    call = f"DPSGD({SIGMA}, {RATE!r}, Hutchinson(32, secret={{}})).epsilon(steps={STEPS}, delta={DELTA})"
    calls = {f"ε, 32 {who} probes (a)": call.format(who == "secret") for who in PROBES}
    calls["calibration to ε = 2, 128 public probes"] = (
        f"calibrate(DPSGD(1.0, {RATE!r}, Hutchinson(128, secret=False)), "
        f"steps={STEPS}, target_epsilon=2.0, delta={DELTA})"
    )
    return {name: min(_first_seconds(call) for _ in range(3)) for name, call in calls.items()}


def _first_seconds(call: str) -> float:
    start = "import time; from dprmt.accounting import DPSGD, Hutchinson, calibrate"
    program = f"{start}; t = time.process_time(); {call}; print(time.process_time() - t)"
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def opacus_prv(sigma: float, rate: float, steps: int, delta: float, error: float) -> Interval:
    """Opacus' PRV accountant: an estimate, with the error that it was asked for around it."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(sigma, rate, steps)]
    found = float(accountant.get_epsilon(delta, eps_error=error, delta_error=delta / 1000))
    return found, found


def google(sigma: float, rate: float, steps: int, delta: float, mesh: float) -> Interval:
    """dp-accounting with connected dots: from above."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(
        sigma, sampling_prob=rate, value_discretization_interval=mesh, use_connect_dots=True
    )
    found = float(one.self_compose(steps).get_epsilon_for_delta(delta))
    return found, found


def microsoft(sigma: float, rate: float, steps: int, delta: float, error: float) -> Interval:
    """prv-accountant: an interval, of the direction in which a sample is removed."""
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    variable = PoissonSubsampledGaussianMechanism(noise_multiplier=sigma, sampling_probability=rate)
    accountant = PRVAccountant(
        prvs=[variable], max_self_compositions=[steps], eps_error=error, delta_error=delta / 1000
    )
    low, _, high = accountant.compute_epsilon(delta, [steps])
    return float(low), float(high)


PEERS: dict[str, tuple[Callable[..., Interval], float]] = {
    "Opacus PRV, error .01": (opacus_prv, 0.01),
    "dp-accounting, mesh 1e-3": (google, 1e-3),
    "dp-accounting, mesh 1e-4": (google, 1e-4),
    "prv-accountant, error .01": (microsoft, 0.01),
}


def measured() -> dict[str, Any]:
    """All times and answers, in one run."""
    rows: dict[str, Any] = {"ours": [], "many": [], "peers": [], "first": first_calls(), "cold": cold_seconds()}
    for name, work in ours().items():
        seconds, answer = cpu_seconds(work)
        calibrated = isinstance(answer, DPSGD)
        ends = 2 * [answer.noise_multiplier] if calibrated else [answer.lower, answer.upper]
        rows["ours"].append({"question": name, "ms": 1e3 * seconds, "answer": ends})
    for name, (work, number) in many().items():
        seconds, answer = cpu_seconds(work, repeats=2)
        narrow = getattr(answer, "is_narrow", None)
        width = answer.upper - answer.lower
        share = None if narrow is None else float(np.mean(narrow))
        rows["many"].append({"question": name, "ms": 1e3 * seconds, "number": number, "narrow": share})
        rows["many"][-1]["widest"] = float(np.max(width))
    for setting, asked in SETTINGS.items():
        for name, (peer, accuracy) in PEERS.items():
            try:
                peer(1.0, 0.01, 1, 1e-3, 0.1)  # what is imported is no part of the time
                seconds, answer = cpu_seconds(lambda p=peer, a=accuracy, q=asked: p(*q, a), repeats=3)
            except ImportError as missing:
                rows["peers"].append({"peer": name, "setting": setting, "ms": None, "answer": str(missing)})
                continue
            rows["peers"].append({"peer": name, "setting": setting, "ms": 1e3 * seconds, "answer": answer})
    return rows


def cold_seconds() -> dict[str, float]:
    """CPU seconds of whole processes, the best of three."""
    run = "--noise-multiplier 1 --sample-rate 0.01 --steps 1000 --delta 1e-5"
    commands = {
        "dprmt epsilon": ["-m", "dprmt", "epsilon", *run.split()],
        "import dprmt.accounting": ["-c", "import dprmt.accounting"],
        "import scipy.special, scipy.fft": ["-c", "import scipy.special, scipy.fft"],
        "import opacus": ["-c", "import opacus"],
    }
    return {name: min(_process_seconds(command) for _ in range(3)) for name, command in commands.items()}


def _process_seconds(command: list[str]) -> float:
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def report(rows: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    lines = ["| question | CPU ms | answer |", "|---|---|---|"]
    for row in rows["ours"]:
        low, high = row["answer"]
        shown = f"[{low:.6g}, {high:.6g}]" if low != high else f"σ = {high:.6g}"
        lines.append(f"| {row['question']} | {row['ms']:.0f} | {shown} |")
    lines += ["", "| many answers | CPU ms | ms an answer | as narrow as asked | widest |", "|---|---|---|---|---|"]
    for row in rows.get("many", []):
        each, share = row["ms"] / row["number"], row["narrow"]
        narrow = "" if share is None else f"{100 * share:.0f} %"
        lines.append(f"| {row['question']} | {row['ms']:.0f} | {each:.2g} | {narrow} | {row['widest']:.2g} |")
    lines += ["", "| exact norms | CPU ms | times ours | answer | off ours by |", "|---|---|---|---|---|"]
    mine = {row["question"].split()[-1]: row for row in rows["ours"] if row["question"].startswith("ε, exact norms")}
    for row in rows["peers"]:
        if row["ms"] is None:
            lines.append(f"| {row['setting']} {row['peer']} | not installed | | {row['answer']} | |")
            continue
        own = mine[row["setting"]]
        low, high = row["answer"]
        shown = f"{high:.6g}" if low == high else f"[{low:.6g}, {high:.6g}]"
        off = max(high - own["answer"][1], own["answer"][0] - high, 0.0) / own["answer"][1]
        ratio = row["ms"] / own["ms"]
        lines.append(
            f"| {row['setting']} {row['peer']} | {row['ms']:.0f} | {ratio:.1f} | {shown} | {100 * off:.2g} % |"
        )
    lines += ["", "| first answer in a process, without the import | CPU ms |", "|---|---|"]
    lines += [f"| {name} | {1e3 * seconds:.0f} |" for name, seconds in rows.get("first", {}).items()]
    lines += ["", "| a whole process | CPU s |", "|---|---|"]
    lines += [f"| {name} | {seconds:.2f} |" for name, seconds in rows["cold"].items()]
    return "\n".join(lines)


def page(rows: dict[str, Any]) -> str:
    """Return the whole of ``docs/performance.md``."""
    parts = [_INTRODUCTION, report(rows)]
    if _SWEEP.exists():
        answers = stored(_SWEEP)
        parts += ["## Random mechanisms", _ABOUT_SWEEP.format(count=len(answers)), total_of(table(answers))]
        parts += [compared(answers, stored(_EARLIER)), misses(answers)]
    parts += [spectra_page.section(), step_page.section(), relations.page(stored(relations.RESULTS))]
    return "\n\n".join(part for part in parts if part) + "\n"


def total_of(lines: str) -> str:
    """Return the head and the last line of a table: the command prints the others."""
    return "\n".join([*lines.splitlines()[:2], lines.splitlines()[-1]])


_INTRODUCTION = """\
---
type: results
audience: researchers
summary: Time and memory of the accountant and of private training steps, next to other packages.
---
# Performance

- **Accountant.** An answer usually takes less than two seconds on one CPU core, and its interval is about 0.1 % wide.
  Other certified accountants are slower or wider. Fast approximations are not bounds.
- **Training on a CPU.** In [whole training steps](#whole-steps) exact norms, by the faster of blocks and ghost, take
  about as long as estimated ones. On the wide layers that we measured they add at most half the overhead of Opacus.
- **Training on a GPU.** On one H200, exact norms take 1.1 times a plain step of Llama-1B, and estimated norms 1.2 to
  1.4 times. For RoBERTa-base it is 1.7 and 6.6 to 10 times.
- **Memory.** Estimated norms save no memory compared with blockwise exact norms.

Tables name missed goals. CPU times are the best of a few runs on one thread of a machine that had other work, so
compare ratios within a table rather than milliseconds.

## Accountant

The settings are (a) q = 2000/67349, T = 400, σ = 0.779078, δ = 1e-5; (b) q = 1e-3, T = 100,000, σ = 1, δ = 1e-6; and
(c) q = 64/42000, T = 400, σ = 0.406531, δ = 1e-5. Answers are certified intervals over both adjacency directions at the
default tolerance of 1e-3. The last column of the third table is how far another answer lies outside our interval.
`python -m benchmarks.accounting --page docs/performance.md --results benchmarks/results/accounting.json` writes this
page from stored results."""
_ABOUT_SWEEP = """\
We asked for ε of {count} random mechanisms: rates 1e-6 to 1, noise 0.3 to 50, up to a million steps, δ from 1e-12 to
0.1, 2 to 4096 probes, all analyses. References could check some answers, and contradicted none. The goals are a width
of at most 1 % for more than 8 probes and σ ≥ 0.5, 5 % elsewhere, and 2 s. A table lists every miss.
`python -m benchmarks.sweep --seed 0 --count 2000 --checked 0.2` prints all strata."""


def main() -> None:
    """Print the tables; measure only what no results file has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="a JSON file to write, or with --page to read")
    parser.add_argument("--page", type=Path, help="write the page from the results")
    arguments, _ = parser.parse_known_args()
    warnings.simplefilter("ignore")
    if arguments.page and arguments.results and arguments.results.exists():
        arguments.page.write_text(page(json.loads(arguments.results.read_text())))
        return
    rows = measured()
    if arguments.results:
        arguments.results.write_text(json.dumps(rows, indent=1) + "\n")
    print(report(rows))


if __name__ == "__main__":
    main()
