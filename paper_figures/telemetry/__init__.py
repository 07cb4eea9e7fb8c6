"""What telemetry says of private runs, held against the clean gradients that it never sees: tasks, runs, sums."""

from paper_figures.telemetry._runs import RUNS as RUNS
from paper_figures.telemetry._runs import Run as Run
from paper_figures.telemetry._sums import coverage as coverage
from paper_figures.telemetry._sums import first_spikes as first_spikes
from paper_figures.telemetry._sums import nulls as nulls

__all__ = ["RUNS", "Run", "coverage", "first_spikes", "nulls"]
