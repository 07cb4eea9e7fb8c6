"""Theory against measurement, on one page: the sections of ``dprmt report``."""

from dprmt.report._page import Picture as Picture
from dprmt.report._page import Section as Section
from dprmt.report._page import Table as Table
from dprmt.report._run_page import write_run_report as write_run_report
from dprmt.report._write import Progress as Progress
from dprmt.report._write import Report as Report
from dprmt.report._write import RunReport as RunReport
from dprmt.report._write import write_report as write_report

__all__ = ["Picture", "Progress", "Report", "RunReport", "Section", "Table", "write_report", "write_run_report"]
