"""opake's accountant at its default discretization."""


def epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Ask it."""
    from opake.dpsgd import accounting

    one = accounting.gaussian(noise_multiplier)
    step = one if rate == 1 else accounting.poisson(one, sample_rate=rate)
    return float((step * steps).epsilon_at(delta))
