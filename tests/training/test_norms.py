"""Norm estimators: exact ones against loops, random ones against their law, clip factors against their claim."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dprmt import ParameterError
from dprmt.accounting import DPSGD, ExactNorms, Hutchinson, HutchPlusPlus, chi2_mixture_cdf
from dprmt.training.norms import (
    HutchinsonEstimator,
    HutchPlusPlusEstimator,
    LayerRecord,
    NormRecord,
    ProbeGenerator,
    cheaper_side,
    clip_factors,
    exact_squared_norms,
    ghost_squared_norms,
    hutchinson_squared_norms,
    hutchpp_squared_norms,
    rounding_margin,
)
from dprmt.training.norms._clipping import cancellation_allowance
from dprmt.training.norms._estimators import layer_record
from dprmt.training.norms._probes import sample_names

K = 8
SPECTRA = {"rank one": [1.0], "flat": [1.0] * 5, "decaying": [0.6**i for i in range(5)]}
MODES = ["batch", "sample"]
SHAPES = {"probes on G": (7, 6), "probes on A": (6, 7)}  # (d, p), see cheaper_side
Factors = tuple[torch.Tensor, torch.Tensor]


def factors(size: int, tokens: int, d: int, p: int, seed: int = 0) -> Factors:
    """Random activations and output gradients, float64."""
    rng = np.random.default_rng(seed)
    activations, gradients = (torch.from_numpy(rng.standard_normal((size, tokens, width))) for width in (d, p))
    return activations, gradients


def with_singular_values(values: list[float], d: int, p: int) -> Factors:
    """Factors of one sample, shapes (1, T, d) and (1, T, p), whose AᵀG has the given singular values."""
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.standard_normal((size, len(values))))[0].T for size in (d, p))
    return torch.from_numpy(left[None].copy()), torch.from_numpy(np.array(values)[None, :, None] * right)


def ratios(
    norms: HutchinsonEstimator | HutchPlusPlusEstimator, a: torch.Tensor, g: torch.Tensor, count: int
) -> np.ndarray:
    """Independent values of X = n̂/n for one sample's gradient: over samples, or over steps if probes are shared."""
    if norms.secret:
        many = (a.expand(count, -1, -1), g.expand(count, -1, -1))
        estimates = norms.squared_norms(*many, layer="l", step=0, samples=range(count))
    else:
        estimates = torch.cat([norms.squared_norms(a, g, layer="l", step=step) for step in range(count)])
    return (estimates / exact_squared_norms(a, g)).numpy()


def law(weights: np.ndarray, k: int) -> Callable[[np.ndarray], np.ndarray]:
    """CDF of Σ λ_i χ²_i(k)/k."""
    return lambda x: chi2_mixture_cdf(x, weights / k, np.full(len(weights), float(k)))


