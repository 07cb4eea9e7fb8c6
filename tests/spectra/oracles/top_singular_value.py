"""Makes top_singular_value.json: the tail of the largest eigenvalue of a real Wishart matrix, as a Pfaffian.

The Pfaffian is that of Chiani (2014), in powers of the variable and with enough digits for that basis.
With ``a_j = (n - m + 1)/2 + j`` and ``G(a, b) = ∫_0^t x^{b-1} e^{-x} γ(a, x) dx`` the matrix has the entries
``G(a_j, a_k) - G(a_k, a_j)`` in the variable x = s²/2; ``G(a, a) = γ(a, t)²/2`` and
``G(a + 1, b) = a G(a, b) - 2^{-(a+b)} γ(a + b, 2t)``. For odd m it is bordered by ``γ(a_j, t)``.

Run ``python tests/spectra/oracles/top_singular_value.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import mpmath as mp

mp.mp.dps = 250

SHAPES = [(1, 5), (2, 2), (3, 7), (8, 8), (15, 16), (16, 16), (16, 768), (8, 1024), (32, 64), (63, 80)]
GATES = [0.8, 1.0, 1.02, 1.2, 1.6]


def gamma(a, t):
    return mp.gammainc(a, 0, t) if t is not None else mp.gamma(a)


def determinant(m, n, t):
    """Determinant of the (bordered) matrix up to t; t = None for the whole line."""
    a = [mp.mpf(n - m + 1) / 2 + j for j in range(m)]
    size = m + m % 2
    matrix = mp.zeros(size)
    powers = {k: mp.mpf(2) ** -(2 * a[0] + k) * gamma(2 * a[0] + k, t and 2 * t) for k in range(2 * m)}
    single = [gamma(value, t) for value in a]
    for k in range(m):
        G = single[k] ** 2 / 2
        for j in range(k, m - 1):
            G = a[j] * G - powers[j + k]
            entry = 2 * G - single[j + 1] * single[k]  # G(a_j, a_k) - G(a_k, a_j), by parts
            matrix[j + 1, k], matrix[k, j + 1] = entry, -entry
    if m % 2:
        for j in range(m):
            matrix[j, m], matrix[m, j] = single[j], -single[j]
    return mp.det(matrix)


def cases():
    for shape in SHAPES:
        m, n = shape
        whole = determinant(m, n, None)
        for gate in GATES:
            x = float(gate * (mp.sqrt(m) + mp.sqrt(n)))
            value = 1 - mp.sqrt(determinant(m, n, mp.mpf(x) ** 2 / 2) / whole)
            yield {"shape": shape, "x": x, "value": mp.nstr(value, 20), "rtol": 1e-11}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case) for case in cases())
    Path(__file__).with_suffix(".json").write_text(f"[\n{lines}\n]\n")
