"""What other accountants say of exact norms at 200 settings, and whether a proof agrees with it.

    python -m benchmarks.other_accountants --seconds 3000      # asks what the results file lacks, an hour for all
    python -m benchmarks.other_accountants_page                # docs/other_accountants.md

Noise, rate and steps are drawn over the ranges people use, δ from 1e-3 down to 1e-15, a decade after the other. Each
answer is a claim about ε, for the verifier in ``verify/``, which shares no code with any of them nor with ours: proved,
refuted, or not settled within its time. A line of the results file per setting; called again, it goes on from there,
and asks packages that were not installed before.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "verify"))

from dprmt.accounting import DPSGD, PrivacyBounds
from dprmt_verify import read_statement, verify

RESULTS = Path(__file__).parent / "results" / "other_accountants.jsonl"
COUNT, LEAST, MOST = 200, 0.05, 30.0
"""Settings, and of which ε: below or above nobody asks, and a draw is repeated."""
ASKED_SECONDS, VERIFIED_SECONDS = 5, 4.0
"""CPU time of an accountant, after which it has no answer, and of the verifier for one setting."""
_MEMORY = 6 << 30

Ends = dict[str, float]


@dataclass(frozen=True)
class Setting:
    """σ, q, T and δ; q = 1 without sampling."""

    noise_multiplier: float
    rate: float
    steps: int
    delta: float

    def statement(self, neighbours: str = "zero-out") -> dict[str, Any]:
        """For the verifier, without claims."""
        sampling = {"kind": "poisson", "rate": self.rate}
        mechanism = {"kind": "dpsgd", "noise_multiplier": self.noise_multiplier, "sampling": sampling}
        return {"mechanism": mechanism, "steps": self.steps, "delta": self.delta, "neighbours": neighbours}


def drawn(number: int) -> tuple[Setting, PrivacyBounds]:
    """A setting with a seed of its own, and our answer; δ is in decade ``number`` mod 12, every twentieth has q = 1."""
    rng = np.random.default_rng([27, number])
    while True:
        sigma, rate = _between(rng, 0.5, 4.0), _between(rng, 1e-4, 0.1)
        steps, share = round(_between(rng, 1, 1e5)), rng.random()
        delta = float(f"{10.0 ** -(3 + number % 12 + share):.3g}")
        setting = Setting(float(f"{sigma:.4g}"), 1.0 if number % 20 == 19 else float(f"{rate:.4g}"), steps, delta)
        ours = DPSGD(setting.noise_multiplier, setting.rate).epsilon(steps=steps, delta=delta)
        if ours.lower > LEAST and ours.upper < MOST:
            return setting, ours


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def opacus_prv(setting: Setting) -> Ends:
    """Upper end at its default errors: .01 of ε, δ/1000 of δ; the direction in which a sample is removed."""
    from opacus.accountants import PRVAccountant

    return {"upper": _history(PRVAccountant(), setting).get_epsilon(setting.delta)}


def opacus_rdp(setting: Setting) -> Ends:
    """At its default orders."""
    from opacus.accountants import RDPAccountant

    return {"upper": _history(RDPAccountant(), setting).get_epsilon(setting.delta)}


def _history(accountant: Any, setting: Setting) -> Any:
    accountant.history = [(setting.noise_multiplier, setting.rate, setting.steps)]
    return accountant


def google_pld(setting: Setting, mesh: float) -> Ends:
    """Connected dots, pessimistic, as by default."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(
        setting.noise_multiplier, sampling_prob=setting.rate, value_discretization_interval=mesh
    )
    return {"upper": one.self_compose(setting.steps).get_epsilon_for_delta(setting.delta)}