def assert_law(values: np.ndarray, weights: np.ndarray, k: int) -> None:
    """The KS test accepts k probes and rejects half and twice as many."""
    assert stats.kstest(values, law(weights, k)).pvalue > 1e-3
    for wrong in (k // 2, 2 * k):
        assert stats.kstest(values, law(weights, wrong)).pvalue < 1e-6


# Exact norms


@pytest.mark.parametrize("bias", [False, True])
def test_the_allowance_is_made_of_tokens_lengths(bias: bool) -> None:
    """√2 ρ Σ_t (‖a_t‖² + bias)‖g_t‖², sample by sample and token by token."""
    a, g = factors(2, 4, 5, 3)
    for dtype, u in ((torch.float32, 2.0**-24), (torch.float64, 2.0**-53)):
        for i, total in enumerate(cancellation_allowance(a, g, bias=bias, terms=98, dtype=dtype).tolist()):
            lengths = [(float(a[i, t] @ a[i, t]) + bias) * float(g[i, t] @ g[i, t]) for t in range(4)]
            assert total == pytest.approx(math.sqrt(2) * 80 * u * sum(lengths), rel=1e-6)


# The law of the estimates


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sharing", MODES)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_hutchinson_ratio_has_the_mixture_law(spectrum: str, sharing: str, shape: str) -> None:
    """Theory §1: X = Σ λ_i χ²_i(k)/k, on either side and in either mode; half and twice the probes are rejected."""
    values = SPECTRA[spectrum]
    a, g = with_singular_values(values, *SHAPES[shape])
    side = "gradients" if shape == "probes on G" else "activations"
    assert cheaper_side(*SHAPES[shape]) == side
    norms = HutchinsonEstimator(K, secret=sharing == "sample", generator=ProbeGenerator(11))
    weights = np.square(values) / np.square(values).sum()
    assert_law(ratios(norms, a.float(), g.float(), 1500), weights, K)


def literal_hutchpp(matrix: np.ndarray, sketch: np.ndarray, probes: np.ndarray, power_iteration: bool) -> float:
    """Algorithm 1 of Meyer et al. with a formed M, as the notes print it; or with the range of MᵀS."""
    square = matrix.T @ matrix
    q = np.linalg.qr((square if power_iteration else matrix.T) @ sketch)[0]
    rest = np.eye(len(q)) - q @ q.T
    return float(np.trace(q.T @ square @ q) + np.trace(probes.T @ rest @ square @ rest @ probes))


@pytest.mark.parametrize("side", ["gradients", "activations"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_hutchpp_equals_the_literal_algorithm(side: str, bias: bool, power: bool) -> None:
    a, g = factors(3, 7, 5, 6)
    sizes = (6, 5 + bias) if side == "gradients" else (5 + bias, 6)
    rng = np.random.default_rng(2)
    sketch, probes = rng.standard_normal((3, sizes[not power], 2)), rng.standard_normal((3, sizes[0], K))
    literal = []
    for sample in range(3):
        matrix = np.concatenate([a[sample].numpy(), np.ones((7, int(bias)))], 1).T @ g[sample].numpy()
        matrix = matrix if side == "gradients" else matrix.T
        literal.append(literal_hutchpp(matrix, sketch[sample], probes[sample], power))
    options = {"side": side, "bias": bias, "power_iteration": power}
    estimates = hutchpp_squared_norms(a, g, torch.from_numpy(sketch), torch.from_numpy(probes), **options)
    np.testing.assert_allclose(estimates, literal, rtol=1e-10)


@pytest.mark.parametrize("sharing", MODES)
@pytest.mark.parametrize("rank", [1, 3, 4])
@pytest.mark.parametrize("power", [False, True])
def test_hutchpp_is_exact_up_to_the_rank_of_its_sketch(sharing: str, rank: int, power: bool) -> None:
    """Rank <= s: no randomness left. Rank s + 1: some."""
    a, g = with_singular_values([0.5**i for i in range(rank)], 9, 8)
    options = {"secret": sharing == "sample", "generator": ProbeGenerator(0), "power_iteration": power}
    x = ratios(HutchPlusPlusEstimator(K, sketch=3, **options), a, g, 20)
    assert (np.abs(x - 1).max() < 1e-10) == (rank <= 3)


@pytest.mark.parametrize("sharing", MODES)
def test_hutchpp_draws_its_probes_independently_of_its_sketch(sharing: str) -> None:
    """Unbiased within 4.5 standard errors; with the sketch's column space in place of the probes' far too small."""
    a, g = with_singular_values(SPECTRA["flat"], 7, 6)
    norms = HutchPlusPlusEstimator(2, sketch=2, secret=sharing == "sample", generator=ProbeGenerator(14))
    x = ratios(norms, a, g, 1500)
    assert abs(x.mean() - 1) < 4.5 * x.std() / math.sqrt(1500) < 0.05
    same = ProbeGenerator(14).shared(step=0, layer="l", rows=6, probes=2, dtype=torch.float64)
    assert hutchpp_squared_norms(a, g, same.flip(1), same) < 0.8 * exact_squared_norms(a, g)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("width", [2, 3])
def test_a_sketch_from_the_probes_seed_is_refused(width: int, power: bool) -> None:
    """One stream of numbers for both, whatever the widths and scales; for all samples or for one of them."""
    a, g = factors(2, 9, 7, 7)
    generator = ProbeGenerator(14)
    shared = [generator.shared(step=0, layer="l", rows=7, probes=columns) for columns in (width, 2)]
    with pytest.raises(ParameterError, match=r"^sketch must be independent of the probes"):
        hutchpp_squared_norms(a, g, 5 * shared[0], shared[1], power_iteration=power)
    own = [generator.per_sample([1, 2], step=0, layer="l", rows=7, probes=2, purpose=name) for name in ("a", "b")]
    assert torch.isfinite(hutchpp_squared_norms(a, g, *own, power_iteration=power)).all()
    own[0][1] = -own[1][1]
    with pytest.raises(ParameterError, match=r"^sketch must be independent"):
        hutchpp_squared_norms(a, g, *own, power_iteration=power)


def test_the_basis_is_never_formed_from_coarser_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user allows TF32, the head's basis is in float32 all the same, and the setting is as it was."""
    seen = []
    real = torch.linalg.qr

    def recorded(matrix: torch.Tensor) -> object:
        seen.append(torch.get_float32_matmul_precision())
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "qr", recorded)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        HutchPlusPlusEstimator(2, 3, secret=False).squared_norms(*factors(1, 5, 9, 8), layer="l", step=0)
        assert (seen, torch.get_float32_matmul_precision()) == (["highest"], "high")
    finally:
        torch.set_float32_matmul_precision(before)


# Precision, memory and rounding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_inputs_are_accumulated_in_float32(dtype: torch.dtype, autocast: bool) -> None:
    """Against float64 on the same numbers: far closer than any product in half precision comes."""
    a, g = (factor.to(dtype) for factor in factors(3, 40, 30, 20))
    probes, sketch = (ProbeGenerator(0).shared(step=0, layer=s, rows=20, probes=K) for s in "ab")
    calls = [
        lambda a, g: exact_squared_norms(a, g, bias=True),
        ghost_squared_norms,
        lambda a, g: exact_squared_norms(0.0 * a, g, bias=True),
        lambda a, g: hutchinson_squared_norms(a, g, probes.to(g.dtype if g.dtype == torch.float64 else torch.float32)),
        lambda a, g: hutchpp_squared_norms(a, g, sketch, probes),
        lambda a, g: HutchinsonEstimator(K, secret=False, generator=ProbeGenerator(0)).squared_norms(
            a, g, layer="l", step=0
        ),
    ]
    for call in calls:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            estimates = call(a, g)
        assert estimates.dtype == torch.float64
        torch.testing.assert_close(estimates, call(a.double(), g.double()), rtol=5e-6, atol=0)


def test_statistical_margin_covers_gaussian_data_tenfold() -> None:
    """Relative errors of √n̂ in float32 against float64 are below a tenth of the margin, and not below 1/10000."""
    a, g = (factor.float() for factor in factors(20, 300, 200, 150))
    probes = ProbeGenerator(0).shared(step=0, layer="l", rows=150, probes=K)
    exact = hutchinson_squared_norms(a.double(), g.double(), probes.double()).sqrt()
    errors = (hutchinson_squared_norms(a, g, probes).sqrt() / exact - 1).abs()
    margin = rounding_margin(300 + 150)
    assert 1e-4 * margin < errors.max() < 0.1 * margin


@given(st.floats(-20, 20), st.floats(-6, 6), st.floats(0, 0.3), st.floats(-1, 1))
def test_clip_factors_keep_the_sensitivity_claim(
    log_norm: float, log_bound: float, rounding: float, share: float
) -> None:
    """factor·√n̂ <= C in exact arithmetic for every computed ñ with √ñ >= (1-ρ)√n̂: then factor·√n <= C·Z."""
    computed, bound = math.exp(log_norm), math.exp(log_bound)
    factor = clip_factors(torch.tensor([computed], dtype=torch.float64), bound, rounding=rounding).item()
    true_norm = Fraction(computed) / (1 - Fraction(rounding) * Fraction(max(share, 0.0))) ** 2  # n̂
    assert Fraction(factor) ** 2 * true_norm <= Fraction(bound) ** 2
    wanted = min(1.0, bound * (1 - rounding) / math.sqrt(computed))
    assert factor == pytest.approx(wanted, rel=1e-14)


def test_without_a_margin_the_claim_would_fail() -> None:
    """The smallest allowed ñ needs all of the margin; also where the factor is nearly 1."""
    for scale in (1.001, 9.0):
        low = torch.tensor([scale * (1 - 1e-3) ** 2], dtype=torch.float64)
        factors_ = [clip_factors(low, 1.0, rounding=rounding).item() for rounding in (1e-3, 0.99e-3, 0.0)]
        assert [factor * math.sqrt(scale) <= 1.0 for factor in factors_] == [True, False, False]


def test_clip_factors_of_strange_norms() -> None:
    norms = torch.tensor([0.0, math.inf, math.nan, 1e-300], dtype=torch.float64)
    assert clip_factors(norms, 1.0).tolist() == [1.0, 0.0, 0.0, 1.0]


# What the accountant is told


def test_a_rank_is_the_smallest_side_or_the_number_of_tokens() -> None:
    """With a bias among the inputs."""
    for sizes, rank in (((20, 10, False, 40), 10), ((3, 10, True, None), 4), ((20, 10, True, 4), 4)):
        *sides, bias, tokens = sizes
        assert layer_record(HutchinsonEstimator(32), "l", *sides, bias=bias, tokens=tokens).norms.rank == rank


def hutchinson(probes: int, rank: int | None = None, secret: bool = True) -> Hutchinson:
    return Hutchinson(probes, rank=rank, secret=secret)


def hutchpp(probes: int, sketch: int, power: bool = False, secret: bool = True) -> HutchPlusPlus:
    return HutchPlusPlus(probes, sketch, power_iteration=power, secret=secret)


NARROW = HutchPlusPlusEstimator(4, 2).norms  # a sketch that the accountant cannot credit
CHARGED: list[tuple[list[Any], Any]] = [
    ([ExactNorms()], ExactNorms()),
    # A rank is claimed if every parameter is estimated (theory §2), by Hutchinson with equal k.
    ([hutchinson(32, 4), hutchinson(32, 3)], hutchinson(32, 7)),
    ([hutchinson(32, 4, False), hutchinson(32, 3, False)], hutchinson(32, 7, False)),
    ([hutchinson(4, 7), hutchinson(4, 2, False)], hutchinson(4, 9, False)),
    ([hutchinson(32, 4), ExactNorms()], hutchinson(32)),
    ([hutchinson(32, 4), hutchinson(32)], hutchinson(32)),
    ([hutchinson(32, 4), hutchpp(32, 12, True)], hutchinson(32)),
    # (T3), (E5): the smallest number of probes.
    ([hutchinson(8, 3, False), hutchinson(4, 2, False)], hutchinson(4, secret=False)),
    ([hutchpp(9, 4, secret=False), hutchinson(16)], hutchinson(9, secret=False)),
    ([hutchinson(3, 1), hutchpp(9, 4)], hutchinson(3)),
    ([hutchpp(9, 4, secret=False), hutchpp(5, 8, True, False)], hutchpp(5, 4, secret=False)),
    # The smallest sketch, where all have one; a power iteration and a secret that all have.
    ([hutchpp(4, 8), hutchpp(4, 6), ExactNorms()], hutchpp(4, 6)),
    ([hutchpp(4, 8), hutchinson(4), ExactNorms()], hutchinson(4)),
    ([hutchpp(4, 8), NARROW], hutchinson(4)),
    ([hutchpp(4, 8, True), hutchpp(4, 6, True)], hutchpp(4, 6, True)),
    ([hutchpp(4, 8, True), hutchpp(4, 6, True), hutchpp(4, 9)], hutchpp(4, 6)),
    ([hutchpp(4, 8, True), hutchpp(4, 6, True), hutchpp(4, 9, True, False)], hutchpp(4, 6, True, False)),
    ([hutchpp(4, 8, True), hutchpp(4, 6, True), hutchinson(4, 7)], hutchinson(4)),
]


@pytest.mark.parametrize(("layers", "charged"), CHARGED)
def test_the_record_charges_the_smallest_number_and_what_all_layers_have(layers: list[Any], charged: Any) -> None:
    for order in (layers, layers[::-1]):
        record = NormRecord([LayerRecord(f"{place}", norms) for place, norms in enumerate(order)])
        assert record.mechanism(1.5, 0.1) == DPSGD(1.5, 0.1, charged)


def test_bad_records() -> None:
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: NormRecord([]), "layers"),
        (lambda: NormRecord([LayerRecord("a"), LayerRecord("a")]), "layers"),
        (lambda: NormRecord([LayerRecord("a", "exact")]).mechanism(1.0, 0.1), "norms"),  # type: ignore[arg-type]
    ]
    for make, named in cases:
        with pytest.raises(ParameterError, match=named):
            make()
    assert NormRecord([LayerRecord("norm"), LayerRecord("own", None)]).norms is None


