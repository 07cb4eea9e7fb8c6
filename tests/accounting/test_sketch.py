"""Hutch++ in the accountant: check values, what must hold, the audit, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from dprmt._validation import ParameterError
from dprmt.accounting import DPSGD, FlatSpectrum, RandomizedClipping, calibrate_noise_multiplier, compose
from dprmt.accounting import _clipping_step as clipping_step

TABLE = {"sample_rate": 2000 / 67349}
STEPS, DELTA = 400, 1e-5

# ------------------------------------------------------------------------------------------ numbers


def crude_law(sketch: int, power_iteration: bool) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """J from Gordon's comparison with the cruder width, (H2'), and from the projection for m > 1/2: by quadrature."""
    del power_iteration
    log_y = np.linspace(-14.0, np.log(120.0), 6001)
    y = np.exp(log_y)
    flex = sketch - 2.0

    def expected_majorant(share: float) -> float:
        beyond = stats.chi2.cdf(flex, sketch) + stats.chi2.pdf(flex, sketch) * (y / share - flex)
        value = np.where(y / share <= flex, stats.chi2.cdf(y / share, sketch), beyond)
        return float(integrate.simpson(value * stats.chi2.pdf(y, 1) * y, x=log_y))

    tails = [expected_majorant(1.0)]
    while tails[-1] < 1.0:
        tails.append(min(1.0, 2.0 * expected_majorant(1.0 / (len(tails) + 2))))
    return tuple(range(1, len(tails) + 1)), tuple(np.diff(tails, prepend=0.0).tolist())


CHECKS = [
    (0.779078, 32, 32, "batch", 6.827),
    (1.0, 32, 32, "sample", 3.836),
    (1.0, 16, 16, "batch", 4.083),
    (1.0, 16, 8, "sample", 4.057),
    (2.0, 16, 16, "sample", 1.281),
]


@pytest.mark.parametrize(("sigma", "sketch", "probes", "sharing", "crude"), CHECKS)
def test_a_cruder_law_of_j_gives_values_computed_elsewhere_and_the_law_used_is_better(
    monkeypatch: pytest.MonkeyPatch, sigma: float, sketch: int, probes: int, sharing: str, crude: float
) -> None:
    """Independent quadrature, ±0.004, for the crude law; ours lies below it and above the exact norm's."""
    mechanism = RandomizedClipping(sigma, **TABLE, probes=probes, sketch=sketch, probe_sharing=sharing)  # type: ignore[arg-type]
    ours = mechanism.epsilon(STEPS, DELTA)
    exact = DPSGD(sigma, **TABLE).epsilon(STEPS, DELTA)
    monkeypatch.setattr(clipping_step, "probe_copies", crude_law)
    bounds = mechanism.epsilon(STEPS, DELTA)
    assert bounds.lower - 0.004 <= crude <= bounds.upper + 0.004
    assert exact.lower < ours.lower < ours.upper < bounds.lower


@pytest.mark.parametrize(
    ("sketch", "probes", "sharing", "power_iteration", "most"),
    [
        (32, 32, "batch", True, 3.832),
        (32, 32, "sample", True, 3.822),
        (32, 32, "batch", False, 3.847),
        (16, 8, "batch", True, 4.02),
        (16, 8, "sample", True, 3.92),
        (8, 8, "batch", True, 4.36),
    ],
)
def test_what_hutch_plus_plus_costs(sketch: int, probes: int, sharing: str, power_iteration: bool, most: float) -> None:
    """ε at σ = 1, where exact norms cost 3.810, 32 probes alone 4.637 and the published analysis charges 4.787."""
    mechanism = RandomizedClipping(1.0, **TABLE, probes=probes, sketch=sketch, probe_sharing=sharing)  # type: ignore[arg-type]
    claimed = RandomizedClipping(**{**vars(mechanism), "power_iteration": power_iteration})
    bounds = claimed.epsilon(STEPS, DELTA)
    assert 3.81 < bounds.upper < most
    assert bounds.upper - bounds.lower <= 2e-3 * bounds.upper


