"""The mathematics of noise in differentially private training.

Rooms: :mod:`dprmt.accounting` (certified ε), :mod:`dprmt.spectra` (random matrix theory of noisy
gradients), :mod:`dprmt.training` (the torch harness). Importing this package imports none of them.
"""

__version__ = "0.1.0"
