"""Values that other packages and papers give, each with its source."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from dprmt.spectra import (
    MarchenkoPastur,
    TracyWidom,
    bulk_edge,
    detection_threshold,
    estimate_sigma,
    hard_threshold,
    noisy_spectrum,
    screenot_threshold,
    shrink,
    spike_map,
    whiten,
)

Row = tuple[str, Callable[[], float], float, float]


def noise(seed: int, shape: tuple[int, int], spikes: Sequence[float] = (), uneven: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal(shape)
    matrix *= np.exp(uneven * rng.standard_normal((shape[0], 1))) if uneven else 1.0
    matrix[range(len(spikes)), range(len(spikes))] += spikes
    return matrix


def eigenvalue_law(columns: int, rows: int, eigenvalue: float, *, density: bool) -> float:
    """Of WᵀW/rows for W of shape (rows, columns), as statistics packages have it."""
    law, value = MarchenkoPastur((columns, rows), 1 / math.sqrt(rows)), math.sqrt(eigenvalue)
    return float(law.pdf(value)) / (2 * value) if density else float(law.cdf(value))


def screenot(matrix: np.ndarray, rank: int) -> float:
    return screenot_threshold(np.linalg.svdvals(matrix), matrix.shape, rank)


TABLE = "Prähofer & Spohn's table of F₁, as in the tests of packages for Tracy–Widom laws"
ROWS: list[Row] = [
    *(
        (TABLE, lambda x=x: TracyWidom().cdf(x), expected, 1e-10)
        for x, expected in (
            (-3.5, 0.0258941469930181),
            (-3.0, 0.06960011886736989),
            (-2.5, 0.1513777291781468),
            (-2.0, 0.2743201979092179),
            (-1.5, 0.4262258019375784),
            (-1.0, 0.5837898955197323),
            (-0.5, 0.7236910515483814),
            (0.5, 0.9059711835032338),
            (1.0, 0.9514212369115508),
            (1.5, 0.9767136486166604),
            (2.0, 0.989597571084827),
            (2.5, 0.9956520227045179),
            (3.0, 0.9982934803498806),
        )
    ),
    (
        "Bornemann (2010), arXiv:0904.1581; tests of RandomMatrices.jl",
        lambda: TracyWidom().cdf(0),
        0.83190806620295,
        1e-13,
    ),
    *(
        ("optht 0.2.0, known noise", lambda m=m: hard_threshold((m, 100), 0.1), expected, 1e-12)
        for m, expected in (
            (10, 1.5816483953196852),
            (25, 1.7580293771397153),
            (50, 1.9785990537531035),
            (75, 2.1560938441793995),
            (100, 2.309401076758503),
        )
    ),
    ("Gavish & Donoho (2014), abstract, unknown noise", lambda: hard_threshold((100, 100)), 2.858, 2e-4),
    *(
        (
            "Gavish & Donoho (2017), square matrices, y = 3",
            lambda loss=loss: shrink(3.0, (1, 1), 1.0, loss=loss),
            expected,
            1e-12,
        )
        for loss, expected in (
            ("frobenius", math.sqrt(5)),
            ("operator", (3 + math.sqrt(5)) / 2),
            ("nuclear", 1.8541019662496845),
        )
    ),
    *(
        (
            "scikit-rmt 2.1.1, MarchenkoPasturDistribution.cdf",
            lambda at=at: eigenvalue_law(*at, density=False),
            expected,
            1e-12,
        )
        for at, expected in (
            ((1, 3, 1.0), 0.5617834830728398),
            ((1, 3, 2.0), 0.9297245381550712),
            ((1, 2, 0.5), 0.3183098861837907),
            ((1, 4, 1.5), 0.808772871964914),
            ((3, 4, 2.5), 0.9190703365251801),
            ((1, 1, 1.0), 0.6089977810442293),
        )
    ),
    *(
        (
            "scikit-rmt 2.1.1, MarchenkoPasturDistribution.pdf",
            lambda at=at: eigenvalue_law(*at, density=True),
            expected,
            1e-12,
        )
        for at, expected in (
            ((1, 3, 1.0), 0.5278572297661831),
            ((1, 4, 1.5), 0.4109362960409999),
            ((3, 4, 2.5), 0.13252297347254632),
        )
    ),
    ("weightwatcher 0.7.7, calc_lambda_plus(4, 0.5)", lambda: bulk_edge((100, 400), 0.5 / 20) ** 2, 0.5625, 1e-12),
    (
        "weightwatcher 0.7.7, calc_lambda_minus(4, 0.5)",
        lambda: MarchenkoPastur((100, 400), 0.5 / 20).support[0] ** 2,
        0.0625,
        1e-12,
    ),
    ("weightwatcher 0.7.7, spike_min(4)", lambda: detection_threshold((100, 400), 1 / 20), 0.7071067811865476, 1e-12),
    *(
        (
            "weightwatcher 0.7.7, spike_lmax(S, 4)",
            lambda s=s: float(spike_map(s, (100, 400), 1 / 20)) ** 2,
            expected,
            1e-12,
        )
        for s, expected in ((1.0, 2.5), (2.0, 5.3125), (4.0, 17.265625))
    ),
    (
        "weightwatcher 0.7.7, stable_rank(evals)",
        lambda: noisy_spectrum(np.diag([2.0, 1.0, 1.0]), 1.0).stable_rank,
        1.5,
        1e-12,
    ),
    *(
        (
            "dipy 1.12.1, MP-PCA; another count of the rest",
            lambda at=at: float(estimate_sigma(noise(*at))),
            expected,
            rel,
        )
        for at, expected, rel in (
            ((0, (64, 256)), 0.9961383094362402, 1e-12),
            ((1, (50, 50)), 0.9809669072703519, 3e-4),
            ((2, (64, 256), (60.0, 40.0, 30.0)), 0.9826810187053794, 2e-2),
            ((3, (100, 300), (90.0, 60.0)), 0.9898379283034531, 4e-3),
        )
    ),
    *(
        ("screenot 0.0.2, whose search ends within 1e-5", lambda at=at, k=k: screenot(noise(*at), k), expected, 1e-6)
        for at, k, expected in (
            ((0, (80, 80), (80.0,), 0.3), 5, 25.18201957659837),
            ((1, (60, 240), (80.0,), 0.3), 12, 34.917572882185226),
            ((2, (240, 60), (80.0,), 0.3), 3, 34.146267687677366),
            ((300, (100, 200), (60.0,)), 10, 28.281813827172822),
            ((600, (300, 300), (60.0,)), 20, 40.22200886251328),
            ((450, (50, 400), (60.0,)), 5, 32.29955726930569),
        )
    ),
    (
        "example of ScreeNOT's R package: a 1000 × 1000 Gaussian matrix, k = 10, known optimum 4/√3",
        lambda: screenot(noise(0, (1000, 1000)) / math.sqrt(1000), 10),
        4 / math.sqrt(3),
        0.01,
    ),
    (
        "Sinkhorn's limit of [[1, 2], [3, 4]] in closed form, with row sums 2: 2/(1 + √(2·3/(1·4)))",
        lambda: float(whiten(np.sqrt([[1.0, 2.0], [3.0, 4.0]]), rounds=60)[0][0, 0] ** 2),
        2 / (1 + math.sqrt(1.5)),
        1e-10,
    ),
]


@pytest.mark.parametrize(("source", "computed", "expected", "relative"), ROWS, ids=[row[0] for row in ROWS])
def test_values_of_others(source: str, computed: Callable[[], float], expected: float, relative: float) -> None:
    assert computed() == pytest.approx(expected, rel=relative), source


@pytest.mark.parametrize(("correlation", "threshold", "rank"), [(0.0, 2.3696, 7), (0.6, 3.0754, 5)])
def test_the_published_example_of_screenot(correlation: float, threshold: float, rank: int) -> None:
    """Its notebook: 500 × 500, clean values 0.5, 1, …, 5, k = 20; white noise and AR(1). Its draws have no seed."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((500, 10)))[0] for _ in range(2))
    noise = rng.standard_normal((500, 500))
    for j in range(1, 500):
        noise[:, j] = correlation * noise[:, j - 1] + math.sqrt(1 - correlation**2) * noise[:, j]
    values = np.linalg.svdvals((left * np.arange(0.5, 5.5, 0.5)) @ right.T + noise / math.sqrt(500))
    found = screenot_threshold(values, (500, 500), 20)
    assert found == pytest.approx(threshold, rel=0.03)
    assert abs(int((values > found).sum()) - rank) <= 1  # a value lies next to the threshold
