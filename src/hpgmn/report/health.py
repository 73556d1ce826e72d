"""What is wrong with the graph, and how alike neighbours are: the section about its health."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpgmn.auditing.findings import ALIKE, MEASURES
from hpgmn.base.text import MISSING, percent
from hpgmn.report.page import table, text, with_rest
from hpgmn.report.reading import Run, mapping, number

_NAMES = {"defect": "Defect", "warning": "Warning", "info": "To know"}


def health_sections(run: Run) -> list[tuple[str, str, str]]:
    """The section, or none where the run folder has no audit."""
    if not run.audit:
        return []
    if "left_out" in run.audit:
        return [("health", "Graph health", f"<p>{text(run.audit['left_out'])}</p>")]
    parts = (_findings(run.audit), _homophily(run.audit), _twins(run.audit), _edges(run.audit))
    return [("health", "Graph health", "\n".join(parts))]


def _findings(found: Mapping[str, Any]) -> str:
    where = "" if found["split"] is None else f" of split {text(found['split'])}"
    listed = "<p>Nothing stands out.</p>"
    if found["findings"]:
        rows = [
            (
                f"<strong>{text(_NAMES.get(one['severity'], one['severity']))}</strong>",
                with_rest(one["message"], one["advice"]),
            )
            for one in found["findings"]
        ]
        listed = table("Findings, the worst first", ("Weight", "Finding"), rows, show=str)
    note = (
        f"Found by an audit{where} without training; <code>hpgmn audit</code> also tells whether "
        "the graph helps."
    )
    return f'{listed}\n<p class="quiet">{note}</p>'


def _homophily(found: Mapping[str, Any]) -> str:
    rows = []
    for name, (words, meaning) in MEASURES.items():
        value = number(found["homophily"].get(name))
        shown = MISSING if value != value else f"{value:.3f}"
        rows.append((with_rest(f"{words[:1].upper()}{words[1:]}", meaning), shown))
    return table("How alike neighbours are", ("Homophily", "Value"), rows, show=str)


def _twins(found: Mapping[str, Any]) -> str:
    rows = [
        (
            ALIKE.get(one["alike"], one["alike"]).capitalize(),
            f"{one['nodes']:,}",
            percent(number(one["test_share"])),
            percent(number(one["agreement"])),
        )
        for one in found["twins"]
        if one["nodes"]
    ]
    if not rows:
        return ""
    head = ("Alike in", "Nodes", "Test nodes like a train node", "Label agrees")
    note = (
        "Same neighbours: three or more, and no others. Label agrees: of validation nodes with the "
        "train nodes they are like."
    )
    return table("Duplicate nodes", head, rows) + f'\n<p class="quiet">{note}</p>'


def _edges(found: Mapping[str, Any]) -> str:
    edges, columns = mapping(found["structure"]), mapping(found["columns"])
    degrees = edges["degrees"]
    rows = [
        ("Edges", f"{edges['edges']:,} {'directed' if edges['directed'] else 'undirected'}"),
        ("Self-loops and repeats listed", f"{edges['self_loops']:,}, {edges['repeated_edges']:,}"),
        (
            "Neighbours of a node",
            f"{degrees['least']:,} to {degrees['most']:,}, median {degrees['median']:,.10g}",
        ),
        ("Nodes without neighbours", f"{degrees['without']:,}"),
        (
            "Connected parts",
            f"{edges['components']:,}, the largest of {edges['largest_component']:,} nodes",
        ),
        ("Nodes without a label", f"{found['classes']['unlabelled']:,}"),
        (
            "Attribute columns",
            f"{columns['count']:,}: {len(columns['zero']):,} zero everywhere, "
            f"{len(columns['constant']):,} constant, {len(columns['giveaways']):,} give the label "
            "away",
        ),
    ]
    return table("Edges and attributes", ("What", "Value"), rows)
