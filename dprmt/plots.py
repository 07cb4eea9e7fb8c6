"""Pictures. Every function takes ``ax=`` and returns it; none shows, saves, or changes global state."""

from dprmt._plots.privacy import plot_epsilon_against_steps as plot_epsilon_against_steps
from dprmt._plots.privacy import plot_trade_off as plot_trade_off

__all__ = [
    "plot_epsilon_against_steps",
    "plot_trade_off",
]
