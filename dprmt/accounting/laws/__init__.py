"""Laws of the squared-norm ratio X = n̂²/n², and the values that describe a norm method."""

from __future__ import annotations

from dprmt.accounting.laws._chi2_mixture import chi2_mixture_cdf, chi2_mixture_sf
from dprmt.accounting.laws._envelope import envelope_cdf
from dprmt.accounting.laws._gamma_mixture import GammaMixture, NormRatioBins
from dprmt.accounting.laws._laws import ExactLaw, NormLaw, RankOneLaw
from dprmt.accounting.laws._norms import (
    Analysis,
    ExactNorms,
    Hutchinson,
    HutchPlusPlus,
    Norms,
    checked_norms,
    norms_from_dict,
)

__all__ = [
    "Analysis",
    "ExactLaw",
    "ExactNorms",
    "GammaMixture",
    "HutchPlusPlus",
    "Hutchinson",
    "NormLaw",
    "NormRatioBins",
    "Norms",
    "RankOneLaw",
    "checked_norms",
    "chi2_mixture_cdf",
    "chi2_mixture_sf",
    "envelope_cdf",
    "norms_from_dict",
]
