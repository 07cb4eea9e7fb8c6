"""jax_privacy's DP-SGD accountant by privacy loss distributions."""

from fractions import Fraction


def epsilon(noise_multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Ask it; it takes numbers of samples, so the rate is a fraction of at most a billion of them."""
    from jax_privacy.accounting import accountants, analysis

    share = Fraction(rate).limit_denominator(10**9)
    run = analysis.DpParams(
        noise_multipliers=noise_multiplier,
        num_samples=share.denominator,
        delta=delta,
        batch_size=share.numerator,
        sampling_method=analysis.SamplingMethod.POISSON,
    )
    accountant = analysis.DpsgdTrainingAccountant(dp_accountant_config=accountants.PldAccountantConfig())
    return float(accountant.compute_epsilon(num_updates=steps, dp_params=run))
