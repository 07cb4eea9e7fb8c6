"""Statements of docs/theory/randomized_clipping.md, checked numerically without the library's implementation."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from scipy.fft import irfft, rfft
from scipy.special import gammaln, log_ndtr, ndtr

# ---------------------------------------------------------------- laws and curves used throughout


def density(x):
    return np.exp(-(np.asarray(x) ** 2) / 2) / np.sqrt(2 * np.pi)


def rank_one_law(k, panels=120, order=8):
    """Points and weights of a quadrature for X = χ²(k)/k."""
    a = k / 2
    edges = np.geomspace(1e-6, 12.0 + 40.0 / k, panels + 1)
    node, weight = np.polynomial.legendre.leggauss(order)
    half = np.diff(edges)[:, None] / 2
    x = (edges[1:] + edges[:-1])[:, None] / 2 + half * node
    pdf = np.exp(a * np.log(a) + (a - 1) * np.log(x) - a * x - gammaln(a))
    return x.ravel(), (half * weight * pdf).ravel()


def hockey(eps, mu):
    """h_ε as a function of μ, ε ≥ 0."""
    return ndtr(mu / 2 - eps / mu) - np.exp(eps + log_ndtr(-mu / 2 - eps / mu))


def steepest(eps, sigma):
    """μ₀², x₀ and m(ε) of (T2), (T4), (T6)."""
    mu0 = np.sqrt(6 + 2 * np.sqrt(9 + eps**2))
    return mu0, 1 / (sigma * mu0) ** 2, sigma**2 / 2 * mu0**3 * density(eps / mu0 - mu0 / 2)


def excess(eps, sigma, x, w):
    """E[(ĥ - h)(X); X < x₀]."""
    _, x0, slope = steepest(eps, sigma)
    left = x < x0
    tangent = hockey(eps, 1 / (sigma * np.sqrt(x0))) + slope * (x0 - x[left])
    return float(w[left] @ (tangent - hockey(eps, 1 / (sigma * np.sqrt(x[left])))))


def unsampled(alpha, x, w, sigma):
    """E H_α(N(μ,1) ‖ N(0,1)) for any α > 0."""
    mu = 1 / (sigma * np.sqrt(x))
    if alpha >= 1:
        return float(w @ hockey(np.log(alpha), mu))
    return 1 - alpha + alpha * float(w @ hockey(-np.log(alpha), mu))


def remove_curve(alpha, q, x, w, sigma):
    """(B3), first line."""
    inner = 1 + (alpha - 1) / q
    return q * unsampled(inner, x, w, sigma) if inner > 0 else 1 - alpha


def add_curve(alpha, q, x, w, sigma):
    """(B3), second line."""
    return 1 - alpha + alpha * remove_curve(1 / alpha, q, x, w, sigma)


# ---------------------------------------------------------------- §1


def test_a1_divergence_increases_with_the_sensitivity():
    """For both directions and all α (also below 1)."""
    w = np.ones(1)
    for q in (0.02, 0.5, 1.0):
        for alpha in (0.3, 0.9, 1.0, 1.5, 6.0):
            for curve in (remove_curve, add_curve):
                values = [curve(alpha, q, np.array([z**-2.0]), w, 1.3) for z in np.linspace(0.2, 6, 60)]
                assert np.all(np.diff(values) >= -1e-13)
                if alpha == 1.0:
                    assert values[-1] > values[0] + 0.9 * q


# ---------------------------------------------------------------- §2


def test_e2_derivative_of_the_cdf_in_a_weight():
    """∂P/∂w_i = -a f_{X+E_{w_i}}(x), and f_{V+E_u} - f_{V+E_v} = (v-u) f'_{V+E_u+E_v}."""
    a, x, w = 2.0, mp.mpf("0.9"), [mp.mpf("0.25"), mp.mpf("0.2"), mp.mpf("0.05")]

    def invert(extra, power):
        def transform(s):
            return s**power * mp.fprod((1 + v * s) ** -a for v in w) * mp.fprod(1 / (1 + v * s) for v in extra)

        return mp.invertlaplace(transform, x, method="talbot")

    step = mp.mpf("1e-5")

    def cdf(first):
        return mp.invertlaplace(lambda s: mp.fprod((1 + v * s) ** -a for v in [first, *w[1:]]) / s, x, method="talbot")

    slope = (cdf(w[0] + step) - cdf(w[0] - step)) / (2 * step)
    assert float(slope) == pytest.approx(float(-a * invert([w[0]], 0)), rel=1e-7)
    difference = invert([w[0]], 0) - invert([w[2]], 0)
    assert float(difference) == pytest.approx(float((w[2] - w[0]) * invert([w[0], w[2]], 1)), rel=1e-9)
    assert abs(difference) > 1e-3


