"""Certified privacy accounting for mechanisms whose sensitivity is random.

The mathematics is in ``docs/theory/randomized_clipping.md``.
"""

from dprmt._lazy import public_names as _public_names
from dprmt.accounting.basics._bounds import PrivacyBounds as PrivacyBounds
from dprmt.accounting.basics._numbers import NoRenyiDivergenceError as NoRenyiDivergenceError
from dprmt.accounting.composition._solve import worst_of as worst_of
from dprmt.accounting.laws._chi2_mixture import chi2_mixture_cdf as chi2_mixture_cdf
from dprmt.accounting.laws._chi2_mixture import chi2_mixture_sf as chi2_mixture_sf
from dprmt.accounting.laws._envelope import envelope_cdf as envelope_cdf
from dprmt.accounting.laws._norms import ExactNorms as ExactNorms
from dprmt.accounting.laws._norms import Hutchinson as Hutchinson
from dprmt.accounting.laws._norms import HutchPlusPlus as HutchPlusPlus
from dprmt.accounting.laws._norms import Norms as Norms
from dprmt.accounting.laws._norms import norms_from_dict as norms_from_dict
from dprmt.accounting.mechanisms._calibrate import calibrate as calibrate
from dprmt.accounting.mechanisms._calibrate import largest_steps as largest_steps
from dprmt.accounting.mechanisms._choose_probes import ProbeChoice as ProbeChoice
from dprmt.accounting.mechanisms._choose_probes import choose_probes as choose_probes
from dprmt.accounting.mechanisms._composition import Composition as Composition
from dprmt.accounting.mechanisms._composition import Parallel as Parallel
from dprmt.accounting.mechanisms._composition import compose as compose
from dprmt.accounting.mechanisms._composition import fixed as fixed
from dprmt.accounting.mechanisms._composition import parallel as parallel
from dprmt.accounting.mechanisms._conversions import GaussianDPRelease as GaussianDPRelease
from dprmt.accounting.mechanisms._conversions import RenyiRelease as RenyiRelease
from dprmt.accounting.mechanisms._conversions import ZCDPRelease as ZCDPRelease
from dprmt.accounting.mechanisms._conversions import release_from_dict as release_from_dict
from dprmt.accounting.mechanisms._dpsgd import DPSGD as DPSGD
from dprmt.accounting.mechanisms._gaussian_dp import clt_mu as clt_mu
from dprmt.accounting.mechanisms._gaussian_dp import gdp_epsilon as gdp_epsilon
from dprmt.accounting.mechanisms._gaussian_dp import gdp_trade_off as gdp_trade_off
from dprmt.accounting.mechanisms._private_selection import PrivateSelection as PrivateSelection
from dprmt.accounting.mechanisms._private_selection import private_selection as private_selection
from dprmt.accounting.mechanisms._releases import ApproximateRelease as ApproximateRelease
from dprmt.accounting.mechanisms._releases import GaussianRelease as GaussianRelease
from dprmt.accounting.mechanisms._releases import LaplaceRelease as LaplaceRelease
from dprmt.accounting.mechanisms._releases import Release as Release
from dprmt.accounting.pairs._steps import AddRemove as AddRemove
from dprmt.accounting.pairs._steps import CyclicPoisson as CyclicPoisson
from dprmt.accounting.pairs._steps import FixedOrder as FixedOrder
from dprmt.accounting.pairs._steps import FixedSize as FixedSize
from dprmt.accounting.pairs._steps import Group as Group
from dprmt.accounting.pairs._steps import Neighbours as Neighbours
from dprmt.accounting.pairs._steps import Poisson as Poisson
from dprmt.accounting.pairs._steps import RandomAllocation as RandomAllocation
from dprmt.accounting.pairs._steps import ReplaceOne as ReplaceOne
from dprmt.accounting.pairs._steps import Sampling as Sampling
from dprmt.accounting.pairs._steps import ZeroOut as ZeroOut
from dprmt.accounting.pairs._steps import neighbours_from_dict as neighbours_from_dict
from dprmt.accounting.pairs._steps import sampling_from_dict as sampling_from_dict
from dprmt.accounting.questions._curves import PrivacyCurve as PrivacyCurve
from dprmt.accounting.questions._trade_off import TradeOff as TradeOff

__all__ = _public_names(vars())
