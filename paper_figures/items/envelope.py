"""The envelope of chi-square mixtures against the rank, its three segments, and a printed value of 2003."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from dprmt.accounting import chi2_mixture_cdf, envelope_cdf
from paper_figures._picture import picture
from paper_figures._published import published
from paper_figures._reproduction import Found, Item, Row, Scale

PAPER = published("envelope")
PROBES, RANKS, SPECTRA = 4, (2, 3, 8, 64), 400
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73")


def measure(scale: Scale, folder: Path) -> Found:
    x = np.linspace(0.2, 1.8, 161)
    curves = {rank: envelope_cdf(x, PROBES, rank) for rank in RANKS}
    excess = max(_excess(rank) for rank in (2, 3))
    printed = PAPER.rows[0]

    def draw(axes: np.ndarray) -> None:
        for (rank, values), color in zip(curves.items(), COLORS, strict=True):
            axes[0].plot(x, values, color=color, label=f"rank {rank}")
        axes[0].plot(
            x, chi2_mixture_cdf(x, [1 / PROBES], [float(PROBES)]), ":", color="0.4", label="one spectral value"
        )
        axes[0].set(xlabel="norm ratio x", ylabel=f"largest P(X ≤ x), {PROBES} probes")
        axes[0].legend(frameon=False)
        near = np.linspace(1.0, 1.0 + 1.2 / PROBES, 121)
        for rank, color in zip(RANKS, COLORS, strict=True):
            one, equal = (chi2_mixture_cdf(near, [1 / (n * PROBES)], [float(n * PROBES)]) for n in (1, rank))
            axes[1].plot(near, envelope_cdf(near, PROBES, rank) - np.maximum(one, equal), color=color)
        axes[1].set(xlabel="norm ratio x", ylabel="envelope above both one and equal values")
        axes[1].set_title("the middle segment")

    return Found(
        [
            Row(printed["quantity"], _smaller_weight(1.5), printed["value"], tolerance=0.01),
            Row(
                f"largest P(X ≤ x) of {SPECTRA} random spectra above the envelope, ranks 2 and 3",
                excess,
                claim="never above",
                holds=excess <= 0,
            ),
        ],
        differs="Direct maximisation over the weights; the printed digits of 2003 are .15, the maximum is elsewhere.",
        pictures=[picture(folder / "envelope.png", draw, panels=2)],
    )


def _smaller_weight(x: float) -> float:
    # argmax over w of P(w Z₁² + (1-w) Z₂² <= x)
    found = minimize_scalar(
        lambda small: -float(chi2_mixture_cdf(x, [small, 1 - small], [1.0, 1.0])),
        bounds=(0.0, 0.5),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(found.x)


def _excess(rank: int) -> float:
    x = np.linspace(0.7, 1.6, 10)
    envelope = envelope_cdf(x, PROBES, rank)
    spectra = np.random.default_rng(rank).dirichlet(np.full(rank, 0.7), size=SPECTRA)
    attained = [chi2_mixture_cdf(x, spectrum / PROBES, np.full(rank, float(PROBES))) for spectrum in spectra]
    return float(np.max(np.array(attained) - envelope))


ITEM = Item("envelope", "Envelope of chi-square mixtures", measure, scales=("paper",))
