"""The sections about the graph, the probabilities, the model and single nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from hpgmn.auditing.graph_audit import ALIKE, MEASURES
from hpgmn.base.errors import MISSING, percent
from hpgmn.explain.explanation import DIRECTIONS, STATISTICS
from hpgmn.report import model_plots, plots
from hpgmn.report.plots import short
from hpgmn.report.rendering import (
    Cell,
    ReportData,
    Row,
    Table,
    decimals,
    mapping,
    markup,
    number,
    resource,
    value_range,
)

MOST_PATTERNS = 60
"""Patterns beyond which the heatmap shows the most used only."""
MOST_BARS = 16
"""Classes beyond which the bars show those with the most sampled nodes only."""
_SEVERITIES = {"defect": "Defect", "warning": "Warning", "info": "Note"}
_CALIBRATION_ERRORS = {
    "ece": "Calibration error, bins of equal width",
    "ece_equal_mass": "Calibration error, bins of equal size",
    "nll": "Log loss",
    "brier": "Brier score",
}
_LONGEST_ID = 40  # letters of a node id in a link, as in the script


def calibration_section(data: ReportData) -> dict[str, Any] | None:
    """Return the section about calibration, None if nothing was recorded."""
    content = mapping(data.metrics.get("calibration"))
    if not content:
        return None
    temperatures = np.array([number(value) for value in content.get("temperature") or []])
    after, before = (number(content.get(f"ece_{when}_mean")) for when in ("after", "before"))
    is_fitted = data.config.get("calibrate") is not False
    section: dict[str, Any] = {
        "temperature": value_range(temperatures, "{:.2f}") if is_fitted else None,
        "error_after": None if math.isnan(after) else f"{100 * after:.1f}",
        "error_before": f"{100 * before:.1f}",
        "reliability": None,
        "coverage": None,
        "thresholds": None,
    }
    bins = [row for row in content.get("reliability") or [] if row["count"]]
    coverage, thresholds = content.get("coverage") or [], content.get("thresholds") or []
    if bins:
        pooled = f", all {data.num_runs} runs pooled" if data.num_runs > 1 else ""
        section["figure"] = markup(model_plots.reliability_diagram(bins, "reliability"))
        section["errors"] = Table(
            "Errors of the probabilities on test nodes, mean of the runs",
            ("Measure", "Without temperature", "With temperature"),
            [
                (
                    name,
                    *(
                        decimals(number(content.get(f"{key}_{when}_mean")))
                        for when in ("before", "after")
                    ),
                )
                for key, name in _CALIBRATION_ERRORS.items()
            ],
        )
        section["reliability"] = Table(
            f"Confidence and accuracy of test nodes{pooled}",
            ("Confidence", "Test nodes", "Mean confidence", "Accuracy"),
            [
                (
                    f"{row['low']:.2f} to {row['high']:.2f}",
                    f"{row['count']:,}",
                    percent(number(row["confidence"])),
                    percent(number(row["accuracy"])),
                )
                for row in bins
            ],
        )
    if coverage:
        figure = model_plots.coverage_curve(coverage, thresholds, "coverage")
        section["coverage_figure"] = markup(figure)
        section["coverage"] = Table(
            "Accuracy when only the most confident test nodes are answered",
            ("Test nodes answered", "Minimum confidence", "Accuracy of the answers"),
            [
                (percent(row["coverage"]), decimals(row["threshold"]), percent(row["accuracy"]))
                for row in coverage
            ],
        )
    if thresholds:
        section["thresholds"] = Table(
            "Confidence thresholds from validation nodes",
            ("Target accuracy", "Minimum confidence", "Nodes answered", "Their accuracy"),
            [
                (
                    f"{row['wanted_accuracy']:.0%}",
                    decimals(number(row.get("threshold"))),
                    percent(number(row.get("coverage"))),
                    percent(number(row.get("accuracy"))),
                )
                for row in thresholds
            ],
        )
    return section


def health_section(audit: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the section about the audit of the graph, None if there was none."""
    if not audit:
        return None
    if "left_out" in audit:
        return {"left_out": audit["left_out"]}
    findings = [
        (
            Cell(_SEVERITIES.get(row["severity"], row["severity"]), is_strong=True),
            Cell(row["message"], row["advice"]),
        )
        for row in audit["findings"]
    ]
    homophily = [
        (
            Cell(f"{name[:1].upper()}{name[1:]}", meaning),
            decimals(number(audit["homophily"].get(key))),
        )
        for key, (name, meaning) in MEASURES.items()
    ]
    twins = [
        (
            ALIKE.get(row["alike"], row["alike"]).capitalize(),
            f"{row['nodes']:,}",
            percent(number(row["test_share"])),
            percent(number(row["agreement"])),
        )
        for row in audit["twins"]
        if row["nodes"]
    ]
    head = ("Criterion", "Nodes", "Test nodes equal to a train node", "Label agreement")
    return {
        "left_out": None,
        "split": audit["split"],
        "findings": Table("Findings, most severe first", ("Severity", "Finding"), findings),
        "homophily": Table("Homophily", ("Measure", "Value"), homophily),
        "twins": Table("Duplicate nodes", head, twins),
        "edges": Table("Edges and attributes", ("What", "Value"), _edge_rows(audit)),
    }