def test_the_noise_multiplier_is_almost_that_of_exact_norms() -> None:
    setting = {"target_epsilon": 0.7, "delta": DELTA, "sample_rate": 16 / 1225, "steps": 3480}
    exact = calibrate_noise_multiplier(**setting)
    noise = calibrate_noise_multiplier(**setting, probes=32, sketch=32)
    assert 1.0 < noise / exact < 1.0036
    assert RandomizedClipping(noise, 16 / 1225, 32, sketch=32).epsilon(3480, DELTA).upper <= 0.7


# ------------------------------------------------------------------------------------------ what must hold


def test_a_real_gradient_attains_most_of_the_charge() -> None:
    """The flat spectrum's ε lies below the charge and above the exact norm's, in both sharings."""
    exact = DPSGD(1.0, **TABLE).epsilon(STEPS, DELTA)
    for sharing in ("batch", "sample"):
        options = {"probes": 8, "sketch": 8, "probe_sharing": sharing}
        attained = FlatSpectrum(1.0, **TABLE, **options).epsilon(STEPS, DELTA)  # type: ignore[arg-type]
        charged = RandomizedClipping(1.0, **TABLE, **options, power_iteration=True).epsilon(STEPS, DELTA)  # type: ignore[arg-type]
        assert exact.upper < attained.lower < attained.upper < charged.lower


def test_the_flat_spectrum_is_what_the_estimator_gives() -> None:
    """X = ½ + ½ χ²(sk)/(sk), whatever the sketch: a Kolmogorov–Smirnov test that rejects 2sk degrees of freedom."""
    rng = np.random.default_rng(0)
    s, k, draws = 4, 3, 4000
    basis = np.linalg.qr(rng.standard_normal((draws, 2 * s, s))).Q
    probes = rng.standard_normal((draws, 2 * s, k)) / np.sqrt(k)
    residual = probes - basis @ (basis.transpose(0, 2, 1) @ probes)
    x = 0.5 + np.sum(residual**2, axis=(1, 2)) / (2 * s)
    assert stats.kstest((2 * x - 1) * s * k, stats.chi2(s * k).cdf).pvalue > 1e-3
    assert stats.kstest((2 * x - 1) * 2 * s * k, stats.chi2(2 * s * k).cdf).pvalue < 1e-9


def test_more_of_anything_never_costs_more() -> None:
    """ε falls with sketch, probes and the claim of a power iteration, and a sketch never costs more than none."""

    def epsilon(**options: Any) -> float:
        return RandomizedClipping(1.5, 0.02, **options).epsilon(100, 1e-5).upper

    chain = [
        epsilon(probes=16),
        epsilon(probes=16, sketch=3),
        epsilon(probes=16, sketch=8),
        epsilon(probes=16, sketch=8, power_iteration=True),
        epsilon(probes=24, sketch=20, power_iteration=True),
        DPSGD(1.5, 0.02).epsilon(100, 1e-5).lower,
    ]
    assert chain == sorted(chain, reverse=True)


def test_every_way_to_ask_knows_the_sketch() -> None:
    """δ, trade-off, composition, prv-accountant and dp-accounting all take the mixture."""
    mechanism = RandomizedClipping(1.5, 0.03, 16, sketch=16)
    bounds = mechanism.epsilon(100, 1e-5)
    assert mechanism.delta(100, bounds.upper).lower <= 1e-5 <= 1.05 * mechanism.delta(100, bounds.lower).upper
    parts = compose([(mechanism, 40), (RandomizedClipping(1.5, 0.03, 16, sketch=16), 60)]).epsilon(1e-5)
    assert parts == bounds
    pld = mechanism.to_pld(1e-3).self_compose(100).get_epsilon_for_delta(1e-5)
    assert bounds.lower <= pld <= 1.01 * bounds.upper
    assert mechanism.to_prv().pm_inf < 1e-10
    band = mechanism.trade_off(100, [0.1])
    plain = RandomizedClipping(1.5, 0.03, 16).trade_off(100, [0.1])
    assert plain.lower[0] < band.lower[0] <= band.upper[0]


# ------------------------------------------------------------------------------------------ the audit, one step


