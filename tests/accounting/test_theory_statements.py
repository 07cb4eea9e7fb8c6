"""Statements of docs/theory/randomized_clipping.md, checked numerically without the library's implementation."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from scipy.fft import irfft, rfft
from scipy.optimize import isotonic_regression
from scipy.special import gammainc, gammaln, log_ndtr, ndtr

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


def mixture_cdf(x, weights, a, terms=24):
    """P(Σ w_i Γ(a) ≤ x) by the fixed Talbot inversion of s⁻¹ ∏ (1 + w_i s)^{-a}, to about 1e-9."""
    theta = np.arange(1, terms) * np.pi / terms
    r = 2 * terms / 5 / x
    cot = 1 / np.tan(theta)
    s = np.append(r, r * theta * (cot + 1j))
    factor = np.append(0.5 * np.exp(r * x), np.exp(x * s[1:]) * (1 + 1j * theta * (1 + cot**2) - 1j * cot))
    transform = np.prod((1 + np.multiply.outer(np.asarray(weights, float), s)) ** (-a), axis=-2) / s
    return r / terms * (factor * transform).real.sum(axis=-1)


# ---------------------------------------------------------------- §1


def test_estimate_is_the_weighted_chi_square_sum_and_bounds_the_contribution():
    """n̂ = Σ s²‖Pᵀv‖², and the clipped contribution has norm at most C·(n̂/n)^{-1/2}."""
    rng = np.random.default_rng(0)
    k, clip = 3, 0.7
    layers = [rng.normal(size=(4, 5)) @ rng.normal(size=(5, 6)), rng.normal(size=(2, 7))]
    probes = [rng.normal(size=(m.shape[1], k)) / np.sqrt(k) for m in layers]
    n = sum((m**2).sum() for m in layers)
    estimate = sum(((m @ p) ** 2).sum() for m, p in zip(layers, probes, strict=True))
    by_value = 0.0
    for m, p in zip(layers, probes, strict=True):
        _, s, vt = np.linalg.svd(m, full_matrices=False)
        assert np.allclose(vt @ vt.T, np.eye(s.size))
        by_value += (s**2 * ((vt @ p) ** 2).sum(axis=1)).sum()
    assert estimate == pytest.approx(by_value, rel=1e-12)
    assert np.sqrt(n) * min(clip / np.sqrt(estimate), 1) <= clip / np.sqrt(estimate / n) * (1 + 1e-12)


@pytest.mark.parametrize(("q", "mu"), [(0.3, 1.2), (0.05, 3.0), (1.0, 0.6)])
def test_b3_subsampling_identities(q, mu):
    """Both curves of (B3) equal a brute-force supremum over half-lines, for α on both sides of 1 and of 1-q."""
    y = np.linspace(-14, 16, 30001)
    with_it, without = (1 - q) * ndtr(-y) + q * ndtr(mu - y), ndtr(-y)
    x, w = np.array([1.0]), np.array([1.0])
    for alpha in (0.2, 0.69, 0.8, 0.97, 1.0, 1.04, 1.6, 4.0):
        remove = max((with_it - alpha * without).max(), 1 - alpha, 0.0)
        add = max(((1 - without) - alpha * (1 - with_it)).max(), 1 - alpha, 0.0)
        assert remove_curve(alpha, q, x, w, 1 / mu) == pytest.approx(remove, abs=1e-7)
        assert add_curve(alpha, q, x, w, 1 / mu) == pytest.approx(add, abs=1e-7)


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


@pytest.mark.parametrize("k", [2, 3, 8])
def test_e2_no_spectrum_beats_the_two_weight_family(k):
    """P(X ≤ x) of random spectra of rank ≤ 4 stays below the maximum over λ; the family is needed (x > 1)."""
    rng = np.random.default_rng(k)
    a, d = k / 2, 4
    assert mixture_cdf(0.9, np.array([1 / a, 0.0]), a) == pytest.approx(gammainc(a, a * 0.9), abs=1e-8)
    spectra = np.concatenate([rng.dirichlet(np.full(d, c), size=150) for c in (0.3, 1.0, 6.0)])
    lead = np.linspace(1 / d, 1, 400)
    family = np.stack([lead] + [(1 - lead) / (d - 1)] * (d - 1), axis=1)
    for x in (0.4, 0.95, 1.0 + 0.3 / k, 1.0 + 0.8 / k, 1.6):
        best = mixture_cdf(x, family / a, a)
        assert mixture_cdf(x, spectra / a, a).max() <= best.max() + 1e-7
        if x <= 1:
            assert best[-1] == pytest.approx(best.max(), abs=1e-9)
        else:
            assert best.max() > best[-1] + 1e-3


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


def test_e4_covers_a_constant_part_and_a_finite_rank_does_not():
    k, h = 6, 0.4
    a = k / 2
    for x in (0.5, 0.8, 0.99):
        for weights in ([1.0], [0.5, 0.5], [0.7, 0.2, 0.1]):
            part = mixture_cdf((x - h) / (1 - h), np.array(weights) / a, a)
            assert part <= gammainc(a, a * x) + 1e-8
    x, d = 1.05, 2
    lead = np.linspace(1 / d, 1, 200)
    finite = mixture_cdf(x, np.stack([lead, 1 - lead], axis=1) / a, a).max()
    assert gammainc(a, a * (x - 0.95) / 0.05) > finite + 0.2  # h = 0.95: X is nearly constant


# ---------------------------------------------------------------- §3


@pytest.mark.parametrize(("sigma", "k"), [(0.5, 8), (1.0, 32), (2.0, 3)])
def test_b1_b2_bracket_the_expectation_for_every_epsilon(sigma, k):
    """Spread ≥ E h_ε(X₁) ≥ concentrate; spreading everywhere, also left of 1/(12σ²), would not be a bound."""
    a, x_low = k / 2, 1e-3
    start = 1 / (12 * sigma**2)
    edges = np.unique(np.concatenate([np.geomspace(x_low, start, 40), np.geomspace(start, 8.0, 40)]))
    edges = edges[edges >= x_low]
    left, right = edges[:-1], edges[1:]
    mass = np.diff(gammainc(a, a * edges))
    mean = np.clip(np.diff(gammainc(a + 1, a * edges)) / np.maximum(mass, 1e-300), left, right)
    below, above = gammainc(a, a * x_low), 1 - gammainc(a, a * edges[-1])
    convex = left >= start * (1 - 1e-12)
    to_right = np.where(convex, (mean - left) / (right - left), 0.0)
    x, w = rank_one_law(k)
    gap = []
    for eps in (0.0, 0.5, 2.0, 6.0, 15.0):

        def h(x, eps=eps):
            return hockey(eps, 1 / (sigma * np.sqrt(x)))

        truth = w @ h(x)
        upper = mass @ ((1 - to_right) * h(left) + to_right * h(right)) + below + above * h(edges[-1])
        lower = mass @ np.where(convex, h(mean), h(right)) + below * h(x_low)
        assert lower <= truth + 1e-12
        assert truth <= upper + 1e-12
        gap.append(upper - lower)
    assert max(gap) < 0.05


# ---------------------------------------------------------------- §4


@pytest.mark.parametrize(("eps", "x", "sigma"), [(0.0, 0.3, 1.0), (1.5, 0.04, 0.8), (9.0, 0.011, 1.3)])
def test_t1_t2_derivatives_of_the_hockey_stick(eps, x, sigma):
    """First derivative as in (T1); the second has the sign of 3 + ε²/μ² - μ²/4."""

    def h(x):
        mu = 1 / (sigma * mp.sqrt(x))
        return mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)

    mu = 1 / (sigma * mp.sqrt(x))
    with mp.workdps(40):
        first, second = mp.diff(h, x), mp.diff(h, x, 2)
    assert float(first) == pytest.approx(float(-(sigma**2) / 2 * mu**3 * mp.npdf(eps / mu - mu / 2)), rel=1e-10)
    assert (second >= 0) == (3 + eps**2 / mu**2 - mu**2 / 4 >= 0)


def test_t2_inflection_root():
    for eps in (0.0, 1.0, 20.0):
        mu0 = steepest(eps, 1.0)[0]
        assert 3 + eps**2 / mu0**2 - mu0**2 / 4 == pytest.approx(0, abs=1e-12)
        assert mu0**2 >= 12 - 1e-12


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


def test_t6_excess_between_grid_points():
    """excess_ε ≤ excess_a + (m(b) - m(a)) E(x₀(a) - X)₊ for a ≤ ε ≤ b, also for intervals longer than 3."""
    for sigma, k in [(0.5, 4), (0.2, 8), (0.05, 32)]:
        x, w = rank_one_law(k, panels=300)
        for a, b in [(0.0, 0.4), (1.0, 3.0), (10.0, 14.0), (60.0, 90.0)]:
            _, x0, slope_a = steepest(a, sigma)
            reach = w @ np.maximum(x0 - x, 0)
            bound = excess(a, sigma, x, w) + (steepest(b, sigma)[2] - slope_a) * reach
            for eps in np.linspace(a, b, 9):
                assert excess(eps, sigma, x, w) <= bound * (1 + 1e-9) + 1e-13
                mu0, x0_eps, _ = steepest(eps, sigma)
                assert excess(eps, sigma, x, w) <= 0.2 * mu0 * gammainc(k / 2, k / 2 * x0_eps) + 1e-12


def test_t6_crude_bound_decreases_left_of_one():
    """The quotient x f(x)/F(x) falls with x and is at least 1/(e-1) at x = 1 for a ≥ 1; for a = 1/2 it is below 1/2."""
    for a in (1.0, 1.5, 4.0, 50.0):
        x = np.linspace(0.02, 1.0, 50)
        log_pdf = a * np.log(a) + (a - 1) * np.log(x) - a * x - gammaln(a)
        quotient = x * np.exp(log_pdf) / gammainc(a, a * x)
        assert np.all(np.diff(quotient) < 0)
        assert quotient[-1] >= 1 / (np.e - 1) - 1e-12
    assert np.exp(-0.5) / np.sqrt(2 * np.pi) / gammainc(0.5, 0.5) < 0.5


# ---------------------------------------------------------------- §5


def star(t):
    t = np.asarray(t, dtype=float)
    return np.where(t >= 0, (t + np.sqrt(t * t + 12)) / 2, 6 / (np.sqrt(t * t + 12) - t))


def majorant(mu, t):
    """f̂_t at squared-norm ratios given by μ, not frozen: (C3)."""
    m = star(t)
    y = (m / mu) ** 2
    return np.where(y < 1, ndtr(3 / m) + m / 2 * density(3 / m) * (1 - y), ndtr(mu - t))


def ratio(mu, t):
    """(C4), not frozen."""
    m = star(t)
    y = (m / mu) ** 2
    inner = np.exp(np.minimum(m, mu) * t - np.minimum(m, mu) ** 2 / 2)
    return inner * np.where(y < 1, 1.5 * y - 0.5, 1.0)


def frozen_majorant(mu, t):
    m = np.maximum(star(t), mu / np.sqrt(3))
    y = (m / mu) ** 2
    return np.where(y < 1, ndtr(3 / m) + m / 2 * density(3 / m) * (1 - y), ndtr(mu - t))


def test_c2_inflection_and_c3_convexity():
    """f_t changes from concave to convex at μ*(t); f̂_t is convex, decreasing and above f_t."""
    sigma = 0.9
    x = np.linspace(1e-3, 6, 6000)
    mu = 1 / (sigma * np.sqrt(x))
    for t in (-3.0, -0.5, 0.0, 1.0, 4.0):
        bend = np.diff(ndtr(mu - t), 2)
        inside = mu[1:-1]
        big = np.abs(bend) > 1e-13
        near = np.abs(inside / star(t) - 1) < 0.02
        assert np.all((bend > 0)[big & ~near] == (inside < star(t))[big & ~near])
        hat = majorant(mu, t)
        assert np.diff(hat, 2).min() > -1e-13
        assert np.diff(hat).max() < 1e-15
        assert np.all(hat >= ndtr(mu - t) - 1e-15)
        assert star(t) - 3 / star(t) == pytest.approx(t, abs=1e-12)
        at_zero = ndtr(3 / star(t)) + star(t) / 2 * density(3 / star(t))
        assert at_zero <= 1 + 0.2 * star(t) <= 1 + 0.2 * (2 + abs(t))
    assert np.max(majorant(mu, 4.0) - ndtr(mu - 4.0)) > 0.1


def test_c4_likelihood_ratio_of_an_atom():
    """-∂_t f̂_t/φ(t) as stated on both sides of y = 1, negative below 1/3, increasing above; freezing keeps a bound."""
    for mu in (0.8, 2.0, 7.0):
        t = np.linspace(-4, mu + 4, 400)
        numeric = -(majorant(mu, t + 1e-5) - majorant(mu, t - 1e-5)) / 2e-5 / density(t)
        clear = np.abs(star(t) / mu - 1) > 1e-3
        assert np.allclose(numeric[clear], ratio(mu, t)[clear], rtol=1e-5, atol=1e-5)
        y = (star(t) / mu) ** 2
        assert np.all((ratio(mu, t) >= 0) == (y >= 1 / 3))
        assert np.all(np.diff(np.log(ratio(mu, t)[y > 0.34])) > 0)
        assert np.all(frozen_majorant(mu, t) >= majorant(mu, t) - 1e-15)
        assert np.all(np.diff(frozen_majorant(mu, t)) <= 1e-15)
    assert np.diff(majorant(7.0, np.linspace(-4, 0, 50))).max() > 0  # unfrozen it increases


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


def test_c6_the_ratio_must_not_be_used_below_the_cap():
    """∫R φ exceeds 1, and ∫_{-∞}^t R φ exceeds 1 - T(t): the uncapped pair under-reports the add direction."""
    sigma, k = 0.3, 32
    x, w = rank_one_law(k)
    mu = 1 / (sigma * np.sqrt(x))
    t = np.linspace(-8, 4, 601)
    hat = np.array([frozen_majorant(mu, v) @ w for v in t])
    absent = np.array([ndtr(v - mu) @ w for v in t])  # 1 - T
    assert hat[0] > 1.005
    assert np.any(hat[0] - hat > absent + 1e-3)
    capped = 1 - np.minimum(hat, 1)
    assert np.all(capped <= absent + 1e-9)


def roc_majorant(q_mass, p_mass):
    """Slopes of the least concave majorant of the curve with these increments (increasing t)."""
    return isotonic_regression(p_mass / q_mass, weights=q_mass).x


def test_c5_pooling_is_the_least_concave_majorant_and_keeps_signs():
    """Pooled increments stay under a concave curve that the points stay under; zeroing negative ones breaks it."""
    rng = np.random.default_rng(3)
    broke = 0
    for _ in range(60):
        t = np.sort(rng.uniform(-3, 4, size=12))
        roc = ndtr(1.0 - t)  # true ROC ordinates of N(1,1) against N(0,1)
        low = roc * (1 - 0.3 * rng.uniform(size=12) ** 3)
        q_mass = np.diff(np.concatenate([[0.0], ndtr(t), [1.0]]))
        p_mass = -np.diff(np.concatenate([[1.0], low, [0.0]]))
        slope = roc_majorant(q_mass, p_mass)
        above = np.cumsum((slope * q_mass)[::-1])[::-1][1:]
        assert np.all(above >= low - 1e-12)  # a majorant of the points
        assert np.all(above <= roc + 1e-12)  # under the true curve
        clipped = roc_majorant(q_mass, np.maximum(p_mass, 0.0))
        broke += bool(np.any(np.cumsum((clipped * q_mass)[::-1])[::-1][1:] > roc + 1e-6))
    assert broke > 10


# ---------------------------------------------------------------- §6


def curve_of(u, mass, s):
    """U(s) = Σ mass (s - u)₊."""
    return np.maximum(s[:, None] - u, 0.0) @ mass


def random_law(rng, size):
    loss = rng.normal(0.1, 0.7, size=size)
    return np.exp(-loss), rng.dirichlet(np.ones(size))


def connect_the_dots(nodes, u, mass):
    """(D1) for increasing nodes that enclose all u: dots, and per cell its mass and right share."""
    cell = np.clip(np.searchsorted(nodes, u, side="left") - 1, 0, nodes.size - 2)
    p = np.bincount(cell, weights=mass, minlength=nodes.size - 1)
    moment = np.bincount(cell, weights=mass * u, minlength=nodes.size - 1)
    mean = np.where(p > 0, moment / np.maximum(p, 1e-300), nodes[:-1])
    r = np.clip((mean - nodes[:-1]) / np.diff(nodes), 0, 1)
    dots = np.append(p * (1 - r), 0.0) + np.insert(p * r, 0, 0.0)
    return dots, p, r


def pulled_down(nodes, dots, p, r):
    """(D2) with the simplest admissible drops: all of each cell's gap at its right node."""
    width = np.diff(nodes)
    drop = np.insert(p * (1 - r) * width, 0, 0.0)
    slope = np.cumsum(dots)[:-1] - np.diff(drop) / width
    slope = np.clip(isotonic_regression(slope, weights=width).x, 0.0, dots.sum())
    return np.diff(np.concatenate([[0.0], slope, [dots.sum()]]))


