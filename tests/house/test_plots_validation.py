"""Pictures of theory against measurement: what they show is what they were given, and what theory says."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from dprmt import ParameterError
from dprmt.plots import (
    plot_improvement_over_steps,
    plot_measured_overlaps,
    plot_measured_spikes,
    plot_norm_ratios,
    plot_prediction_errors,
)
from dprmt.spectra import bulk_edge, detection_threshold, spike_map, vector_overlaps


def axes() -> Any:
    return Figure().subplots()


def by_label(ax: Any) -> dict[str, Any]:
    """Lines by their label, and that the figure can be drawn."""
    ax.figure.savefig(io.BytesIO(), format="png")
    return {line.get_label(): line for line in ax.lines}


def test_spikes_and_the_curve_of_eq_3() -> None:
    signals, observed = [0.0, 0.5, 4.0], [0.98, 0.99, 2.2]
    lines = by_label(plot_measured_spikes({(8, 64): (signals, observed), (64, 8): ([1.0], [1.0])}, ax=axes()))
    np.testing.assert_allclose(lines["8 × 64, measured"].get_ydata(), observed)
    np.testing.assert_allclose(lines["8 × 64, measured"].get_xdata(), [0.03, 0.5, 4.0])  # a log axis has no 0
    x, y = lines["8 × 64, predicted"].get_data()
    assert 1.0 in x
    assert x.max() >= 4.0
    expected = spike_map(x * detection_threshold((8, 64), 0.3), (8, 64), 0.3) / bulk_edge((8, 64), 0.3)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    assert lines["detection threshold"].get_xdata()[0] == 1.0


def test_errors_are_in_per_cent() -> None:
    ax = plot_prediction_errors({(8, 64): ([0.5, 2.0], [-0.02, 0.01])}, tolerance=0.04, ax=axes())
    np.testing.assert_allclose(by_label(ax)["8 × 64"].get_ydata(), [-2.0, 1.0])
    assert ax.patches[0].get_label() == "within 4 %"


def test_overlaps_of_transposed_shapes_share_their_curves() -> None:
    points = {(8, 64): ([2.0], [0.8], [0.5]), (64, 8): ([3.0], [0.6], [0.9])}
    lines = by_label(plot_measured_overlaps(points, ax=axes()))
    np.testing.assert_allclose(lines["length 8 of 8 × 64, measured"].get_data(), [[2.0, 3.0], [0.8, 0.9]])
    np.testing.assert_allclose(lines["length 64 of 8 × 64, measured"].get_data(), [[2.0, 3.0], [0.5, 0.6]])
    for number, length in enumerate((8, 64)):
        x, y = lines[f"length {length} of 8 × 64, predicted"].get_data()
        np.testing.assert_allclose(y, vector_overlaps(x * detection_threshold((8, 64), 1.0), (8, 64), 1.0)[number])


def test_norm_ratios_with_their_band() -> None:
    ax = plot_norm_ratios([0.5, 1.0], [0.1, 0.5], predicted=[0.12, 0.5], envelope=[0.2, 1.0], band=0.15, ax=axes())
    lines = by_label(ax)
    np.testing.assert_allclose(lines["envelope of all spectra"].get_ydata(), [0.2, 1.0])
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == 0.0  # cut at 0
    assert heights.max() == pytest.approx(0.65)


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: plot_measured_spikes({}, ax=ax),
        lambda ax: plot_measured_spikes({(8, 64): ([1.0, 2.0], [1.0])}, ax=ax),
        lambda ax: plot_measured_spikes({(8, 64): ([-1.0], [1.0])}, ax=ax),
        lambda ax: plot_prediction_errors({(8, 64): ([1.0], [np.nan])}, ax=ax),
        lambda ax: plot_measured_overlaps({}, ax=ax),
        lambda ax: plot_measured_overlaps({(8, 64): ([1.0], [1.2], [0.1])}, ax=ax),
        lambda ax: plot_improvement_over_steps([1], {"a": [3.0]}, ax=ax),
        lambda ax: plot_improvement_over_steps([1], {"a": [0.1, 0.2]}, ax=ax),
        lambda ax: plot_norm_ratios([1.0], [1.5], predicted=[1.0], envelope=[1.0], band=0.1, ax=ax),
        lambda ax: plot_norm_ratios([1.0], [0.5], predicted=[1.0], envelope=[1.0], band=-0.1, ax=ax),
    ],
)
def test_bad_numbers_are_refused(draw: Any) -> None:
    with pytest.raises(ParameterError):
        draw(axes())
