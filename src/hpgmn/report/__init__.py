"""The report: recorded data in, one HTML page out."""

from hpgmn.report.page import ReportDataError, render_report
from hpgmn.report.rendering import LearningCurves, ReportData

__all__ = ["LearningCurves", "ReportData", "ReportDataError", "render_report"]
