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


MANY = ((2, 64), (15, 64), (64, 64), (64, 128), (66, 64), (128, 64), (30522, 64))


@pytest.mark.parametrize("draw", [plot_measured_overlaps, plot_prediction_errors])
def test_the_legend_of_many_shapes_leaves_the_curves_free(draw: Any) -> None:
    """In the size of the report's panels: below the axes and inside the figure, which keep near half of its height."""
    columns = 2 if draw is plot_measured_overlaps else 1
    figure = Figure(figsize=(6.0, 4.1), layout="constrained")
    ax = draw({shape: ([0.5, 2.0], *[[0.01, 0.02]] * columns) for shape in MANY}, ax=figure.subplots())
    figure.draw_without_rendering()
    legend, window = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert not legend.overlaps(window)
    assert not legend.overlaps(ax.xaxis.label.get_window_extent())
    assert figure.bbox.x0 <= legend.x0
    assert legend.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= legend.y0
    assert window.height > 0.45 * figure.bbox.height
    label = ax.yaxis.label.get_window_extent()
    assert figure.bbox.y0 <= label.y0
    assert label.y1 <= figure.bbox.y1


def test_a_line_and_its_markers_share_an_entry() -> None:
    ax = plot_measured_spikes({shape: ([0.5, 2.0], [1.0, 1.3]) for shape in MANY}, ax=axes())
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [*(f"{m} × {n}" for m, n in MANY), "detection threshold"]
    assert legend.get_title().get_text() == "line: predicted, marker: measured"


def test_improvement_over_steps() -> None:
    lines = by_label(
        plot_improvement_over_steps([1, 2, 3], {"with": [0.1, 0.2, 0.3], "without": [-0.1, 0, 0]}, ax=axes())
    )
    np.testing.assert_allclose(lines["with"].get_data(), [[1, 2, 3], [0.1, 0.2, 0.3]])
    np.testing.assert_allclose(lines["without"].get_ydata(), [-0.1, 0, 0])


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
