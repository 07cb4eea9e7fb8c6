"""Each check accepts the package's own implementation, and rejects wrong ones by the theorem that they break."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dprmt import ParameterError, make_private
from dprmt.accounting import (
    DPSGD,
    AddRemove,
    ExactNorms,
    Hutchinson,
    HutchPlusPlus,
    RandomAllocation,
    ReplaceOne,
    ZeroOut,
    clt_mu,
    gdp_epsilon,
)
from dprmt.spectra import bulk_edge, denoise, hard_threshold, shrink
from dprmt.testing import check_accountant, check_denoiser, check_norm_estimator, check_private_step, check_shrinker
from dprmt.training.norms import HutchinsonEstimator, HutchPlusPlusEstimator, exact_squared_norms


def rejected(match, check, *arguments, **options):
    with pytest.raises(AssertionError, match=match) as caught:
        check(*arguments, **options)
    assert "fails at" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("options", [{}, {"library": "torch", "dtype": "float32"}], ids=str)
def test_the_denoiser_is_accepted(options):
    check_denoiser(denoise, **options, examples=20)
    check_denoiser(lambda y, σ: denoise(y, σ, method="paper"), promise=None, **options, examples=20)


def doubled_in_place(matrix, sigma):
    matrix *= 2
    return denoise(matrix / 2, sigma)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        pytest.param(lambda y, σ: denoise(y, σ / 2), "tends to", id="half of sigma"),
        pytest.param(lambda y, σ: denoise(y, 1.1 * σ), "1.14 times that limit", id="sigma 10 % too large"),
        pytest.param(lambda y, σ: y, "tends to", id="its input"),
        pytest.param(lambda y, σ: np.sign(y) * np.maximum(abs(y) - σ, 0), "turns with the matrix", id="entrywise"),
        pytest.param(lambda y, σ: denoise(y, σ) if len(y) > 1 else y, "transpose", id="rows are special"),
        pytest.param(lambda y, σ: denoise(y, 1.0) if σ else y, "scales with", id="sigma ignored"),
        pytest.param(lambda y, σ: 0.99 * y if σ == 0 else denoise(y, σ), "Without noise", id="shrinks without noise"),
        pytest.param(doubled_in_place, "not modified", id="modifies its argument"),
    ],
)
def test_wrong_denoisers_are_rejected(wrong, match):
    rejected(match, check_denoiser, wrong, examples=20)


def test_worse_than_nothing_is_rejected():
    rejected("no worse than doing nothing", check_denoiser, lambda y, σ: -y if σ else y, promise=None)


@pytest.mark.parametrize("loss", ["frobenius", "operator", "nuclear"])
def test_the_shrinkers_are_accepted(loss):
    assert check_shrinker(lambda y, shape, σ: shrink(y, shape, σ, loss=loss), loss) < 1e-9


def test_the_excess_of_thresholds_is_measured():
    """Gavish & Donoho (2014, 2017): the best hard threshold's loss against the optimal shrinker's, on a grid."""
    excess = check_shrinker(lambda y, shape, σ: y * (y > hard_threshold(shape, σ)), excess=1.0)
    assert 0.40 < excess < 0.42


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        pytest.param(lambda y, shape, σ: y * (y > hard_threshold(shape, σ)), "smaller limiting loss", id="hard"),
        pytest.param(lambda y, shape, σ: np.maximum(y - bulk_edge(shape, σ), 0), "smaller limiting loss", id="soft"),
        pytest.param(lambda y, shape, σ: shrink(y, shape, σ, loss="operator"), "limiting loss", id="of another loss"),
        pytest.param(lambda y, shape, σ: shrink(y, shape, 1.01 * σ), "smaller limiting loss", id="sigma 1 % too large"),
        pytest.param(
            lambda y, shape, σ: shrink(y, shape, σ) if shape[0] <= shape[1] else 0 * y, "alike", id="tall matrices"
        ),
        pytest.param(lambda y, shape, σ: y, "is noise and becomes 0", id="its input"),
        pytest.param(lambda y, shape, σ: 1.1 * y * (y > bulk_edge(shape, σ)), "0 <= f", id="larger than observed"),
        pytest.param(lambda y, shape, σ: shrink(y, shape, 1.0), "noise and|scales|limiting loss", id="sigma ignored"),
    ],
)
def test_wrong_shrinkers_are_rejected(wrong, match):
    rejected(match, check_shrinker, wrong, excess=1e-3)


def upper(norms=ExactNorms(), neighbours=ZeroOut()):
    return lambda σ, q, steps, δ: DPSGD(σ, q, norms, neighbours).epsilon(steps=steps, delta=δ).upper


def of(direction):
    return lambda σ, q, steps, δ: DPSGD(σ, q).epsilon_by_direction(steps=steps, delta=δ)[direction].upper


@pytest.mark.parametrize("neighbours", [ZeroOut(), AddRemove(), ReplaceOne()], ids=str)
def test_the_accountant_is_accepted(neighbours):
    check_accountant(upper(neighbours=neighbours), neighbours=neighbours, loosest=0.0, examples=6)


@pytest.mark.slow
def test_the_accountant_of_estimated_norms_is_accepted():
    norms = Hutchinson(8, secret=False)
    check_accountant(upper(norms), norms=norms, loosest=0.0)


def test_an_accountant_of_another_mechanism_is_judged_by_its_bounds():
    """Its own upper end passes; half of that is refuted."""

    def allocated(noise, rate):
        return DPSGD(noise, RandomAllocation(round(1.0 / rate)))

    def claims(noise, rate, steps, delta):
        return allocated(noise, rate).epsilon(epochs=steps, delta=delta).upper

    options = {"mechanism": allocated, "convex": False, "examples": 2}
    check_accountant(claims, loosest=0.0, **options)
    rejected("A tight accountant's", check_accountant, lambda *run: 2.0 * claims(*run) + 1e-6, loosest=0.5, **options)


def test_claims_for_each_direction_are_accepted():
    check_accountant(lambda *run: {"remove": of("remove")(*run), "add": of("add")(*run)}, examples=4)


@pytest.mark.parametrize(
    ("wrong", "options", "match"),
    [
        pytest.param(upper(), {"neighbours": ReplaceOne()}, "certified lower bound", id="Poisson's for replace-one"),
        pytest.param(upper(), {"norms": Hutchinson(8, secret=False)}, "certified lower bound", id="exact norms'"),
        pytest.param(of("add"), {}, "larger one of both directions", id="forgets a direction"),
        pytest.param(lambda *run: {"add": of("add")(*run)}, {}, "claimed are only", id="claims one direction"),
        pytest.param(
            lambda *run: {"remove": of("remove")(*run), "add": 0.9 * of("add")(*run)},
            {},
            r"true one \(add\)",
            id="claims too little for one direction",
        ),
        pytest.param(lambda *run: math.floor(100 * upper()(*run)) / 100, {}, "lower bound", id="rounds down"),
        pytest.param(lambda σ, q, t, δ: gdp_epsilon(clt_mu(σ, q, t), δ), {}, "lower bound", id="central limit theorem"),
        pytest.param(lambda *run: 1.2 * upper()(*run), {"loosest": 0.1}, "at most a certified upper", id="loose"),
        pytest.param(lambda σ, q, t, δ: 10 * upper()(σ, q, t, δ) * σ**4, {}, "More noise never costs", id="in sigma"),
        pytest.param(lambda σ, q, t, δ: upper()(σ, q, t, δ) / q**2, {}, "smaller sample rate", id="in the rate"),
        pytest.param(lambda σ, q, t, δ: upper()(σ, 0.5, 400, δ) / t, {}, "[Mm]ore steps|lower bound", id="in steps"),
        pytest.param(lambda σ, q, t, δ: 999 * δ + upper()(σ, q, t, δ), {}, "larger δ", id="in delta"),
        pytest.param(
            lambda σ, q, t, δ: 50 * t**1.5 / σ**9 * q**3 + 60 * t**1.5, {"convex": False}, "basic", id="squares"
        ),
        pytest.param(
            lambda σ, q, t, δ: upper()(σ, q, t, 10 ** (4 * math.floor(math.log10(δ) / 4))), {}, "convex", id="stairs"
        ),
    ],
)
def test_wrong_accountants_are_rejected(wrong, options, match):
    rejected(match, check_accountant, wrong, **options)


@pytest.mark.parametrize(
    "estimator",
    [
        HutchinsonEstimator(16, secret=False),
        HutchinsonEstimator(2, secret=True),
        HutchPlusPlusEstimator(8, 8, secret=False),
        pytest.param(HutchPlusPlusEstimator(8, 16, secret=True), marks=pytest.mark.slow),
    ],
    ids=lambda estimator: repr(estimator.norms),
)
def test_the_estimators_are_accepted(estimator):
    check_norm_estimator(estimator, draws=500)


def test_exact_norms_are_accepted():
    check_norm_estimator(exact_squared_norms, ExactNorms(), draws=100)


class Probing:
    """Hutchinson's estimator with faults: probes, variance of their entries times k, steps until new ones, offset."""

    def __init__(self, probes=16, scale=1.0, every=1, offset=0.0, seed=0):
        self.rng, self.calls = torch.Generator().manual_seed(seed), 0
        self.probes, self.scale, self.every, self.offset = probes, scale, every, offset

    def __call__(self, activations, gradients):
        if self.calls % self.every == 0:
            self.P = torch.randn(gradients.shape[-1], self.probes, generator=self.rng)
        self.calls += 1
        products = activations.mT @ (gradients @ self.P) * math.sqrt(self.scale / self.probes)
        return (products**2).sum((1, 2)) + self.offset


