"""Audit of a graph: measures, findings, and whether its edges help."""

from hpgmn.auditing.graph_audit import Audit, Finding, audit

__all__ = ["Audit", "Finding", "audit"]