def google_rdp(setting: Setting) -> Ends:
    """At its default orders."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    one = dp_accounting.PoissonSampledDpEvent(setting.rate, dp_accounting.GaussianDpEvent(setting.noise_multiplier))
    return {"upper": RdpAccountant().compose(one, setting.steps).get_epsilon(setting.delta)}


def microsoft_prv(setting: Setting) -> Ends:
    """Both ends at the errors that its documentation calls typical: .01 of ε, δ/1000 of δ."""
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import GaussianMechanism, PoissonSubsampledGaussianMechanism

    one = PoissonSubsampledGaussianMechanism(
        noise_multiplier=setting.noise_multiplier, sampling_probability=setting.rate
    )
    accountant = PRVAccountant(
        prvs=[GaussianMechanism(setting.noise_multiplier) if setting.rate == 1 else one],
        max_self_compositions=[setting.steps],
        eps_error=0.01,
        delta_error=setting.delta / 1000,
    )
    lower, _, upper = accountant.compute_epsilon(setting.delta, [setting.steps])
    return {"lower": lower, "upper": upper}


def subsampled_pld(setting: Setting) -> Ends:
    """PLD_accounting's ``subsample_pld`` of dp-accounting's Gaussian at mesh 1e-3."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from PLD_accounting import subsample_pld

    whole = pld.from_gaussian_mechanism(setting.noise_multiplier, value_discretization_interval=1e-3)
    one = subsample_pld(pld=whole, sampling_probability=setting.rate)
    return {"upper": one.self_compose(setting.steps).get_epsilon_for_delta(setting.delta)}


def riskcal_dots(setting: Setting) -> Ends:
    """``CTDAccountant``, which asks dp-accounting at mesh 1e-4."""
    from riskcal.accountants import CTDAccountant

    return {"upper": _history(CTDAccountant(), setting).get_epsilon(delta=setting.delta)}


ACCOUNTANTS: dict[str, tuple[str, Callable[[Setting], Ends]]] = {
    "Opacus PRV": ("opacus", opacus_prv),
    "Opacus RDP": ("opacus", opacus_rdp),
    "dp-accounting PLD, mesh 1e-2": ("dp-accounting", partial(google_pld, mesh=1e-2)),
    "dp-accounting PLD, mesh 1e-3": ("dp-accounting", partial(google_pld, mesh=1e-3)),
    "dp-accounting PLD, mesh 1e-4": ("dp-accounting", partial(google_pld, mesh=1e-4)),
    "dp-accounting RDP": ("dp-accounting", google_rdp),
    "prv-accountant": ("prv-accountant", microsoft_prv),
    "PLD_accounting": ("PLD_accounting", subsampled_pld),
    "riskcal": ("riskcal", riskcal_dots),
}


_MODULES = {
    "opacus": "opacus.accountants",
    "dp-accounting": "dp_accounting.rdp",
    "prv-accountant": "prv_accountant",
    "PLD_accounting": "PLD_accounting",
    "riskcal": "riskcal.accountants",
}


