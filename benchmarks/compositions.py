"""Compositions by direction, drawn at random, against an oracle that shares no code with the accountant.

``python -m benchmarks.compositions --count 500`` prints contradictions and crashes, of which there should be none.
The oracle bounds δ of exact norms from both sides on a common mesh of losses: from above by chords of each step's
hockey-stick curve, from below by binning each step's outcomes and testing half-lines of the summed bin numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from dprmt.accounting import DPSGD, Hutchinson, compose

_CELLS = 12.0  # per standard deviation of a step's loss
_LONGEST = 2**22
_FARTHEST = 1200.0  # losses whose e^l is a number
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Phase:
    """So many equal steps; ``probes`` of 0 for exact norms."""

    noise_multiplier: float
    sample_rate: float
    steps: int
    probes: int = 0

    def mechanism(self) -> DPSGD:
        """What the accountant is asked about."""
        if self.probes:
            return DPSGD(self.noise_multiplier, self.sample_rate, Hutchinson(self.probes, secret=False))
        return DPSGD(self.noise_multiplier, self.sample_rate)

    def tails(self, loss: np.ndarray, direction: str) -> tuple[np.ndarray, np.ndarray]:
        """P and Q of a loss larger than each."""
        remove = loss if direction == "remove" else -loss
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.log((np.exp(remove) - 1.0 + self.sample_rate) / self.sample_rate)
        x = np.where(np.isnan(ratio), -np.inf, ratio * self.noise_multiplier + 0.5 / self.noise_multiplier)
        present = (1 - self.sample_rate) * ndtr(-x) + self.sample_rate * ndtr(1 / self.noise_multiplier - x)
        absent = ndtr(-x)
        if direction == "remove":
            return present, absent
        return ndtr(x), (1 - self.sample_rate) * ndtr(x) + self.sample_rate * ndtr(x - 1 / self.noise_multiplier)

    def deviation(self) -> float:
        """About the standard deviation of a step's loss."""
        return self.sample_rate * float(np.sqrt(min(np.expm1(self.noise_multiplier**-2.0), 1e4)))


def draw(generator: np.random.Generator, most: int = 3) -> tuple[list[Phase], float]:
    """Two or three phases, and δ."""
    between = lambda low, high: float(np.exp(generator.uniform(np.log(low), np.log(high))))  # noqa: E731
    count = int(generator.integers(2, most + 1))
    probes = [0] * 7 + [32]
    phases = [
        Phase(between(0.6, 4), between(1e-4, 0.1), round(between(10, 2e5)), int(generator.choice(probes)))
        for _ in range(count)
    ]
    return phases, between(1e-7, 1e-3)


class Oracle:
    """Bounds on δ of a composition with exact norms, in one direction; ``None`` where its mesh would be too long."""

    def __init__(self, phases: list[Phase], direction: str) -> None:
        steps = sum(phase.steps for phase in phases)
        total = np.sqrt(sum(phase.steps * phase.deviation() ** 2 for phase in phases))
        self.mesh = min(max(total / np.sqrt(steps) / _CELLS, 1e-7), total / 2000)
        reach = 14 * total + 14 * total**2 + 40.0 * max(phase.deviation() for phase in phases)
        self.size = int(2 ** np.ceil(np.log2(2 * reach / self.mesh)))
        self.fits = self.size <= _LONGEST and self.size * self.mesh < _FARTHEST
        if self.fits:
            self._compose(phases, direction)

    def _compose(self, phases: list[Phase], direction: str) -> None:
        upper, p, q = (np.ones(self.size // 2 + 1, dtype=complex) for _ in range(3))
        lost = 0.0
        for phase in phases:
            index = np.arange(-self.size // 4, self.size // 4)
            loss = index * self.mesh
            above_p, above_q = phase.tails(loss, direction)
            curve = above_p - np.exp(loss) * above_q
            slope = np.diff(np.concatenate([[1.0], curve])) / np.diff(np.concatenate([[0.0], np.exp(loss)]))
            masses = np.exp(loss) * np.diff(np.append(slope, 0.0))
            lost += phase.steps * max(curve[-1], 0.0)
            upper *= self._transformed(index, np.maximum(masses, 0.0)) ** phase.steps
            edges = np.append(loss, loss[-1] + self.mesh) - self.mesh / 2
            for side, tail in zip((p, q), phase.tails(edges, direction), strict=True):
                side *= self._transformed(index, -np.diff(tail)) ** phase.steps
        index = np.arange(-self.size // 2, self.size // 2)
        self.loss, self.infinite = index * self.mesh, lost
        self.upper, self.p, self.q = (self._back(transform) for transform in (upper, p, q))

    def _transformed(self, index: np.ndarray, masses: np.ndarray) -> np.ndarray:
        wrapped = np.zeros(self.size)
        wrapped[index % self.size] = masses
        return np.fft.rfft(wrapped)

    def _back(self, transform: np.ndarray) -> np.ndarray:
        return np.roll(np.fft.irfft(transform, self.size), self.size // 2)

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bound, up to rounding of the transforms."""
        rounding = _ROUNDING * np.sqrt(self.size)
        beyond = self.loss > epsilon
        above = float(self.upper[beyond] @ -np.expm1(epsilon - self.loss[beyond])) + self.infinite
        gain = np.cumsum((self.p - np.exp(min(epsilon, 600.0)) * self.q)[::-1])
        return max(float(gain.max()) - rounding * (1 + np.exp(min(epsilon, 600.0))), 0.0), above + rounding


def checked(phases: list[Phase], delta: float) -> dict[str, object]:
    """What the accountant says, and what speaks against it."""
    record: dict[str, object] = {"phases": [vars(phase) for phase in phases], "delta": delta}
    run = compose([(phase.mechanism(), phase.steps) for phase in phases])
    try:
        found = run.epsilon_by_direction(delta)
    except RuntimeError as error:
        return record | {"error": f"{type(error).__name__}: {error}"}
    for direction, bounds in found.items():
        record[direction] = [bounds.lower, bounds.upper]
        if any(phase.probes for phase in phases):
            continue
        oracle = Oracle(phases, direction)
        if not oracle.fits:
            continue
        record["oracle"] = True
        if oracle.delta(bounds.upper)[0] > delta * (1 + 1e-9):
            record["error"] = f"{direction}: upper end {bounds.upper} has δ ≥ {oracle.delta(bounds.upper)[0]}"
        if bounds.lower > 0 and oracle.delta(bounds.lower)[1] < delta * (1 - 1e-9):
            record["error"] = f"{direction}: lower end {bounds.lower} has δ ≤ {oracle.delta(bounds.lower)[1]}"
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "compositions.jsonl")
    options = parser.parse_args()
    done = len(options.out.read_text().splitlines()) if options.out.exists() else 0
    with options.out.open("a") as out:
        for number in range(done, options.count):
            record = checked(*draw(np.random.default_rng([options.seed, number])))
            out.write(json.dumps(record) + "\n")
            out.flush()
    records = [json.loads(line) for line in options.out.read_text().splitlines()]
    wrong = [record for record in records if "error" in record]
    held = sum("oracle" in record for record in records)
    print(f"{len(records)} compositions, both directions, {held} of them held against the oracle: {len(wrong)} wrong")
    for record in wrong:
        print(record)
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
