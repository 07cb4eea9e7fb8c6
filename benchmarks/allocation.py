"""``python -m benchmarks.allocation``: what an answer about random allocation costs, and how narrow it is.

``--peer FILE`` compares fifty settings with PLD_accounting, the one package that accounts for it: its interval has to
meet ours. Each finished setting is a line of FILE; called again, it goes on from there. ``--count`` limits one call.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, Norms, PrivacyBounds, RandomAllocation

CHECKS = ((1.0, 33, 12, 1e-5), (2.0, 100, 10, 1e-5), (1.0, 1000, 5, 1e-6))
"""σ, t, epochs and δ of the theory page's check values."""

_RNG = np.random.default_rng(15)
PEER_SETTINGS = tuple(
    (
        round(float(np.exp(_RNG.uniform(np.log(0.7), np.log(4.0)))), 3),
        int(np.exp(_RNG.uniform(np.log(2), np.log(60)))),
        int(_RNG.integers(1, 9)),
        float(10.0 ** -_RNG.integers(4, 8)),
    )
    for _ in range(50)
)
NORMS: dict[str, Norms] = {
    "exact": ExactNorms(),
    "k = 32": Hutchinson(32),
    "k = 32, secret": Hutchinson(32, secret=True),
    "k = 32, s = 32": HutchPlusPlus(32, 32),
    "k = 8": Hutchinson(8),
}
_WIDTHS = tuple((sigma, steps) for sigma in (0.5, 1.0, 4.0) for steps in (2, 100, 100_000))


def asked(
    sigma: float, steps: int, epochs: int, delta: float, norms: Norms = ExactNorms()
) -> Callable[[], PrivacyBounds]:
    """The question, to be asked; nothing of an answer is kept."""
    mechanism = DPSGD(sigma, RandomAllocation(steps), norms)
    return lambda: mechanism.epsilon(epochs=epochs, delta=delta)


def timed(question: Callable[[], PrivacyBounds]) -> tuple[PrivacyBounds, float]:
    """Its answer and the CPU seconds that it took, as the first of its kind in this process."""
    from dprmt.accounting.pairs._allocation import _pairs

    _pairs.cache_clear()
    start = time.process_time()
    return question(), time.process_time() - start


def cases() -> Iterator[tuple[str, Callable[[], PrivacyBounds]]]:
    """Check values with every way of clipping; then exact norms at the ends of what is promised."""
    for sigma, steps, epochs, delta in CHECKS:
        for name, norms in NORMS.items():
            label = f"σ = {sigma:g}, t = {steps}, {epochs} epochs, δ = {delta:g}, {name}"
            yield label, asked(sigma, steps, epochs, delta, norms)
    for sigma, steps in _WIDTHS:
        yield f"σ = {sigma:g}, t = {steps}, 3 epochs, δ = 1e-06, exact", asked(sigma, steps, 3, 1e-6)


def show() -> None:
    """Print the table."""
    print("| setting | ε | width / max(1, ε) | CPU s |\n|---|---|---|---|")
    DPSGD(1.0, 0.1).epsilon(10, 1e-5)  # imports
    for label, question in cases():
        found, seconds = timed(question)
        width = (found.upper - found.lower) / max(1.0, found.upper)
        print(f"| {label} | [{found.lower:.5g}, {found.upper:.5g}] | {width:.1e} | {seconds:.2f} |", flush=True)


def with_peer(setting: tuple[float, int, int, float]) -> dict[str, Any]:
    """Both intervals for one setting."""
    import PLD_accounting as peer

    sigma, steps, epochs, delta = setting
    start = time.process_time()
    upper, lower = peer.gaussian_allocation_epsilon_range(
        delta=delta, sigma=sigma, num_steps=steps, num_epochs=epochs, epsilon_accuracy=0.1
    )
    between = time.process_time()
    ours = asked(*setting)()
    seconds = {"peer_seconds": between - start, "seconds": time.process_time() - between}
    return {"setting": setting, "peer": [lower, upper], "ours": [ours.lower, ours.upper], **seconds}


def compare(file: Path, count: int | None) -> None:
    """Ask what the file does not hold yet, and print all that it holds."""
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for setting in PEER_SETTINGS[len(known) :][:count]:
        known.append(json.loads(json.dumps(with_peer(setting))))
        with file.open("a") as stream:
            stream.write(json.dumps(known[-1]) + "\n")
    print("| σ, t, epochs, δ | PLD_accounting | ours | CPU s, theirs and ours |\n|---|---|---|---|")
    for entry in known:
        (low, high), (lower, upper) = entry["peer"], entry["ours"]
        times = f"{entry['peer_seconds']:.2f}, {entry['seconds']:.2f}"
        name = ", ".join(f"{number:g}" for number in entry["setting"])
        print(f"| {name} | [{low:.4f}, {high:.4f}] | [{lower:.4f}, {upper:.4f}] | {times} |")
    inside = sum(entry["peer"][0] <= entry["ours"][0] and entry["ours"][1] <= entry["peer"][1] for entry in known)
    meet = sum(entry["peer"][0] <= entry["ours"][1] and entry["ours"][0] <= entry["peer"][1] for entry in known)
    print(f"{len(known)} settings: the intervals meet in {meet}, ours lies inside theirs in {inside}")


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer", metavar="FILE", type=Path)
    parser.add_argument("--count", type=int)
    options = parser.parse_args(arguments)
    if options.peer:
        compare(options.peer, options.count)
    else:
        show()


if __name__ == "__main__":
    main(sys.argv[1:])
