"""Exact norms in bounded memory: the same numbers from blocks, and the peak of a layer that does not fit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dprmt.training.norms import exact_squared_norms
from dprmt.training.norms._clipping import sum_of_squares

PEAK = """
import resource, torch
from dprmt.training.norms import exact_squared_norms
torch.set_num_threads(1)
a, g = torch.randn(1, 4096, 8192), torch.randn(1, 4096, 2048)
exact_squared_norms(a[:, :8], g[:, :8])  # what products need once
status = open("/proc/self/status").read().splitlines()
held = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (held + 20_000_000, resource.RLIM_INFINITY))
print(float(exact_squared_norms(a, g, bias=True)))
try:
    a.mT @ g
except RuntimeError:
    print("refused")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no limit on a process' data")
def test_the_peak_of_a_layer_whose_gradient_is_64_mib() -> None:
    """(d, p, T) = (8192, 2048, 4096): within 20 MB over the inputs, kernels' own copies included; whole, it is refused.

    The process may have no more; what is resident would count pages of libraries too, which come and go under load.
    """
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    norm, whole = done.stdout.split()
    assert float(norm) > 0
    assert whole == "refused"


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(1, 200), st.integers(1, 60)),
    budget=st.integers(1, 200_000),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_blocks_have_the_norms_of_whole_gradients(
    shape: tuple[int, int, int, int], budget: int, bias: bool, dtype: torch.dtype, seed: int
) -> None:
    """For every budget, within 2⁻²⁰ of a gradient formed in float64."""
    (size, tokens, d, p), generator = shape, torch.Generator().manual_seed(seed)
    a, g = (torch.randn(size, tokens, n, generator=generator).to(dtype) for n in (d, p))
    whole = (a.double().mT @ g.double()).square().sum((1, 2)) + bias * g.double().sum(1).square().sum(1)
    found = exact_squared_norms(a, g, bias=bias, memory_budget=budget)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, whole, rtol=2.0**-20, atol=0.0 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("shape", [(3,), (2, 5), (3, 70_000), (70_000, 3), (0, 4), (2, 0), (3, 33, 1100)])
def test_sums_of_squares_whatever_the_blocks(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape) * 1e25  # whose squares no float32 holds
    expected = values[..., None].flatten(1).double().square().sum(1)
    torch.testing.assert_close(sum_of_squares(values), expected, rtol=1e-12, atol=0.0)
    if values.numel():
        values.view(-1)[-1] = torch.inf
        assert torch.isinf(sum_of_squares(values)[-1])
        values.view(-1)[-1] = torch.nan
        assert torch.isnan(sum_of_squares(values)[-1])
