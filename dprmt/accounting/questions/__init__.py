"""Answers from composed losses: curves of ε and δ, trade-off functions, risks."""

from __future__ import annotations

from dprmt.accounting.questions._by_curves import bounds_by_curves
from dprmt.accounting.questions._curves import checked_counts, delta_curve, epsilon_curve
from dprmt.accounting.questions._privacy_curve import Counts, Numbers, PrivacyCurve
from dprmt.accounting.questions._risks import advantage, bayes_risk, gdp_mu, true_positive_rate
from dprmt.accounting.questions._trade_off import TradeOff, checked_rates, trade_off, trade_off_by_curves

__all__ = [
    "Counts",
    "Numbers",
    "PrivacyCurve",
    "TradeOff",
    "advantage",
    "bayes_risk",
    "bounds_by_curves",
    "checked_counts",
    "checked_rates",
    "delta_curve",
    "epsilon_curve",
    "gdp_mu",
    "trade_off",
    "trade_off_by_curves",
    "true_positive_rate",
]
