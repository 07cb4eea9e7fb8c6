"""Theory against measurement, on one page: the sections of ``dprmt report``."""

from dprmt._lazy import public_names as _public_names
from dprmt.report._write import Report as Report
from dprmt.report._write import write_report as write_report
from dprmt.report._write import write_run_report as write_run_report

__all__ = _public_names(vars())