@pytest.mark.parametrize("power", [False, True])
def test_a_layer_no_wider_than_sketch_and_probes_is_exact(power: bool) -> None:
    """At s + k the smaller side is too small, at s + k + 1 it is not."""
    norms = HutchPlusPlusEstimator(4, sketch=5, power_iteration=power)
    assert [norms.is_cheaper(*sides) for sides in ((9, 40), (40, 9), (10, 40))] == [False, False, True]
    law = HutchPlusPlus(4, 5, power_iteration=power, secret=True)
    assert layer_record(norms, "l", 10, 40) == LayerRecord("l", law)  # no rank: the head is exact


def test_the_sketch_chosen_for_so_many_probes() -> None:
    """About a third of the probes, more without a power iteration, and never one that the accountant cannot credit."""
    assert [HutchPlusPlusEstimator(k).width for k in (2, 8, 32, 100)] == [3, 3, 12, 36]
    assert [HutchPlusPlusEstimator(k, power_iteration=False).width for k in (2, 8, 32, 100)] == [3, 4, 14, 45]
    assert HutchPlusPlusEstimator(32, sketch=1).width == 1


# Probes: their law, their independence across every part of the key, and that the secret stays one

REQUEST = {"step": 3, "layer": "head", "rows": 50, "probes": 16}


