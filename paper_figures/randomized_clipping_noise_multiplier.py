"""Noise multipliers of DP-SGD with exact norms and with 32 probes at ε = 0.7, δ = 1e-5 (arXiv:2605.24879).

The setting, read off the published numbers: batches of 16 from 1,225 samples, 3,480 steps.
"""

from __future__ import annotations

from dprmt.accounting import calibrate_noise_multiplier

EPSILON, DELTA, RATE, STEPS = 0.7, 1e-5, 16 / 1225, 3480
PUBLISHED = {"exact norms": 4.073, "32 probes, published analysis": 4.354}


def noise_multipliers() -> dict[str, float]:
    """Ours, certified: ε does not exceed the target."""
    setting = (EPSILON, DELTA, RATE, STEPS)
    return {
        "exact norms": calibrate_noise_multiplier(*setting),
        "32 probes, published analysis": calibrate_noise_multiplier(*setting, probes=32, analysis="envelope"),
        "32 probes, tight": calibrate_noise_multiplier(*setting, probes=32),
        "32 probes, tight, secret": calibrate_noise_multiplier(*setting, probes=32, probe_sharing="sample"),
    }


def main() -> None:
    """Print the table."""
    found = noise_multipliers()
    print(f"{'':<32}{'ours':>8}{'paper':>8}{'ratio to exact':>16}")
    for name, sigma in found.items():
        published = f"{PUBLISHED[name]:.3f}" if name in PUBLISHED else ""
        print(f"{name:<32}{sigma:>8.3f}{published:>8}{sigma / found['exact norms']:>16.4f}")


if __name__ == "__main__":
    main()
