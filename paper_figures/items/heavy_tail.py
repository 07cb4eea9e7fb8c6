"""The linear model on heavy-tailed classes: Figures 1 to 3 and 9 to 12, at full size and on a small instance.

A run at full size takes hours of a CPU. The small instance has noise as large against the largest class, σ/s. Its rates
are tuned on the paper's half-power grid, and in the first setting on one fine grid of effective steps for all
optimizers too, which tells a lead of the grid from one of the method.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paper_figures._measured import ABOVE_ZERO, BELOW_ZERO, mean_row
from paper_figures._picture import STYLES, picture
from paper_figures._pieces import Pieces
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale
from paper_figures._tuner import LABELS, Train, Tuned, draw_groups, half_power_grid, tuned
from paper_figures._verdict import Reason

if TYPE_CHECKING:
    from paper_figures.heavy_tail import Precision, Trial
    from paper_figures.studies import GroupRecord

Rates = Mapping[str, Sequence[float]]
OTHERS = ("gd", "gdm", "adam")
STABILITY = {"gd": 0.1, "gdm": 0.1, "adam": 1e-3, "adambc": 0.1}


@dataclass(frozen=True)
class Setting:
    """An instance of the data and how it is trained, all but the optimizer, its rate and the seed."""

    clip: float
    sigma: float
    steps: int
    stability: Mapping[str, float]
    groups: int = 8
    largest: int = 1024
    precision: Precision = "float32"
    record_every: int = 25

    def trial(self, optimizer: str, rate: float, seed: int = 0) -> Trial:
        """One run of it."""
        from paper_figures.heavy_tail import Trial

        return Trial(
            optimizer,
            rate,
            clipping_norm=self.clip,
            noise_multiplier=self.sigma,
            stability=self.stability[optimizer],
            groups=self.groups,
            samples=self.largest,
            precision=self.precision,
            seed=seed,
        )

    def train(self, optimizer: str, rate: float, seed: int, folder: Path) -> list[GroupRecord]:
        """For `tuned`."""
        from paper_figures.heavy_tail import run_trial

        return run_trial(self.trial(optimizer, rate, seed), folder, self.steps, record_every=self.record_every)


# ------------------------------------------------------------------------------------------------------- full size

FULL_RATES: dict[str, Rates] = {
    "heavy-tail": {"gd": (0.5,), "gdm": (0.1,), "adam": (1e-3,), "adambc": (1e-3,)},
    "heavy-tail-c10": {"gd": (0.05,), "gdm": (0.01,), "adam": (1e-3,), "adambc": (1e-3,)},
    "heavy-tail-sigma5": {"gd": (0.5,), "gdm": (0.5,), "adam": (5e-3,), "adambc": (1e-3,)},
}
FULL = {
    "heavy-tail": Setting(1.0, 10.0, 1950, STABILITY | {"adambc": 0.5}, precision="bfloat16"),
    "heavy-tail-c10": Setting(10.0, 10.0, 1950, STABILITY | {"adambc": 0.5}, precision="bfloat16"),
    "heavy-tail-sigma5": Setting(1.0, 5.0, 488, STABILITY, precision="bfloat16"),
}
SEEDS = {"heavy-tail": (0, 1), "heavy-tail-c10": (0,), "heavy-tail-sigma5": (0, 1)}
RARE_LOSS, RARE_ACCURACY = "loss, classes of 8", "accuracy, classes of 8"
COLUMNS = {
    RARE_LOSS: ("group_loss", 7, 1.0, 0.35),
    "accuracy, class of 1024": ("group_accuracy", 0, 100.0, 5.0),
    "accuracy, classes of 128": ("group_accuracy", 3, 100.0, 5.0),
    RARE_ACCURACY: ("group_accuracy", 7, 100.0, 2.0),
}
# By quantity: its column, its group, the factor to its unit, and the margin.
SHOWN = {group: f"classes of {1024 >> group}" for group in (0, 3, 5, 7)}
Ends = Mapping[tuple[str, str], np.ndarray]
"""By optimizer and quantity, the last values by seed."""


def full_size(name: str, scale: Scale, folder: Path) -> Found:
    pieces = Pieces(folder, name, scale)
    runs = tuned(pieces, FULL[name].train, FULL_RATES[name], SEEDS[name])
    ends = {
        (optimizer, quantity): factor * found.ends(column, group)
        for optimizer, found in runs.items()
        for quantity, (column, group, factor, _) in COLUMNS.items()
    }

    def draw(axes: np.ndarray) -> None:
        for row, metric in zip(np.split(axes, 2), ("loss", "accuracy"), strict=True):
            draw_groups(row, runs, metric, SHOWN)

    return Found(
        {"heavy-tail": _main, "heavy-tail-c10": _larger_clipping_norm, "heavy-tail-sigma5": _less_noise}[name](ends),
        "Learning rates from an estimate and a few trials, not the whole grid. Products in bfloat16; in the stored runs"
        " but the first seed of C = 1 and σ = 10 in 8-bit integers, by the code of commit da72f65.",
        reasons=[
            Reason("open", "rates, stability constants and numbers of steps of the printed runs are not printed.")
        ],
        model="linear",
        data="8192 samples, 255 classes, generated",
        seeds=len(SEEDS[name]),
        pictures=[picture(folder / f"{name}.png", draw, panels=1 + len(SHOWN), rows=2)],
        earlier_seconds=pieces.earlier_seconds,
    )


def _rows_of(ends: Ends, quantity: str, optimizers: Sequence[str] = tuple(LABELS), **against: Any) -> list[Row]:
    paper = published("heavy-tail") if against else None
    unit = "%" if quantity.startswith("accuracy") else ""
    return [
        mean_row(
            f"{LABELS[optimizer]}: {quantity}",
            ends[optimizer, quantity],
            unit=unit,
            **({"published": paper.number(optimizer, quantity=quantity)} if paper else {}),
            **against,
        )
        for optimizer in optimizers
    ]


def _main(ends: Ends) -> list[Row]:
    rows: list[Row] = []
    for quantity, (*_, margin) in COLUMNS.items():
        rows += _rows_of(ends, quantity, ["adambc"] if quantity == RARE_ACCURACY else list(LABELS), margin=margin)
    lead, margin = f"lead of DP-AdamBC in {RARE_ACCURACY}", COLUMNS[RARE_ACCURACY][-1]
    for optimizer in OTHERS:
        gaps = ends["adambc", RARE_ACCURACY] - ends[optimizer, RARE_ACCURACY]
        printed = published("heavy-tail").number(optimizer, quantity=lead)
        rows.append(mean_row(f"{LABELS[optimizer]}: {lead}", gaps, published=printed, margin=margin, unit="points"))
    return rows


def _larger_clipping_norm(ends: Ends) -> list[Row]:
    best = min(OTHERS, key=lambda name: float(ends[name, RARE_LOSS].mean()))
    lead = ends[best, RARE_LOSS] - ends["adambc", RARE_LOSS]
    claim = {"claim": "> 0, as with C = 1", "within": ABOVE_ZERO}
    return [*_rows_of(ends, RARE_LOSS), mean_row("lead of DP-AdamBC in that loss", lead, **claim)]


def _less_noise(ends: Ends) -> list[Row]:
    gd, adam, adambc = (ends[name, RARE_LOSS] for name in ("gd", "adam", "adambc"))
    claim = {"claim": "less than DP-GD is behind DP-Adam: the difference is < 0", "within": BELOW_ZERO}
    return [
        *_rows_of(ends, RARE_LOSS),
        *_rows_of(ends, RARE_ACCURACY),
        mean_row("DP-Adam behind DP-AdamBC in that loss", adam - adambc),
        mean_row("that, less DP-GD behind DP-Adam", adam - adambc - (gd - adam), **claim),
    ]


# --------------------------------------------------------------------------------------------- the small instance

GROUPS, LARGEST, SMALL_SEEDS = 5, 128, (0, 1, 2)
LAST = GROUPS - 1
FIRST = "C = 1, σ = 1.25"
# The paper's C = 1 and σ = 10, C = 10, and σ = 5 at the same ε, with σ by the size of the class.
SETTINGS = {
    name: Setting(clip, sigma, steps, STABILITY, GROUPS, LARGEST, record_every=5)
    for name, clip, sigma, steps in (
        (FIRST, 1.0, 1.25, 100),
        ("C = 10, σ = 1.25", 10.0, 1.25, 100),
        ("C = 1, σ = 0.625", 1.0, 0.625, 25),
    )
}
RANGES = {"gd": (0.5, 10.0), "gdm": (0.1, 5.0), "adam": (5e-3, 1e-1), "adambc": (5e-3, 1e-1)}
FLOORS = (0.01, 0.05, 0.1, 0.5, 1.0)  # γ' in units of the noise's variance s²
STEPS, TUNED_ON = tuple(2.0 ** (k / 2) for k in range(13)), 1000
# Effective steps (`heavy_tail.Trial.effective_step`), and the seed that they are tuned on.


def small(scale: Scale, folder: Path) -> Found:
    pieces = Pieces(folder, "heavy-tail-small", scale)
    runs = {name: tuned(pieces, of.train, _grids(of.clip), SMALL_SEEDS, f"{name}, ") for name, of in SETTINGS.items()}
    main, *others = runs.items()
    sweep, fine = _floors(pieces), _on_one_grid(pieces)

    def draw(axes: np.ndarray) -> None:
        top, bottom = np.split(axes, 2)
        draw_groups(top, main[1], "loss", {group: f"classes of {LARGEST >> group}" for group in (0, LAST)})
        for ax, (name, found) in zip(bottom, others, strict=False):
            draw_groups([ax], found, "loss", {LAST: f"{name}: classes of {LARGEST >> LAST}"}, whole=False)
        _draw_floors(bottom[-1], sweep)

    return Found(
        [row for name, found in runs.items() for row in _rows(name, found)]
        + _rows(f"{FIRST}, one grid of effective steps", fine, "> 0, as on the half-power grids of full size")
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
        seeds=len(SMALL_SEEDS),
        pictures=[picture(folder / "heavy-tail-small.png", draw, panels=3, rows=2)],
        earlier_seconds=pieces.earlier_seconds,
    )


def _grids(clip: float) -> dict[str, list[float]]:
    # Nearly all samples are clipped, so that C times as large takes rates C times as small where nothing normalises.
    return {
        name: half_power_grid(low / clip, high / clip) if name in ("gd", "gdm") else half_power_grid(low, high)
        for name, (low, high) in RANGES.items()
    }


def _on_one_grid(pieces: Pieces) -> dict[str, Tuned]:
    of = SETTINGS[FIRST]
    rates = {name: [float(f"{h / of.trial(name, 1.0).effective_step:.6g}") for h in STEPS] for name in RANGES}
    train = replace(of, record_every=of.steps).train
    return tuned(pieces, train, rates, SMALL_SEEDS, "one grid, ", TUNED_ON)


def _floors(pieces: Pieces) -> dict[float, Tuned]:
    """DP-AdamBC at its best rate for every γ'."""
    of, grid = SETTINGS[FIRST], {"adambc": _grids(1.0)["adambc"]}
    trains: dict[float, Train] = {floor: replace(of, stability={"adambc": floor}).train for floor in FLOORS}
    return {
        floor: tuned(pieces, train, grid, SMALL_SEEDS, f"γ' = {floor:g}, ")["adambc"] for floor, train in trains.items()
    }


