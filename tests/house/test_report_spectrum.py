"""The demo's generated matrix: its picture and the line about it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dprmt import _report_spectrum
from dprmt._report_spectrum import Example, describe, generate, report_spectrum
from dprmt.spectra import cosine_similarity, detection_threshold, shrink

SMALL = Example(shape=(40, 90), sigma=0.5, signals=(4.0, 3.0, 0.5), seed=1)


def test_matrix_has_the_signals_and_the_noise_that_it_should() -> None:
    clean, noisy = generate(SMALL)
    expected = detection_threshold(SMALL.shape, SMALL.sigma) * np.array(SMALL.signals)
    np.testing.assert_allclose(np.linalg.svdvals(clean)[:4], [*expected, 0.0], atol=1e-12)
    assert np.std(noisy - clean) == pytest.approx(SMALL.sigma, rel=0.05)
    np.testing.assert_array_equal(generate(SMALL)[1], noisy)


def test_line_holds_computed_numbers() -> None:
    clean, noisy = generate(SMALL)
    line = describe(SMALL, clean, noisy)
    assert line.startswith("generated 40 × 90 matrix of rank 3 in noise: 2 of 3 signals above")
    assert ", spikes found: 2;" in line
    before, after = map(float, re.findall(r"\d\.\d{3}", line))
    U, s, Vh = np.linalg.svd(noisy, full_matrices=False)
    assert before == pytest.approx(cosine_similarity(noisy, clean), abs=1e-3)
    assert after == pytest.approx(cosine_similarity(U * shrink(s, SMALL.shape, SMALL.sigma) @ Vh, clean), abs=1e-3)
    assert after > before + 0.2


def test_pure_noise_is_left_alone() -> None:
    noise = Example(shape=(40, 90), sigma=0.5, signals=(0.1,), seed=2)
    line = describe(noise, *generate(noise))
    assert "0 of 1 signals above the detection threshold, spikes found: 0" in line
    before, after = re.findall(r"-?\d\.\d{3}", line)
    assert before == after


def test_picture_has_two_panels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures, save_picture = [], _report_spectrum.save_picture

    def spy(path, draw, **options):
        save_picture(path, lambda axes: (draw(axes), figures.append(axes[0].figure)), **options)

    monkeypatch.setattr(_report_spectrum, "save_picture", spy)
    line = report_spectrum(tmp_path / "spectrum.png", SMALL)
    assert line == describe(SMALL, *generate(SMALL))
    assert (tmp_path / "spectrum.png").read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    assert "generated 40 × 90 matrix" in figure.get_suptitle()
    curves, histogram = ([line.get_label() for line in ax.lines] for ax in figure.axes)
    assert {"clean", "noisy", "denoised"} <= set(curves)
    assert "Marchenko–Pastur density" in histogram
