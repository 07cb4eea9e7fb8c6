"""A small heavy-tailed instance, trained here: all optimizers in the settings of Figures 2, 3 and 9 to 12, and γ'.

Its noise is as large against the largest class as in the paper, σ/s. Rates are tuned on the paper's half-power grid,
and in the first setting on one fine grid of effective steps for all optimizers: who leads by grid, and who by method.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paper_figures._measured import ABOVE_ZERO, mean_row
from paper_figures._picture import STYLES, picture
from paper_figures._pieces import Pieces
from paper_figures._rates import half_power_grid
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._tuner import LABELS, Train, Tuned, tuned
from paper_figures._verdict import Reason

if TYPE_CHECKING:
    from paper_figures.heavy_tail import Trial

GROUPS, LARGEST, SEEDS = 5, 128, (0, 1, 2)
SETTINGS = {
    "C = 1, σ = 1.25": (1.0, 1.25, 100),
    "C = 10, σ = 1.25": (10.0, 1.25, 100),
    "C = 1, σ = 0.625": (1.0, 0.625, 25),
}
"""C, σ and steps: the paper's C = 1 and σ = 10, C = 10, and σ = 5 at the same ε, with σ by the size of the class."""
RANGES = {"gd": (0.5, 10.0), "gdm": (0.1, 5.0), "adam": (5e-3, 1e-1), "adambc": (5e-3, 1e-1)}
STABILITY = {"gd": 0.1, "gdm": 0.1, "adam": 1e-3, "adambc": 0.1}
FLOORS = (0.01, 0.05, 0.1, 0.5, 1.0)
"""γ' in units of the noise's variance s²."""
LAST = GROUPS - 1
STEPS, TUNED_ON = tuple(2.0 ** (k / 2) for k in range(13)), 1000
"""Effective steps (`heavy_tail.Trial.effective_step`), and the seed they are tuned on."""


def measure(scale: Scale, folder: Path) -> Found:
    pieces = Pieces(folder, "heavy-tail-small", scale)
    runs = {name: tuned(pieces, _train(*setting), _grids(setting[0]), SEEDS, f"{name}, ") for name, setting in _all()}
    sweep, fine = _floors(pieces), _on_one_grid(pieces)

    def draw(axes: np.ndarray) -> None:
        top, bottom = np.split(axes, 2)
        main = next(iter(runs.values()))
        for ax, group in zip(top, (None, 0, LAST), strict=True):
            _draw_loss(ax, main, group)
            ax.set_title("all samples" if group is None else f"classes of {LARGEST >> group}")
        for ax, (name, found) in zip(bottom, list(runs.items())[1:], strict=False):
            _draw_loss(ax, found, LAST)
            ax.set_title(f"{name}: classes of {LARGEST >> LAST}")
        _draw_floors(bottom[-1], sweep)
        top[0].set_ylabel("training loss in nats")
        bottom[0].set_ylabel("training loss in nats")
        top[0].legend(frameon=False)

    return Found(
        [row for name, found in runs.items() for row in _rows(name, found)]
        + _rows(FINE, fine, "> 0, as on the half-power grids of full size")
        + _floor_rows(sweep),
        differs=f"{GROUPS} groups of classes instead of 8, {LARGEST} samples in the largest instead of 1,024, 100"
        " steps.",
        reasons=[
            Reason(
                "tested",
                "who leads by grid: the rows on one grid of effective steps have every optimizer at its best one.",
                "python -m paper_figures run heavy-tail-small",
            ),
            Reason("open", "why this instance orders the optimizers otherwise than the full one."),
        ],
        model="linear, in float32",
        data=f"generated, {GROUPS * LARGEST} samples in {2**GROUPS - 1} classes",
        seeds=len(SEEDS),
        pictures=[picture(folder / "heavy-tail-small.png", draw, panels=3, rows=2)],
        earlier_seconds=pieces.earlier_seconds,
    )


def _all() -> list[tuple[str, tuple[float, float, int]]]:
    return list(SETTINGS.items())


def _grids(clip: float) -> dict[str, list[float]]:
    # Nearly all samples are clipped, so that C times as large takes rates C times as small where nothing normalises.
    return {
        name: half_power_grid(low / clip, high / clip) if name in ("gd", "gdm") else half_power_grid(low, high)
        for name, (low, high) in RANGES.items()
    }


FINE = "C = 1, σ = 1.25, one grid of effective steps"