@pytest.mark.parametrize(
    ("wrong", "law", "match"),
    [
        pytest.param(Probing(scale=0.5), Hutchinson(16, secret=False), "unbiased", id="half the variance"),
        pytest.param(Probing(offset=0.4), Hutchinson(16, secret=False), "unbiased", id="a tenth too large"),
        pytest.param(Probing(8), Hutchinson(16, secret=False), "envelope", id="half the probes"),
        pytest.param(Probing(every=10**9), Hutchinson(16, secret=False), "unbiased", id="one draw for all steps"),
        pytest.param(Probing(every=10), Hutchinson(16, secret=False), "fresh in every step", id="ten steps a draw"),
        pytest.param(Probing(), Hutchinson(16, secret=True), "separate for each sample", id="shared but called secret"),
        pytest.param(Probing(), HutchPlusPlus(16, 16, secret=False), "convex", id="called Hutch++"),
        pytest.param(Probing(), ExactNorms(), "An exact norm", id="called exact"),
    ],
)
def test_wrong_estimators_are_rejected(wrong, law, match):
    rejected(match, check_norm_estimator, wrong, law)


def test_an_estimator_without_a_law_is_refused():
    with pytest.raises(ParameterError, match="law must be Hutchinson"):
        check_norm_estimator(Probing())


