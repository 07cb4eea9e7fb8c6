"""Certified privacy accounting for mechanisms whose sensitivity is random.

The mathematics is in ``docs/theory/randomized_clipping.md``.
"""

from dprmt.accounting.basics import NoRenyiDivergenceError as NoRenyiDivergenceError
from dprmt.accounting.basics import PrivacyBounds as PrivacyBounds
from dprmt.accounting.basics import worst_of as worst_of
from dprmt.accounting.laws import ExactNorms as ExactNorms
from dprmt.accounting.laws import Hutchinson as Hutchinson
from dprmt.accounting.laws import HutchPlusPlus as HutchPlusPlus
from dprmt.accounting.laws import Norms as Norms
from dprmt.accounting.laws import chi2_mixture_cdf as chi2_mixture_cdf
from dprmt.accounting.laws import chi2_mixture_sf as chi2_mixture_sf
from dprmt.accounting.laws import envelope_cdf as envelope_cdf
from dprmt.accounting.laws import norms_from_dict as norms_from_dict
from dprmt.accounting.mechanisms import DPSGD as DPSGD
from dprmt.accounting.mechanisms import ApproximateRelease as ApproximateRelease
from dprmt.accounting.mechanisms import Composition as Composition
from dprmt.accounting.mechanisms import CyclicPoisson as CyclicPoisson
from dprmt.accounting.mechanisms import FixedOrder as FixedOrder
from dprmt.accounting.mechanisms import FixedSize as FixedSize
from dprmt.accounting.mechanisms import GaussianDPRelease as GaussianDPRelease
from dprmt.accounting.mechanisms import GaussianRelease as GaussianRelease
from dprmt.accounting.mechanisms import LaplaceRelease as LaplaceRelease
from dprmt.accounting.mechanisms import Parallel as Parallel
from dprmt.accounting.mechanisms import Poisson as Poisson
from dprmt.accounting.mechanisms import PrivateSelection as PrivateSelection
from dprmt.accounting.mechanisms import ProbeChoice as ProbeChoice
from dprmt.accounting.mechanisms import RandomAllocation as RandomAllocation
from dprmt.accounting.mechanisms import Release as Release
from dprmt.accounting.mechanisms import RenyiRelease as RenyiRelease
from dprmt.accounting.mechanisms import Sampling as Sampling
from dprmt.accounting.mechanisms import ZCDPRelease as ZCDPRelease
from dprmt.accounting.mechanisms import calibrate as calibrate
from dprmt.accounting.mechanisms import choose_probes as choose_probes
from dprmt.accounting.mechanisms import clt_mu as clt_mu
from dprmt.accounting.mechanisms import compose as compose
from dprmt.accounting.mechanisms import fixed as fixed
from dprmt.accounting.mechanisms import gdp_epsilon as gdp_epsilon
from dprmt.accounting.mechanisms import gdp_trade_off as gdp_trade_off
from dprmt.accounting.mechanisms import largest_steps as largest_steps
from dprmt.accounting.mechanisms import parallel as parallel
from dprmt.accounting.mechanisms import private_selection as private_selection
from dprmt.accounting.mechanisms import release_from_dict as release_from_dict
from dprmt.accounting.mechanisms import sampling_from_dict as sampling_from_dict
from dprmt.accounting.pairs import AddRemove as AddRemove
from dprmt.accounting.pairs import Group as Group
from dprmt.accounting.pairs import Neighbours as Neighbours
from dprmt.accounting.pairs import ReplaceOne as ReplaceOne
from dprmt.accounting.pairs import ZeroOut as ZeroOut
from dprmt.accounting.pairs import neighbours_from_dict as neighbours_from_dict
from dprmt.accounting.questions import PrivacyCurve as PrivacyCurve
from dprmt.accounting.questions import TradeOff as TradeOff

__all__ = [
    "DPSGD",
    "AddRemove",
    "ApproximateRelease",
    "Composition",
    "CyclicPoisson",
    "ExactNorms",
    "FixedOrder",
    "FixedSize",
    "GaussianDPRelease",
    "GaussianRelease",
    "Group",
    "HutchPlusPlus",
    "Hutchinson",
    "LaplaceRelease",
    "Neighbours",
    "NoRenyiDivergenceError",
    "Norms",
    "Parallel",
    "Poisson",
    "PrivacyBounds",
    "PrivacyCurve",
    "PrivateSelection",
    "ProbeChoice",
    "RandomAllocation",
    "Release",
    "RenyiRelease",
    "ReplaceOne",
    "Sampling",
    "TradeOff",
    "ZCDPRelease",
    "ZeroOut",
    "calibrate",
    "chi2_mixture_cdf",
    "chi2_mixture_sf",
    "choose_probes",
    "clt_mu",
    "compose",
    "envelope_cdf",
    "fixed",
    "gdp_epsilon",
    "gdp_trade_off",
    "largest_steps",
    "neighbours_from_dict",
    "norms_from_dict",
    "parallel",
    "private_selection",
    "release_from_dict",
    "sampling_from_dict",
    "worst_of",
]
