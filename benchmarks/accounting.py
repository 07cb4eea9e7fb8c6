"""Accounting speed: CPU seconds for one ε, and ratios to other accountants measured in the same run.

The others answer an easier question: exact norms, one direction (prv-accountant) or worst-case rounding
(dp-accounting). Their meshes are set so that their upper bound lies as close to the truth as ours.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Callable

from dprmt.accounting import DPSGD, RandomizedClipping, calibrate_noise_multiplier
from dprmt.accounting._sketch_law import probe_copies

SIGMA, RATE, STEPS, DELTA = 0.779078, 2000 / 67349, 400, 1e-5


def cpu_seconds(work: Callable[[], float], repeats: int = 3) -> tuple[float, float]:
    """Smallest CPU time of a few runs, and the answer."""
    best, answer = float("inf"), float("nan")
    for _ in range(repeats):
        start = time.process_time()
        answer = work()
        best = min(best, time.process_time() - start)
    return best, answer


def ours() -> dict[str, Callable[[], float]]:
    """Questions to this package; every answer is an upper bound over both directions."""
    shared = RandomizedClipping(1.0, RATE, 32)
    secret = RandomizedClipping(1.0, RATE, 32, probe_sharing="sample")
    published = RandomizedClipping(1.0, RATE, 32, analysis="envelope")
    return {
        "exact norms": lambda: DPSGD(SIGMA, RATE).epsilon(STEPS, DELTA).upper,
        "exact norms, 100,000 steps": lambda: DPSGD(1.0, 1e-3).epsilon(100_000, 1e-6).upper,
        "32 probes, tight": lambda: shared.epsilon(STEPS, DELTA).upper,
        "32 probes, envelope": lambda: published.epsilon(STEPS, DELTA).upper,
        "32 probes, secret": lambda: secret.epsilon(STEPS, DELTA).upper,
        "calibration, 32 probes": lambda: calibrate_noise_multiplier(2.0, DELTA, RATE, STEPS, probes=32),
    }


def sketched() -> None:
    """Hutch++ over Hutchinson in the same run: at most 2 is the aim, at the first question and at later ones.

    The first question for a width also computes the law of what the sketch leaves.
    """
    print(f"{'sketch':<34}{'Hutchinson s':>13}{'first':>8}{'later':>8}{'law s':>9}")
    for sharing in ("batch", "sample"):
        hutchinson = RandomizedClipping(1.0, RATE, 32, probe_sharing=sharing)
        plain, _ = cpu_seconds(lambda run=hutchinson: run.epsilon(STEPS, DELTA).upper)
        for sketch in (8, 16, 32, 64):
            for iterated in (False, True):
                run = RandomizedClipping(1.0, RATE, 32, probe_sharing=sharing, sketch=sketch, power_iteration=iterated)

                def first(run: RandomizedClipping = run) -> float:
                    probe_copies.cache_clear()
                    return run.epsilon(STEPS, DELTA).upper

                def law(sketch: int = sketch, iterated: bool = iterated) -> float:
                    probe_copies.cache_clear()
                    return float(len(probe_copies(sketch, iterated)[0]))

                times = [cpu_seconds(work)[0] for work in (first, lambda run=run: run.epsilon(STEPS, DELTA).upper, law)]
                name = f"{sketch}, {'power iteration' if iterated else 'one pass'}, {sharing}"
                print(f"{name:<34}{plain:>13.3f}{times[0] / plain:>8.2f}{times[1] / plain:>8.2f}{times[2]:>9.3f}")


def theirs() -> dict[str, Callable[[], float]]:
    """The first of our questions to other packages, where they are installed."""
    questions: dict[str, Callable[[], float]] = {}
    try:
        from prv_accountant import PRVAccountant
        from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

        def prv() -> float:
            variable = PoissonSubsampledGaussianMechanism(noise_multiplier=SIGMA, sampling_probability=RATE)
            accountant = PRVAccountant(
                prvs=[variable], max_self_compositions=[STEPS], eps_error=1e-3, delta_error=DELTA / 1000
            )
            return float(accountant.compute_epsilon(DELTA, [STEPS])[2])

        questions["prv-accountant (one direction, error 1e-3)"] = prv
    except ImportError:
        pass
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld

        def google() -> float:
            one = pld.from_gaussian_mechanism(
                SIGMA, sampling_prob=RATE, value_discretization_interval=1e-3, use_connect_dots=True
            )
            return float(one.self_compose(STEPS).get_epsilon_for_delta(DELTA))

        questions["dp-accounting (connect the dots, mesh 1e-3)"] = google
    except ImportError:
        pass
    return questions


def import_seconds(module: str) -> float:
    """Wall-clock seconds a fresh interpreter takes to import a module, best of five, less an empty start."""

    def start(statement: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        return time.perf_counter() - begin

    return min(start(f"import {module}") for _ in range(5)) - min(start("pass") for _ in range(5))


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    reference, _ = cpu_seconds(ours()["exact norms"])
    print(f"{'ours':<46}{'CPU s':>9}{'answer':>10}")
    for name, work in ours().items():
        seconds, answer = cpu_seconds(work)
        print(f"{name:<46}{seconds:>9.3f}{answer:>10.4f}")
    print(f"\n{'theirs, exact norms':<46}{'CPU s':>9}{'answer':>10}{'ratio':>9}")
    for name, work in theirs().items():
        seconds, answer = cpu_seconds(work)
        print(f"{name:<46}{seconds:>9.3f}{answer:>10.4f}{seconds / reference:>9.1f}")
    print()
    sketched()
    print(f"\n{'import':<46}{'s':>9}")
    for module in ("dprmt.accounting", "dprmt.spectra"):
        print(f"{module:<46}{import_seconds(module):>9.3f}")


if __name__ == "__main__":
    main()