@pytest.mark.slow
def test_the_stated_power_of_the_estimator_check():
    """The right estimator passes 60 times of 60; 7 % of bias, and 11 probes for 16, fail 60 times of 60."""
    law = Hutchinson(16, secret=False)
    for seed in range(60):
        check_norm_estimator(Probing(seed=seed), law)
        rejected("unbiased", check_norm_estimator, Probing(scale=1.07, seed=seed), law)
        rejected("envelope", check_norm_estimator, Probing(11, seed=seed), law)


SIZE = 6


def private_step(rows, noise_multiplier):
    """One step of `make_private` on these rows, padded by rows with no gradient; each output's gradient is the row."""
    padded = torch.zeros(SIZE, rows.shape[1])
    padded[: len(rows)] = torch.from_numpy(rows)
    model = torch.nn.Linear(rows.shape[1], 1024, bias=False)
    torch.nn.init.zeros_(model.weight)
    private = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        torch.utils.data.TensorDataset(padded),
        norms="exact",
        clipping_norm=2.0,
        batch_size=SIZE,
        steps=1,
        noise_multiplier=noise_multiplier,
    )
    for batch in private:
        private.step(lambda part: model(part[0]).sum(1) / 32, batch)
    private.close()
    return -model.weight


def test_a_private_run_is_accepted():
    check_private_step(private_step, clipping_norm=2.0, expected_batch_size=SIZE, examples=4)


class Loop:
    """A hand-written private loop, C = 1 and expected batch size 4, whose gradients are the rows; with one fault."""

    def __init__(self, fault=None, seed=0):
        self.fault, self.rng, self.held = fault, np.random.default_rng(seed), None

    def __call__(self, rows, noise_multiplier):
        fault, size, noise = self.fault, 4, self.rng.standard_normal(rows.shape[1])
        if fault == "leaks the batch's mean" and len(rows):
            rows = rows - rows.mean(0)
        clipped = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
        if fault == "clips coordinates":
            clipped = np.clip(rows, -1, 1)
        total = clipped.sum(0)
        if fault == "clips the batch's norm":
            total = rows.sum(0) / max(1.0, float(np.linalg.norm(rows.sum(0))))
        if fault == "divides by the realised batch size":
            size = max(1, len(rows))
        if fault == "half the noise":
            noise_multiplier /= 2
        if fault == "12 % less noise":
            noise_multiplier *= 0.88
        if fault == "Laplace noise":
            noise = self.rng.laplace(size=rows.shape[1]) / math.sqrt(2)
        if fault == "noise only where there are rows" and not len(rows):
            return total
        if fault == "noise reused":
            noise = self.held = noise if self.calls_even() else self.held
        return (total + noise_multiplier * noise) / size

    def calls_even(self):
        self.calls = getattr(self, "calls", -1) + 1
        return self.calls % 2 == 0


def test_a_right_loop_is_accepted():
    check_private_step(Loop(), clipping_norm=1.0, expected_batch_size=4)


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        ("divides by the realised batch size", "at most the clipping norm"),
        ("clips the batch's norm", "do not mix|at most the clipping norm"),
        ("leaks the batch's mean", "do not mix|at most the clipping norm"),
        ("clips coordinates", "at most the clipping norm"),
        ("half the noise", "standard deviation σC"),
        ("12 % less noise", "standard deviation σC"),
        ("noise only where there are rows", "standard deviation σC"),
        ("Laplace noise", "is normal"),
        ("noise reused", "is fresh"),
    ],
)
def test_wrong_loops_are_rejected(fault, match):
    rejected(match, check_private_step, Loop(fault), clipping_norm=1.0, expected_batch_size=4)
