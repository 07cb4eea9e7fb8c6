"""Laws of the squared-norm ratio X = n̂²/n², and the values that say how norms are taken."""

from __future__ import annotations

from dprmt.accounting.laws._chi2_mixture import chi2_mixture_cdf, chi2_mixture_sf
from dprmt.accounting.laws._envelope import envelope_cdf
from dprmt.accounting.laws._exact_law import ExactLaw
from dprmt.accounting.laws._gamma_mixture import GammaMixture
from dprmt.accounting.laws._law import NormLaw
from dprmt.accounting.laws._norm_ratio_bins import (
    Focus,
    NormRatioBins,
    Steep,
    curvature,
    right_share,
)
from dprmt.accounting.laws._norms import (
    Analysis,
    ExactNorms,
    FlatSpectrum,
    Hutchinson,
    HutchPlusPlus,
    Norms,
    checked_norms,
    norms_from_dict,
)
from dprmt.accounting.laws._rank_one_law import RankOneLaw

__all__ = [
    "Analysis",
    "ExactLaw",
    "ExactNorms",
    "FlatSpectrum",
    "Focus",
    "GammaMixture",
    "HutchPlusPlus",
    "Hutchinson",
    "NormLaw",
    "NormRatioBins",
    "Norms",
    "RankOneLaw",
    "Steep",
    "checked_norms",
    "chi2_mixture_cdf",
    "chi2_mixture_sf",
    "curvature",
    "envelope_cdf",
    "norms_from_dict",
    "right_share",
]
