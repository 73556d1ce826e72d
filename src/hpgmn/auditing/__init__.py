"""Audit of a graph: measures, findings, and whether its edges help."""

from hpgmn.auditing.audit import Audit, audit
from hpgmn.auditing.findings import Finding

__all__ = ["Audit", "Finding", "audit"]
