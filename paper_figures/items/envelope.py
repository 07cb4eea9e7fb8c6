"""The envelope of chi-square mixtures: against x and against the rank d, with its three segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dprmt.accounting import chi2_mixture_cdf, envelope_cdf
from paper_figures._measured import exact_row
from paper_figures._picture import LINES, picture
from paper_figures._reproduction import Found, Item, Scale

PROBES, RANKS, SPECTRA = 4, (2, 3, 8, 64), 400
ALL_RANKS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
RATIOS = (0.9, 1.02, 1.05, 1.1, 1.3)
SEGMENTS = {"one value": "o", "between": "^", "all equal": "s"}


def measure(scale: Scale, folder: Path) -> Found:
    excess = max(_excess(rank) for rank in (2, 3))
    by_rank = {x: [float(envelope_cdf(x, PROBES, rank)) for rank in ALL_RANKS] for x in RATIOS}
    seen = {(x, rank): _segment(x, rank) for x in RATIOS for rank in ALL_RANKS}

    def draw(axes: np.ndarray) -> None:
        _against_ratio(axes[0])
        _middle(axes[1])
        _against_rank(axes[2], by_rank, seen)

    rises = sum(bool(np.all(np.diff(values) >= -1e-12)) for values in by_rank.values())
    shown = sorted(set(seen.values()))
    return Found(
        [
            exact_row(
                f"largest P(X ≤ x) of {SPECTRA} random spectra above the envelope, ranks 2 and 3",
                excess,
                claim="never above",
                within=(-1.0, 0.0),
            ),
            exact_row("segments met on the grid of x and d", len(shown), claim="three", within=(3, 3)),
            exact_row("curves against d that never fall", rises, claim=f"all {len(RATIOS)}", within=(len(RATIOS),) * 2),
        ],
        differs=f"{PROBES} probes; the notes have the three segments and no picture.",
        pictures=[picture(folder / "envelope.png", draw, panels=3)],
    )


def _extremes(x: Any, rank: int) -> tuple[np.ndarray, np.ndarray]:
    # P(X ≤ x) of one spectral value, and of d equal ones.
    one, equal = (np.asarray(chi2_mixture_cdf(x, [1 / (n * PROBES)], [float(n * PROBES)])) for n in (1, rank))
    return one, equal


def _segment(x: float, rank: int) -> str:
    one, equal = _extremes(x, rank)
    top = float(envelope_cdf(x, PROBES, rank))
    if top > max(float(one), float(equal)) + 1e-6:
        return "between"
    return "one value" if one > equal else "all equal"


def _against_ratio(ax: Any) -> None:
    x = np.linspace(0.2, 1.8, 161)
    for rank, look in zip(RANKS, LINES, strict=False):
        ax.plot(x, envelope_cdf(x, PROBES, rank), label=f"d = {rank}", **look)
    ax.plot(x, _extremes(x, 2)[0], ":", color="0.4", label="one spectral value")
    ax.set(xlabel="squared-norm ratio x", ylabel=f"largest P(X ≤ x), {PROBES} probes")
    ax.legend(frameon=False)


def _middle(ax: Any) -> None:
    near = np.linspace(1.0, 1.0 + 1.2 / PROBES, 121)
    for rank, look in zip(RANKS, LINES, strict=False):
        ax.plot(
            near, envelope_cdf(near, PROBES, rank) - np.maximum(*_extremes(near, rank)), label=f"d = {rank}", **look
        )
    ax.set(
        xlabel="squared-norm ratio x", ylabel="envelope above one and above equal values", title="the middle segment"
    )
    ax.yaxis.label.set_size(9)


def _against_rank(ax: Any, by_rank: dict[float, list[float]], seen: dict[tuple[float, int], str]) -> None:
    for (x, values), look in zip(by_rank.items(), LINES, strict=False):
        ax.plot(ALL_RANKS, values, label=f"x = {x:g}", **look)
        for rank, value in zip(ALL_RANKS, values, strict=True):
            ax.plot(rank, value, SEGMENTS[seen[x, rank]], color=look["color"], markersize=4)
    for name, marker in SEGMENTS.items():
        ax.plot([], [], marker, color="0.5", label=name)
    ax.set_xscale("log", base=2)
    ax.set_xticks((2, 8, 32, 128), ("2", "8", "32", "128"))
    ax.set(xlabel="rank d", ylabel="largest P(X ≤ x)", title="which spectrum is worst", ylim=(0.5, 1.25))
    ax.legend(frameon=False, fontsize=7, ncol=2)


def _excess(rank: int) -> float:
    x = np.linspace(0.7, 1.6, 10)
    envelope = envelope_cdf(x, PROBES, rank)
    spectra = np.random.default_rng(rank).dirichlet(np.full(rank, 0.7), size=SPECTRA)
    attained = [chi2_mixture_cdf(x, spectrum / PROBES, np.full(rank, float(PROBES))) for spectrum in spectra]
    return float(np.max(np.array(attained) - envelope))


ITEM = Item("envelope", "Envelope of chi-square mixtures", measure, scales=("paper",))
