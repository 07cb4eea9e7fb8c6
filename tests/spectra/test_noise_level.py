"""The noise level from the median singular value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dprmt.spectra import estimate_sigma

matrices = hnp.arrays(float, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.floats(-10, 10))


@pytest.mark.parametrize("shape", [(16, 768), (768, 16), (64, 256), (15, 128), (100, 100)])
def test_recovers_the_level_of_pure_noise(shape):
    """The mean of 100 estimates is within 3 standard errors + 0.5/√(mn) of σ; not of a σ 3 % off."""
    noise = 0.3 * np.random.default_rng(2).standard_normal((100, *shape))
    estimates = estimate_sigma(noise)
    spread = estimates.std() / 0.3
    assert 0.6 < spread * math.sqrt(math.prod(shape)) < 1.8  # the statement of the docstring
    allowed = 3 * spread / 10 + 0.5 / math.sqrt(math.prod(shape))
    assert [abs(estimates.mean() / σ - 1) < allowed for σ in (0.291, 0.3, 0.309)] == [False, True, False]


def test_a_signal_of_low_rank_does_not_matter():
    """Rank 3 in 200 × 300, ten times the edge: the estimate moves by less than 3 %, not so for rank 150."""
    rng = np.random.default_rng(4)
    noise = rng.standard_normal((200, 300))
    strong = 300.0 * np.eye(200, 300)
    low, high = strong.copy(), strong.copy()
    low[3:], high[150:] = 0.0, 0.0
    assert estimate_sigma(noise + low) == pytest.approx(1.0, rel=0.03)
    assert estimate_sigma(noise + high) == pytest.approx(1.0, rel=0.05)
    assert estimate_sigma(noise + low, method="median") == pytest.approx(1.0, rel=0.03)
    assert estimate_sigma(noise + high, method="median") > 1.5


@given(matrices, st.floats(0.01, 100))
def test_scale_and_transposition(matrix, unit):
    """The estimate scales with the matrix and does not see transposition."""
    estimate = estimate_sigma(matrix)
    assert estimate >= 0
    assert estimate_sigma(unit * matrix) == pytest.approx(unit * estimate, rel=1e-9, abs=1e-12 * unit)
    assert estimate_sigma(matrix.T) == pytest.approx(estimate, rel=1e-9, abs=1e-12)


def test_batches_and_forms():
    """Leading axes are kept, tensors stay tensors, half precision gives float32."""
    stack = np.random.default_rng(6).standard_normal((2, 3, 8, 40))
    estimates = estimate_sigma(stack)
    assert estimates.shape == (2, 3)
    assert estimates[1, 2] == pytest.approx(estimate_sigma(stack[1, 2]), rel=1e-13)
    assert estimate_sigma(stack.astype(np.float32)).dtype == np.float32
    assert estimate_sigma(stack.astype(np.float16)).dtype == np.float32
    for dtype, returned in (
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ):
        tensor = estimate_sigma(torch.tensor(stack).to(dtype))
        assert tensor.dtype == returned
        np.testing.assert_allclose(tensor.double().numpy(), estimates, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6)
    assert estimate_sigma(np.zeros((3, 4))) == 0.0
