"""Accountants of other packages, each behind one file: ``epsilon(noise_multiplier, rate, steps, delta)``.

For exact norms and Poisson sampling, a sample present or not. A file imports its package when it is asked, and proves
nothing: what it says is a claim, for ``python -m dprmt_verify --peer NAME``.
"""
