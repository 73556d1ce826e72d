"""Reports: what a run folder holds, as one page to read."""

from hpgmn.report.html import build_report, write_report

__all__ = ["build_report", "write_report"]
