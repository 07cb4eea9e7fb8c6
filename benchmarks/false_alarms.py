"""How often `dprmt spectrum` calls noise a spike: ``python -m benchmarks.false_alarms`` counts and writes it down.

What it counts is the command's own rule, `noisy_spectrum` at 1 %, on white noise of five shapes, 4,000 of each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from dprmt.spectra import noisy_spectrum

RESULTS = Path(__file__).parent / "results" / "false_alarms.json"
SHAPES = ((8, 384), (16, 768), (4, 9), (64, 64), (128, 40))
FALSE_ALARM, _MATRICES, _SEED = 0.01, 4000, 0


def called(shape: tuple[int, int], matrices: int, seed: int) -> int:
    """Of so many matrices of noise, those with a spike."""
    rng = np.random.default_rng([seed, *shape])
    return sum(
        bool(noisy_spectrum(rng.standard_normal(shape), 1.0, false_alarm=FALSE_ALARM).spikes) for _ in range(matrices)
    )


def main() -> None:
    """Count, print, write."""
    rows = [{"shape": shape, "matrices": _MATRICES, "called": called(shape, _MATRICES, _SEED)} for shape in SHAPES]
    total = sum(int(str(row["called"])) for row in rows)
    RESULTS.write_text(json.dumps({"seed": _SEED, "false_alarm": FALSE_ALARM, "shapes": rows}, indent=1) + "\n")
    sys.stdout.write(f"{total} of {_MATRICES * len(SHAPES)} called, {total / _MATRICES / len(SHAPES):.2%}\n")


if __name__ == "__main__":
    main()
