"""The pictures: on the axes they are given, with the numbers they are given, legible in every style."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from dprmt import ParameterError, plots, spectra
from dprmt.accounting import PrivacyBounds, PrivacyCurve, TradeOff
from dprmt.spectra import MarchenkoPastur, bulk_edge, detection_threshold, kappa_for, noisy_spectrum, shrink, spike_map

SHAPE, SIGMA = (48, 120), 0.5
EDGE, THRESHOLD = bulk_edge(SHAPE, SIGMA), detection_threshold(SHAPE, SIGMA)
SIGNALS = THRESHOLD * np.array([4.0, 2.5, 0.6])
GRID = THRESHOLD * np.array([0.5, 1.5, 2.5])
DRAWS = np.array([[0.0, 0.3, 0.7], [0.1, 0.4, 0.8]])
KAPPAS = [1.0, 1.02, 1.1]
SHARES = {"16 × 768": [0.5, 0.9, 1.0], "768 × 768": [0.4, 1.0, np.nan]}
LAYERS = {"16 × 768": ([0.98, 1.3, 1.6], [-0.1, 0.2, 0.3]), "768 × 768": ([1.1], [0.05])}
BOUNDS = [PrivacyBounds(0.9, 0.95, 1.0), PrivacyBounds(1.8, 1.9, 2.0)]
LAW = {"predicted": [0.2, 0.6], "envelope": [0.3, 1.0], "band": 0.02}
EPSILONS = PrivacyCurve(np.array([10, 20]), *3 * [np.array([1.0, 2.0])], np.array(2 * [""]), np.ones(2, bool), 1e-5)
CURVE = TradeOff(*np.array([[0.0, 1.0], *3 * [[1.0, 0.0]]]))


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
    "kappa sweep": lambda ax: plots.plot_kappa_sweep(KAPPAS, SHARES, passed=SHARES, ax=ax),
    "many matrices": lambda ax: plots.plot_spectra({"a": SPECTRUM, "b": SPECTRUM}, ax=ax),
    "layers": lambda ax: plots.plot_layer_improvement(LAYERS, ax=ax),
    "epsilon": lambda ax: plots.plot_epsilon_against_steps([10, 20], {"a": BOUNDS, "b": EPSILONS}, delta=1e-5, ax=ax),
    "trade-off": lambda ax: plots.plot_trade_off(CURVE, gaussian_mu=1.0, ax=ax),
    "measured spikes": lambda ax: plots.plot_measured_spikes({SHAPE: ([0.0, 2.0], [1.0, 1.3])}, ax=ax),
    "measured overlaps": lambda ax: plots.plot_measured_overlaps({SHAPE: ([2.0], [0.5], [0.4])}, ax=ax),
    "improvement": lambda ax: plots.plot_improvement_over_steps([1, 2], {"a": [[0.1, 0.2], [0.2, 0.2]]}, ax=ax),
    "norm ratios": lambda ax: plots.plot_norm_ratios([0.9, 1.1], [0.2, 0.6], **LAW, ax=ax),
}


def fresh_axes() -> Axes:
    return Figure(figsize=(6.4, 4.4), layout="constrained").subplots()


def drawn(name: str, skipped: str = "_") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The labelled lines and points of a picture."""
    lines = [line for line in PICTURES[name](fresh_axes()).lines if not str(line.get_label()).startswith(skipped)]
    return {str(line.get_label()): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in lines}


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_draws_on_the_axes_it_is_given_and_is_legible_in_every_style(
    draw: Callable[[Axes | None], Axes], style: str
) -> None:
    with mpl.style.context(style):
        ax = fresh_axes()
        assert draw(ax) is ax
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    ax.figure.draw_without_rendering()
    box, (width, height) = ax.figure.get_tightbbox(), ax.figure.get_size_inches()
    assert min(box.x0, box.y0, width - box.x1, height - box.y1) >= -0.01
    paper = np.array(to_rgba(ax.get_facecolor())[:3])
    texts = [*ax.get_legend().get_texts(), ax.xaxis.label, *ax.get_xticklabels()]
    colours = [line.get_color() for line in ax.lines] + [text.get_color() for text in texts]
    assert min(float(np.abs(np.array(to_rgba(colour)[:3]) - paper).max()) for colour in colours) > 0.25