def simulated_ratio(spectrum: np.ndarray, sketch: int, probes: int, draws: int = 20_000) -> np.ndarray:
    """n̂/n of one-pass Hutch++ on diagonal M, with fresh sketch and probes for each draw."""
    rng = np.random.default_rng(1)
    root = np.sqrt(spectrum / spectrum.sum())[:, None]
    basis = np.linalg.qr(root * rng.standard_normal((draws, root.size, sketch))).Q
    probe = rng.standard_normal((draws, root.size, probes)) / np.sqrt(probes)
    residual = probe - basis @ (basis.transpose(0, 2, 1) @ probe)
    return np.asarray(sum(np.sum((root * part) ** 2, axis=(1, 2)) for part in (basis, residual)))


def proved_delta(ratio: np.ndarray, sigma: float, epsilon: float) -> float:
    """What the simulation proves of the step's δ without subsampling, E h_ε(X): the mean less four standard errors."""
    mu = 1.0 / (sigma * np.sqrt(ratio))
    divergence = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    return float(divergence.mean() - 4 * divergence.std() / np.sqrt(divergence.size))


WORST = (
    np.ones(8),
    np.append(0.55, np.full(8, 0.45 / 8)),
    np.ones(5),
    0.7 ** np.arange(12),
    np.arange(1.0, 40.0) ** -1,
)


@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 3.0), (2.0, 1.5)])
def test_no_simulated_step_exceeds_the_charge(sigma: float, epsilon: float) -> None:
    charged = RandomizedClipping(sigma, 1.0, 8, sketch=4).delta(1, epsilon).upper
    assert all(proved_delta(simulated_ratio(spectrum, 4, 8), sigma, epsilon) <= charged for spectrum in WORST)


def test_the_audit_catches_a_law_that_is_too_optimistic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power: the flat spectrum of 2s values, which is as private as about 4sk probes, refutes J = 8s."""
    ratio = simulated_ratio(np.ones(8), 4, 8)
    monkeypatch.setattr(clipping_step, "probe_copies", lambda sketch, power: ((8 * sketch,), (1.0,)))
    assert proved_delta(ratio, 1.0, 3.0) > RandomizedClipping(1.0, 1.0, 8, sketch=4).delta(1, 3.0).upper


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ({"sketch": 2}, "sketch", r"\[3, 10000\]"),
        ({"sketch": 8.5}, "sketch", "integer"),
        ({"sketch": 8, "analysis": "envelope"}, "analysis", "'tight'"),
        ({"sketch": 8, "rank": 4}, "rank", "part of the norm is exact"),
        ({"power_iteration": True}, "power_iteration", "no sketch"),
    ],
)
def test_bad_options_are_one_clear_sentence(options: dict[str, Any], name: str, words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        RandomizedClipping(1.0, 0.01, 8, **options)
    assert caught.value.name == name


def test_a_sketch_without_probes_is_refused() -> None:
    with pytest.raises(ParameterError, match="no probes are given"):
        calibrate_noise_multiplier(1.0, 1e-5, 0.01, 100, sketch=8)


def test_opacus_is_told_the_sketch() -> None:
    """Registered, or per call; states saved before there were sketches still load."""
    from dprmt.accounting.opacus import RandomizedClippingAccountant, register

    kind = register(probes=16, sketch=16, name="sketched")
    accountant = kind()
    for _ in range(20):
        accountant.step(noise_multiplier=1.5, sample_rate=0.03)
    expected = RandomizedClipping(1.5, 0.03, 16, sketch=16).epsilon(20, 1e-5).upper
    assert accountant.get_epsilon(1e-5) == expected < accountant.get_epsilon(1e-5, sketch=None)
    plain = register(probes=8, name="plain8")()
    plain.step(noise_multiplier=1.5, sample_rate=0.03)
    state = plain.state_dict()
    for newer in ("sketch", "power_iteration"):
        del state["configuration"][newer]
    plain.load_state_dict(state)
    with pytest.raises(ParameterError, match="no probes"):
        RandomizedClippingAccountant().get_epsilon(1e-5, probes=None, sketch=8)
