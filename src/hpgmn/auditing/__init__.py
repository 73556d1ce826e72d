"""What is wrong with a graph, and whether its edges help: measures and findings of an audit."""

from hpgmn.auditing.findings import Finding
from hpgmn.auditing.whole import Audit, audit

__all__ = ["Audit", "Finding", "audit"]
