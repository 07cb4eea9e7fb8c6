"""Makes tracy_widom.json: F₁(s) as the Fredholm determinant det(1 - Ai(x + y + s)) on (0, ∞), 50 digits.

Run ``python tests/spectra/oracles/tracy_widom.py``; takes a minute or two.
"""

from __future__ import annotations

import json
from pathlib import Path

import mpmath as mp
from mpmath.calculus.quadrature import GaussLegendre

mp.mp.dps = 50

POINTS = [-8.0, -6.0, -4.0, -2.0, -1.25, 0.0, 0.9793, 2.0234, 3.27, 5.0, 8.0, 12.0, 20.0]
DEGREES = (5, 6)  # of mpmath's Gauss–Legendre rule: 48 and 96 nodes


def gauss_legendre(degree, high):
    """Nodes and weights on [0, high]."""
    rule = GaussLegendre(mp.mp).calc_nodes(degree, mp.mp.prec)
    return [high * (1 + x) / 2 for x, _ in rule], [high * w / 2 for _, w in rule]


def tail(s, degree):
    """1 - F₁(s)."""
    nodes, weights = gauss_legendre(degree, max(mp.mpf(20) - s, mp.mpf(9)))
    order = len(nodes)
    matrix = mp.eye(order)
    for i in range(order):
        for j in range(i + 1):
            entry = mp.sqrt(weights[i] * weights[j]) * mp.airyai(nodes[i] + nodes[j] + s)
            matrix[i, j] -= entry
            if i != j:
                matrix[j, i] -= entry
    return 1 - mp.det(matrix)


def cases():
    for s in POINTS:
        coarse, fine = (tail(mp.mpf(s), degree) for degree in DEGREES)
        assert abs(coarse / fine - 1) < 1e-13, (s, coarse, fine)
        yield {"method": "sf", "s": s, "value": mp.nstr(fine, 18), "rtol": 1e-11}
        if s < 0:
            yield {"method": "cdf", "s": s, "value": mp.nstr(1 - fine, 18), "rtol": 1e-10 if s > -5 else 1e-3}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case) for case in cases())
    Path(__file__).with_suffix(".json").write_text(f"[\n{lines}\n]\n")
