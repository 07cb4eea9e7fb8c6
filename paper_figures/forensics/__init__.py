"""What follows from printed numbers alone: relations that the documents' own numbers keep, or do not."""

from paper_figures.forensics import glue, imbalance, layers, llama, privacy, projection, tables
from paper_figures.forensics._check import Check
from paper_figures.forensics._stored import PAGE, Kept, page, run, stored

__all__ = ["CHECKS", "PAGE", "Check", "Kept", "page", "run", "stored"]

CHECKS: dict[str, Check] = {
    check.name: check
    for module in (privacy, layers, llama, glue, tables, imbalance, projection)
    for check in module.CHECKS
}
"""By name, in the order of the page."""