def _rows(name: str, runs: Mapping[str, Tuned], claim: str = "> 0, as at full size") -> list[Row]:
    losses = {optimizer: found.ends("group_loss", LAST) for optimizer, found in runs.items()}
    rows = [
        mean_row(
            f"{name}, {LABELS[optimizer]} (η = {runs[optimizer].rate:g}): loss, classes of {LARGEST >> LAST}",
            loss,
            unit="nats",
        )
        for optimizer, loss in losses.items()
    ]
    best = min(OTHERS, key=lambda other: float(losses[other].mean()))
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


def _draw_floors(ax: Any, sweep: Mapping[float, Tuned]) -> None:
    style = STYLES["DP-AdamBC"]["color"]
    for name, group, mark, label in (
        ("loss", None, "o-", "all samples"),
        ("group_loss", LAST, "s--", f"classes of {LARGEST >> LAST}"),
    ):
        values = [found.last(name, group) for found in sweep.values()]
        ax.plot(list(sweep), values, mark, color=style, markersize=4, label=label)
    ax.set(xscale="log", xlabel="γ' over the noise's variance s²", title=f"DP-AdamBC by γ', {FIRST}")
    ax.legend(frameon=False)


# ----------------------------------------------------------------------------------------------- cosines, Figure 1

COSINE_STEPS = (0, 30, 100)


