"""Items that read the same denoised steps: intervals over seeds, verdicts only of enough layers, what there was."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paper_figures._needs import DATA
from paper_figures._pieces import Pieces
from paper_figures._reproduction import Found, Row
from paper_figures._verdict import mean_interval
from paper_figures.items import ITEMS
from paper_figures.items.improvement import LONG_FIRST, LONG_SEEDS, recipes

GAINS = {seed: [0.01 * seed + 0.001 * step for step in range(LONG_FIRST)] for seed in LONG_SEEDS}


def step(gain: float, layers: int, signal: float = 0.5) -> dict[str, Any]:
    spectrum = {"top": 0.99, "top heard": 1.0, "entropy clean": 1.0, "entropy noisy": 2.0}
    spectrum |= {"entropy heard": 1.9, "entropy denoised": 0.2}
    values = {name: [1.0, 0.5] for name in ("clean", "noisy", "heard", "denoised")}
    return {
        "noisy": 0.1,
        "improvement": {kappa: [gain, -gain] for kappa in ("1.01", "1.02", "1.05", "1.1")},
        "layers": [[16, 384, 1.03 + 0.01 * at, gain * (1 + at)] for at in range(layers)],
        "spectra": [{"denoised": True, "signal": signal, **spectrum}, {"denoised": False, "signal": 9.0, **spectrum}],
        "seconds": {"step": 2.0 + gain, "one by one": 0.02, "batched": 0.01},
        "shown": {"layer": "w", "shape": [2, 8], "sigma": 0.1, "quiet": 0.05, **values},
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pieces of all runs: two layers above the edge, at every step of SST-2, and at the first of docstrings."""
    monkeypatch.setenv(DATA, str(tmp_path))
    (tmp_path / "sst2").mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / "sst2" / name).touch()
    runs = {f"SST-2, seed {seed}": [step(gain, 2) for gain in gains] for seed, gains in GAINS.items()}
    runs |= {
        f"docstrings, seed {seed}": [step(gain, 2 * (at == 0), signal=0.5 + at) for at, gain in enumerate(gains)]
        for seed, gains in GAINS.items()
    }
    Pieces(tmp_path, "improvement", "long").measure({name: partial(list, steps) for name, steps in runs.items()})
    return tmp_path


def found(name: str, folder: Path) -> tuple[Found, dict[str, Row]]:
    made = ITEMS[name].measure("long", folder)
    return made, {row.label: row for row in made.rows}


def test_the_long_scale_has_the_papers_batch_and_the_noise_of_all_its_steps() -> None:
    sst2, docstrings = (recipe for recipe, _ in recipes("long").values())
    assert (sst2.training.batch_size, sst2.training.steps, sst2.privacy.target_epsilon) == (2000, 400, 6.7)
    assert docstrings.training.steps == 30 > LONG_FIRST


def test_the_mean_of_improvement_has_the_interval_of_seeds(folder: Path) -> None:
    """Not that of steps, which is narrower by the root of their number where seeds differ and steps do not."""
    _, rows = found("improvement", folder)
    row = rows["SST-2, with norm correction: mean Improvement"]
    means = [float(np.mean(gains)) for gains in GAINS.values()]
    expected = mean_interval(means)
    assert row.ours == pytest.approx(np.mean(means))
    assert row.interval == pytest.approx((expected.low, expected.high))
    without = rows["SST-2, without: mean Improvement"]  # the other sign
    assert without.interval == pytest.approx((-expected.high, -expected.low))
    of_steps = mean_interval(np.ravel(list(GAINS.values())))
    assert of_steps.high - of_steps.low < 0.5 * (expected.high - expected.low)
    assert rows[f"SST-2, with norm correction: least Improvement of {4 * LONG_FIRST} steps"].ours == 0


def test_growth_with_the_singular_value_is_by_seed_and_data(folder: Path) -> None:
    _, rows = found("improvement-by-shape", folder)
    row = rows["SST-2: mean improvement of the half with the larger λ₁, less that of the other half"]
    assert row.ours == pytest.approx(np.mean([np.mean(gains) for gains in GAINS.values()]))
    expected = mean_interval([float(np.mean(gains)) for gains in GAINS.values()])
    assert row.interval == pytest.approx((expected.low, expected.high))


def test_overhead_leaves_the_first_step_out_and_is_judged_at_the_papers_batch_alone(folder: Path) -> None:
    _, rows = found("overhead", folder)
    shares = [np.mean([100 * 0.02 / (2 + gain) for gain in gains[1:]]) for gains in GAINS.values()]
    row = rows["SST-2, one by one: share of a step of 2000"]
    assert row.ours == pytest.approx(np.mean(shares))
    assert {label.split(",")[0] for label, row in rows.items() if row.verdict()} == {"SST-2"}
    assert len(row.cells) == 1
