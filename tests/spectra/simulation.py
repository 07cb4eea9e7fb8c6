"""Exact and cheap samplers of noise and spiked-noise spectra, by Householder reduction on paper; what tests share.

A Gaussian matrix is invariant under rotations, so reducing it to bidiagonal form leaves independent chi
variables (Bartlett; Silverstein 1985; Dumitriu & Edelman 2002): a draw costs O(min(m, n)) random numbers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import scipy
from hypothesis import strategies as st

from dprmt import spectra

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.tuples(st.integers(1, 5000), st.integers(1, 5000))
SIGMAS, FACTORS = st.floats(1e-6, 1e6), st.floats(0.0, 100.0)


def stored(name):
    """Values of an oracle, see the docstring of its test."""
    return json.loads((Path(__file__).parent / "oracles" / f"{name}.json").read_text())


def relative_error(actual, expected):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def rotation(rng, size, columns=None):
    return np.linalg.qr(rng.standard_normal((size, size if columns is None else columns)))[0]


def spiked(rng, shape, signals, sigma=1.0):
    """Noise plus a signal with the given singular values, in units of the bulk edge."""
    left, right = (rotation(rng, side, len(signals)) for side in shape)
    signal = left * (np.array(signals) * (math.sqrt(shape[0]) + math.sqrt(shape[1]))) @ right.T
    return sigma * (signal + rng.standard_normal(shape))


def exceedance_counts(shape, gates, draws, rng, chunk=50_000):
    """How many of ``draws`` noise matrices (σ = 1) have their largest singular value above each gate.

    With chi-squared d_i, e_i on the diagonal and below it, ``t - WWᵀ`` is tridiagonal; all pivots of its LDLᵀ
    factorisation are positive exactly if t is above the largest eigenvalue (Sturm).
    """
    m, n = sorted(shape)
    t = np.square(np.asarray(gates, float))[:, None]
    counts = np.zeros(len(t), int)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        d = rng.chisquare(n, size)
        pivot = t - d
        below = pivot > 0
        for i in range(1, m):
            e = rng.chisquare(m - i, size)
            coupling, d = d * e, rng.chisquare(n - i, size)
            pivot = t - d - e - coupling / pivot
            below &= pivot > 0
        counts += np.sum(~below, axis=1)
    return counts


def top_of_spiked_noise(shape, signal, draws, rng):
    """Largest singular value of ``signal·e₁e₁ᵀ + W`` (σ = 1) and squared overlap of its left vector with e₁.

    Rotating alternately the columns and the rows after those done makes Y lower bidiagonal and never rotates
    the first row: the chi variables are those of pure noise, except that the first is the norm of
    ``(signal + g, χ_{n-1})``, and e₁ is still the clean left vector.
    """
    m, n = shape
    k = min(m, n + 1)
    tops, overlaps = np.empty(draws), np.empty(draws)
    for draw in range(draws):
        d2 = rng.chisquare(np.maximum(n - np.arange(k), 1e-9)) * (np.arange(k) < n)
        d2[0] = (signal + rng.standard_normal()) ** 2 + (rng.chisquare(n - 1) if n > 1 else 0.0)
        e2 = rng.chisquare(m - 1 - np.arange(k - 1))
        values, vectors = scipy.linalg.eigh_tridiagonal(
            d2 + np.append(0.0, e2), np.sqrt(d2[:-1] * e2), select="i", select_range=(k - 1, k - 1)
        )
        tops[draw], overlaps[draw] = np.sqrt(values[0]), vectors[0, 0] ** 2
    return tops, overlaps


def quadratic(seed, d=5):
    """A gradient and a positive semidefinite curvature whose eigenvalues differ by up to e⁵, and the generator."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    H = Q * np.exp(rng.uniform(-4, 1, d)) @ Q.T
    return rng, rng.standard_normal(d), (H + H.T) / 2


def denoise(matrix, sigma, kappa=None, norm_correction=True, **options):
    """Eq. 10 with or without its norm correction; a matrix below the gate stays."""
    method = "paper" if norm_correction else "shrink"
    return spectra.denoise(matrix, sigma, kappa, method=method, below_gate="unchanged", **options)


def denoise_layers(layers, sigma, kappa=None, norm_correction=True, **options):
    """The same of layers."""
    method = "paper" if norm_correction else "shrink"
    return spectra.denoise_layers(layers, sigma, kappa, method=method, below_gate="unchanged", **options)
