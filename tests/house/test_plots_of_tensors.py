"""What pictures take: tensors as they come out of training, single curves, keywords of matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dprmt import plots
from dprmt.accounting import DPSGD, PrivacyBounds

SHAPE, VALUES = (4, 9), [9.0, 5.0, 3.0, 2.0]
DRAWN: dict[str, Callable[..., Axes]] = {
    "singular values": lambda x, **o: plots.plot_singular_values(x, SHAPE, 1.0, **o),
    "histogram": lambda x, **o: plots.plot_spectrum_histogram(x, SHAPE, 1.0, signals=x, **o),
    "spike map": lambda x, **o: plots.plot_spike_map(SHAPE, 1.0, simulated=(x, x), **o),
    "overlaps": lambda x, **o: plots.plot_overlaps(SHAPE, 1.0, simulated=(x, x / 16, x / 16), **o),
    "kappa sweep": lambda x, **o: plots.plot_kappa_sweep(x, {"w": x / 16}, **o),
    "layer improvement": lambda x, **o: plots.plot_layer_improvement({"w": (x, x / 16)}, **o),
}


def heights(ax: Axes) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tensors_are_drawn_as_arrays_are(name: str, dtype: torch.dtype) -> None:
    tensor = torch.tensor(VALUES, dtype=dtype, requires_grad=True)
    expected = heights(DRAWN[name](np.array(VALUES), ax=Figure().subplots()))
    found = heights(DRAWN[name](tensor, ax=Figure().subplots()))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2)


def test_lists_of_tensors_are_values_too() -> None:
    steps = [torch.tensor(x, requires_grad=True) for x in (0.1, 0.2)]
    ax = plots.plot_improvement_over_steps([1, 2], {"gate": steps}, ax=Figure().subplots())
    np.testing.assert_allclose(ax.lines[1].get_ydata(), [0.1, 0.2], rtol=1e-6)


@pytest.mark.parametrize("name", DRAWN)
def test_style_goes_to_the_curves(name: str) -> None:
    plain = DRAWN[name](np.array(VALUES), ax=Figure().subplots())
    styled = DRAWN[name](np.array(VALUES), ax=Figure().subplots(), alpha=0.375)
    assert 0.375 in [line.get_alpha() for line in styled.lines]
    assert 0.375 not in [line.get_alpha() for line in plain.lines]


@pytest.mark.parametrize(
    "draw",
    [
        lambda **o: plots.plot_trade_off(DPSGD(2.0, 0.1).trade_off(steps=2, alpha=[0.0, 0.5, 1.0]), **o),
        lambda **o: plots.plot_epsilon_against_steps([1], {"x": [PrivacyBounds(1, 1, 1)]}, delta=0.1, **o),
    ],
)
def test_a_single_curve_and_style_of_privacy(draw: Any) -> None:
    ax = draw(ax=Figure().subplots(), linewidth=7.0)
    assert ax.lines[-1].get_linewidth() == 7.0
    assert ax.get_legend() is not None


def test_the_sweep_says_what_its_shares_are_of() -> None:
    ax = plots.plot_kappa_sweep([1.0, 1.1], {"weak spikes": [0.5, 1.0]}, what="draws", ax=Figure().subplots())
    assert ax.get_ylabel() == "draws (%)"
