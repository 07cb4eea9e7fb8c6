"""Hutch++ in the accountant: check values, what must hold, the audit, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from dprmt.accounting import DPSGD, Hutchinson, HutchPlusPlus, compose
from dprmt.accounting.laws import _laws as _sketched_law
from dprmt.accounting.laws._sketch import ROUNDING
from dprmt.training.norms import hutchpp_squared_norms

RATE = 2000 / 67349
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


slow = pytest.mark.slow
CHECKS = [
    pytest.param(0.779078, 32, 32, "public", 6.827, marks=slow),
    pytest.param(0.779078, 32, 32, "secret", 6.765, marks=slow),
    pytest.param(0.779078, 16, 16, "public", 7.352, marks=slow),
    pytest.param(0.779078, 16, 16, "secret", 6.980, marks=slow),
    pytest.param(1.0, 32, 32, "public", 3.861),
    pytest.param(1.0, 32, 32, "secret", 3.836),
    pytest.param(1.0, 16, 16, "public", 4.083),
    pytest.param(1.0, 16, 16, "secret", 3.922),
    # 5.273 in a first table; the quadrature below says 5.265, and the certified bounds 5.264 to 5.269.
    pytest.param(1.0, 16, 8, "public", 5.267, marks=slow),
    pytest.param(1.0, 16, 8, "secret", 4.057, marks=slow),
    pytest.param(2.0, 32, 32, "public", 1.270),
    pytest.param(2.0, 32, 32, "secret", 1.268),
    pytest.param(2.0, 16, 16, "public", 1.290),
    pytest.param(2.0, 16, 16, "secret", 1.281),
]


@pytest.mark.parametrize(("sigma", "sketch", "probes", "sharing", "crude"), CHECKS)
def test_a_cruder_law_of_j_gives_values_computed_elsewhere_and_the_law_used_is_better(
    monkeypatch: pytest.MonkeyPatch, sigma: float, sketch: int, probes: int, sharing: str, crude: float
) -> None:
    """Independent quadrature, ±0.004, for the crude law alone; ours lies below it and above the exact norm's."""
    mechanism = DPSGD(sigma, RATE, HutchPlusPlus(probes, sketch, secret=sharing == "secret"))
    ours = mechanism.epsilon(steps=STEPS, delta=DELTA)
    exact = DPSGD(sigma, RATE).epsilon(steps=STEPS, delta=DELTA)
    monkeypatch.setattr(_sketched_law, "probe_copies", crude_law)
    bounds = mechanism.epsilon(steps=STEPS, delta=DELTA)
    assert bounds.estimate == pytest.approx(crude, abs=0.004)
    assert exact.lower < ours.lower < ours.upper < bounds.lower


@pytest.mark.parametrize(
    ("sketch", "probes", "sharing", "power_iteration", "most"),
    [
        (32, 32, "public", True, 3.832),
        (32, 32, "secret", True, 3.822),
        (32, 32, "public", False, 3.847),
        (16, 8, "public", True, 4.02),
        (16, 8, "secret", True, 3.92),
        (8, 8, "public", True, 4.36),
    ],
)
def test_what_hutch_plus_plus_costs(sketch: int, probes: int, sharing: str, power_iteration: bool, most: float) -> None:
    """ε at σ = 1, where exact norms cost 3.810, 32 probes alone 4.637 and the published analysis charges 4.787."""
    norms = HutchPlusPlus(probes, sketch, power_iteration=power_iteration, secret=sharing == "secret")
    bounds = DPSGD(1.0, RATE, norms).epsilon(steps=STEPS, delta=DELTA)
    assert 3.81 < bounds.upper < most
    assert bounds.upper - bounds.lower <= 2e-3 * bounds.upper


# ------------------------------------------------------------------------------------------ what must hold


def test_every_way_to_ask_knows_the_sketch() -> None:
    """δ, trade-off, composition, prv-accountant and dp-accounting all take the mixture."""
    mechanism = DPSGD(1.5, 0.03, HutchPlusPlus(16, 16, secret=False))
    bounds = mechanism.epsilon(steps=100, delta=1e-5)
    assert (
        mechanism.delta(steps=100, epsilon=bounds.upper).lower
        <= 1e-5
        <= 1.05 * mechanism.delta(steps=100, epsilon=bounds.lower).upper
    )
    parts = compose([(mechanism, 40), (DPSGD(1.5, 0.03, HutchPlusPlus(16, 16, secret=False)), 60)]).epsilon(1e-5)
    assert parts == bounds
    pld = mechanism.to_pld(1e-3).self_compose(100).get_epsilon_for_delta(1e-5)
    assert bounds.lower <= pld <= 1.01 * bounds.upper
    assert mechanism.to_prv().pm_inf < 1e-10
    band = mechanism.trade_off(steps=100, alpha=[0.1])
    plain = DPSGD(1.5, 0.03, Hutchinson(16, secret=False)).trade_off(steps=100, alpha=[0.1])
    assert plain.lower[0] < band.lower[0] <= band.upper[0]


