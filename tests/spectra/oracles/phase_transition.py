"""Makes phase_transition.json: the formulas as printed, in 60 digits, on inputs rounded to the dtype.

Run ``python tests/spectra/oracles/phase_transition.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import mpmath as mp
import numpy as np

mp.mp.dps = 60

SHAPES = [(16, 768), (768, 16), (256, 256), (1000, 1001)]
SIGMAS = [0.37, 4.0e-6]
ABOVE = {"float64": [1e-15, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 1e9], "float32": [1e-6, 1e-5, 1e-3, 0.1, 1.0, 30.0]}
RTOL = {"float64": 2e-15, "float32": 6.1e-8}


def scales(shape, sigma):
    m, n, σ = mp.mpf(shape[0]), mp.mpf(shape[1]), mp.mpf(sigma)
    return m, n, σ, σ * (mp.sqrt(m) + mp.sqrt(n)), σ * (m * n) ** mp.mpf("0.25")


def spike_map(λ, shape, sigma):
    """Eq. 3."""
    m, n, σ, edge, threshold = scales(shape, sigma)
    return mp.sqrt((λ + σ**2 * n / λ) * (λ + σ**2 * m / λ)) if λ > threshold else edge


def spike_map_inverse(y, shape, sigma):
    """The larger root λ² of λ⁴ + ((m + n)σ² - y²)λ² + mnσ⁴ = 0, which is F(λ) = y."""
    m, n, σ, edge, _ = scales(shape, sigma)
    if y <= edge:
        return mp.mpf(0)
    p = y**2 - (m + n) * σ**2
    return mp.sqrt((p + mp.sqrt(p**2 - 4 * m * n * σ**4)) / 2)


def overlaps(λ, shape, sigma):
    """Eqs. 4–6."""
    m, n, σ, _, threshold = scales(shape, sigma)
    if λ <= threshold:
        return mp.mpf(0), mp.mpf(0)
    top = λ**4 - m * n * σ**4
    return top / (λ**4 + m * λ**2 * σ**2), top / (λ**4 + n * λ**2 * σ**2)


def frobenius(y, shape, sigma):
    """Eq. 9."""
    λ = spike_map_inverse(y, shape, sigma)
    left, right = overlaps(λ, shape, sigma)
    return λ * mp.sqrt(left) * mp.sqrt(right)


def operator(y, shape, sigma):
    """λ times the smaller over the larger cosine."""
    λ = spike_map_inverse(y, shape, sigma)
    left, right = overlaps(λ, shape, sigma)
    return λ * mp.sqrt(min(left, right) / max(left, right)) if λ else λ


def nuclear(y, shape, sigma):
    """The rule of Gavish & Donoho (2017) for x = λ/(σ√n), β = m/n, in units of σ√n."""
    m, n, σ, _, _ = scales(shape, sigma)
    x, w, β = (spike_map_inverse(y, shape, sigma) / (σ * mp.sqrt(n)), y / (σ * mp.sqrt(n)), m / n)
    value = (x**4 - β - mp.sqrt(β) * x * w) / (x**2 * w) if x else mp.mpf(0)
    return max(value, mp.mpf(0)) * σ * mp.sqrt(n)


FUNCTIONS = {
    "spike_map": (spike_map, "threshold"),
    "left_overlap": (lambda *a: overlaps(*a)[0], "threshold"),
    "right_overlap": (lambda *a: overlaps(*a)[1], "threshold"),
    "spike_map_inverse": (spike_map_inverse, "edge"),
    "frobenius": (frobenius, "edge"),
    "operator": (operator, "edge"),
    "nuclear": (nuclear, "edge"),
}


def cases():
    for name, (function, reference) in FUNCTIONS.items():
        for shape in SHAPES:
            for sigma in SIGMAS:
                *_, edge, threshold = scales(shape, sigma)
                for dtype, above in ABOVE.items():
                    for excess in [-0.5, -1e-6, *above]:
                        x = np.dtype(dtype).type(float((edge if reference == "edge" else threshold) * (1 + excess)))
                        value = function(mp.mpf(float(x)), shape, sigma)
                        yield {
                            "function": name,
                            "shape": shape,
                            "sigma": sigma,
                            "dtype": dtype,
                            "x": float(x),
                            "value": mp.nstr(value, 20),
                            "rtol": RTOL[dtype],
                        }


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case) for case in cases())
    Path(__file__).with_suffix(".json").write_text(f"[\n{lines}\n]\n")