def _edge_rows(audit: Mapping[str, Any]) -> list[Row]:
    edges, columns, degrees = audit["structure"], audit["columns"], audit["structure"]["degrees"]
    return [
        ("Edges", f"{edges['edges']:,} {'directed' if edges['directed'] else 'undirected'}"),
        ("Self-loops and repeats listed", f"{edges['self_loops']:,}, {edges['repeated_edges']:,}"),
        (
            "Neighbours of a node",
            f"{degrees['least']:,} to {degrees['most']:,}, median {degrees['median']:,.10g}",
        ),
        ("Nodes without neighbours", f"{degrees['without']:,}"),
        (
            "Connected components",
            f"{edges['components']:,}, the largest with {edges['largest_component']:,} nodes",
        ),
        ("Nodes without a label", f"{audit['classes']['unlabelled']:,}"),
        (
            "Attribute columns",
            f"{columns['count']:,}: {len(columns['zero']):,} all zero, "
            f"{len(columns['constant']):,} constant, {len(columns['giveaways']):,} determine the "
            "label",
        ),
    ]


def model_sections(data: ReportData) -> dict[str, Any]:
    """Return the sections about statistics, memory and nodes to label next."""
    content = data.understanding
    if not content:
        return {}
    if "left_out" in content:
        return {"learned": {"left_out": content["left_out"]}}
    scope = None
    if data.num_runs > 1:
        models = "Model" if content["seeds"] == 1 else f"Mean of {content['seeds']} models"
        scope = f"{models} of split {content['split']}."
    sections = {
        "statistics": {"scope": scope, "model": content["model"], **_statistics(content)},
        "memory": {"scope": scope, "model": content["model"], **_memory(content)},
    }
    if content["label_next"]:
        rows = [
            (row["node"], row["prediction"], f"{row['entropy']:.2f}", f"{row['degree']:,}")
            for row in content["label_next"]
        ]
        head = ("Node", "Predicted class", "Entropy (nats)", "Neighbours")
        note = next((line for line in content["notes"] if _is_label_note(line)), "")
        sections["label-next"] = {"table": Table("Nodes to label next", head, rows), "note": note}
    return sections


def _is_label_note(line: str) -> bool:
    return line.startswith("Nodes to label")


def _statistics(content: Mapping[str, Any]) -> dict[str, Any]:
    shares = mapping(content["statistics"])
    if not shares:
        return {"shares": None}
    names = list(shares)
    groups = sorted(content["statistics_by_class"], key=lambda group: -group["nodes"])
    figures = [markup(model_plots.share_bars(shares, "shares"))]
    if len(groups) > 1:
        figures.append(markup(model_plots.class_bars(names, groups[:MOST_BARS], "class-shares")))
    by_class = [
        (group["name"], str(group["nodes"]), *(f"{group['statistics'][key]:.3f}" for key in names))
        for group in groups
    ]
    rows = [(Cell(name, STATISTICS.get(name, MISSING)), f"{shares[name]:.3f}") for name in names]
    return {
        "sampled": content["sampled"],
        "is_cut": len(groups) > MOST_BARS,
        "num_shown": MOST_BARS,
        "figures": figures,
        "shares": Table("Share of each statistic", ("Statistic", "Mean size"), rows),
        "by_class": Table(
            "Share of each statistic by predicted class", ("Class", "Nodes", *names), by_class
        ),
    }


def pattern_marks(content: Mapping[str, Any]) -> dict[int, str]:
    """Mark patterns that are unused, or redundant with a more used one."""
    marks = {int(k): "unused" for k in content["unused"]}
    rank = {pattern["number"]: at for at, pattern in enumerate(content["patterns"])}
    for group in content["redundant"]:
        first, *others = sorted(group, key=lambda k: rank[k])
        marks |= {int(k): f"like {first}" for k in others}
    return marks


