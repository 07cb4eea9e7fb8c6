"""``python -m audits device``: the law of the noise, and the worst games, with the code on a GPU.

``--device cpu`` does the same on a CPU. Writes what it found as JSON; 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn

from audits.blocks import many_games
from audits.games import RESULTS, WORST
from audits.steps import make_private
from audits.verdict import judge
from dprmt.training.randomness import SecureRandom

OUT = RESULTS.parent / "device.json"
SIGMA, SIDE = 2.0, 512
SHOWN = 0.3  # of the claim, at least, by so few trials: of a game that tells nothing nothing follows
_UNLIKELY = 1e-6  # of a p-value; fourteen are asked for
GENERATORS = ("torch", "secure")


@dataclass(frozen=True)
class NoiseLaw:
    """p-values of two steps' noise in two layers.

    Attributes
    ----------
    variance : float
        Of its sum of squares, against chi-square.
    normal : float or None
        Of its distribution, by Kolmogorov and Smirnov; None in 16 bits, whose rounding that test would see.
    steps, layers : float
        Of the correlation of two steps, and of two layers.
    """

    variance: float
    normal: float | None
    steps: float
    layers: float

    @property
    def fine(self) -> bool:
        """Whether none of them is out of the question."""
        asked = (self.variance, self.normal, self.steps, self.layers)
        return all(value > _UNLIKELY for value in asked if value is not None)


def main(arguments: list[str] | None = None) -> int:
    """Print a line a check, and store all of them."""
    parser = argparse.ArgumentParser(prog="python -m audits device", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--trials", type=int, default=4_000, help="of every game, in each world (default 4000)")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    name = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    found: dict[str, Any] = {"device": name, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    found["noise"] = {f"{kind}, {dtype}": _stored(noise_law(*which)) for kind, dtype, which in _kinds(options.device)}
    found["games"] = {}
    for game in many_games(1):
        if game.name in WORST:
            verdict = judge(replace(game, device=options.device), options.trials)
            fine = not (verdict.broken or verdict.other_law) and verdict.share >= SHOWN
            found["games"][game.name] = {"trials": options.trials, "fine": fine, **asdict(verdict)}
    options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    checks = {**found["noise"], **found["games"]}
    for check, entry in checks.items():
        print(f"{check}: {'as it should be' if entry['fine'] else 'NOT as it should be'}", flush=True)
    return 0 if all(entry["fine"] for entry in checks.values()) else 1


def noise_law(device: str, generator: str, dtype: torch.dtype, *, sigma: float = SIGMA) -> NoiseLaw:
    """What the noise of two steps without a sample is like, of a run that was told ``sigma``, against σ = 2."""
    model = nn.Sequential(nn.Linear(SIDE, SIDE, bias=False), nn.Linear(SIDE, SIDE, bias=False))
    model = model.to(device, dtype)
    source = SecureRandom() if generator == "secure" else None
    private = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        norms="ghost",
        clipping_norm=1.0,
        noise_multiplier=sigma,
        expected_batch_size=1.0,
        noise_generator=source,
        tokens=1,
    )
    drawn = []
    for _ in range(2):
        with torch.no_grad():
            for value in model.parameters():
                value.zero_()  # what a step leaves is its noise, without a rounding of the difference
        private.step()
        drawn.append([value.detach().double().cpu().numpy().ravel() / SIGMA for value in model.parameters()])
    noise = np.array(drawn)
    return NoiseLaw(
        _two_sided(stats.chi2(noise.size).cdf(np.square(noise).sum())),
        float(stats.kstest(noise[0, 0], "norm").pvalue) if dtype != torch.bfloat16 else None,
        _uncorrelated(noise[0].ravel(), noise[1].ravel()),
        _uncorrelated(noise[:, 0].ravel(), noise[:, 1].ravel()),
    )


def _kinds(device: str) -> list[tuple[str, str, tuple[str, str, torch.dtype]]]:
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return [(kind, name, (device, kind, dtype)) for kind in GENERATORS for name, dtype in dtypes.items()]


def _stored(law: NoiseLaw) -> dict[str, Any]:
    return {**asdict(law), "fine": law.fine}


def _two_sided(below: float) -> float:
    return float(2.0 * min(below, 1.0 - below))


def _uncorrelated(some: np.ndarray, others: np.ndarray) -> float:
    return float(stats.pearsonr(some, others).pvalue)


if __name__ == "__main__":
    sys.exit(main())
