"""The pictures of spectra: on the axes they are given, with the numbers they are given, legible without colours."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from dprmt import ParameterError, plots
from dprmt.accounting import PrivacyBounds, TradeOff
from dprmt.spectra import (
    MarchenkoPastur,
    bulk_edge,
    detection_threshold,
    kappa_for,
    noisy_spectrum,
    shrink,
    spike_map,
    vector_overlaps,
)

SHAPE, SIGMA = (48, 120), 0.5
EDGE, THRESHOLD = bulk_edge(SHAPE, SIGMA), detection_threshold(SHAPE, SIGMA)
SIGNALS = THRESHOLD * np.array([4.0, 2.5, 0.6])
GRID = THRESHOLD * np.array([0.5, 1.5, 2.5])
DRAWS = np.array([[0.0, 0.3, 0.7], [0.1, 0.4, 0.8]])
KAPPAS = [1.0, 1.02, 1.1]
SHARES = {"16 × 768": [0.5, 0.9, 1.0], "768 × 768": [0.4, 1.0, np.nan]}
PASSED = {"16 × 768": [0.8, 0.5, 0.2], "768 × 768": [0.7, 0.4, 0.0]}
LAYERS = {"16 × 768": ([0.98, 1.3, 1.6], [-0.1, 0.2, 0.3]), "768 × 768": ([1.1], [0.05])}


def noisy_values() -> np.ndarray:
    """Singular values of a matrix with the given signals in noise."""
    rng = np.random.default_rng(3)
    left, right = (np.linalg.qr(rng.standard_normal((side, len(SIGNALS))))[0] for side in SHAPE)
    return np.linalg.svdvals(left * SIGNALS @ right.T + SIGMA * rng.standard_normal(SHAPE))


NOISY = noisy_values()
SPECTRUM = noisy_spectrum(np.eye(*SHAPE) * NOISY[:, None], SIGMA)

PICTURES: dict[str, Callable[[Axes | None], Axes]] = {
    "singular values": lambda ax: plots.plot_singular_values(
        NOISY, SHAPE, SIGMA, clean=SIGNALS, denoised=shrink(NOISY, SHAPE, SIGMA), ax=ax
    ),
    "histogram": lambda ax: plots.plot_spectrum_histogram(NOISY, SHAPE, SIGMA, signals=SIGNALS, ax=ax),
    "histogram with a far spike": lambda ax: plots.plot_spectrum_histogram([50 * EDGE, *NOISY], SHAPE, SIGMA, ax=ax),
    "spike map": lambda ax: plots.plot_spike_map(SHAPE, SIGMA, simulated=(GRID, 20 * DRAWS), ax=ax),
    "overlaps": lambda ax: plots.plot_overlaps(SHAPE, SIGMA, simulated=(GRID, DRAWS, DRAWS[0]), ax=ax),
    "kappa sweep": lambda ax: plots.plot_kappa_sweep(KAPPAS, SHARES, passed=PASSED, ax=ax),
    "many matrices": lambda ax: plots.plot_spectra({"a": SPECTRUM, "b": SPECTRUM}, ax=ax),
    "layers": lambda ax: plots.plot_layer_improvement(LAYERS, ax=ax),
}

every_picture = pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)


def fresh_axes() -> Axes:
    return Figure(figsize=(6.4, 4.4), layout="constrained").subplots()


def by_label(ax: Axes, skipped: str = "_") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The labelled lines and points of a picture."""
    lines = [line for line in ax.lines if not str(line.get_label()).startswith(skipped)]
    return {str(line.get_label()): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in lines}


@every_picture
def test_draws_on_the_axes_it_is_given(draw: Callable[[Axes | None], Axes]) -> None:
    ax = fresh_axes()
    assert draw(ax) is ax
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    legend = ax.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) >= 3


@every_picture
def test_nothing_is_cut_off(draw: Callable[[Axes | None], Axes]) -> None:
    figure = draw(fresh_axes()).figure
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= -0.01
    assert box.x1 <= width + 0.01
    assert box.y1 <= height + 0.01


