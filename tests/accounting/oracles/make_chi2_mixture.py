"""Reference values for weighted sums of chi-squares, written to ``chi2_mixture.json`` beside this script.

Run it by hand (minutes): ``python tests/accounting/oracles/make_chi2_mixture.py``. It uses mpmath only, and
none of its methods shares the contour of the code under test:

- ``gamma``: one weight, mpmath's incomplete gamma function;
- ``convolution``: two weights, ∫ f_1(t) F_2(x - t) dt by tanh-sinh quadrature;
- ``exponentials``: all dof equal 2 and distinct weights, the finite sum of exponentials;
- ``series``: the mixture of gammas with positive coefficients of Ruben (1962), Ann. Math. Stat. 33, 542-570;
- ``fourier``: the half-step Fourier series of Davies (1973), Biometrika 60, 415-417, at 60 digits.

Points are near the quantiles 1e-15, 1e-8, 0.05 and 0.5 of the left, 0.1, 1e-6 and 1e-15 of the right tail.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import mpmath as mp

Mixture = tuple[list[float], list[float]]
Tails = tuple[mp.mpf, mp.mpf]
Method = Callable[[list[float], list[float], mp.mpf], Tails]


def gamma_tails(weight: float, dof: float, x: mp.mpf) -> Tails:
    """P(w χ²(ν) <= x) and its complement."""
    a, z = mp.mpf(dof) / 2, x / (2 * mp.mpf(weight))
    return mp.gammainc(a, 0, z, regularized=True), mp.gammainc(a, z, mp.inf, regularized=True)


def gamma(weights: list[float], dof: list[float], x: mp.mpf) -> Tails:
    """One weight."""
    return gamma_tails(weights[0], dof[0], x)


def convolution(weights: list[float], dof: list[float], x: mp.mpf) -> Tails:
    """Two weights: condition on the first; v = (t/x)^(1/p) removes the singularity of its density at 0."""
    a, scale = mp.mpf(dof[0]) / 2, 2 * mp.mpf(weights[0])
    p = 1 / a if a < 2 else mp.mpf(1)

    def density(v: mp.mpf) -> mp.mpf:
        t = x * v**p
        log_density = (a - 1 / p) * mp.log(t) - t / scale - a * mp.log(scale) - mp.loggamma(a)
        return mp.exp(log_density) * p * x ** (1 / p)

    def inner(v: mp.mpf, tail: int) -> mp.mpf:
        return density(v) * gamma_tails(weights[1], dof[1], x - x * v**p)[tail]

    mean, sd = scale * a, scale * mp.sqrt(a)
    cuts = [(t / x) ** (1 / p) for t in (mean + j * sd for j in (-60, -20, -8, -3, 0, 3, 8, 20, 60)) if t > 0]
    ends = [mp.mpf(0), *[v for v in cuts if v < 1], mp.mpf(1)]
    lower, upper = (mp.quad(lambda v, tail=tail: inner(v, tail), ends) for tail in (0, 1))
    return lower, upper + mp.quad(density, [mp.mpf(1), *[v for v in cuts if v > 1], mp.inf])


def exponentials(weights: list[float], dof: list[float], x: mp.mpf) -> Tails:
    """All dof equal to 2: sf = Σ_i exp(-x / 2w_i) ∏_{j≠i} w_i / (w_i - w_j), which cancels."""
    assert set(dof) == {2.0}
    assert len(set(weights)) == len(weights)
    with mp.workdps(400):
        w = [mp.mpf(v) for v in weights]
        upper = mp.fsum(mp.exp(-x / (2 * v)) * mp.fprod(v / (v - u) for u in w if u != v) for v in w)
        return 1 - upper, upper


def series(weights: list[float], dof: list[float], x: mp.mpf) -> Tails:
    """P = Σ_j c_j P(N/2 + j, x / 2 min(w)), c_j >= 0, Σ c_j = 1; stops when 1 - Σ c_j is negligible."""
    with mp.workdps(60):
        w, nu = [mp.mpf(v) for v in weights], [mp.mpf(v) for v in dof]
        small = min(w)
        total = mp.fsum(nu) / 2
        c = [mp.fprod((small / v) ** (n / 2) for v, n in zip(w, nu, strict=True))]
        g = [mp.mpf(0)]
        while 1 - mp.fsum(c) > mp.mpf(10) ** -45:
            g.append(mp.fsum(n * (1 - small / v) ** len(c) for v, n in zip(w, nu, strict=True)) / 2)
            c.append(mp.fsum(g[r] * c[len(c) - r] for r in range(1, len(c) + 1)) / len(c))
        tails = [gamma_tails(float(small), float(2 * total) + 2 * j, x) for j in range(len(c))]
        return tuple(mp.fsum(v * t[i] for v, t in zip(c, tails, strict=True)) for i in (0, 1))  # type: ignore[return-value]


@lru_cache
def characteristic(weights: tuple[float, ...], dof: tuple[float, ...]) -> tuple[mp.mpf, list[mp.mpc]]:
    """A period with far less than 1e-35 of the mass above it, and φ(2π (n+1/2) / period) while it matters."""
    mean = sum(w * n for w, n in zip(weights, dof, strict=True))
    sd = mp.sqrt(2 * sum(w * w * n for w, n in zip(weights, dof, strict=True)))
    period = mean + 40 * sd + 200 * max(weights)
    values: list[mp.mpc] = []
    while not values or abs(values[-1]) > mp.mpf(10) ** -42:
        u = 2 * mp.pi * (len(values) + mp.mpf(1) / 2) / period
        logs = (mp.mpf(n) / 2 * mp.log(1 - 2j * mp.mpf(w) * u) for w, n in zip(weights, dof, strict=True))
        values.append(mp.exp(-mp.fsum(logs)))
    return period, values


def fourier(weights: list[float], dof: list[float], x: mp.mpf) -> Tails:
    """P = 1/2 - Σ_n Im(φ(u_n) exp(-i u_n x)) / (π (n + 1/2)), u_n = 2π (n + 1/2) / period."""
    with mp.workdps(60):
        period, values = characteristic(tuple(weights), tuple(dof))
        places = [n + mp.mpf(1) / 2 for n in range(len(values))]
        terms = (mp.im(v * mp.expj(-2 * mp.pi * n * x / period)) / n for v, n in zip(values, places, strict=True))
        half = mp.fsum(terms) / mp.pi
        return mp.mpf(1) / 2 - half, mp.mpf(1) / 2 + half


def geometric(count: int, ratio: float) -> list[float]:
    """``count`` weights from 1 down to 1 / ratio."""
    return [ratio ** (-i / (count - 1)) for i in range(count)]


def two(leading: float, probes: int, rank: int) -> Mixture:
    """The two-weight law of the envelope: a leading weight and rank - 1 equal ones."""
    rest = (rank - 1) * probes
    return [leading / probes, (1 - leading) / rest], [float(probes), float(rest)]


CASES: list[tuple[Method, Mixture, float, list[float]]] = [
    # method, (weights, dof), relative tolerance, points
    (gamma, ([1.0], [0.5]), 2e-14, [1.3499e-60, 1.3499e-32, 8.4372e-06, 0.087348, 1.5008, 21.376, 61.32]),
    (gamma, ([1.0], [1.0]), 2e-14, [1.5708e-30, 1.5708e-16, 0.0039321, 0.45494, 2.7055, 23.928, 64.43]),
    (gamma, ([2.0], [7.3]), 2e-14, [0.000645, 0.053531, 4.6675, 13.291, 24.846, 82.367, 172.84]),
    (gamma, ([1 / 4096], [4096.0]), 2e-14, [0.83448, 0.88091, 0.96393, 0.99984, 1.0284, 1.1086, 1.1857]),
    (convolution, ([0.9, 0.1], [1.0, 1.0]), 2e-14, [6e-16, 6e-09, 0.031311, 0.53122, 2.5437, 21.642, 58.094]),
    (
        convolution,
        ([0.51, 0.49], [1.0, 1.0]),
        2e-14,
        [9.998e-16, 9.998e-09, 0.051283, 0.69306, 2.3027, 13.832, 34.648],
    ),
    (
        convolution,
        ([1e-3, 1.0], [3.5, 1.0]),
        2e-14,
        [3.0315e-09, 3.9172e-06, 0.0078095, 0.45844, 2.709, 23.932, 64.434],
    ),
    (
        convolution,
        ([1e-6, 1.0], [2.5, 2.0]),
        2e-14,
        [3.0316e-10, 4.0512e-07, 0.10259, 1.3863, 4.6052, 27.631, 69.078],
    ),
    (
        convolution,
        ([0.25, 1.0], [0.5, 0.5]),
        2e-14,
        [7.854e-31, 7.854e-17, 0.0019667, 0.23641, 1.695, 21.521, 61.465],
    ),
    (
        convolution,
        ([1e-6, 1.0], [1e6, 1.0]),
        1e-12,
        [0.98965, 0.99325, 1.0041, 1.4549, 3.7055, 24.928, 65.43],
    ),
    (convolution, two(0.3, 32, 8), 1e-13, [0.42507, 0.55402, 0.84338, 0.99561, 1.1305, 1.5834, 2.1367]),
    (
        exponentials,
        ([1.0, 1e-3, 1e-6], [2.0] * 3),
        2e-14,
        [3.6398e-08, 1.0727e-05, 0.10459, 1.3883, 4.6072, 27.633, 69.08],
    ),
    (
        exponentials,
        (geometric(20, 1e6), [2.0] * 20),
        1e-13,
        [0.013685, 0.077227, 1.2122, 3.3588, 6.8642, 29.938, 71.385],
    ),
    (
        series,
        ([0.4, 0.3, 0.15, 0.1, 0.05], [3.0] * 5),
        1e-13,
        [0.011149, 0.099895, 1.2772, 2.7872, 4.7408, 14.912, 31.878],
    ),
    (
        fourier,
        (geometric(20, 1e3), [4.5] * 20),
        1e-13,
        [1.2005, 2.5848, 8.856, 14.253, 20.29, 47.981, 91.692],
    ),
    (
        fourier,
        (geometric(200, 1e6), [1.0] * 200),
        1e-13,
        [1.4815, 2.9903, 9.3023, 14.466, 20.115, 45.569, 86.39],
    ),
    (
        fourier,
        ([1 / (i + 1) for i in range(200)], [float(1 + i % 4) for i in range(200)]),
        1e-13,
        [4.9368, 6.3153, 10.146, 12.908, 16.154, 37.227, 77.689],
    ),
    (fourier, two(0.2, 4096, 8), 1e-12, [0.93779, 0.95574, 0.98686, 0.99998, 1.0103, 1.0386, 1.065]),
    (fourier, two(0.01, 4096, 1000), 1e-11, [0.99425, 0.99593, 0.99881, 1.0, 1.0009, 1.0035, 1.0058]),
    (
        fourier,
        two(0.002, 4096, 10**6),
        1e-10,
        [0.999623415, 0.999730593, 0.999919207, 0.999999739, 1.00006346, 1.0002405, 1.00040891],
    ),
]


# χ²(N)/N at 1 + j / 2^22: mean exactly 1, so that x minus the mean is exactly known
UNIT_MEAN: list[tuple[int, list[int]]] = [
    (32768, [-240000, -170000, -53000, 0, 43000, 160000, 270000]),
    (4096 * 10**6, [-740, -520, -150, 1, 120, 440, 740]),
]


def rows(method: Method, weights: list[float], dof: list[float], points: list[float]) -> list[dict[str, object]]:
    """The smaller tail at each point, with 20 digits."""
    found: list[dict[str, object]] = []
    for x in points:
        lower, upper = method(weights, dof, mp.mpf(x))
        tail, value = ("cdf", lower) if lower < upper else ("sf", upper)
        found.append({"x": x, "tail": tail, "value": mp.nstr(value, 20)})
    print(method.__name__, len(weights), [str(row["value"])[:6] for row in found], flush=True)
    return found


def main() -> None:
    """Compute every case and write the JSON file."""
    mp.mp.dps = 60
    unit_mean = [
        {"dof": n, "points": rows(fourier, [mp.mpf(1) / n], [float(n)], [1 + j / 2**22 for j in steps])}
        for n, steps in UNIT_MEAN
    ]
    mp.mp.dps = 40
    mixtures = [
        {
            "method": method.__name__,
            "weights": weights,
            "dof": dof,
            "rtol": rtol,
            "points": rows(method, weights, dof, points),
        }
        for method, (weights, dof), rtol, points in CASES
    ]
    path = Path(__file__).with_name("chi2_mixture.json")
    path.write_text(json.dumps({"mixtures": mixtures, "unit_mean": unit_mean}, indent=1) + "\n")


if __name__ == "__main__":
    main()
