"""Audit of a graph: measures, findings, and whether its edges help."""

from hpgmn.auditing.findings import Finding
from hpgmn.auditing.graph_audit import Audit, audit

__all__ = ["Audit", "Finding", "audit"]
