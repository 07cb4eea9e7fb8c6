"""Public accounting API: mechanisms, sampling schemes, compositions and calibration."""

from __future__ import annotations

from dprmt.accounting.mechanisms._calibrate import calibrate, largest_steps
from dprmt.accounting.mechanisms._choose_probes import ProbeChoice, choose_probes
from dprmt.accounting.mechanisms._composition import Composition, Fixed, Parallel, compose, fixed, parallel
from dprmt.accounting.mechanisms._conversions import (
    GaussianDPRelease,
    RenyiRelease,
    ZCDPRelease,
    release_from_dict,
)
from dprmt.accounting.mechanisms._dpsgd import DPSGD
from dprmt.accounting.mechanisms._gaussian_dp import clt_mu, gdp_epsilon, gdp_trade_off
from dprmt.accounting.mechanisms._private_selection import PrivateSelection, private_selection
from dprmt.accounting.mechanisms._releases import (
    ApproximateRelease,
    GaussianRelease,
    LaplaceRelease,
    Release,
)
from dprmt.accounting.mechanisms._sampling import (
    CyclicPoisson,
    FixedOrder,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    sampling_from_dict,
)

__all__ = [
    "DPSGD",
    "ApproximateRelease",
    "Composition",
    "CyclicPoisson",
    "Fixed",
    "FixedOrder",
    "FixedSize",
    "GaussianDPRelease",
    "GaussianRelease",
    "LaplaceRelease",
    "Parallel",
    "Poisson",
    "PrivateSelection",
    "ProbeChoice",
    "RandomAllocation",
    "Release",
    "RenyiRelease",
    "Sampling",
    "ZCDPRelease",
    "calibrate",
    "choose_probes",
    "clt_mu",
    "compose",
    "fixed",
    "gdp_epsilon",
    "gdp_trade_off",
    "largest_steps",
    "parallel",
    "private_selection",
    "release_from_dict",
    "sampling_from_dict",
]