def draw(generator: ProbeGenerator, sample: object = None, **changes: object) -> torch.Tensor:
    """One matrix, shared or of one sample."""
    request = {**REQUEST, **changes}
    return generator.shared(**request) if sample is None else generator.per_sample([sample], **request)[0]


@pytest.mark.parametrize("sample", [None, 7])
def test_entries_are_normal_with_variance_one_over_k(sample: object) -> None:
    """The KS test accepts N(0, 1/k) and rejects variances 1/(k-2), 1/(k+2), hence 1 and 2/k as well."""
    values = draw(ProbeGenerator(0), sample, rows=10000).numpy().ravel()
    assert stats.kstest(values, stats.norm(scale=1 / 4).cdf).pvalue > 1e-3
    for k in (14, 18):
        assert stats.kstest(values, stats.norm(scale=1 / math.sqrt(k)).cdf).pvalue < 1e-6


def test_columns_and_rows_are_uncorrelated() -> None:
    values = draw(ProbeGenerator(0), rows=20000, probes=4).double().numpy()
    correlations = np.corrcoef(values.T)[np.triu_indices(4, 1)]
    lagged = np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]
    assert np.abs([*correlations, lagged]).max() < 4.5 / math.sqrt(20000)


def test_every_part_of_the_key_gives_an_independent_matrix() -> None:
    """Correlations of 800 entries stay within 4.5 standard deviations; the same key gives correlation 1."""
    one, other = ProbeGenerator(0), ProbeGenerator(1)
    matrices = [
        *(draw(one, sample, **changes) for sample in (None, 7, "7", -7) for changes in ({}, {"step": 4})),
        *(draw(one, sample, **changes) for sample in (None, 7) for changes in ({"layer": "h"}, {"purpose": "sketch"})),
        draw(one, layer="head3", step=0),
        draw(one, layer="head", step=30),
        draw(other),
        draw(other, 7),
    ]
    table = np.corrcoef(torch.stack(matrices).flatten(1).double().numpy())
    assert np.abs(table[np.triu_indices(len(table), 1)]).max() < 4.5 / math.sqrt(800)
    assert np.corrcoef(draw(one).flatten(), draw(ProbeGenerator(0)).flatten())[0, 1] == pytest.approx(1.0)


