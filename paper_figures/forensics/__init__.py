"""What follows from printed numbers alone: relations between printed numbers that hold, or do not."""

from paper_figures.forensics import glue, imbalance, layers, llama, privacy, projection, tables
from paper_figures.forensics._check import Check
from paper_figures.forensics._stored import Kept, details, run, stored

__all__ = ["CHECKS", "Check", "Kept", "details", "run", "stored"]

CHECKS: dict[str, Check] = {
    check.name: check
    for module in (privacy, layers, llama, glue, tables, imbalance, projection)
    for check in module.CHECKS
}
"""By name, in the order of the page."""
