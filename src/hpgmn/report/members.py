"""The sections about members of the portfolio: their choice, or their weights."""

from __future__ import annotations

from typing import Any

from hpgmn.base.errors import count_noun, format_setting
from hpgmn.base.metrics import plain_score
from hpgmn.report import model_plots
from hpgmn.report.rendering import ReportData, mapping, number


def choice(data: ReportData, metric: str = "") -> dict[str, Any] | None:
    """Return the section about the selection of one member; None where there was none."""
    content = mapping(data.metrics.get("portfolio"))
    if not content.get("members"):
        return None
    optional = dict.fromkeys(("name", "model", "val_score_mean", "seconds", "failure"))
    members = [optional | dict(mapping(row)) for row in content["members"]]
    for row in members:
        score = plain_score(data.metrics["metric"], number(row["val_score_mean"]))
        row["shown_score"] = data.format_score(score)
    return {
        "members": members,
        "chosen": content.get("chosen"),
        "metric": metric,
        "splits": count_noun(len(content.get("splits") or ()), "split"),
    }


def ensemble(data: ReportData) -> dict[str, Any]:
    """Return the section about the members of an ensemble."""
    rows = [dict(mapping(row)) for row in data.metrics["members"]]
    for row in rows:
        row["shown_score"] = data.format_score(number(row["val_score"]))
        row["shown_gain"] = data.format_difference(number(row["contribution"]), "+")
    used = [row for row in rows if row["weight"] > 0]
    settings = [
        (row["name"], ", ".join(f"{k}={format_setting(v)}" for k, v in row["settings"].items()))
        for row in rows
    ]
    names = [row["name"] for row in rows]
    tried = (choice(data) or {}).get("members", [])
    return {
        "untrained": [row for row in tried if row["name"] not in names],
        "figure": model_plots.share_bars(
            {row["name"]: row["weight"] for row in used},
            *("members", "weight, mean over splits", "Weight of each member"),
        ),
        "members": rows,
        "num_used": len(used),
        "is_regression": data.is_regression,
        "shown": data.explained_member,
        "splits": count_noun(len(data.metrics["splits"]), "split"),
        "settings": settings,
    }
