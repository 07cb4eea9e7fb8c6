"""What pictures take: tensors as they come out of training, single curves, keywords of matplotlib."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dprmt import plots

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
def test_tensors_are_drawn_as_arrays_are(name: str) -> None:
    tensor = torch.tensor(VALUES, dtype=torch.bfloat16, requires_grad=True)
    expected = heights(DRAWN[name](np.array(VALUES), ax=Figure().subplots()))
    found = heights(DRAWN[name](tensor, ax=Figure().subplots()))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2)


@pytest.mark.parametrize("name", DRAWN)
def test_style_goes_to_the_curves(name: str) -> None:
    plain = DRAWN[name](np.array(VALUES), ax=Figure().subplots())
    styled = DRAWN[name](np.array(VALUES), ax=Figure().subplots(), alpha=0.375)
    assert 0.375 in [line.get_alpha() for line in styled.lines]
    assert 0.375 not in [line.get_alpha() for line in plain.lines]
