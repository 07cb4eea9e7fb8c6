"""DP-AdamBC: against Algorithm 2 as printed, against Adam where the two coincide, and its claim of an unbiased v̂."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dprmt import ParameterError
from dprmt.training.optimizers import DPAdamBC
from tests.training.test_private_run import saved_and_loaded

BETAS = st.floats(0.0, 0.9999)
RATES = st.floats(1e-6, 10.0)
SHAPES = st.lists(st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple), min_size=1, max_size=3)
SEEDS = st.integers(0, 2**32 - 1)


def algorithm_2(
    start: np.ndarray,
    gradients: Sequence[np.ndarray],
    η: float,
    β1: float,
    β2: float,
    variances: Sequence[float],
    γ: float,
    λ: float = 0.0,
) -> np.ndarray:
    """Algorithm 2, lines 8 to 12, entry by entry; variances of the steps averaged with the weights of v̂_t."""
    θ = start.astype(float).copy()
    for j in np.ndindex(θ.shape):
        m = v = 0.0
        for t, g in enumerate(gradients, start=1):
            m = β1 * m + (1 - β1) * g[j]
            v = β2 * v + (1 - β2) * g[j] ** 2
            m_hat = m / (1 - β1**t)
            v_hat = v / (1 - β2**t)
            weights = [β2 ** (t - s) for s in range(1, t + 1)]
            Φ = sum(w * φ for w, φ in zip(weights, variances[:t], strict=True)) / sum(weights)
            θ[j] = (1 - η * λ) * θ[j] - η * m_hat / math.sqrt(max(v_hat - Φ, γ))
    return θ


def draw(shapes: Sequence[tuple[int, ...]], seed: int, dtype: Any = None, scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(seed)
    dtype = dtype or torch.float64
    return [torch.as_tensor(scale * rng.standard_normal(shape), dtype=dtype) for shape in shapes]


def parameters(tensors: Sequence[Any]) -> list[Any]:
    return [torch.nn.Parameter(tensor.clone()) for tensor in tensors]


def take_steps(optimizer: Any, params: Sequence[Any], gradients: Sequence[Sequence[Any]]) -> None:
    for step in gradients:
        for p, g in zip(params, step, strict=True):
            p.grad = None if g is None else g.clone()
        optimizer.step()


# --- the algorithm


@given(seed=SEEDS, η=RATES, β1=BETAS, β2=BETAS, Φ=st.floats(0.0, 4.0), γ=st.floats(0.01, 1.0), λ=st.floats(0.0, 0.05))
def test_is_algorithm_2(seed: int, η: float, β1: float, β2: float, Φ: float, γ: float, λ: float) -> None:
    """θ_T is that of the printed algorithm with AdamW's decay, floor active in some entries and not in others."""
    (start,) = draw([(2, 3)], seed)
    gradients = [draw([(2, 3)], seed + t, scale=1.5) for t in range(1, 13)]
    (p,) = params = parameters([start])
    take_steps(DPAdamBC(params, η, (β1, β2), noise_variance=Φ, floor=γ, weight_decay=λ), params, gradients)
    expected = algorithm_2(start.numpy(), [g.numpy() for (g,) in gradients], η, β1, β2, [Φ] * 12, γ, λ)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=0, atol=1e-9 * η + 1e-13)


@given(
    seed=SEEDS,
    β2=BETAS,
    variances=st.lists(st.floats(0.0, 4.0), min_size=8, max_size=8),
    announced=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_follows_a_changing_noise_variance(seed: int, β2: float, variances: list[float], announced: list[bool]) -> None:
    """Φ̂_t is the average of Φ_1 … Φ_t with the weights of v̂_t, whether set by group or announced for the step."""
    (start,) = draw([(5,)], seed)
    gradients = [draw([(5,)], seed + t, scale=1.5) for t in range(1, 9)]
    (p,) = params = parameters([start])
    optimizer = DPAdamBC(params, 0.1, (0.5, β2), noise_variance=7.0, floor=0.05)
    for gradient, Φ, by_parameter in zip(gradients, variances, announced, strict=True):
        optimizer.param_groups[0]["noise_variance"] = 7.0 if by_parameter else Φ
        if by_parameter:
            optimizer.set_noise_variance({p: Φ})
        take_steps(optimizer, params, [gradient])
    expected = algorithm_2(start.numpy(), [g.numpy() for (g,) in gradients], 0.1, 0.5, β2, variances, 0.05)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=0, atol=1e-10)


# --- the torch.optim interface


DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def two_groups(dtypes: Sequence[Any], seed: int = 0) -> tuple[Any, list[Any]]:
    """An optimizer with two groups of different options, and its parameters."""
    shapes = [(3, 4), (5,), (), (2, 2), (0,), (33, 7)]
    params = [parameters(draw([s], seed + i, d))[0] for d in dtypes for i, s in enumerate(shapes)]
    own = {"noise_variance": 0.5, "lr": 0.02, "betas": (0.5, 0.9), "weight_decay": 0.1}
    groups = [{"params": params[::2]}, {"params": params[1::2], **own}]
    return DPAdamBC(groups, 0.1, noise_variance=0.1, floor=1e-2), params


def gradients_for(params: Sequence[Any], steps: int, seed: int = 100) -> list[list[Any]]:
    """Random gradients; every parameter but the first misses some steps at random."""
    rng = np.random.default_rng(seed)
    return [
        [
            None if i and rng.random() < 0.2 else draw([p.shape], seed + 50 * t + i, p.dtype)[0]
            for i, p in enumerate(params)
        ]
        for t in range(steps)
    ]


def test_resume_is_exact() -> None:
    """Saved after 5 steps, loaded and continued, in all dtypes: the parameters of an uninterrupted run to the bit."""
    optimizer, params = two_groups(list(DTYPES.values()))
    first, second = gradients_for(params, 5), gradients_for(params, 6, seed=900)
    take_steps(optimizer, params, first)
    optimizer.param_groups[0]["noise_variance"] = 0.3
    optimizer.set_noise_variance({params[0]: 0.7})
    state = saved_and_loaded(optimizer.state_dict())
    other, copies = two_groups(list(DTYPES.values()), seed=31)
    for p, q in zip(params, copies, strict=True):
        q.data.copy_(p.data)
    other.load_state_dict(state)
    assert other.param_groups[0]["noise_variance"] == 0.3
    take_steps(other, copies, second)
    take_steps(optimizer, params, second)
    for p, q in zip(params, copies, strict=True):
        assert torch.equal(p, q)
        assert optimizer.state[p].keys() == other.state[q].keys()
        for name, value in optimizer.state[p].items():
            assert value is not other.state[q][name] or not isinstance(value, torch.Tensor)
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other.state[q][name])), name


def test_groups_have_their_own_options() -> None:
    """A group steps as an optimizer of its own with these options would, also one that was added later."""
    options = {"lr": 0.3, "betas": (0.2, 0.7), "noise_variance": 0.4, "floor": 0.2, "weight_decay": 0.1}
    start, gradients = draw([(6,)], 1), [draw([(6,)], t) for t in range(2, 9)]
    (alone,), (grouped,) = parameters(start), parameters(start)
    (other,) = parameters(start)
    take_steps(DPAdamBC([alone], **options), [alone], gradients)
    optimizer = DPAdamBC([other], 0.1, noise_variance=0.0, floor=1.0)
    optimizer.add_param_group({"params": [grouped], **options})
    take_steps(optimizer, [other, grouped], [[g, g] for (g,) in gradients])
    assert torch.equal(alone, grouped)
    assert not torch.equal(alone, other)


# --- bad input


BAD = {
    "lr": [-0.1, math.nan, math.inf, "0.1", None, True],
    "betas": [(1.0, 0.9), (0.9, 1.0), (-0.1, 0.9), (0.9,), (0.9, 0.99, 0.999), 0.9, (0.9, math.nan), None],
    "noise_variance": [-1e-9, math.nan, math.inf, "1"],
    "floor": [0.0, -1.0, math.nan, math.inf, None],
    "weight_decay": [-0.1, math.nan, math.inf],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_bad_options(name: str, value: Any) -> None:
    """Refused on construction, in a group, in a step and in a state, and then nothing has changed."""
    good: dict[str, Any] = {"lr": 0.1, "noise_variance": 1.0, "floor": 0.1}
    first, second = parameters(draw([(2,), (2,)], 0))
    with pytest.raises(ParameterError) as caught:
        DPAdamBC([first], **{**good, name: value})
    assert caught.value.name == name
    assert repr(value) in str(caught.value)
    optimizer = DPAdamBC([{"params": [first]}, {"params": []}], **good)
    with pytest.raises(ParameterError, match=name):
        optimizer.add_param_group({"params": [second], name: value})
    assert len(optimizer.param_groups) == 2
    state = optimizer.state_dict()
    state["param_groups"][1][name] = value
    with pytest.raises(ParameterError, match=name):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[1][name] is not value
    optimizer.param_groups[1][name] = value
    before = first.detach().clone()
    with pytest.raises(ParameterError, match=name):
        take_steps(optimizer, [first], [draw([(2,)], 1)])
    assert torch.equal(first, before)
