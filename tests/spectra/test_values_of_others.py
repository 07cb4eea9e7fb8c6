"""Values that other packages and papers give, each with its source."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from dprmt import spectra
from dprmt.spectra import MarchenkoPastur, detection_threshold, estimate_sigma, hard_threshold, screenot_threshold
from dprmt.spectra._tracy_widom import tracy_widom_tail

Point = tuple[Any, float]


class Source(NamedTuple):
    """Where values come from, what computes them here from a point, how near, and points with their values."""

    name: str
    computed: Callable[[Any], float]
    relative: float
    points: Iterable[Point]


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


def estimated(at: Any) -> float:
    return float(estimate_sigma(noise(*at)))


F1 = (0.0258941469930181, 0.06960011886736989, 0.1513777291781468, 0.2743201979092179, 0.4262258019375784)
F1 += (0.5837898955197323, 0.7236910515483814, 0.9059711835032338, 0.9514212369115508, 0.9767136486166604)
F1 += (0.989597571084827, 0.9956520227045179, 0.9982934803498806)
OPTHT = (1.5816483953196852, 1.7580293771397153, 1.9785990537531035, 2.1560938441793995, 2.309401076758503)
LAW = {(1, 3, 1.0): (0.5617834830728398, 0.5278572297661831), (1, 4, 1.5): (0.808772871964914, 0.4109362960409999)}
LAW |= {(3, 4, 2.5): (0.9190703365251801, 0.13252297347254632)}
UNEVEN = [(0, (80, 80), 5, 25.18201957659837), (1, (60, 240), 12, 34.917572882185226)]
UNEVEN += [(2, (240, 60), 3, 34.146267687677366)]
EVEN = [(300, (100, 200), 10, 28.281813827172822), (600, (300, 300), 20, 40.22200886251328)]
EVEN += [(450, (50, 400), 5, 32.29955726930569)]
SOURCES = [
    Source(
        "Prähofer & Spohn's table of F₁, as in the tests of packages for Tracy–Widom laws",
        lambda x: 1 - tracy_widom_tail(x),
        1e-10,
        zip([-3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0], F1, strict=True),
    ),
    Source(
        "Bornemann (2010), arXiv:0904.1581; tests of RandomMatrices.jl",
        lambda x: 1 - tracy_widom_tail(x),
        1e-13,
        [(0, 0.83190806620295)],
    ),
    Source(
        "optht 0.2.0, known noise",
        lambda m: hard_threshold((m, 100), 0.1),
        1e-12,
        zip([10, 25, 50, 75, 100], OPTHT, strict=True),
    ),
    Source("Gavish & Donoho (2014), abstract, unknown noise", lambda n: hard_threshold((n, n)), 2e-4, [(100, 2.858)]),
    Source(
        "Gavish & Donoho (2017), square matrices, y = 3",
        lambda loss: spectra.shrink(3.0, (1, 1), 1.0, loss=loss),
        1e-12,
        [("frobenius", math.sqrt(5)), ("operator", (3 + math.sqrt(5)) / 2), ("nuclear", 1.8541019662496845)],
    ),
    Source(
        "scikit-rmt 2.1.1, MarchenkoPasturDistribution.cdf",
        lambda at: eigenvalue_law(*at, density=False),
        1e-12,
        [
            *((at, cdf) for at, (cdf, _) in LAW.items()),
            *(((1, 3, 2.0), 0.9297245381550712), ((1, 2, 0.5), 0.3183098861837907), ((1, 1, 1.0), 0.6089977810442293)),
        ],
    ),
    Source(
        "scikit-rmt 2.1.1, MarchenkoPasturDistribution.pdf",
        lambda at: eigenvalue_law(*at, density=True),
        1e-12,
        [(at, pdf) for at, (_, pdf) in LAW.items()],
    ),
    Source(
        "weightwatcher 0.7.7, calc_lambda_minus and _plus(4, 0.5)",
        lambda end: MarchenkoPastur((100, 400), 0.5 / 20).support[end] ** 2,
        1e-12,
        [(0, 0.0625), (1, 0.5625)],
    ),
    Source(
        "weightwatcher 0.7.7, spike_min(Q)",
        lambda q: detection_threshold((100, 100 * q), 1 / (10 * math.sqrt(q))),
        1e-12,
        [(4, 0.7071067811865476)],
    ),
    Source(
        "weightwatcher 0.7.7, spike_lmax(S, 4)",
        lambda s: float(spectra.spike_map(s, (100, 400), 1 / 20)) ** 2,
        1e-12,
        [(1.0, 2.5), (2.0, 5.3125), (4.0, 17.265625)],
    ),
    Source(
        "weightwatcher 0.7.7, stable_rank(evals)",
        lambda values: spectra.noisy_spectrum(np.diag(values), 1.0).stable_rank,
        1e-12,
        [([2.0, 1.0, 1.0], 1.5)],
    ),
    *(
        Source("dipy 1.12.1, MP-PCA; another count of the rest", estimated, relative, [point])
        for relative, point in (
            (1e-12, ((0, (64, 256)), 0.9961383094362402)),
            (3e-4, ((1, (50, 50)), 0.9809669072703519)),
            (2e-2, ((2, (64, 256), (60.0, 40.0, 30.0)), 0.9826810187053794)),
            (4e-3, ((3, (100, 300), (90.0, 60.0)), 0.9898379283034531)),
        )
    ),
    Source(
        "screenot 0.0.2, whose search ends within 1e-5",
        lambda at: screenot(noise(*at[0]), at[1]),
        1e-6,
        [
            *((((seed, shape, (80.0,), 0.3), rank), found) for seed, shape, rank, found in UNEVEN),
            *((((seed, shape, (60.0,)), rank), found) for seed, shape, rank, found in EVEN),
        ],
    ),
    Source(
        "example of ScreeNOT's R package: a 1000 × 1000 Gaussian matrix, k = 10, known optimum 4/√3",
        lambda size: screenot(noise(0, (size, size)) / math.sqrt(size), 10),
        0.01,
        [(1000, 4 / math.sqrt(3))],
    ),
    Source(
        "Sinkhorn's limit of [[1, 2], [3, 4]] in closed form, with row sums 2: 2/(1 + √(2·3/(1·4)))",
        lambda rounds: float(spectra.whiten(np.sqrt([[1.0, 2.0], [3.0, 4.0]]), rounds=rounds)[0][0, 0] ** 2),
        1e-10,
        [(60, 2 / (1 + math.sqrt(1.5)))],
    ),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_values_of_others(source: Source) -> None:
    for point, expected in source.points:
        assert source.computed(point) == pytest.approx(expected, rel=source.relative), point


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