def cosines(scale: Scale, folder: Path) -> Found:
    """Cosines of per-sample gradients within and across classes, while the model trains by DP-AdamBC."""
    from paper_figures.heavy_tail import gradient_cosines, heavy_tail_data

    data = heavy_tail_data(GROUPS, LARGEST, seed=0)
    maps = [gradient_cosines(weight, data.inputs, data.labels) for weight in _weights()]
    means = [_of_classes(cosines.numpy(), data.labels.numpy()) for cosines in maps]

    def draw(axes: np.ndarray) -> None:
        for ax, steps, cosines in zip(axes, COSINE_STEPS, maps, strict=True):
            _draw_map(ax, cosines.numpy(), data.labels.numpy())
            ax.set(title=f"after {steps} steps", xlabel="sample, by class", ylabel="sample, by class")

    rows = []
    for steps, (within, across) in zip(COSINE_STEPS, means, strict=True):
        rows.append(mean_row(f"mean cosine within a class, over classes, {steps} steps", within))
        rows.append(mean_row(f"mean cosine with samples of others, over classes, {steps} steps", across))
        label = f"within less across, paired by class, {steps} steps"
        rows.append(mean_row(label, within - across, claim="> 0", within=ABOVE_ZERO))
    return Found(
        rows,
        differs="A smaller instance, all of its samples instead of 520.",
        model="linear",
        data=f"generated, {len(data.labels)} samples in {2**GROUPS - 1} classes",
        pictures=[picture(folder / "heavy-tail-cosines.png", draw, panels=len(COSINE_STEPS))],
    )