def test_a_sample_keeps_its_matrix_wherever_it_stands() -> None:
    """Theory §8: keyed by identity, never by position; regenerated, whatever was drawn before."""
    generator = ProbeGenerator(0)
    together = generator.per_sample([4, "b", 9], **REQUEST)
    for position, sample in enumerate([4, "b", 9]):
        draw(generator, 1000 + position)
        assert torch.equal(draw(generator, sample), together[position])
    assert torch.equal(generator.per_sample(torch.tensor([9, 4]), **REQUEST), together[[2, 0]])
    assert torch.equal(generator.per_sample(np.array([9, 4]).tolist(), **REQUEST), together[[2, 0]])


def test_the_global_generators_are_neither_used_nor_moved() -> None:
    torch.manual_seed(0)
    before, first = torch.get_rng_state(), draw(ProbeGenerator(0))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(draw(ProbeGenerator(0)), first)


def test_the_seed_is_secret_by_default_and_not_shown() -> None:
    """Two generators differ, and no way of printing or copying one shows the seed."""
    assert not torch.equal(draw(ProbeGenerator()), draw(ProbeGenerator()))
    seed = b"sixteen secret b"
    generator = ProbeGenerator(seed)
    shown = f"{generator!r} {generator!s} {getattr(generator, '__dict__', {})}"
    assert "sixteen" not in shown
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret"):
            attempt(generator)
    for wrong in (b"sixteen secret", seed * 5, -123456, 2**256):
        with pytest.raises(ParameterError) as error:
            ProbeGenerator(wrong)
        assert "sixteen" not in str(error.value)
        assert "123456" not in str(error.value)


