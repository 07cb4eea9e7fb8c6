"""prv-accountant's upper end, at errors of .01 of ε and δ/1000 of δ."""


def epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Ask it; of removing a sample."""
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import GaussianMechanism, PoissonSubsampledGaussianMechanism

    one = PoissonSubsampledGaussianMechanism(noise_multiplier=noise_multiplier, sampling_probability=rate)
    accountant = PRVAccountant(
        prvs=[GaussianMechanism(noise_multiplier) if rate == 1 else one],
        max_self_compositions=[steps],
        eps_error=0.01,
        delta_error=delta / 1000,
    )
    return float(accountant.compute_epsilon(delta, [steps])[2])
