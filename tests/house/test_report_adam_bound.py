"""What the report says of the bound for Adam's step, and of spectra that only look like signals."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from dprmt.report.measurements import GradientStep, measure_adam_bound  # noqa: E402
from dprmt.spectra import adam_improvement_bound  # noqa: E402
from dprmt.training.optimizers import DPAdamBC, preconditioner  # noqa: E402


def test_preconditioner_of_adam_is_what_it_moves_by() -> None:
    """Of torch's own and of DP-AdamBC, with its floor: the step is -ηPm̂."""
    generator = torch.Generator().manual_seed(0)
    for make in (
        lambda ps: torch.optim.AdamW(ps, lr=0.1, weight_decay=0.0),
        lambda ps: DPAdamBC(ps, lr=0.1, noise_variance=1.0, floor=0.1),
    ):
        weights = torch.nn.Parameter(torch.zeros(50))
        optimizer = make([weights])
        moment = torch.zeros(50)
        for step in range(1, 4):
            before = weights.detach().clone()
            weights.grad = torch.randn(50, generator=generator)
            moment = 0.9 * moment + 0.1 * weights.grad
            optimizer.step()
            scale = preconditioner(optimizer, weights)
            expected = -0.1 * scale * moment / (1 - 0.9**step)
            torch.testing.assert_close(weights.detach() - before, expected, rtol=1e-4, atol=1e-7)
    assert float(scale.max()) == pytest.approx(0.1**-0.5)
    descent = torch.optim.SGD([weights], lr=0.1)
    descent.step()
    assert preconditioner(descent, weights) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_positive_exactly_where_the_report_says(seed: int) -> None:
    """Against `adam_improvement_bound` without curvature, at cosines on both sides of what is asked for."""
    generator = np.random.default_rng(seed)
    gradient, noise = generator.standard_normal((2, 12))
    noise -= (noise @ gradient) / (gradient @ gradient) * gradient
    scales = np.exp(generator.uniform(-0.2, 0.2, 12))
    seen = set()
    for amount in np.linspace(0, 20, 21):
        direction = gradient + amount * noise
        exact = adam_improvement_bound(gradient, direction, scales, np.zeros((12, 12)), 1.0)
        layers = [{"w": torch.tensor(x)} for x in (gradient, direction, scales)]
        step = measure_adam_bound(GradientStep(0, 1.0, 1, 0.0, *layers))
        assert step is not None
        assert step.promised == (exact.bound > 0,) * 2  # a vector is no matrix, so nothing is denoised
        assert step.weighted_cosine == pytest.approx(exact.weighted_cosine)
        assert step.shortfall == pytest.approx(1 - math.tanh(math.log(scales.max() / scales.min()) / 2))
        seen.add(exact.bound > 0)
    assert seen == {True, False}
