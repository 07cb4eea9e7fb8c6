"""Noise and Poisson sampling that resist attacks on the generator and on floating-point numbers."""

import dprmt.training._needs_train  # noqa: F401
from dprmt._lazy import public_names as _public_names
from dprmt.training.randomness._secure import SecureRandom as SecureRandom
from dprmt.training.randomness._secure import allocation as allocation
from dprmt.training.randomness._secure import draws_from as draws_from
from dprmt.training.randomness._secure import secret_generator as secret_generator

__all__ = _public_names(vars())
