"""Certified privacy accounting for mechanisms whose sensitivity is random.

The mathematics is in ``docs/theory/randomized_clipping.md``.
"""

from dprmt.accounting._bounds import PrivacyBounds as PrivacyBounds
from dprmt.accounting._calibrate import calibrate_noise_multiplier as calibrate_noise_multiplier
from dprmt.accounting._chi2_mixture import chi2_mixture_cdf as chi2_mixture_cdf
from dprmt.accounting._chi2_mixture import chi2_mixture_sf as chi2_mixture_sf
from dprmt.accounting._choose_probes import ProbeChoice as ProbeChoice
from dprmt.accounting._choose_probes import choose_probes as choose_probes
from dprmt.accounting._compose import Composition as Composition
from dprmt.accounting._compose import compose as compose
from dprmt.accounting._envelope import envelope_cdf as envelope_cdf
from dprmt.accounting._errors import NoRenyiDivergenceError as NoRenyiDivergenceError
from dprmt.accounting._flat_spectrum import FlatSpectrum as FlatSpectrum
from dprmt.accounting._gaussian_dp import clt_mu as clt_mu
from dprmt.accounting._gaussian_dp import gdp_epsilon as gdp_epsilon
from dprmt.accounting._gaussian_dp import gdp_trade_off as gdp_trade_off
from dprmt.accounting._mechanisms import DPSGD as DPSGD
from dprmt.accounting._mechanisms import RandomizedClipping as RandomizedClipping
from dprmt.accounting._privacy_curve import PrivacyCurve as PrivacyCurve
from dprmt.accounting._trade_off import TradeOff as TradeOff

__all__ = [
    "DPSGD",
    "Composition",
    "FlatSpectrum",
    "NoRenyiDivergenceError",
    "PrivacyBounds",
    "PrivacyCurve",
    "ProbeChoice",
    "RandomizedClipping",
    "TradeOff",
    "calibrate_noise_multiplier",
    "chi2_mixture_cdf",
    "chi2_mixture_sf",
    "choose_probes",
    "clt_mu",
    "compose",
    "envelope_cdf",
    "gdp_epsilon",
    "gdp_trade_off",
]
