"""Answers from composed losses: curves of ε and δ, trade-off functions, risks."""

from __future__ import annotations

from dprmt.accounting.questions._by_curves import bounds_by_curves, deltas_by_curves
from dprmt.accounting.questions._curves import Ends, checked_counts, checked_epsilons, delta_ends, joined
from dprmt.accounting.questions._privacy_curve import Counts, Numbers, PrivacyCurve
from dprmt.accounting.questions._risks import bayes_risk, gdp_mu, mu_grid, true_positive_rate
from dprmt.accounting.questions._step_counts import Brackets, by_blocks
from dprmt.accounting.questions._trade_off import (
    TradeOff,
    checked_rates,
    perfect_trade_off,
    trade_off,
    trade_off_by_curves,
)

__all__ = [
    "Brackets",
    "Counts",
    "Ends",
    "Numbers",
    "PrivacyCurve",
    "TradeOff",
    "bayes_risk",
    "bounds_by_curves",
    "by_blocks",
    "checked_counts",
    "checked_epsilons",
    "checked_rates",
    "delta_ends",
    "deltas_by_curves",
    "gdp_mu",
    "joined",
    "mu_grid",
    "perfect_trade_off",
    "trade_off",
    "trade_off_by_curves",
    "true_positive_rate",
]
