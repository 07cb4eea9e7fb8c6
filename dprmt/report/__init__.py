"""Theory against measurement, on one page: the sections of ``dprmt report``."""

from dprmt.report._page import Picture, Section, Table
from dprmt.report._write import Report, write_report, write_run_report

__all__ = ["Picture", "Report", "Section", "Table", "write_report", "write_run_report"]