def test_d1_d2_bracket_after_composition():
    """Interpolation is above, the pulled-down curve below; by Lemma 1 also for a product of three laws."""
    rng = np.random.default_rng(5)
    fine = np.exp(-np.linspace(-6, 6, 400))
    tight = 0.0
    for _ in range(40):
        true = low = high = (np.ones(1), np.ones(1))
        for _ in range(3):
            u, mass = random_law(rng, 5)
            nodes = np.exp(-np.linspace(4, -4, 41)) if rng.uniform() < 0.5 else np.exp(-np.linspace(4, -4, 9))
            dots, p, r = connect_the_dots(nodes, u, mass)
            atoms = pulled_down(nodes, dots, p, r)
            assert atoms.min() > -1e-12
            steps = [(true, u, mass), (low, nodes, atoms), (high, nodes, dots)]
            true, low, high = ((np.outer(law[0], v).ravel(), np.outer(law[1], m).ravel()) for law, v, m in steps)
            low, high = (_squeeze(law) for law in (low, high))
        exact = curve_of(*true, fine)
        assert np.all(curve_of(*low, fine) <= exact + 1e-9 * (1 + exact))
        assert np.all(curve_of(*high, fine) >= exact - 1e-9 * (1 + exact))
        tight = max(tight, float(np.max((curve_of(*high, fine) - exact) / fine)))
    assert tight > 1e-3  # the upper law really differs


