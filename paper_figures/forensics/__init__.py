"""What follows from printed numbers alone: relations between printed numbers that hold, or do not."""

from paper_figures.forensics import glue, layers, privacy, tables, words
from paper_figures.forensics._check import Check as Check
from paper_figures.forensics._check import details as details
from paper_figures.forensics._check import run as run
from paper_figures.forensics._check import stored as stored

CHECKS: dict[str, Check] = {
    check.name: check for module in (privacy, layers, glue, tables, words) for check in module.CHECKS
}
"""By name, in the order of the page."""