def test_singular_values_are_drawn_in_decreasing_order() -> None:
    shuffled = np.random.default_rng(0).permutation(NOISY)
    drawn = by_label(plots.plot_singular_values(shuffled, SHAPE, SIGMA, clean=SIGNALS[::-1], ax=fresh_axes()))
    gate = "gate, 1 % false alarms"
    assert set(drawn) == {
        "clean",
        "noisy",
        gate,
        "bulk edge (of noisy values)",
        "detection threshold (of clean values)",
    }
    assert set(drawn[gate][1]) == {kappa_for(SHAPE, 0.01) * EDGE}
    np.testing.assert_array_equal(drawn["noisy"], (np.arange(1, 49), NOISY))
    np.testing.assert_array_equal(drawn["clean"], ([1, 2, 3], SIGNALS))
    assert set(drawn["bulk edge (of noisy values)"][1]) == {EDGE}
    assert set(drawn["detection threshold (of clean values)"][1]) == {THRESHOLD}


def test_histogram_counts_every_value_once() -> None:
    ax = plots.plot_spectrum_histogram(NOISY, SHAPE, SIGMA, ax=fresh_axes())
    counts = [len(NOISY) * bar.get_height() * bar.get_width() for bar in ax.patches]
    lefts = [bar.get_x() for bar in ax.patches]
    rights = [bar.get_x() + bar.get_width() for bar in ax.patches]
    expected = [np.sum((left <= NOISY) & (right > NOISY)) for left, right in zip(lefts, rights, strict=True)]
    assert sum(counts) == pytest.approx(len(NOISY))
    np.testing.assert_allclose(counts[:-1], expected[:-1], atol=1e-9)
    assert min(abs(np.array(lefts) - EDGE)) < 1e-9 * EDGE


def test_histogram_has_the_law_scaled_to_the_bulk_and_the_spikes_where_they_are() -> None:
    ax = plots.plot_spectrum_histogram(NOISY, SHAPE, SIGMA, signals=SIGNALS, ax=fresh_axes())
    drawn = by_label(ax)
    spikes = NOISY[kappa_for(SHAPE, 0.01) * EDGE < NOISY]
    assert len(spikes) == 2
    x, y = drawn["Marchenko–Pastur density"]
    np.testing.assert_allclose(y, (46 / 48) * MarchenkoPastur(SHAPE, SIGMA).pdf(x))
    assert np.trapezoid(y, x) == pytest.approx(46 / 48, rel=1e-3)
    np.testing.assert_array_equal(drawn["values above the gate"][0], spikes)
    (predicted,) = ax.collections
    positions = [segment[0, 0] for segment in predicted.get_segments()]
    np.testing.assert_allclose(sorted(positions, reverse=True), spike_map(SIGNALS[:2], SHAPE, SIGMA))


def test_a_far_spike_leaves_the_bulk_visible() -> None:
    near = plots.plot_spectrum_histogram([3 * EDGE, *NOISY], SHAPE, SIGMA, ax=fresh_axes())
    far = plots.plot_spectrum_histogram([900 * EDGE, *NOISY], SHAPE, SIGMA, ax=fresh_axes())
    assert (near.get_xscale(), far.get_xscale()) == ("linear", "symlog")
    edge, right = far.transAxes.inverted().transform(far.transData.transform([(EDGE, 0), (900 * EDGE, 0)]))[:, 0]
    assert 0.2 < edge < right < 1
    assert len(far.patches) < 60


def test_spike_map_draws_theory_and_simulation() -> None:
    drawn = by_label(plots.plot_spike_map(SHAPE, SIGMA, simulated=(GRID, 20 * DRAWS), ax=fresh_axes()))
    x, y = drawn["predicted"]
    np.testing.assert_array_equal(y, spike_map(x, SHAPE, SIGMA))
    assert THRESHOLD in x
    np.testing.assert_array_equal(drawn["simulated"], (np.tile(GRID, 2), 20 * DRAWS.ravel()))
    assert set(drawn["detection threshold"][0]) == {THRESHOLD}


