"""Attacks on the law of what Hutch++'s sketch leaves: the real estimator, simulated for hundreds of spectra."""
