"""dp-accounting's privacy loss distributions at their default mesh, 1e-4."""


def epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Ask it."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    step = pld.from_gaussian_mechanism(noise_multiplier, sampling_prob=rate)
    return float(step.self_compose(steps).get_epsilon_for_delta(delta))