def test_e3_mode_of_a_sum_exceeds_the_sum_of_the_modes():
    """For gammas of shapes a+1 and (d-1)a+1 at the weights of the family: M(λ) > 1."""
    for a, d in [(1.0, 2), (1.0, 5), (4.0, 3), (16.0, 2)]:
        for lead in (1 / d + 0.02, 0.6, 0.9, 0.98):
            u, v, n = lead / a, (1 - lead) / ((d - 1) * a), d - 1
            s = np.linspace(0, 1, 20001)[1:-1]
            log_f = a * np.log(s) - s / u + n * a * np.log1p(-s) - (1 - s) / v
            weight = np.exp(log_f - log_f.max())
            slope = weight @ (a / s - 1 / u) / weight.sum()  # (log f_S)'(1)
            assert slope > 0


# ---------------------------------------------------------------- §3


# ---------------------------------------------------------------- §4


@pytest.mark.parametrize(("sigma", "k", "q"), [(0.2, 8, 0.3), (0.3, 4, 1.0), (0.25, 16, 0.05)])
def test_t5_slack_pays_for_every_spectrum_and_is_needed(sigma, k, q):
    """H_α(spectrum) ≤ H_α + s(1 - H_α) in both directions for all α, and not without s."""
    x, w = rank_one_law(k)
    w = w / w.sum()
    eta = max(excess(eps, sigma, x, w) for eps in np.linspace(0, 120, 481))
    slack = q * eta / (1 - q * float(w @ (2 * ndtr(1 / (2 * sigma * np.sqrt(x))) - 1)))
    rest = rank_one_law(4 * k)
    spectra = [(np.ones(1), np.ones(1)), (rest[0], rest[1] / rest[1].sum())]  # constant; four equal weights
    spectra.append((0.5 + 0.5 * x, w))  # half of the norm exact
    without = -np.inf
    for curve in (remove_curve, add_curve):
        for alpha in np.exp(np.concatenate([np.linspace(-3, 3, 25), np.linspace(3, 25, 45)])):
            rank_one = curve(alpha, q, x, w, sigma)
            for law in spectra:
                true = curve(alpha, q, *law, sigma)
                assert true <= rank_one + min(slack, 1) * (1 - rank_one) + 1e-10
                without = max(without, true - rank_one)
    assert without > 1e-6


# ---------------------------------------------------------------- §5


def star(t):
    t = np.asarray(t, dtype=float)
    return np.where(t >= 0, (t + np.sqrt(t * t + 12)) / 2, 6 / (np.sqrt(t * t + 12) - t))


def frozen_majorant(mu, t):
    m = np.maximum(star(t), mu / np.sqrt(3))
    y = (m / mu) ** 2
    return np.where(y < 1, ndtr(3 / m) + m / 2 * density(3 / m) * (1 - y), ndtr(mu - t))


@pytest.mark.parametrize(("sigma", "k"), [(1.0, 32), (0.4, 8), (0.6, 3)])
def test_c3_bounds_every_spectrum(sigma, k):
    """T(t) ≤ E f̂_t(X₁) for the constant, for equal weights and for the rank-one law; T alone is not enough."""
    x, w = rank_one_law(k)
    w = w / w.sum()
    many = rank_one_law(3 * k)
    laws = [(np.ones(1), np.ones(1)), (many[0], many[1] / many[1].sum()), (x, w)]
    short = -np.inf
    for t in np.linspace(-4, 8, 49):
        bound = frozen_majorant(1 / (sigma * np.sqrt(x)), t) @ w
        plain = ndtr(1 / (sigma * np.sqrt(x)) - t) @ w
        for lx, lw in laws:
            value = ndtr(1 / (sigma * np.sqrt(lx)) - t) @ lw
            assert value <= bound + 1e-11
            short = max(short, value - plain)
    assert short > 1e-9


# ---------------------------------------------------------------- §6


@pytest.mark.parametrize("size", [256, 1000, 2**15])
def test_f2_fft_errors_against_long_double(size):
    """Forward: each component within 8ε log₂N. Inverse: an error e of the spectrum has 1-norm at most ‖e‖₂."""
    rng = np.random.default_rng(size)
    unit = 8 * np.finfo(float).eps * np.log2(size)
    mass = rng.exponential(size=size) * np.exp(-(np.linspace(-9, 9, size) ** 2))
    mass /= mass.sum()
    spectrum = rfft(mass)
    exact = rfft(mass.astype(np.longdouble))
    assert float(np.abs(spectrum - exact).max()) <= unit
    power = spectrum**200
    padded = np.abs(spectrum) + unit
    bound = 2 * unit * np.sqrt(np.sum((padded**200 + 400 * padded**199) ** 2))
    error = irfft(power, size) - irfft(exact**200, size).astype(float)
    assert 0 < np.abs(error).sum() <= bound
    noise = rng.normal(size=size // 2 + 1) + 1j * rng.normal(size=size // 2 + 1)
    noise[0] = noise[0].real
    noise[-1] = noise[-1].real
    moved = np.abs(irfft(noise, size)).sum()
    assert 0.3 * np.linalg.norm(noise) < moved <= np.sqrt(2) * np.linalg.norm(noise)


# ---------------------------------------------------------------- §7
