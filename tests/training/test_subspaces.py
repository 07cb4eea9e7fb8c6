"""Projectors, subspaces and projected per-sample gradients against their definitions."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from transformers.pytorch_utils import Conv1D

from dprmt import ParameterError
from dprmt.training.clipping import _matrix_layers
from dprmt.training.clipping._formed_layers import NormPolicy
from dprmt.training.clipping._matrix_layers import plan_layers
from dprmt.training.clipping._modules import trainable_modules
from dprmt.training.subspaces import Subspaces

RANDOM = ("gaussian", "stiefel")
M, R = 60, 12


def projectors(
    kind: str, periods: Iterable[int], *, seed: int = 0, name: str = "layer", m: int = M, r: int = R
) -> list[torch.Tensor]:
    """Of a layer with m inputs and two outputs, in these periods."""
    layer = nn.Linear(m, 2, bias=False)
    subspaces = Subspaces(nn.ModuleDict({name: layer}), rank=r, projector=kind, seed=seed)
    drawn = []
    for period in periods:
        subspaces.period = period
        drawn.append(subspaces.projector(layer.weight))
    return drawn


def ratios(kind: str, count: int) -> np.ndarray:
    """‖Pᵀx‖²/‖x‖² over independent periods."""
    x = torch.linspace(-1.0, 2.0, M)
    draws = [p.T @ x for p in projectors(kind, range(count), seed=3)]
    return np.array([float(y.square().sum() / x.square().sum()) for y in draws])


# The law of the projectors


def test_gaussian_projection_keeps_norms_on_average_and_has_the_chi_square_law() -> None:
    """r‖Pᵀx‖²/‖x‖² is χ²(r); entries of variance 1/r² (the published code's) or 1 are rejected."""
    values = ratios("gaussian", 2000)
    assert stats.ttest_1samp(values, 1.0).pvalue > 1e-3
    assert stats.kstest(R * values, stats.chi2(R).cdf).pvalue > 1e-3
    for wrong in (values / R, values * R, values * 1.1):
        assert stats.ttest_1samp(wrong, 1.0).pvalue < 1e-6
    for dof in (R // 2, 2 * R):
        assert stats.kstest(dof * values, stats.chi2(dof).cdf).pvalue < 1e-6


def test_stiefel_projection_is_a_scaled_frame_with_the_beta_law() -> None:
    """PᵀP = (m/r)I, and (r/m)‖Pᵀx‖²/‖x‖² is Beta(r/2, (m-r)/2): the frame is uniform."""
    p = projectors("stiefel", [0])[0].double()
    torch.testing.assert_close(p.T @ p, torch.eye(R, dtype=torch.float64) * M / R, atol=1e-5, rtol=0)
    values = ratios("stiefel", 2000) * R / M
    assert stats.kstest(values, stats.beta(R / 2, (M - R) / 2).cdf).pvalue > 1e-3
    assert stats.kstest(values, stats.beta(R / 2 + 1, (M - R) / 2).cdf).pvalue < 1e-6
    assert stats.ttest_1samp(values, 1.0).pvalue < 1e-6  # a frame that is not scaled loses norm


@pytest.mark.parametrize("kind", RANDOM)
def test_lifting_is_unbiased(kind: str) -> None:
    """E PPᵀ = I entry by entry, so that P(PᵀG) is unbiased for G."""
    count = 3000
    draws = torch.stack([(p @ p.T).flatten() for p in projectors(kind, range(count), seed=5, m=6, r=3)])
    z = (draws.mean(0) - torch.eye(6).flatten()) / (draws.std(0) + 1e-6) * math.sqrt(count)
    assert z.abs().max() < 4.5  # 36 entries
    scaled = (draws.mean(0) * 0.9 - torch.eye(6).flatten()) / (draws.std(0) + 1e-6) * math.sqrt(count)
    assert scaled.abs().max() > 4.5


@pytest.mark.parametrize("kind", RANDOM)
def test_projectors_are_a_function_of_seed_layer_and_period(kind: str) -> None:
    reference, again = (projectors(kind, [4], seed=1, name="a")[0] for _ in range(2))
    assert torch.equal(reference, again)
    for seed, name, period in [(2, "a", 4), (1, "b", 4), (1, "a", 5)]:
        (other,) = projectors(kind, [period], seed=seed, name=name)
        cosine = float((reference * other).sum() / reference.norm() / other.norm())
        assert abs(cosine) < 5 / math.sqrt(M * R)


# Projected gradients


def measured(module: nn.Module, a: torch.Tensor, g: torch.Tensor, rank: int, form: bool) -> tuple:
    """Projector, squared norms and clipped sum (with factors 1) of a layer whose weight is in a subspace."""
    subspaces = Subspaces(module, rank=rank, seed=3)
    (layer,) = plan_layers(trainable_modules(module), NormPolicy(form=form), subspaces)
    squared, contributions = layer.measure([([a], g)], 0, None)
    for contribution in contributions:
        contribution.add_to_sums(torch.ones(len(a), dtype=torch.float64), slice(None))
    return subspaces.projector(module.weight).to(a.dtype), squared, module.weight.summed_grad


@given(
    st.integers(1, 3), st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**20)
)
def test_projected_gradients_and_norms_equal_the_definition(
    size: int, tokens: int, d: int, p: int, r: int, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    a, g = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in [(size, tokens, d), (size, tokens, p)])
    for make in (lambda: nn.Linear(d, p, bias=False), lambda: Conv1D(p, d)):
        for form in (True, False):
            module = make().double()
            matrices = a.mT @ g if isinstance(module, Conv1D) else g.mT @ a
            projector, squared, total = measured(module, a, g, min(r, max(d, p)), form)
            rows, columns = module.weight.shape
            literal = projector.T @ (matrices if rows >= columns else matrices.mT)
            bias = g.sum(1).square().sum(1) if isinstance(module, Conv1D) else 0.0
            torch.testing.assert_close(squared, literal.square().sum((1, 2)) + bias, rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(total, literal.sum(0))


def test_ghost_norms_survive_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nearly opposite tokens: Gram matrices in float32 would lose all digits; these keep the operands'.

    What is added for sums in float32 is far longer here, so it is left out.
    """
    monkeypatch.setattr(_matrix_layers, "cancellation_allowance", lambda *_, **__: 0.0)
    a = torch.ones(1, 2, 40)
    g = torch.ones(1, 2, 30)
    g[0, 1] = -1.0 + 2.0**-12
    projector, norms, _ = measured(nn.Linear(40, 30, bias=False), a, g, 20, form=False)
    truth = float((a[0, 0] @ projector).double().square().sum()) * 30 * 2.0**-24
    assert float(norms) == pytest.approx(truth, rel=1e-3)


# Subspaces


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 5), Conv1D(12, 5), nn.LayerNorm(12), nn.Linear(12, 12))


def test_the_longer_side_is_projected() -> None:
    """Then what is stored, r x n, has the smaller n; weights of Conv1D lie the other way round."""
    subspaces = Subspaces(model(), rank=3)
    assert [(layer.name, layer.axis, layer.m, layer.n) for layer in subspaces] == [
        ("0.weight", 1, 9, 5),
        ("1.weight", 1, 12, 5),
        ("3.weight", 0, 12, 12),
    ]


@pytest.mark.parametrize(("projector", "ranks"), [("gaussian", [9, 12, 12]), ("svd", [5, 5, 12])])
def test_one_rank_for_all_is_at_most_what_a_layer_has(projector: str, ranks: list[int]) -> None:
    assert [layer.rank for layer in Subspaces(model(), rank=30, projector=projector)] == ranks
    with pytest.raises(ParameterError, match=r"rank of 0\.weight"):
        Subspaces(model(), rank={"0.weight": ranks[0] + 1}, projector=projector)


@pytest.mark.parametrize("refresh_every", [1, 3])
def test_subspaces_change_every_f_steps_and_only_then(refresh_every: int) -> None:
    net = model()
    subspaces = Subspaces(net, rank=3, refresh_every=refresh_every, seed=8)
    drawn = []
    for _ in range(7):
        drawn.append(subspaces.projector(net[0].weight))
        subspaces.advance()
    for i, first in enumerate(drawn):
        for j, second in enumerate(drawn):
            assert torch.equal(first, second) == (i // refresh_every == j // refresh_every)


def test_svd_subspace_is_the_leading_one() -> None:
    net = nn.Linear(20, 10, bias=False)
    subspaces = Subspaces(net, rank=2, projector="svd", refresh_every=2)
    assert subspaces.projector(net.weight) is None
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((side, 3)))[0] for side in (20, 10))
    released = torch.from_numpy(u * [5.0, 4.0, 0.1] @ v.T).float()
    p = subspaces.find(net.weight, released)
    assert p.shape == (20, 2)
    torch.testing.assert_close(p @ p.T @ torch.from_numpy(u[:, :2]).float(), torch.from_numpy(u[:, :2]).float())
    subspaces.advance()
    assert subspaces.projector(net.weight) is p
    subspaces.advance()
    assert subspaces.projector(net.weight) is None
