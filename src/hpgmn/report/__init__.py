"""The report: recorded data in, one HTML page out."""

from hpgmn.report.data import LearningCurves, ReportData
from hpgmn.report.page import ReportDataError, render_report

__all__ = ["LearningCurves", "ReportData", "ReportDataError", "render_report"]
