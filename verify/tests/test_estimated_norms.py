"""Steps with estimated norms, public and secret probes: one step by quadrature, spectra that are not of rank one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from flint import arb, ctx
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, ndtr

from dprmt_verify import read_statement, verify
from dprmt_verify._run import Run
from dprmt_verify._statement import BOTH
from dprmt_verify.further._norm_ratio import NormRatio, gamma_below
from dprmt_verify.further._public import PublicProbes
from dprmt_verify.further._secret import SecretProbes
from dprmt_verify.further._sketch import copies

EPSILONS = [0.0, 0.05, 0.5, 3.0]
Array = np.ndarray
Mean = Callable[[Callable[[Array], Array]], float]


def gamma_mean(shape: float, moved: Callable[[Array], Array] = lambda x: x) -> Mean:
    """E f(X) of X ~ Γ(shape)/shape, ``moved``, by quadrature in log X."""
    deviation = 1 / math.sqrt(shape)
    node, weight = np.polynomial.legendre.leggauss(20)
    edges = np.concatenate([-np.geomspace(60, 1, 60), np.linspace(-1, 9, 60)[1:]]) * deviation
    half = np.diff(edges)[:, None] / 2
    u = (edges[:-1, None] + half + half * node).ravel()
    mass = (half * weight).ravel() * np.exp(shape * (u - np.exp(u)) + shape * math.log(shape) - gammaln(shape))
    return lambda function: float(mass @ function(moved(np.exp(u))))


def public(sigma: float, rate: float, epsilon: float, mean: Mean) -> float:
    """δ of removing a sample whose ratio X has this mean, at ε of either sign."""
    kappa = 1 + math.expm1(epsilon) / rate
    if kappa <= 0:
        return -math.expm1(epsilon)
    log = abs(math.log(kappa))

    def height(x: Array) -> Array:
        mu = 1 / (sigma * np.sqrt(x))
        return ndtr(mu / 2 - log / mu) - math.exp(log) * ndtr(-mu / 2 - log / mu)

    return rate * (mean(height) if kappa >= 1 else 1 - kappa + kappa * mean(height))


def secret(sigma: float, rate: float, epsilon: float, mean: Mean) -> float:
    """The same with secret probes: the best half-line of the mixture."""

    def loss(t: float) -> float:
        moved = mean(lambda x: ndtr(1 / (sigma * np.sqrt(x)) - t))
        return -rate * moved + (math.exp(epsilon) - 1 + rate) * float(ndtr(-t))

    starts = np.linspace(-30, 18, 97)
    best = int(np.argmin([loss(t) for t in starts]))
    bounds = starts[max(best - 1, 0)], starts[min(best + 1, 96)]
    return -min(float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9}).fun), 0.0)


def two_directions(truth: Callable[..., float], sigma: float, rate: float, epsilon: float, mean: Mean) -> list[float]:
    add = -math.expm1(epsilon) + math.exp(epsilon) * truth(sigma, rate, -epsilon, mean)
    return [truth(sigma, rate, epsilon, mean), add]


def statement(sigma: float, rate: float, steps: int, probes: int, is_secret: bool) -> str:
    norms = {"kind": "hutchinson", "probes": probes, "secret": is_secret}
    mechanism = {"noise_multiplier": sigma, "sampling": {"rate": rate}, "norms": norms}
    return json.dumps({"mechanism": mechanism, "steps": steps, "delta": 1e-9, "epsilon": {"upper": 4.0}})


CASES = [(1.0, 0.03, 32), (0.5, 0.2, 8), (2.0, 1.0, 4), (0.8, 0.01, 128)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("is_secret", [False, True], ids=["public", "secret"])
def test_one_step_of_rank_one_by_quadrature_is_between_both_ends(
    case: tuple[float, float, int], is_secret: bool
) -> None:
    """Valid at the digits of the quadrature, and tight where δ is not small."""
    sigma, rate, probes = case
    run = Run(read_statement(statement(sigma, rate, 1, probes, is_secret)).phases, 1e-6, 3.0, 3)
    for epsilon in EPSILONS:
        values = two_directions(secret if is_secret else public, sigma, rate, epsilon, gamma_mean(probes / 2))
        for direction, value in zip(BOTH, values, strict=True):
            low, high = float(run.below(direction, epsilon)), float(run.above(direction, epsilon))
            assert low <= value * (1 + 1e-9) + 1e-13
            assert value <= high * (1 + 1e-9) + 1e-13
            if value > 1e-3:
                assert high - low < 0.8 * value


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("is_secret", [False, True], ids=["public", "secret"])
@pytest.mark.parametrize("constant", [0.0, 0.5, 1.0])
def test_no_spectrum_is_above(case: tuple[float, float, int], is_secret: bool, constant: float) -> None:
    """X = h + (1 - h)·Γ(jk/2)/(jk/2): part of the norm is exact, the rest has j equal singular values."""
    sigma, rate, probes = case
    ctx.prec = 200
    ratio = NormRatio(probes, {1: arb(1)}, 1e-14, 0.2)
    step = (SecretProbes if is_secret else PublicProbes)(sigma, rate, ratio, ratio)
    for values in (1,) if constant else (2, 5):
        mean = gamma_mean(values * probes / 2, lambda x: constant + (1 - constant) * x)
        for epsilon in (-0.02, 0.3, 2.0):
            truth = (secret if is_secret else public)(sigma, rate, epsilon, mean)
            assert truth <= float(step.curve(arb(epsilon))[0]) * (1 + 1e-9) + 1e-13


@pytest.mark.parametrize("t", [-3.0, 0.0, 1.5, 4.0])
def test_the_secret_majorant_is_the_tangent_where_the_power_is_concave(t: float) -> None:
    """Left of where Φ(μ - t) turns convex in x = μ^-2: no less than the tangent there, and equal to it down to x/3."""
    ctx.prec = 128
    ratio = NormRatio(8, {1: arb(1)}, 1e-6, 1.0)
    step, turn = SecretProbes(1.0, 0.5, ratio, ratio), (t + math.sqrt(t * t + 12)) / 2
    for factor in (0.7, 1.01, 1.3, 1.7, 3.0):
        mu = factor * turn
        x, flat = mu**-2, turn**-2
        slope = -(turn**3) * math.exp(-((turn - t) ** 2) / 2) / math.sqrt(8 * math.pi)
        tangent = float(ndtr(turn - t)) + slope * (x - flat)
        step.moving = [(arb(1), arb(mu))]
        value = float(step._moved(arb(t)))
        assert value >= max(float(ndtr(mu - t)), tangent if factor > 1 else 0.0) - 1e-12
        if factor < 1.7:
            assert value == pytest.approx(tangent if factor > 1 else float(ndtr(mu - t)), abs=1e-12)


def test_the_check_values_of_one_run() -> None:
    """ε = 4.637 with 32 public probes and 4.133 with secret ones, by quadrature elsewhere."""
    for is_secret, value in ((False, 4.637), (True, 4.133)):
        run = json.loads(statement(1.0, 2000 / 67349, 400, 32, is_secret))
        claim = {"delta": 1e-5, "epsilon": {"lower": value - 0.08, "upper": value + 0.08}}
        assert [verdict.word for verdict in verify(read_statement(json.dumps(run | claim)), 0.0, 3)] == ["proved"] * 2


def test_ratios_below_all_bins_are_charged() -> None:
    """Two in a hundred lie in the first bin, and alone reach such losses."""
    ctx.prec = 200
    ratio = NormRatio(4, {1: arb(1)}, 0.02, 0.5)
    step = SecretProbes(2.0, 0.5, ratio, ratio)
    for epsilon in (4.0, 8.0, 12.0):
        truth = secret(2.0, 0.5, epsilon, gamma_mean(2.0))
        assert 1e-7 < truth <= float(step.curve(arb(epsilon))[0])


def test_rare_ratios_are_charged_where_no_threshold_is_left() -> None:
    """Much sampling and little δ: the least probable ratios cost more than what may be cut off, and no proof fails."""
    run = json.loads(statement(1.77805, 0.196962, 6, 78, True)) | {"delta": 5.2748e-08}
    claim = {"epsilon": {"lower": 2.24, "upper": 2.26}}
    assert [verdict.word for verdict in verify(read_statement(json.dumps(run | claim)), 5.0)] == ["proved"] * 2


def test_what_is_of_the_envelope_alone_is_not_covered() -> None:
    """Its lower end is about a law that no gradient has; its upper end holds for all of them."""
    document = json.loads(statement(1.0, 0.03, 400, 32, False)) | {"analysis": "envelope"}
    document |= {"delta": 1e-5, "epsilon": {"lower": 4.7, "upper": 4.9}}
    words = [verdict.word for verdict in verify(read_statement(json.dumps(document)), 0.0, 3)]
    assert words == ["proved", "not covered"]


def ends(norms: dict[str, object], steps: int = 400, **claim: float) -> list[str]:
    mechanism = {"noise_multiplier": 1.0, "sampling": {"rate": 2000 / 67349}, "norms": norms}
    document = {"mechanism": mechanism, "steps": steps, "delta": 1e-5, "epsilon": claim}
    return [verdict.word for verdict in verify(read_statement(json.dumps(document)), 0.0, 3)]


@pytest.mark.parametrize("is_secret", [False, True], ids=["public", "secret"])
def test_one_step_of_a_flat_spectrum_is_between_both_ends(is_secret: bool) -> None:
    """X = ½ + ½ χ²(sk)/(sk); of the lower end tight, and the ends of the flat spectrum itself are on both sides."""
    sigma, rate, probes, sketch = 1.0, 0.05, 4, 6
    norms = {"kind": "hutch++", "probes": probes, "sketch": sketch, "power_iteration": True, "secret": is_secret}
    flat = {"kind": "flat spectrum", "probes": probes, "sketch": sketch, "secret": is_secret}
    mean = gamma_mean(probes * sketch / 2, lambda x: 0.5 + 0.5 * x)
    runs = []
    for kind in (norms, flat):
        mechanism = {"noise_multiplier": sigma, "sampling": {"rate": rate}, "norms": kind}
        document = {"mechanism": mechanism, "steps": 1, "delta": 1e-6, "epsilon": {"upper": 2.0}}
        runs.append(Run(read_statement(json.dumps(document)).phases, 1e-6, 1.0, 3))
    for epsilon in (0.05, 1.0):
        values = two_directions(secret if is_secret else public, sigma, rate, epsilon, mean)
        for way, value in zip(BOTH, values, strict=True):
            low, high, own = (float(bound(way, epsilon)) for bound in (runs[0].below, runs[0].above, runs[1].above))
            assert low <= value * (1 + 1e-9)
            assert value <= own * (1 + 1e-9)
            assert own <= high * (1 + 1e-9)
            if value > 1e-4:
                assert own - low < 0.8 * value


def test_the_charged_mixture_is_below_the_upper_end() -> None:
    """E H over the mixture of gammas that ``copies`` says, by quadrature: the curve is not lower, nor far off."""
    norms = {"kind": "hutch++", "probes": 8, "sketch": 8, "power_iteration": True}
    mechanism = {"noise_multiplier": 2.0, "sampling": {"rate": 0.1}, "norms": norms}
    document = {"mechanism": mechanism, "steps": 1, "delta": 1e-7, "epsilon": {"upper": 2.0}}
    run = Run(read_statement(json.dumps(document)).phases, 1e-7, 1.0, 3)
    for epsilon in (0.02, 0.2):
        parts = [(float(w), public(2.0, 0.1, epsilon, gamma_mean(4 * j))) for j, w in copies(8, True).items()]
        value, high = sum(w * v for w, v in parts), float(run.above("remove", epsilon))
        assert value * (1 - 1e-9) <= high < 1.5 * value


def test_the_check_values_of_one_sketched_run() -> None:
    """ε ≤ 3.905 and 3.859 with s = k = 16 and a power iteration; at least 3.824 and 3.817 (flat spectrum)."""
    norms = {"kind": "hutch++", "probes": 16, "sketch": 16, "power_iteration": True, "secret": False}
    assert ends(norms, upper=3.97, lower=3.75) == ["proved", "proved"]
    assert ends(norms | {"secret": True}, upper=3.92, lower=3.75) == ["proved", "proved"]


def test_a_lower_end_above_what_is_attained_is_about_the_charged_law() -> None:
    norms = {"kind": "hutch++", "probes": 16, "sketch": 16, "power_iteration": True, "secret": False}
    assert ends(norms, 50, lower=1.75, upper=1.6) == ["refuted", "not covered"]
    flat = {"kind": "flat spectrum", "probes": 16, "sketch": 16}
    assert ends(flat, 50, lower=1.75) == ["refuted"]


@pytest.mark.parametrize("shape", [1.0, 2.5, 140.5, 800.0, 2048.0])
@pytest.mark.parametrize("share", [0.02, 0.9, 1.0, 1.05, 3.0])
def test_masses_and_means_of_gamma_laws_have_forty_digits(shape: float, share: float) -> None:
    """The true ones are in the balls; FLINT's own incomplete gamma functions have no digit at shapes of hundreds."""
    ctx.prec = 150
    found = gamma_below(arb(shape), arb(shape) * arb(share))
    with mp.workdps(60):
        x = mp.mpf(shape) * mp.mpf(share)
        for ball, a in zip(found, (shape, shape + 1), strict=True):
            truth = mp.gammainc(a, 0, x, regularized=True)
            middle, radius = (mp.mpf(part.str(50, radius=False)) for part in (ball.mid(), ball.rad()))
            assert abs(middle - truth) <= radius + mp.mpf(10) ** -48
            assert radius <= mp.mpf(10) ** -38 * (truth + mp.mpf(10) ** -8)