def _draw_map(ax: Any, cosines: np.ndarray, labels: np.ndarray) -> None:
    # Lines separate classes of at least 2 % of the samples.
    image = ax.imshow(cosines, cmap="PuOr", vmin=-1.0, vmax=1.0, interpolation="nearest")
    edges = np.concatenate([[0], np.flatnonzero(labels[1:] != labels[:-1]) + 1, [len(labels)]])
    for at in range(1, len(edges) - 1):
        if min(edges[at] - edges[at - 1], edges[at + 1] - edges[at]) >= 0.02 * len(labels):
            ax.axhline(edges[at] - 0.5, color="0.3", linewidth=0.5)
            ax.axvline(edges[at] - 0.5, color="0.3", linewidth=0.5)
    ax.figure.colorbar(image, ax=ax, label="cosine of per-sample gradients", shrink=0.85)


def _of_classes(cosines: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of each class: between its samples, and of its samples with all others."""
    pairs = ~np.eye(len(labels), dtype=bool)
    found = [
        (cosines[of][:, of][pairs[of][:, of]].mean(), cosines[of][:, ~of].mean())
        for of in (labels == label for label in np.unique(labels))
    ]
    within, across = np.array(found).T
    return within, across


def _weights() -> Iterator[Any]:
    from dprmt.training.harness import load_parameters
    from paper_figures.heavy_tail import run_trial

    trial = SETTINGS[FIRST].trial("adambc", 0.01)
    with tempfile.TemporaryDirectory() as scratch:
        for steps in COSINE_STEPS:
            run_trial(trial, Path(scratch, "run"), steps, device="cpu")
            yield load_parameters(Path(scratch, "run"))["weight"]


TITLES = {
    "heavy-tail": "Heavy-tailed classes, C = 1, σ = 10",
    "heavy-tail-c10": "Heavy-tailed classes, C = 10, σ = 10",
    "heavy-tail-sigma5": "Heavy-tailed classes, C = 1, σ = 5",
}
ITEMS = (
    *(Item(name, title, partial(full_size, name), scales=("paper",)) for name, title in TITLES.items()),
    Item("heavy-tail-small", "Heavy-tailed classes, a small instance, and γ'", small),
    Item("heavy-tail-cosines", "Cosines of per-sample gradients", cosines),
)
