"""A rate that sets itself: small private problems in many lanes, rules for the rate, and what they amount to."""

from paper_figures.automatic_rate._cells import CELLS as CELLS
from paper_figures.automatic_rate._cells import SHORT as SHORT
from paper_figures.automatic_rate._page import draw as draw
from paper_figures.automatic_rate._page import text as text
from paper_figures.automatic_rate._runs import tasks as tasks
from paper_figures.automatic_rate._sums import findings as findings
from paper_figures.automatic_rate._sums import regrets as regrets
from paper_figures.automatic_rate._sums import summary as summary

__all__ = ["CELLS", "SHORT", "draw", "findings", "regrets", "summary", "tasks", "text"]
