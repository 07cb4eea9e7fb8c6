"""Certified privacy accounting for mechanisms whose sensitivity is random.

The mathematics is in ``docs/theory/randomized_clipping.md``.
"""

from dprmt.accounting._bounds import PrivacyBounds as PrivacyBounds
from dprmt.accounting._bounds import worst_of as worst_of
from dprmt.accounting._calibrate import calibrate as calibrate
from dprmt.accounting._chi2_mixture import chi2_mixture_cdf as chi2_mixture_cdf
from dprmt.accounting._chi2_mixture import chi2_mixture_sf as chi2_mixture_sf
from dprmt.accounting._choose_probes import ProbeChoice as ProbeChoice
from dprmt.accounting._choose_probes import choose_probes as choose_probes
from dprmt.accounting._compose import Composition as Composition
from dprmt.accounting._compose import compose as compose
from dprmt.accounting._earlier import RandomizedClipping as RandomizedClipping
from dprmt.accounting._earlier import calibrate_noise_multiplier as calibrate_noise_multiplier
from dprmt.accounting._envelope import envelope_cdf as envelope_cdf
from dprmt.accounting._errors import NoRenyiDivergenceError as NoRenyiDivergenceError
from dprmt.accounting._gaussian_dp import clt_mu as clt_mu
from dprmt.accounting._gaussian_dp import gdp_epsilon as gdp_epsilon
from dprmt.accounting._gaussian_dp import gdp_trade_off as gdp_trade_off
from dprmt.accounting._mechanisms import DPSGD as DPSGD
from dprmt.accounting._neighbours import AddRemove as AddRemove
from dprmt.accounting._neighbours import Group as Group
from dprmt.accounting._neighbours import Neighbours as Neighbours
from dprmt.accounting._neighbours import ReplaceOne as ReplaceOne
from dprmt.accounting._neighbours import ZeroOut as ZeroOut
from dprmt.accounting._neighbours import neighbours_from_dict as neighbours_from_dict
from dprmt.accounting._norms import ExactNorms as ExactNorms
from dprmt.accounting._norms import FlatSpectrum as FlatSpectrum
from dprmt.accounting._norms import Hutchinson as Hutchinson
from dprmt.accounting._norms import HutchPlusPlus as HutchPlusPlus
from dprmt.accounting._norms import Norms as Norms
from dprmt.accounting._norms import norms_from_dict as norms_from_dict
from dprmt.accounting._privacy_curve import PrivacyCurve as PrivacyCurve
from dprmt.accounting._releases import ApproximateRelease as ApproximateRelease
from dprmt.accounting._releases import GaussianRelease as GaussianRelease
from dprmt.accounting._releases import LaplaceRelease as LaplaceRelease
from dprmt.accounting._releases import Release as Release
from dprmt.accounting._releases import release_from_dict as release_from_dict
from dprmt.accounting._sampling import Poisson as Poisson
from dprmt.accounting._sampling import RandomAllocation as RandomAllocation
from dprmt.accounting._sampling import Sampling as Sampling
from dprmt.accounting._sampling import sampling_from_dict as sampling_from_dict
from dprmt.accounting._trade_off import TradeOff as TradeOff

__all__ = [
    "DPSGD",
    "AddRemove",
    "ApproximateRelease",
    "Composition",
    "ExactNorms",
    "FlatSpectrum",
    "GaussianRelease",
    "Group",
    "HutchPlusPlus",
    "Hutchinson",
    "LaplaceRelease",
    "Neighbours",
    "NoRenyiDivergenceError",
    "Norms",
    "Poisson",
    "PrivacyBounds",
    "PrivacyCurve",
    "ProbeChoice",
    "RandomAllocation",
    "RandomizedClipping",
    "Release",
    "ReplaceOne",
    "Sampling",
    "TradeOff",
    "ZeroOut",
    "calibrate",
    "calibrate_noise_multiplier",
    "chi2_mixture_cdf",
    "chi2_mixture_sf",
    "choose_probes",
    "clt_mu",
    "compose",
    "envelope_cdf",
    "gdp_epsilon",
    "gdp_trade_off",
    "neighbours_from_dict",
    "norms_from_dict",
    "release_from_dict",
    "sampling_from_dict",
    "worst_of",
]
