"""A spectrum says what stands out from noise, in words, tables and a picture."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprmt.spectra import bulk_edge, kappa_for, noisy_spectrum, spike_map


@given(st.integers(2, 9), st.integers(2, 9), st.floats(1e-6, 1e6), st.floats(1.5, 100))
def test_one_strong_signal_is_one_spike(m: int, n: int, sigma: float, strength: float) -> None:
    """Of a matrix without noise, whose one value is F(λ), the spike's clean value is λ; scaling scales it."""
    signal = strength * sigma * (m * n) ** 0.25
    observed = float(spike_map(signal, (m, n), sigma))
    matrix = np.zeros((m, n))
    matrix[0, 0] = observed
    spectrum = noisy_spectrum(matrix, sigma)
    gate = kappa_for((m, n), 0.01) * bulk_edge((m, n), sigma)
    assert spectrum.gate == gate
    assert len(spectrum.spikes) == (observed > gate)
    if spectrum.spikes:
        assert spectrum.spikes[0].signal == pytest.approx(signal, rel=1e-9)
        assert spectrum.top_over_edge == pytest.approx(observed / bulk_edge((m, n), sigma))


def test_tensors_say_what_arrays_do() -> None:
    torch = pytest.importorskip("torch")
    matrix = np.random.default_rng(1).standard_normal((6, 9)).astype(np.float32)
    one, other = noisy_spectrum(matrix, 0.5), noisy_spectrum(torch.from_numpy(matrix).requires_grad_(), 0.5)
    assert one.as_dict() == other.as_dict()


def test_it_reads_as_a_sentence_and_shows_itself() -> None:
    quiet, loud = (noisy_spectrum(x * np.eye(4, 7), 1.0) for x in (0.1, 50.0))
    assert "no singular value that can be told from noise" in str(quiet)
    assert "4 of 4 singular values above the gate" in str(loud)
    assert str(loud).isascii()  # printed anywhere
    assert repr(loud) == "<NoisySpectrum of 4 x 7, sigma=1, spikes=4>"
    page = loud._repr_html_()
    assert page.count("<tr>") == 1 + 4
    assert "<table" not in quiet._repr_html_()