def test_singular_values_are_in_decreasing_order_beside_gate_edge_and_threshold() -> None:
    lines = drawn("singular values")
    np.testing.assert_array_equal(lines["noisy"], (np.arange(1, 49), NOISY))
    np.testing.assert_array_equal(lines["clean"], ([1, 2, 3], SIGNALS))
    assert set(lines["gate, 1 % false alarms"][1]) == {kappa_for(SHAPE, 0.01) * EDGE}
    assert set(lines["bulk edge (of noisy values)"][1]) == {EDGE}
    assert set(lines["detection threshold (of clean values)"][1]) == {THRESHOLD}


def test_a_histogram_counts_every_value_once_beside_the_law_of_the_bulk() -> None:
    ax = PICTURES["histogram"](fresh_axes())
    lefts = np.array([bar.get_x() for bar in ax.patches])
    rights = lefts + [bar.get_width() for bar in ax.patches]
    counts = len(NOISY) * np.array([bar.get_height() for bar in ax.patches]) * (rights - lefts)
    expected = ((lefts <= NOISY[:, None]) & (rights > NOISY[:, None])).sum(0)
    assert counts.sum() == pytest.approx(len(NOISY))
    np.testing.assert_allclose(counts[:-1], expected[:-1], atol=1e-9)
    lines = drawn("histogram")
    spikes = NOISY[kappa_for(SHAPE, 0.01) * EDGE < NOISY]
    x, y = lines["Marchenko–Pastur density"]
    np.testing.assert_allclose(y, (46 / 48) * MarchenkoPastur(SHAPE, SIGMA).pdf(x))
    np.testing.assert_array_equal(lines["values above the gate"][0], spikes)
    positions = sorted((segment[0, 0] for segment in ax.collections[0].get_segments()), reverse=True)
    np.testing.assert_allclose(positions, spike_map(SIGNALS[:2], SHAPE, SIGMA))


def test_theory_and_simulation_are_drawn_together() -> None:
    spikes, overlaps, measured = drawn("spike map"), drawn("overlaps"), drawn("measured spikes", "_child")
    x, y = spikes["predicted"]
    np.testing.assert_array_equal(y, spike_map(x, SHAPE, SIGMA))
    np.testing.assert_array_equal(spikes["simulated"], (np.tile(GRID, 2), 20 * DRAWS.ravel()))
    for place, label in enumerate(("left vector, length 48", "right vector, length 120")):
        x, y = overlaps[label]
        np.testing.assert_array_equal(y, spectra.vector_overlaps(x, SHAPE, SIGMA)[place])
    np.testing.assert_array_equal(overlaps["left, simulated"], (np.tile(GRID, 2), DRAWS.ravel()))
    np.testing.assert_array_equal(overlaps["right, simulated"], (GRID, DRAWS[0]))
    np.testing.assert_allclose(measured["48 × 120"], [[0.03, 2.0], [1.0, 1.3]])  # a log axis has no 0
    x, y = measured["_48 × 120, predicted"]
    np.testing.assert_allclose(y, spike_map(x * THRESHOLD, SHAPE, SIGMA) / EDGE, rtol=1e-12)