# ------------------------------------------------------------------------------------------ the audit, one step


def simulated_ratio(
    spectrum: np.ndarray, sketch: int, probes: int, power_iteration: bool = False, draws: int = 16_000
) -> np.ndarray:
    """n̂/n of the library's own estimator on a diagonal gradient in float32, fresh sketch and probes for each draw."""
    generator, size = torch.Generator().manual_seed(1), len(spectrum)
    root = torch.tensor(np.sqrt(spectrum / spectrum.sum()), dtype=torch.float32)
    found = []
    for _ in range(4):
        count = draws // 4
        normal = torch.randn(count, size, sketch + probes, generator=generator)
        a, g = torch.eye(size).expand(count, -1, -1), torch.diag(root).expand(count, -1, -1)
        parts = normal[:, :, :sketch], normal[:, :, sketch:] / probes**0.5
        found.append(hutchpp_squared_norms(a, g, *parts, power_iteration=power_iteration))
    return np.asarray(torch.cat(found))


def proved_delta(ratio: np.ndarray, sigma: float, epsilon: float) -> float:
    """What the simulation proves of the step's δ without subsampling, E h_ε(X): the mean less four standard errors."""
    mu = 1.0 / (sigma * np.sqrt(ratio))
    divergence = stats.norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    return float(divergence.mean() - 4 * divergence.std() / np.sqrt(divergence.size))


def missed(
    tokens: int, rows: int, columns: int, power: float, sketch: int, power_iteration: bool, half: bool = False
) -> float:
    """‖(I - QQᵀ)A‖/‖A‖ in Frobenius norms: A in float64, Q from the library's own float32 code.

    ``half``: with the sketch rounded to bfloat16 first, as coarser products would.
    """
    import torch

    from dprmt.training.norms._clipping import layer_gradient
    from dprmt.training.norms._estimators import _head_basis

    generator = torch.Generator().manual_seed(tokens + columns)
    scale = torch.arange(1, tokens + 1, dtype=torch.float64) ** -power
    a = torch.randn(1, tokens, rows, generator=generator, dtype=torch.float64).float()
    g = (scale[None, :, None] * torch.randn(1, tokens, columns, generator=generator, dtype=torch.float64)).float()
    draws = torch.randn(columns if power_iteration else rows, sketch, generator=generator, dtype=torch.float64).float()
    used = draws.bfloat16().float() if half else draws
    basis = _head_basis(layer_gradient(a, g), used, power_iteration).double()[0]
    a, g, image = a.double(), g.double(), draws.double()
    if power_iteration:
        image = a.mT @ (g @ image)
    exact = g.mT @ (a @ image)
    basis = torch.linalg.qr(basis).Q  # its own rounding is the norms', not the range's
    return float((exact - basis @ (basis.mT @ exact)).norm() / exact.norm())


WORST = (
    np.ones(8),
    np.append(0.55, np.full(8, 0.45 / 8)),
    np.ones(5),
    0.7 ** np.arange(12),
    np.arange(1.0, 40.0) ** -1,
    np.append(0.8, np.full(4, 0.05)),
)


@pytest.mark.parametrize("power_iteration", [False, True])
@pytest.mark.parametrize(("sigma", "epsilon"), [(1.0, 3.0), (2.0, 1.5)])
def test_no_simulated_step_exceeds_the_charge(sigma: float, epsilon: float, power_iteration: bool) -> None:
    run = DPSGD(sigma, 1.0, HutchPlusPlus(8, 4, power_iteration=power_iteration, secret=False))
    charged = run.delta(steps=1, epsilon=epsilon).upper
    for spectrum in WORST:
        assert proved_delta(simulated_ratio(spectrum, 4, 8, power_iteration, 4000), sigma, epsilon) <= charged


def test_the_audit_catches_a_law_that_is_too_optimistic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power: the flat spectrum of 2s values, which is as private as about 4sk probes, refutes J = 8s."""
    ratio = simulated_ratio(np.ones(8), 4, 8)
    monkeypatch.setattr(_sketched_law, "probe_copies", lambda sketch, power: ((8 * sketch,), (1.0,)))
    assert (
        proved_delta(ratio, 1.0, 3.0)
        > DPSGD(1.0, 1.0, HutchPlusPlus(8, 4, secret=False)).delta(steps=1, epsilon=3.0).upper
    )


@pytest.mark.parametrize("power_iteration", [False, True])
def test_the_basis_misses_the_range_by_less_than_is_charged(power_iteration: bool) -> None:
    """ε₀ of (H5) for the library's float32 code; with half of the mantissa it is seen to be exceeded."""
    found = missed(256, 96, 200, 1.0, 8, power_iteration)
    assert 1e-9 < found < ROUNDING
    assert missed(256, 96, 200, 1.0, 8, power_iteration, half=True) > ROUNDING