def _squeeze(law):
    u, mass = law
    keep = mass > 1e-14
    return u[keep], mass[keep]


def test_d2_without_drops_is_not_a_lower_bound():
    u, mass = np.array([0.8, 1.2]), np.array([0.5, 0.5])
    nodes = np.array([0.0, 0.7, 1.0, 1.5])
    dots, p, r = connect_the_dots(nodes, u, mass)
    s = np.linspace(0, 2, 201)
    assert np.any(curve_of(nodes, dots, s) > curve_of(u, mass, s) + 0.02)
    assert np.all(curve_of(nodes, pulled_down(nodes, dots, p, r), s) <= curve_of(u, mass, s) + 1e-12)


def test_lemma_1_needs_the_whole_curve():
    """Order at all s is kept by products; order at s = 1 alone is not."""
    first, second = (np.array([0.5, 1.5]), np.array([0.5, 0.5])), (np.array([0.2, 1.1]), np.array([0.25, 0.75]))
    s = np.linspace(0, 5, 501)
    one = np.array([1.0])
    assert curve_of(*first, one) > curve_of(*second, one)
    product = [
        curve_of(np.outer(law[0], law[0]).ravel(), np.outer(law[1], law[1]).ravel(), s) for law in (first, second)
    ]
    assert np.any(product[1] > product[0] + 1e-3)
    widened = (np.array([0.4, 0.6, 1.5]), np.array([0.25, 0.25, 0.5]))
    assert np.all(curve_of(*widened, s) >= curve_of(*first, s) - 1e-15)
    other = second
    both = [
        curve_of(np.outer(law[0], other[0]).ravel(), np.outer(law[1], other[1]).ravel(), s) for law in (widened, first)
    ]
    assert np.all(both[0] >= both[1] - 1e-15)
    assert np.any(both[0] > both[1] + 1e-4)