def _memory(content: Mapping[str, Any]) -> dict[str, Any]:
    patterns, classes = content["patterns"], content["class_names"]
    if not patterns:
        return {"num_patterns": 0}
    marks, shown = pattern_marks(content), patterns[:MOST_PATTERNS]
    notes = [line for line in content["notes"] if not _is_label_note(line)]
    if len(shown) < len(patterns):
        notes.insert(0, f"Shown are the {len(shown)} most used patterns of {len(patterns)}.")
    num_merged = len(classes) - plots.MOST_CLASSES + 1
    if num_merged > 1:
        notes.insert(0, f"The {num_merged} classes with the smallest shares are merged.")
    modes = list(patterns[0]["neighborhood"])
    neighbor_heads = [f"Classes of {DIRECTIONS.get(mode, mode)}" for mode in modes]
    numbers = {row["number"]: str(row["number"]) for row in patterns}
    numbers |= {k: f"{k} ({mark})" for k, mark in marks.items()}
    rows = [
        [
            numbers[row["number"]],
            f"{row['attention']:.1%}",
            model_plots.largest_shares(row["classes"]) or MISSING,
            *(model_plots.largest_shares(row["neighborhood"][mode]) or MISSING for mode in modes),
            ", ".join(short(node) for node in row["typical_nodes"]),
        ]
        for row in patterns
    ]
    profiles = None
    if len(classes) <= plots.MOST_CELLS_WITH_TEXT:
        profiles = Table(
            "Classes of each pattern's nodes",
            ["Pattern", *classes],
            [[row["number"], *(f"{row['classes'][c]:.0%}" for c in classes)] for row in patterns],
        )
    figure = model_plots.pattern_heatmap(shown, classes, marks, len(patterns), "patterns")
    head = ["Pattern", "Attention", "Classes of its nodes", *neighbor_heads, "Typical nodes"]
    return {
        "num_patterns": len(patterns),
        "num_unused": len(content["unused"]),
        "num_redundant": sum(len(group) - 1 for group in content["redundant"]),
        "figure": markup(figure),
        "notes": notes,
        "patterns": Table("Patterns of the memory", head, rows),
        "profiles": profiles,
        "map": _map(content, [p["number"] for p in patterns if p["number"] not in marks]),
    }


def _map(understanding: Mapping[str, Any], used: Sequence[int]) -> dict[str, Any] | None:
    content, names = understanding.get("map"), understanding["class_names"]
    if not content:
        return None
    classes, nodes = np.array(content["classes"], int), np.array(content["nodes"], float)
    is_sample = len(nodes) < content["all_nodes"]
    sample = f"All {len(nodes):,} nodes"
    if is_sample:
        sample = f"A random sample of {len(nodes):,} of {content['all_nodes']:,} nodes"
    present, counts = np.unique(classes, return_counts=True)
    by_class = [
        (names[label], f"{count:,}", *_coordinates(nodes[classes == label].mean(axis=0)))
        for count, label in sorted(
            zip(counts.tolist(), present.tolist(), strict=True), key=lambda pair: -pair[0]
        )
    ]
    by_pattern = [(k, *_coordinates(point)) for k, point in enumerate(content["patterns"])]
    axes = ("First component", "Second component")
    first, second = content["node_variance"]
    return {
        "figure": markup(model_plots.memory_map(content, names, used, "map")),
        "sample": sample,
        "node_variance": f"{first + second:.0%}",
        "first": f"{first:.0%}",
        "second": f"{second:.0%}",
        "pattern_variance": f"{sum(content['pattern_variance']):.0%}",
        "enlargement": f"{model_plots.enlargement(content):.3g}",
        "by_class": Table(
            "Mean position of each predicted class",
            ("Predicted class", "Nodes shown", *axes),
            by_class,
        ),
        "by_pattern": Table("Positions of the patterns", ("Pattern", *axes), by_pattern),
    }


def _coordinates(point: Iterable[float]) -> list[str]:
    return [f"{part:.3g}" for part in point]


def explorer_section(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the section of the node explorer, None if no node is listed."""
    if not content or not content["nodes"]:
        return None
    nodes = content["nodes"]
    weighed = sum("support" in node for node in nodes)
    return {
        "styles": resource("explorer.css"),
        "split": content["split"],
        "seeds": content["seeds"],
        "listed": f"{len(nodes):,}",
        "total": f"{content['num_nodes']:,}",
        "weighed": f"{weighed:,}" if 0 < weighed < len(nodes) else None,
        "examples": _examples(content),
        "content": content,
    }


def _examples(content: Mapping[str, Any]) -> list[dict[str, str]]:
    """Choose nodes to look at first: a wrong one, one decided by few neighbours, an unsure one."""
    nodes = content["nodes"]
    evaluated = [n for n, node in enumerate(nodes) if node["role"] in ("val", "test")]
    wrong = [n for n in evaluated if nodes[n]["label"] not in (None, nodes[n]["prediction"])]
    turned = [n for n, node in enumerate(nodes) if node.get("turning")]
    reasons: dict[int, str] = {}
    if wrong:
        reasons[wrong[0]] = "wrong prediction"
    if turned:
        fewest = min(turned, key=lambda n: len(nodes[n]["turning"]["neighbors"]))
        reasons.setdefault(fewest, "decided by few neighbours")
    unsure = min(range(len(nodes)), key=lambda n: max(nodes[n]["probabilities"]))
    reasons.setdefault(unsure, "least confident")
    return [
        {
            "id": short(content["ids"][n], _LONGEST_ID),
            "anchor": quote(content["ids"][n], safe=""),
            "reason": reason,
        }
        for n, reason in reasons.items()
    ]
