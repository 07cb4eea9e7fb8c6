"""Noise in the sums of steps: banded and independent noise at the same ε.

    python -m benchmarks.banded_noise --samples 67349 --batch-size 2000 --steps 400 --epsilon 4 --delta 1e-5

A row per number of bands. σ is the multiplier that the target needs: cyclic sampling from b groups hides a sample less
than Poisson sampling, so σ is larger. The error is the root mean square, over all t, of the noise in the sum of the
first t gradients, in units of the clipping norm: σ times the error of the coefficients.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

from dprmt.accounting import DPSGD, CyclicPoisson, Poisson, calibrate
from dprmt.training.private_run import BandedNoise
from dprmt.training.private_run._step_options import prefix_error

BANDS = (2, 4, 8, 16)


def rows(
    samples: int, batch_size: float, steps: int, epsilon: float, delta: float
) -> Iterator[tuple[int, float, float]]:
    """Yield the number of bands, 1 for independent noise, with σ and the error in units of the clipping norm."""
    rate, target = batch_size / samples, {"target_epsilon": epsilon, "delta": delta}
    independent = calibrate(DPSGD(1.0, Poisson(rate)), steps=steps, **target).noise_multiplier
    yield 1, independent, independent * math.sqrt((steps + 1) / 2)
    for bands in BANDS:
        if bands * rate <= 1.0 and bands <= steps:
            sigma = calibrate(DPSGD(1.0, CyclicPoisson(rate, bands)), steps=steps, **target).noise_multiplier
            yield bands, sigma, sigma * prefix_error(BandedNoise(bands).coefficients(steps), steps)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, default in (
        ("--samples", int, 67_349),
        ("--batch-size", float, 2000.0),
        ("--steps", int, 400),
        ("--epsilon", float, 4.0),
        ("--delta", float, 1e-5),
    ):
        parser.add_argument(name, type=kind, default=default)
    found = list(rows(**vars(parser.parse_args())))
    print(f"{'bands':>6}{'σ':>10}{'error':>10}{'of independent':>16}")
    for bands, sigma, error in found:
        print(f"{bands:>6}{sigma:>10.4f}{error:>10.2f}{error / found[0][2]:>15.2f}×")


if __name__ == "__main__":
    main()