@pytest.mark.parametrize("tilt", [0.01, 0.7, 3.0, 40.0])
def test_f0_kappa_is_the_maximum(tilt):
    x = np.concatenate([np.linspace(1e-6, 3, 200001), np.linspace(3, 600, 200001)])
    kappa = np.exp(tilt * np.log(tilt) - (1 + tilt) * np.log1p(tilt))
    best = np.max(np.exp(-tilt * x) * -np.expm1(-x))
    assert best <= kappa * (1 + 1e-12)
    assert best >= kappa * (1 - 1e-6)


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


def test_f3_relative_errors_of_tails_shift_the_loss():
    """If tails are off by factors within 1 ± ρ, δ(ε) ≤ (1+ρ)⁻¹ e^{2ρ'} δ̂(ε - 2ρ'); without the shift it fails."""
    rho, mu = 0.01, 0.02
    shift = np.log((1 + rho) / (1 - rho))
    t = np.linspace(-9, 9, 20001)
    p, q = ndtr(mu - t), ndtr(-t)
    p_bad, q_bad = p * (1 - rho), q * (1 + rho)
    failed = False
    for eps in np.linspace(-0.1, 0.1, 21):
        delta = np.max(p - np.exp(eps) * q)
        shifted = np.max(p_bad - np.exp(eps - shift) * q_bad)
        assert delta <= np.exp(shift) / (1 + rho) * shifted + 1e-12
        failed |= delta > 1.02 * np.max(p_bad - np.exp(eps) * q_bad) + 1e-4
    assert failed