def test_overlaps_draws_theory_and_simulation() -> None:
    drawn = by_label(plots.plot_overlaps(SHAPE, SIGMA, simulated=(GRID, DRAWS, DRAWS[0]), ax=fresh_axes()))
    for label, expected in zip(("left vector, length 48", "right vector, length 120"), (0, 1), strict=True):
        x, y = drawn[label]
        np.testing.assert_array_equal(y, vector_overlaps(x, SHAPE, SIGMA)[expected])
    np.testing.assert_array_equal(drawn["left, simulated"], (np.tile(GRID, 2), DRAWS.ravel()))
    np.testing.assert_array_equal(drawn["right, simulated"], (GRID, DRAWS[0]))


REFUSED: list[tuple[str, Callable[..., Axes], tuple[object, ...], dict[str, object]]] = [
    ("noisy", plots.plot_singular_values, ([1.0, np.nan], SHAPE, SIGMA), {}),
    ("noisy", plots.plot_singular_values, ([[1.0]], SHAPE, SIGMA), {}),
    ("noisy", plots.plot_singular_values, ([], SHAPE, SIGMA), {}),
    ("noisy", plots.plot_singular_values, ("abc", SHAPE, SIGMA), {}),
    ("clean", plots.plot_singular_values, ([1.0], SHAPE, SIGMA), {"clean": [-1.0]}),
    ("sigma", plots.plot_singular_values, ([1.0], SHAPE, -1.0), {}),
    ("shape", plots.plot_spectrum_histogram, ([1.0], (0, 3), SIGMA), {}),
    ("signals", plots.plot_spectrum_histogram, ([1.0], SHAPE, SIGMA), {"signals": [np.inf]}),
    ("observed", plots.plot_spike_map, (SHAPE, SIGMA), {"simulated": ([1.0, 2.0], [3.0])}),
    ("left", plots.plot_overlaps, (SHAPE, SIGMA), {"simulated": ([1.0], [1.1], [0.0])}),
    ("improved", plots.plot_kappa_sweep, (KAPPAS, {"a": [0.5]}), {}),
    ("improved", plots.plot_kappa_sweep, ([1.0], {"a": [90.0]}), {}),
    ("passed", plots.plot_kappa_sweep, ([1.0], {"a": [0.5]}), {"passed": {"a": [-0.1]}}),
    ("kappas", plots.plot_kappa_sweep, ([np.nan], {"a": [0.5]}), {}),
    ("improvement", plots.plot_layer_improvement, ({"a": ([1.0], [3.0])},), {}),
    ("kappa", plots.plot_layer_improvement, ({"a": ([1.0], [0.1])},), {"kappa": -1.0}),
    ("", plots.plot_measured_spikes, ({(8, 64): ([1.0, 2.0], [1.0])},), {}),
    ("", plots.plot_measured_overlaps, ({},), {}),
    ("", plots.plot_measured_overlaps, ({(8, 64): ([1.0], [1.2], [0.1])},), {}),
    ("", plots.plot_improvement_over_steps, ([1], {"a": [3.0]}), {}),
    ("", plots.plot_norm_ratios, ([1.0], [1.5]), {"predicted": [1.0], "envelope": [1.0], "band": 0.1}),
    ("", plots.plot_norm_ratios, ([1.0], [0.5]), {"predicted": [1.0], "envelope": [1.0], "band": -0.1}),
    ("", plots.plot_signal_shares, ({},), {}),
]


@pytest.mark.parametrize(("name", "plot", "given", "options"), REFUSED)
def test_refuses_what_cannot_be_drawn_and_leaves_the_axes_empty(
    name: str, plot: Callable[..., Axes], given: tuple[object, ...], options: dict[str, object]
) -> None:
    ax = fresh_axes()
    with pytest.raises(ParameterError) as caught:
        plot(*given, **options, ax=ax)
    assert not name or caught.value.name == name
    assert not ax.has_data()


