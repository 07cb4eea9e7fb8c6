"""What the runs amount to: regret against the best fixed rate on the same batches and noise, by rule and by problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from dprmt.report import Table
from paper_figures.automatic_rate._cells import CELLS, NOTHING, SHORT, Cell
from paper_figures.automatic_rate._runs import SEEDS, TUNING_SEED, piece

Values = Mapping[str, Mapping[str, Any]]
WORST = 100.0
"""Per cent: a run that ends no better than it began, or diverges, counts so much."""
RULES = {
    "retroactive": "retroactive, three starts",
    "first form": "its first form",
    "linear": "best linearly decayed rate",
    "one rate": "one fixed rate an optimizer",
    "hypergradient": "hypergradient",
    "hypergradient, noise-corrected": "hypergradient, noise-corrected",
    "DoG": "DoG",
    "Prodigy": "Prodigy",
}
LEAST_GAIN = 0.05
LEAST_Z = 0.3
"""Mean z of the second half below which a run says that there is too little signal to set a rate."""


def seeds_of(values: Values, cell: Cell) -> list[int]:
    """Seeds that are stored."""
    return [seed for seed in SEEDS if piece(cell, seed) in values]


def regrets(values: Values, cell: Cell, rule: str) -> list[float]:
    """Of every seed and every start, in per cent of what the best fixed rate gains; at most `WORST`."""
    found = []
    for seed in seeds_of(values, cell):
        run = values[piece(cell, seed)]
        best = run["fixed"]["objective"][best_place(values, cell)]
        found += [_regret(run, end, best) for end in _ends(values, cell, run, rule)]
    return found


def best_place(values: Values, cell: Cell, lanes: str = "fixed") -> int:
    """Place in the grid of the rate with the lowest mean objective over the seeds."""
    runs = [values[piece(cell, seed)][lanes]["objective"] for seed in seeds_of(values, cell)]
    means = [fmean(_number(end) for end in ends) for ends in zip(*runs, strict=True)]
    return means.index(min(means))


def common_rate(values: Values, optimizer: str) -> int:
    """Place in the grid of the rate with the lowest mean regret over all problems, on a seed that is not reported.

    Problems in which no rate gains `LEAST_GAIN` there have no regret.
    """
    rows = []
    for cell in CELLS:
        if cell.optimizer == optimizer and (name := piece(cell, TUNING_SEED)) in values:
            run, ends = values[name], values[name]["fixed"]["objective"]
            best = min(map(_number, ends))
            if best <= (1 - LEAST_GAIN) * run["start"]["objective"]:
                rows.append([_regret(run, end, best) for end in ends])
    means = [fmean(column) for column in zip(*rows, strict=True)]
    return means.index(min(means))


def _ends(values: Values, cell: Cell, run: Mapping[str, Any], rule: str) -> Sequence[float | None]:
    if rule == "linear":
        return [run["linear"]["objective"][best_place(values, cell, "linear")]]
    if rule == "one rate":
        return [run["fixed"]["objective"][common_rate(values, cell.optimizer)]]
    ends: Sequence[float | None] = run[rule]["objective"]
    return ends


def _regret(run: Mapping[str, Any], end: float | None, best: float) -> float:
    first = run["start"]["objective"]
    return min(WORST, 100 * (_number(end) - best) / (first - best))


def _number(end: float | None) -> float:
    return math.inf if end is None else end


def gain(values: Values, cell: Cell) -> float:
    """Share of the objective at the start that the best fixed rate takes away, mean over the seeds."""
    place, runs = best_place(values, cell), [values[piece(cell, seed)] for seed in seeds_of(values, cell)]
    return fmean(1 - _number(run["fixed"]["objective"][place]) / run["start"]["objective"] for run in runs)


def learnable(values: Values, cells: Iterable[Cell]) -> list[Cell]:
    """Stored problems in which some fixed rate gains `LEAST_GAIN`; regret means nothing in the others."""
    return [cell for cell in cells if seeds_of(values, cell) and gain(values, cell) >= LEAST_GAIN]


def summary(values: Values, cells: Iterable[Cell] = CELLS) -> Table:
    """Every rule over all problems: mean regret, and runs within two and five per cent."""
    rows = []
    for rule, label in RULES.items():
        found = [regret for cell in learnable(values, cells) for regret in regrets(values, cell, rule)]
        rows.append([label, str(len(found)), *_spread(found)])
    header = ["rule", "runs", "mean regret, %", "mean, gains as 0", "within 2 %", "within 5 %", "worst"]
    return Table("Regret in the objective at the end.", header, rows)


def _spread(found: Sequence[float]) -> list[str]:
    within = [f"{100 * sum(r <= most for r in found) / len(found):.0f} %" for most in (2, 5)]
    gains = fmean(max(r, 0.0) for r in found)
    return [f"{fmean(found):.1f}", f"{gains:.1f}", *within, f"{max(found):.1f}"]


def by_problem(values: Values, cells: Iterable[Cell] = CELLS) -> Table:
    """Every problem: the best fixed rate, and mean regrets."""
    rows = []
    for cell in learnable(values, cells):
        rate = values[piece(cell, seeds_of(values, cell)[0])]["fixed"]["rates"][best_place(values, cell)]
        ours = regrets(values, cell, "retroactive")
        row = [cell.task, cell.optimizer, f"{cell.noise_multiplier:g}", str(len(seeds_of(values, cell))), f"{rate:.2g}"]
        row += [f"{fmean(ours):.1f}", f"{max(ours):.1f}", _accuracy(values, cell)]
        row += [f"{fmean(regrets(values, cell, rule)):.1f}" for rule in list(RULES)[1:]]
        rows.append(row)
    header = ["problem", "optimizer", "σ", "seeds", "best rate", "retroactive, mean", "worst", "accuracy, points"]
    return Table("Regrets in per cent.", header + list(RULES.values())[1:], rows)


def _accuracy(values: Values, cell: Cell) -> str:
    found = _accuracies(values, cell)
    if found is None:
        return "–"
    return f"{found[0]:+.1f}" + (f" ± {found[1]:.1f}" if math.isfinite(found[1]) else ", one seed")


def _accuracies(values: Values, cell: Cell) -> tuple[float, float] | None:
    # Mean difference to the best fixed rate on the same seed, over the starts, with the standard error over seeds.
    if "accuracy" not in _any(values, cell)["fixed"]:
        return None
    found, place = [], best_place(values, cell)
    for seed in seeds_of(values, cell):
        run = values[piece(cell, seed)]
        found.append(100 * (fmean(run["retroactive"]["accuracy"]) - run["fixed"]["accuracy"][place]))
    return fmean(found), stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan


def _behind(values: Values, cell: Cell) -> bool:
    found = _accuracies(values, cell)
    return found is not None and found[0] < -2 * found[1]


def _any(values: Values, cell: Cell) -> Mapping[str, Any]:
    return values[piece(cell, seeds_of(values, cell)[0])]


def warned(values: Values, cells: Iterable[Cell]) -> list[tuple[bool, float]]:
    """Of every run of the retroactive rule: whether it says that there is too little signal, and its regret."""
    found = []
    for cell in cells:
        says = [z < LEAST_Z for seed in seeds_of(values, cell) for z in _zs(values, cell, seed)]
        found += list(zip(says, regrets(values, cell, "retroactive"), strict=True))
    return found


def warnings(values: Values) -> Table:
    """How often the rule says that it does not know, where it fails and where it does not, and on noise alone."""
    rows = []
    for label, cells in (("100 steps", CELLS), ("25 steps", SHORT)):
        runs = warned(values, learnable(values, cells))
        bad = [says for says, regret in runs if regret > 5]
        good = [says for says, regret in runs if regret <= 5]
        rows.append([label, f"{sum(bad)} of {len(bad)}", f"{sum(good)} of {len(good)}"])
    hopeless = [cell for cell in CELLS if seeds_of(values, cell) and cell not in learnable(values, CELLS)]
    for label, silent in (("no rate gains 5 %", hopeless), ("noise alone", list(NOTHING))):
        zs = [z for cell in silent for seed in seeds_of(values, cell) for z in _zs(values, cell, seed)]
        rows.append([label, f"{sum(z < LEAST_Z for z in zs)} of {len(zs)}", "–"])
    header = ["runs", "it says so, of those that miss 5 %", "of the others"]
    caption = f"Runs whose mean z is below {LEAST_Z} in the second half: too little signal to set a rate."
    return Table(caption, header, rows)


def _zs(values: Values, cell: Cell, seed: int) -> list[float]:
    zs: list[float] = values[piece(cell, seed)]["retroactive"]["z"]
    return zs


def findings(values: Values) -> list[str]:
    """What the goal asks, and what was found: sentences of the page."""
    cells = learnable(values, CELLS)
    runs = [regret for cell in cells for regret in regrets(values, cell, "retroactive")]
    five = 100 * sum(regret <= 5 for regret in runs) / len(runs)
    mean = fmean(runs)
    missed = sorted(((fmean(regrets(values, cell, "retroactive")), cell) for cell in cells), key=lambda pair: -pair[0])
    worst = "; ".join(
        f"{cell.task}, {cell.optimizer}, σ = {cell.noise_multiplier:g}: {m:.1f} %" for m, cell in missed[:5]
    )
    half = {sigma: [c for c in cells if c.noise_multiplier == sigma] for sigma in (0.5, 4.0)}
    by_noise = ", ".join(
        f"{fmean(r for c in some for r in regrets(values, c, 'retroactive')):.1f} % at σ = {sigma:g}"
        for sigma, some in half.items()
    )
    good = sum(m <= 1 for m, _ in missed)
    short = [regret for cell in learnable(values, SHORT) for regret in regrets(values, cell, "retroactive")]
    lost = [says for says, regret in warned(values, cells) if regret > 5]
    rest = [cell for cell in cells if cell.task != "SST-2, LoRA"]
    others = [regret for cell in rest for regret in regrets(values, cell, "retroactive")]
    most = 100 * sum(regret <= 5 for regret in others) / len(others)
    behind = [_behind(values, cell) for cell in cells]
    classified = sum(_accuracies(values, cell) is not None for cell in cells)
    idle = [says for says, regret in warned(values, cells) if regret <= 5]
    return [
        f"The goal was a mean regret of at most 1 %, and 95 % of runs within 5 %. Over {len(runs)} runs of "
        f"{len(cells)} problems the mean is {mean:.1f} %, and {five:.0f} % are within 5 %: "
        + ("it is met." if mean <= 1 and five >= 95 else "it is missed."),
        f"Without SST-2 under LoRA the mean is {fmean(others):.1f} %, and {most:.0f} % are within 5 %.",
        f"{good} of {len(cells)} problems have a mean of at most 1 %; by noise the mean is {by_noise}.",
        f"The largest means: {worst}.",
        f"In accuracy {sum(behind)} of the {classified} classifications are behind "
        "the best fixed rate by more than two standard errors.",
        f"In runs of 25 steps the mean is {fmean(short):.1f} %, and the worst {max(short):.1f} %.",
        f"Of the {len(lost)} runs of 100 steps that miss 5 % the rule says of {sum(lost)} that it does not know, and "
        f"of {sum(idle)} of the {len(idle)} others: z does not tell which runs fail.",
    ]