# ---------------------------------------------------------------- §7


def test_tail_of_z_is_polynomial_and_kills_renyi_divergences():
    """P(Z > z) z^k tends to a^a/Γ(a+1); E exp(cZ²) over X > x grows without limit as x → 0."""
    for k in (2, 5, 32):
        a = k / 2
        z = np.array([1e2, 1e3])
        scaled = np.exp(np.log(gammainc(a, a / z**2)) + k * np.log(z)) if k < 32 else None
        if scaled is not None:
            assert scaled == pytest.approx(np.exp(a * np.log(a) - gammaln(a + 1)), rel=2e-3)
    with mp.workdps(30):
        a, c = mp.mpf(4), mp.mpf("0.05")

        def part(low):
            return mp.quad(
                lambda x: mp.exp(c / x - a * x) * x ** (a - 1) * a**a / mp.gamma(a), [low, 2 * low, 0.1, 1, 10]
            )

        values = [part(mp.mpf(x)) for x in ("1e-2", "1e-3", "5e-4")]
    assert values[0] < values[1] / 1e3 < values[2] / 1e6


def test_add_direction_has_bounded_ratio_but_remove_has_not():
    q, mu = 0.2, 3.0
    y = np.linspace(-30, 30, 601)
    remove = 1 - q + q * np.exp(mu * y - mu**2 / 2)
    assert np.max(1 / remove) <= 1 / (1 - q)
    assert remove.max() > 1e30
