"""An audit as HTML, for notebooks."""

from __future__ import annotations

from typing import Any

from hpgmn.base.html import bars_svg, table_html
from hpgmn.graph.conversion import facts_html


def audit_html(audit: Any) -> str:
    """Render sizes, findings, whether the graph helps, and a picture."""
    edges = audit.structure
    facts = [
        ("Nodes", f"{edges.nodes:,}"),
        ("Edges", f"{edges.edges:,}, {'directed' if edges.directed else 'undirected'}"),
        ("Attributes", f"{audit.columns.count:,}"),
        ("Without a label", f"{audit.classes.unlabelled:,}"),
        ("Split", "none" if audit.split is None else audit.split),
    ]
    findings = [(one.severity, one.message, one.advice) for one in audit.findings]
    parts = [
        facts_html(f"Audit of '{audit.graph}'", facts),
        table_html("Findings", ("severity", "finding", "what to do"), findings),
    ]
    classes = dict(sorted(audit.classes.counts.items(), key=lambda pair: -pair[1]))
    title, bars, form = "Labelled nodes of each class", dict[str, float](classes), ",.0f"
    if audit.usefulness is not None:
        useful = audit.usefulness
        title = f"Does the graph help? Validation {useful.metric} of models trained on …"
        bars, form = {part.name: part.score for part in useful.contributions}, ".1%"
    parts.append(f"<figure><figcaption>{title}</figcaption>{bars_svg(bars, form, title)}</figure>")
    return f'<div class="hpgmn-audit">{"".join(parts)}</div>'