def test_seeds_of_different_kinds_differ() -> None:
    seeds = [bytes(16), bytes(32), bytes(63), bytes(64), 0, 1, 256]
    matrices = [draw(ProbeGenerator(seed)) for seed in seeds]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(matrices, 2))


@given(st.lists(st.one_of(st.integers(), st.text()), unique_by=lambda sample: (type(sample), sample)))
def test_different_identities_have_different_names(samples: list[int | str]) -> None:
    """Names are injective: the list is accepted, and its names are as many as its members."""
    assert len(set(sample_names(samples))) == len(samples)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": 1.0},
        {"layer": ""},
        {"layer": 3},
        {"rows": 0},
        {"probes": 0},
        {"purpose": ""},
        {"dtype": torch.bfloat16},
    ],
)
def test_bad_requests(changes: dict[str, object]) -> None:
    for sample in (None, 7):
        with pytest.raises(ParameterError, match=next(iter(changes))):
            draw(ProbeGenerator(0), sample, **changes)


@pytest.mark.parametrize("samples", [[1, 2, 1], ["a", "a"], [1.5], [True], [None], "ab", 3])
def test_bad_identities(samples: object) -> None:
    with pytest.raises(ParameterError, match="samples"):
        ProbeGenerator(0).per_sample(samples, **REQUEST)


def test_float64_probes_are_the_float32_ones_before_rounding() -> None:
    fine, coarse = draw(ProbeGenerator(0), dtype=torch.float64), draw(ProbeGenerator(0))
    assert fine.dtype == torch.float64
    assert torch.equal(fine.float(), coarse)
    assert not torch.equal(fine, coarse.double())


def test_keys_have_more_than_32_bits() -> None:
    """Torch's own generator drops the others of its seed."""
    steps = (5, 5 + 2**32)
    assert not torch.equal(*(draw(ProbeGenerator(0), step=step) for step in steps))
    assert not torch.equal(*(draw(ProbeGenerator(step)) for step in steps))
