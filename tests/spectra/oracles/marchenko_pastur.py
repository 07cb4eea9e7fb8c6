"""Makes marchenko_pastur.json: the Marchenko–Pastur law by quadrature of its density, in 40 digits.

Run ``python tests/spectra/oracles/marchenko_pastur.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import mpmath as mp

mp.mp.dps = 40

SHAPES = [(16, 768), (768, 16), (256, 256), (1000, 1001), (1, 4096), (2048, 512)]
SIGMA = 0.37
INSIDE = [1e-12, 1e-6, 0.01, 0.3, 0.5, 0.8, 0.99, 1 - 1e-6, 1 - 1e-12]
PROBABILITIES = [1e-9, 0.001, 0.25, 0.5, 0.75, 0.999, 1 - 2.0**-40]


def edges(shape):
    m, n = (mp.mpf(side) for side in shape)
    return mp.mpf(SIGMA) * abs(mp.sqrt(n) - mp.sqrt(m)), mp.mpf(SIGMA) * (mp.sqrt(n) + mp.sqrt(m))


def eigenvalue_density(shape, x):
    """Density at x of the eigenvalues of WWᵀ, the squares of the singular values."""
    lower, upper = edges(shape)
    return mp.sqrt(max((upper**2 - x) * (x - lower**2), 0)) / (2 * mp.pi * mp.mpf(SIGMA) ** 2 * min(shape) * x)


def mass(shape, low, high):
    """Probability of a singular value in [low, high], by tanh-sinh on pieces that shrink to the edges."""
    lower, upper = edges(shape)
    cuts = {low**2, high**2}
    for edge in (lower, upper):
        for power in range(14):
            cut = edge + (upper - lower) * mp.mpf(10) ** -power * (0.5 if edge == lower else -0.5)
            cuts |= {cut**2} if low < cut < high else set()
    return mp.quad(lambda x: eigenvalue_density(shape, x), sorted(cuts))


def quantile(shape, p):
    """By bisection on the mass of the nearer end, in the angle that removes the square-root edges."""
    lower, upper = edges(shape)
    ρ = mp.sqrt(mp.mpf(min(shape)) / max(shape))

    def angle_mass(θ):
        if ρ == 1:
            return (θ + mp.sin(θ)) / mp.pi
        return (θ + mp.sin(θ) / ρ - (1 / ρ**2 - 1) * mp.atan2(ρ * mp.sin(θ), 1 - ρ * mp.cos(θ))) / mp.pi

    low, high = mp.mpf(0), mp.pi
    for _ in range(140):
        middle = (low + high) / 2
        low, high = (middle, high) if angle_mass(middle) < p else (low, middle)
    value = mp.sqrt(lower**2 + (upper**2 - lower**2) * mp.sin(low / 2) ** 2)
    assert abs(mass(shape, lower, value) - p) < mp.mpf(10) ** -25  # the angle against the density itself
    return value


def cases():
    for shape in SHAPES:
        lower, upper = edges(shape)
        for fraction in INSIDE:
            x = float(lower + (upper - lower) * fraction)
            pdf = 2 * mp.mpf(x) * eigenvalue_density(shape, mp.mpf(x) ** 2)
            for name, value in (
                ("pdf", pdf),
                ("cdf", mass(shape, lower, mp.mpf(x))),
                ("sf", mass(shape, mp.mpf(x), upper)),
            ):
                yield {"method": name, "shape": shape, "x": x, "value": mp.nstr(value, 25), "rtol": 4e-15}
        for p in PROBABILITIES:
            yield {
                "method": "ppf",
                "shape": shape,
                "x": p,
                "value": mp.nstr(quantile(shape, p), 25),
                "rtol": 4e-15,
            }


if __name__ == "__main__":
    lines = ",\n".join(json.dumps({"sigma": SIGMA, **case}) for case in cases())
    Path(__file__).with_suffix(".json").write_text(f"[\n{lines}\n]\n")
