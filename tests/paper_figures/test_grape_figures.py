"""The flattening picture and the two figure scripts, on small settings."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from benchmarks.grape import Case, build, formula, measure
from dprmt._validation import ParameterError
from dprmt.plots import plot_spectrum_flattening

FIGURES = Path(__file__).parents[2] / "paper_figures"


def test_the_picture_shows_each_spectrum_in_units_of_its_largest_value() -> None:
    ax = Figure(layout="constrained").subplots()
    assert plot_spectrum_flattening([1.0, 4.0, 2.0], {"a": [3.0, 3.0, 1.5], "b": [5.0, 0.0]}, ax=ax) is ax
    assert [line.get_ydata().tolist() for line in ax.lines] == [[1.0, 0.5, 0.25], [1.0, 1.0, 0.5], [1.0, 0.0]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["clean", "a", "b"]
    looks = {(line.get_marker(), line.get_linestyle(), line._dash_pattern[1] is None) for line in ax.lines}
    assert len(looks) == 3  # told apart without colours
    ax.figure.draw_without_rendering()
    for bad in [lambda: plot_spectrum_flattening([1.0], {}), lambda: plot_spectrum_flattening([0.0], {"a": [1.0]}),
                lambda: plot_spectrum_flattening([1.0], {"a": [-1.0]})]:  # fmt: skip
        with pytest.raises(ParameterError):
            bad()


def test_noise_flattens_real_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Stable ranks: clipping leaves the spectrum nearly alone, noise flattens it, most where C is too large."""
    picture = tmp_path / "flattening.png"
    monkeypatch.setattr(sys, "argv", ["grape_flattening.py", str(picture)])
    script = runpy.run_path(str(FIGURES / "grape_flattening.py"), run_name="__main__")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "stable rank" in capsys.readouterr().out
    found, rank = script["spectra"](script["per_sample_gradients"]()), script["stable_rank"]
    for clipping, values in found.items():
        ranks = [rank(values[name]) for name in ("clean", "σ = 0.1", "σ = 0.5", "σ = 2")]
        assert rank(values["clipped"]) < 1.3 * ranks[0]
        assert ranks[0] < ranks[1] < ranks[2]
        assert ranks[3] > 20 * ranks[0], clipping
    assert rank(found[10.0]["σ = 0.1"]) > 10 * rank(found[1.0]["σ = 0.1"])


def test_projecting_before_the_noise_beats_projecting_after_it() -> None:
    """One seed of the small task, one learning rate: the order alone."""
    script = runpy.run_path(str(FIGURES / "grape_order.py"))
    methods = {method.name: method for method in script["METHODS"]}
    chosen = [methods[name] for name in ("DP-GRAPE, Gaussian", "privatise, then Gaussian")]
    before, after = (script["accuracy"](method, 0.02, 0, sigma=1.0, steps=25) for method in chosen)
    assert before > after + 10
    assert before > 50  # of ten classes


@pytest.mark.parametrize("method", ["DP-Adam", "DP-GRAPE", "DP-GRAPE ghost"])
def test_the_benchmark_forms_what_the_formula_says(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One narrow layer in place of OPT's: per-sample bytes are those of Table 2."""
    import benchmarks.grape as benchmark

    monkeypatch.setattr(benchmark, "WIDTH", 64)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    case = Case("OPT", 1, batch=3, tokens=5, rank=8)
    with pytest.warns(UserWarning, match="Full backward hook"):
        result = measure(case, method)
    assert result["formed"] == formula(case, method, build(case)[0]) > 0
    assert result["peak"] > result["between_steps"] > result["weights"]
