"""Why answers of other accountants at very small δ are refuted: the same accountant with one thing changed.

    python -m benchmarks.why_refuted          # half a minute; --results FILE keeps what is printed

dp-accounting: its own law of one step, composed exactly over the integers instead of by its transforms; and by its
transforms without truncation. Opacus' PRV accountant: its own law of one step in long doubles, as in prv-accountant,
from which it was taken over, and what its guard would say in the precision that it works in.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "verify"))

from flint import arb, ctx, fmpz

from benchmarks.other_accountants import Setting, opacus_prv
from dprmt_verify._ends import delta_above
from dprmt_verify._sums import Masses

RESULTS = Path(__file__).parent / "results" / "why_refuted.json"
GOOGLE = (
    (Setting(1.0, 0.01, 1000, 1e-12), 1e-3),
    (Setting(0.8, 0.001, 20_000, 1e-12), 1e-3),
    (Setting(0.8, 0.001, 20_000, 1e-14), 1e-3),
    (Setting(0.6, 0.01, 2000, 1e-11), 1e-3),
    (Setting(1.0, 0.01, 10_000, 1e-11), 1e-3),
)
OPACUS = (Setting(1.0, 0.01, 1000, 1e-12), Setting(1.0, 0.01, 10_000, 1e-11))
_BITS = 160
_UNIT = float(np.finfo(np.float64).eps) / 2


def google(setting: Setting, mesh: float) -> dict[str, Any]:
    """What dp-accounting says of removing a sample; without truncation; and composed exactly."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(
        setting.noise_multiplier, sampling_prob=setting.rate, value_discretization_interval=mesh
    )._pmf_remove.to_dense_pmf()
    composed = one.self_compose(setting.steps)
    law = _composed_exactly(one, setting.steps)
    error = composed._probs - _on(law, composed._lower_loss, len(composed._probs))
    whole = len(one._probs) * setting.steps < 2e7
    return {
        "claimed": composed.get_epsilon_for_delta(setting.delta),
        "not truncated": one.self_compose(setting.steps, 0.0).get_epsilon_for_delta(setting.delta) if whole else None,
        "composed exactly": _epsilon(law, mesh, setting.delta),
        "error of P(loss > x)": float(np.abs(np.cumsum(error[::-1])).max()),
        "steps times unit roundoff": setting.steps * _UNIT,
    }


def opacus(setting: Setting) -> dict[str, Any]:
    """What Opacus says; with its masses in long doubles; and the δ below which its guard would refuse, in doubles."""
    from opacus.accountants import PRVAccountant
    from opacus.accountants.analysis.prv import compose

    accountant = PRVAccountant()
    accountant.history = [(setting.noise_multiplier, setting.rate, setting.steps)]
    transform = compose.rfft
    with mock.patch.object(compose, "rfft", lambda masses: transform(masses.astype(np.longdouble))):
        longer = float(accountant.get_epsilon(setting.delta))
    size = accountant._get_dprv(0.01, setting.delta / 1000).domain.size
    return {
        "claimed": float(opacus_prv(setting)["upper"]),
        "long doubles": longer,
        "guard asks for δ above": float(np.finfo(np.longdouble).eps * size),
        "in doubles": float(np.finfo(np.float64).eps * size),
        "steps times unit roundoff": setting.steps * _UNIT,
    }


def _composed_exactly(pmf: Any, steps: int) -> Masses:
    """The sum of so many losses with the masses that a law of dp-accounting has, rounded up by 2^-160 each."""
    masses = [fmpz(int(math.ldexp(mass, 100))) + 1 << (_BITS - 100) for mass in pmf._probs.tolist()]
    lost = fmpz(int(math.ldexp(pmf._infinity_mass, _BITS))) + 1
    law = Masses([masses], (1,), pmf._lower_loss, _BITS, lambda level: (fmpz(0), fmpz(0)), lost)
    return law.power(steps, fmpz(1) << (_BITS - 75), 1.0, sys.maxsize, math.inf)


def _on(law: Masses, first: int, count: int) -> np.ndarray:
    values = np.zeros(count)
    for at, mass in enumerate(law.parts[0], law.first - first):
        if 0 <= at < count:
            values[at] = math.ldexp(float(int(mass) >> 60), 60 - _BITS)
    return values


def _epsilon(law: Masses, mesh: float, delta: float) -> float:
    ctx.prec = 300
    low, high = 0.0, 100.0
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_above(law, arb(0), arb(mesh), middle) < delta else (middle, high)
    return high


def measured() -> dict[str, Any]:
    """All of it."""
    rows: dict[str, Any] = {"google": [], "opacus": []}
    for setting, mesh in GOOGLE:
        rows["google"].append({"setting": list(vars(setting).values()), "mesh": mesh} | google(setting, mesh))
        print(rows["google"][-1], flush=True)
    for setting in OPACUS:
        rows["opacus"].append({"setting": list(vars(setting).values())} | opacus(setting))
        print(rows["opacus"][-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = measured()
    if options.results:
        options.results.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