def _on_one_grid(pieces: Pieces) -> dict[str, Tuned]:
    clip, sigma, steps = SETTINGS["C = 1, σ = 1.25"]
    rates = {
        name: [float(f"{h / _trial(name, 1.0, clip, sigma).effective_step:.6g}") for h in STEPS] for name in RANGES
    }
    train = _train(clip, sigma, steps, record_every=steps)
    return tuned(pieces, train, rates, SEEDS, "one grid, ", TUNED_ON)


def _trial(optimizer: str, rate: float, clip: float, sigma: float, floor: float | None = None, seed: int = 0) -> Trial:
    from paper_figures.heavy_tail import Trial

    return Trial(
        optimizer,
        rate,
        clipping_norm=clip,
        noise_multiplier=sigma,
        stability=STABILITY[optimizer] if floor is None else floor,
        groups=GROUPS,
        samples=LARGEST,
        seed=seed,
    )


def _floors(pieces: Pieces) -> dict[float, Tuned]:
    """DP-AdamBC at its best rate for every γ'."""
    clip, sigma, steps = SETTINGS["C = 1, σ = 1.25"]
    grid = {"adambc": _grids(clip)["adambc"]}
    return {
        floor: tuned(pieces, _train(clip, sigma, steps, floor), grid, SEEDS, f"γ' = {floor:g}, ")["adambc"]
        for floor in FLOORS
    }


def _train(clip: float, sigma: float, steps: int, floor: float | None = None, record_every: int = 5) -> Train:
    from paper_figures.heavy_tail import run_trial
    from paper_figures.studies import GroupRecord

    def train(optimizer: str, rate: float, seed: int, folder: Path) -> list[GroupRecord]:
        trial = _trial(optimizer, rate, clip, sigma, floor, seed)
        curve = run_trial(trial, folder, steps, record_every=record_every)
        columns = (curve.steps, curve.epsilon(), curve.loss, curve.accuracy, curve.group_loss, curve.group_accuracy)
        records = [GroupRecord(*values) for values in zip(*columns, strict=True)]
        return [*records, records[-1]._replace(loss=float("nan"))] if curve.diverged else records

    return train


def _rows(name: str, runs: Mapping[str, Tuned], claim: str = "> 0, as at full size") -> list[Row]:
    smallest = LARGEST >> LAST
    losses = {optimizer: found.ends("group_loss", LAST) for optimizer, found in runs.items()}
    rows = [
        mean_row(
            f"{name}, {LABELS[optimizer]} (η = {runs[optimizer].rate:g}): loss, classes of {smallest}",
            loss,
            unit="nats",
        )
        for optimizer, loss in losses.items()
    ]
    best = min(("gd", "gdm", "adam"), key=lambda other: float(losses[other].mean()))
    label = f"{name}: lead of DP-AdamBC in that loss over {LABELS[best]}, paired"
    lead = losses[best] - losses["adambc"]
    return [*rows, mean_row(label, lead, unit="nats", claim=claim, within=ABOVE_ZERO)]


def _floor_rows(sweep: Mapping[float, Tuned]) -> list[Row]:
    rows = []
    for floor, found in sweep.items():
        where = f"DP-AdamBC, γ' = {floor:g} s² (η = {found.rate:g})"
        rows.append(Row(f"{where}: loss, all", found.last("loss"), unit="nats"))
        rows.append(Row(f"{where}: loss, classes of {LARGEST >> LAST}", found.last("group_loss", LAST), unit="nats"))
    return rows


def _draw_loss(ax: Any, runs: Mapping[str, Tuned], group: int | None) -> None:
    for optimizer, found in runs.items():
        name = "loss" if group is None else "group_loss"
        ax.plot(*found.curve(name, group), label=LABELS[optimizer], **STYLES[LABELS[optimizer]])
    ax.set_xlabel("ε")


def _draw_floors(ax: Any, sweep: Mapping[float, Tuned]) -> None:
    style = STYLES["DP-AdamBC"]["color"]
    for group, mark, label in ((None, "o-", "all samples"), (LAST, "s--", f"classes of {LARGEST >> LAST}")):
        name = "loss" if group is None else "group_loss"
        values = [found.last(name, group) for found in sweep.values()]
        ax.plot(list(sweep), values, mark, color=style, markersize=4, label=label)
    ax.set(xscale="log", xlabel="γ' over the noise's variance s²", title="DP-AdamBC by γ', C = 1, σ = 1.25")
    ax.legend(frameon=False)


ITEM = Item("heavy-tail-small", "Heavy-tailed classes, a small instance, and γ'", measure)