REFUSED: list[tuple[str, Callable[..., Axes], tuple[object, ...], dict[str, object]]] = [
    *(("noisy", plots.plot_singular_values, (noisy, SHAPE, SIGMA), {}) for noisy in ([1.0, np.nan], [[1.0]], [], "a")),
    ("clean", plots.plot_singular_values, ([1.0], SHAPE, SIGMA), {"clean": [-1.0]}),
    ("signals", plots.plot_spectrum_histogram, ([1.0], SHAPE, SIGMA), {"signals": [np.inf]}),
    ("observed", plots.plot_spike_map, (SHAPE, SIGMA), {"simulated": ([1.0, 2.0], [3.0])}),
    ("left", plots.plot_overlaps, (SHAPE, SIGMA), {"simulated": ([1.0], [1.1], [0.0])}),
    ("improved", plots.plot_kappa_sweep, (KAPPAS, {"a": [0.5]}), {}),
    ("passed", plots.plot_kappa_sweep, ([1.0], {"a": [0.5]}), {"passed": {"a": [-0.1]}}),
    ("improvement", plots.plot_layer_improvement, ({"a": ([1.0], [3.0])},), {}),
    ("", plots.plot_measured_overlaps, ({(8, 64): ([1.0], [1.2], [0.1])},), {}),
    ("", plots.plot_improvement_over_steps, ([1], {"a": [3.0]}), {}),
    ("", plots.plot_norm_ratios, ([1.0], [1.5]), {"predicted": [1.0], "envelope": [1.0], "band": 0.1}),
    ("layers", plots.plot_signal_shares, ({"a": [0.1, 0.5, 0.2]},), {}),
    ("truth", plots.plot_signal_shares, ({"a": [0.1, 0.0, 0.2]},), {"truth": {"b": 0.1}}),
    ("gaussian_mu", plots.plot_trade_off, (CURVE,), {"gaussian_mu": -1.0}),
    *(
        (name, plots.plot_epsilon_against_steps, (steps, {"a": curve}), {"delta": delta})
        for name, steps, curve, delta in (
            ("steps", [100, 200], EPSILONS, 1e-5),
            ("steps", [10, np.nan], BOUNDS, 1e-5),
            ("steps", [10], BOUNDS, 1e-5),
            ("steps", [10], [], 1e-5),
            ("delta", [10, 20], EPSILONS, 1e-7),
            ("delta", [10, 20], list(EPSILONS), 1e-7),
            ("delta", [10, 20], BOUNDS, 1e5),
            ("curves['a']", [10, 20], [1.0, 2.0], 1e-5),
            ("curves['a']", [10, 20], [PrivacyBounds(0.0, 0.1, 0.2, at_epsilon=1.0)] * 2, 1e-5),
        )
    ),
]
ONE_ARGUMENT: dict[str, Callable[[Any, Axes], Axes]] = {
    "noisy": lambda given, ax: plots.plot_singular_values(given, SHAPE, SIGMA, ax=ax),
    "simulated": lambda given, ax: plots.plot_spike_map(SHAPE, SIGMA, simulated=given, ax=ax),
    "simulated overlaps": lambda given, ax: plots.plot_overlaps(SHAPE, SIGMA, simulated=given, ax=ax),
    "points": lambda given, ax: plots.plot_measured_spikes(given, ax=ax),
    "points with overlaps": lambda given, ax: plots.plot_measured_overlaps(given, ax=ax),
    "curves": lambda given, ax: plots.plot_epsilon_against_steps([1, 2], given, delta=1e-5, ax=ax),
    "bands": lambda given, ax: plots.plot_trade_off(given, ax=ax),
    "layers": lambda given, ax: plots.plot_signal_shares(given, ax=ax),
    "layers with gains": lambda given, ax: plots.plot_layer_improvement(given, ax=ax),
    "points of ratios": lambda given, ax: plots.plot_norm_ratios(given, [1.0], **LAW, ax=ax),
    "improved": lambda given, ax: plots.plot_kappa_sweep(KAPPAS, given, ax=ax),
    "passed": lambda given, ax: plots.plot_kappa_sweep(KAPPAS, SHARES, passed=given, ax=ax),
    "improvements": lambda given, ax: plots.plot_improvement_over_steps([1, 2], given, ax=ax),
    "spectra": lambda given, ax: plots.plot_spectra(given, ax=ax),
}
NOTHING_TO_DRAW = (3.0, "abc", [], {}, [3.0], {"a": 3.0}, {"a": None}, {"a": "abc"}, {(4, 9): 3.0}, {4: [[1.0]] * 3})


@pytest.mark.parametrize("draw", ONE_ARGUMENT.values(), ids=ONE_ARGUMENT)
def test_other_types_are_named_and_leave_the_axes_empty(draw: Callable[[Any, Axes], Axes]) -> None:
    ax = fresh_axes()
    for given in NOTHING_TO_DRAW:
        if draw is not ONE_ARGUMENT["noisy"] or given != [3.0]:
            with pytest.raises(ParameterError):
                draw(given, ax)
    assert not ax.has_data()


@pytest.mark.parametrize("draw", PICTURES.values(), ids=PICTURES)
def test_axes_are_one(draw: Callable[[Any], Axes]) -> None:
    for ax in (Figure(), Figure().subplots(1, 2)):
        with pytest.raises(ParameterError, match="ax must be one matplotlib axes"):
            draw(ax)


@pytest.mark.parametrize(("name", "plot", "given", "options"), REFUSED)
def test_refuses_what_cannot_be_drawn_and_leaves_the_axes_empty(
    name: str, plot: Callable[..., Axes], given: tuple[object, ...], options: dict[str, object]
) -> None:
    ax = fresh_axes()
    with pytest.raises(ParameterError) as caught:
        plot(*given, **options, ax=ax)
    assert not name or caught.value.name == name
    assert not ax.has_data()