BOUNDS = [PrivacyBounds(0.9, 0.95, 1.0), PrivacyBounds(1.8, 1.9, 2.0)]
LAW = {"predicted": [0.2, 0.6], "envelope": [0.3, 1.0], "band": 0.02}
OTHERS: dict[str, Callable[[Axes], Axes]] = {
    "epsilon": lambda ax: plots.plot_epsilon_against_steps([1, 2], {"a": BOUNDS, "b": BOUNDS}, delta=1e-5, ax=ax),
    "trade-off": lambda ax: plots.plot_trade_off(
        TradeOff(*np.array([[0.0, 1.0], *3 * [[1.0, 0.0]]])), gaussian_mu=1.0, ax=ax
    ),
    "measured spikes": lambda ax: plots.plot_measured_spikes({SHAPE: ([0.5, 2.0], [1.0, 1.3])}, ax=ax),
    "measured overlaps": lambda ax: plots.plot_measured_overlaps({SHAPE: ([2.0], [0.5], [0.4])}, ax=ax),
    "improvement": lambda ax: plots.plot_improvement_over_steps([1, 2], {"a": [[0.1, 0.2], [0.2, 0.2]]}, ax=ax),
    "norm ratios": lambda ax: plots.plot_norm_ratios([0.9, 1.1], [0.2, 0.6], **LAW, ax=ax),
}
ALL = PICTURES | OTHERS


@pytest.mark.parametrize("draw", ALL.values(), ids=ALL)
@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_lines_differ_from_the_paper_in_every_style(draw: Callable[[Axes | None], Axes], style: str) -> None:
    with mpl.style.context(style):
        ax = draw(fresh_axes())
    paper = np.array(to_rgba(ax.get_facecolor())[:3])
    texts = [*ax.get_legend().get_texts(), ax.xaxis.label, *ax.get_xticklabels()]
    colours = [line.get_color() for line in ax.lines] + [text.get_color() for text in texts]
    assert min(float(np.abs(np.array(to_rgba(colour)[:3]) - paper).max()) for colour in colours) > 0.25


def test_spikes_and_the_curve_of_eq_3() -> None:
    signals, observed = [0.0, 0.5, 4.0], [0.98, 0.99, 2.2]
    lines = by_label(
        plots.plot_measured_spikes({(8, 64): (signals, observed), (64, 8): ([1.0], [1.0])}, ax=fresh_axes()), "_child"
    )
    np.testing.assert_allclose(lines["8 × 64"][1], observed)
    np.testing.assert_allclose(lines["8 × 64"][0], [0.03, 0.5, 4.0])  # a log axis has no 0
    x, y = lines["_8 × 64, predicted"]
    assert 1.0 in x
    assert x.max() >= 4.0
    expected = spike_map(x * detection_threshold((8, 64), 0.3), (8, 64), 0.3) / bulk_edge((8, 64), 0.3)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    assert lines["detection threshold"][0][0] == 1.0


def test_overlaps_of_transposed_shapes_share_their_curves() -> None:
    points = {(8, 64): ([2.0], [0.8], [0.5]), (64, 8): ([3.0], [0.6], [0.9])}
    lines = by_label(plots.plot_measured_overlaps(points, ax=fresh_axes()), "_child")
    np.testing.assert_allclose(lines["8 of 8 × 64"], [[2.0, 3.0], [0.8, 0.9]])
    np.testing.assert_allclose(lines["64 of 8 × 64"], [[2.0, 3.0], [0.5, 0.6]])
    for number, length in enumerate((8, 64)):
        x, y = lines[f"_{length} of 8 × 64, predicted"]
        np.testing.assert_allclose(y, vector_overlaps(x * detection_threshold((8, 64), 1.0), (8, 64), 1.0)[number])


def test_norm_ratios_with_their_band() -> None:
    ax = plots.plot_norm_ratios(
        [0.5, 1.0], [0.1, 0.5], predicted=[0.12, 0.5], envelope=[0.2, 1.0], band=0.15, ax=fresh_axes()
    )
    lines = by_label(ax)
    np.testing.assert_allclose(lines["envelope of all spectra"][1], [0.2, 1.0])
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == 0.0  # cut at 0
    assert heights.max() == pytest.approx(0.65)


def heights(ax: Axes) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]