def asked(accountant: Callable[[Setting], Ends], setting: Setting) -> dict[str, Any]:
    """What it says, with its CPU seconds, or why it does not; in a process of its own."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_answer, args=(accountant, setting, there))
    child.start()
    there.close()
    try:
        answer: dict[str, Any] = here.recv()
    except EOFError:
        child.join()
        late = child.exitcode == -signal.SIGXCPU
        answer = {"error": f"more than {ASKED_SECONDS} s" if late else f"ended with {child.exitcode}"}
    child.join()
    return answer


def _answer(accountant: Callable[[Setting], Ends], setting: Setting, there: Any) -> None:
    start = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (ASKED_SECONDS + math.ceil(start), ASKED_SECONDS + math.ceil(start) + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        ends = {end: float(value) for end, value in accountant(setting).items()}
        found: dict[str, Any] = {end: value if math.isfinite(value) else None for end, value in ends.items()}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {str(error)[:120]}"}
    there.send(found | {"seconds": round(time.process_time() - start, 2)})
    there.close()


def judged(setting: Setting, answers: dict[str, Any], ours: PrivacyBounds, seconds: float) -> tuple[float, float]:
    """Proved bounds of ε, as close as the nearest claim asks for; each answer gets its words."""
    uppers = [answer["upper"] for answer in answers.values() if answer.get("upper")]
    low, high = proved(setting, min([1.001 * ours.upper, *uppers], key=lambda end: abs(end - ours.upper)), seconds)
    say(setting, answers, low, high, seconds)
    return low, high


def say(setting: Setting, answers: dict[str, Any], low: float, high: float, seconds: float) -> None:
    """Give each answer its words, if ε is proved to lie between two numbers."""
    for answer in answers.values():
        answer |= {f"{end} is": word(end, answer[end], low, high) for end in ("lower", "upper") if answer.get(end)}
        if answer.get("upper is") == "refuted":  # do those who look at one direction err in that one?
            least, _ = proved(setting, answer["upper"], seconds, "remove")
            answer["upper is, of removing"] = "refuted" if answer["upper"] < least else "not refuted"


def proved(setting: Setting, upper: float, seconds: float, neighbours: str = "zero-out") -> tuple[float, float]:
    """The closest bounds of ε that the verifier proves while it settles whether ε is at most this."""
    statement = setting.statement(neighbours) | {"epsilon": {"upper": upper}}
    (verdict,) = verify(read_statement(json.dumps(statement)), seconds)
    return verdict.at_least, verdict.at_most


def word(end: str, value: float, low: float, high: float) -> str:
    """Of an end, if ε is proved to lie between two numbers."""
    yes, no = (high <= value, value < low) if end == "upper" else (value <= low, high < value)
    return "proved" if yes else "refuted" if no else "not settled"


def stored(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The rows that a results file has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def versions() -> dict[str, str | None]:
    """Of the packages; None of those that are not installed."""
    found: dict[str, str | None] = {}
    for package in {package for package, _ in ACCOUNTANTS.values()} | {"python-flint", "numpy", "scipy"}:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return dict(sorted(found.items()))


def go_on(path: Path, count: int, seconds: float) -> None:
    """Ask what the file lacks; start no setting after so many seconds."""
    rows, start, installed = stored(path), time.monotonic(), versions()
    warnings.simplefilter("ignore")
    for package, module in _MODULES.items():
        if installed[package] is not None:
            importlib.import_module(module)  # once, not in every child
    for row in rows:
        if time.monotonic() - start < seconds and add_missing(row, installed):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number in sorted(set(range(count)) - {row["number"] for row in rows}):
        if time.monotonic() - start > seconds:
            return
        setting, ours = drawn(number)
        answers = {name: asked(ask, setting) for name, ask in able(installed).items()}
        began = time.process_time()
        low, high = judged(setting, answers, ours, VERIFIED_SECONDS)
        row = {"number": number, **asdict(setting), "proved": [low, high if math.isfinite(high) else None]}
        row |= {"seconds": round(time.process_time() - began, 2), "versions": installed, "answers": answers}
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def able(installed: dict[str, str | None]) -> dict[str, Callable[[Setting], Ends]]:
    """The accountants whose package is installed."""
    return {name: ask for name, (package, ask) in ACCOUNTANTS.items() if installed[package] is not None}


def add_missing(row: dict[str, Any], installed: dict[str, str | None]) -> bool:
    """Ask those that a row lacks, against the bounds that it has; False where none is lacking."""
    missing = {name: ask for name, ask in able(installed).items() if name not in row["answers"]}
    setting = Setting(*(row[name] for name in ("noise_multiplier", "rate", "steps", "delta")))
    answers = {name: asked(ask, setting) for name, ask in missing.items()}
    low, high = row["proved"]
    say(setting, answers, low, math.inf if high is None else high, VERIFIED_SECONDS)
    row["answers"] |= answers
    row["versions"] |= {package: installed[package] for package in (ACCOUNTANTS[name][0] for name in missing)}
    return bool(missing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--count", type=int, default=COUNT, help="the first so many settings")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no setting after so long")
    options = parser.parse_args()
    go_on(options.results, options.count, options.seconds)


if __name__ == "__main__":
    main()
