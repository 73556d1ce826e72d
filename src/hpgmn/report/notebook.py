"""Runs and comparisons as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpgmn.base.errors import MISSING, format_score, mean_and_deviation, unit_of
from hpgmn.base.files import digest
from hpgmn.base.html import bars_svg, table_html
from hpgmn.base.metrics import metric_words
from hpgmn.graph.conversion import facts_html
from hpgmn.report import plots
from hpgmn.report.page import headline
from hpgmn.report.rendering import ReportData


def run_html(data: ReportData, title: str) -> str:
    """Render the scores of a run, its learning curves and its confusion matrix."""
    facts = [("Model", data.metrics["model"]), ("Graph", data.metrics["graph"])]
    facts += [(name, f"{value} ({about})") for name, value, about in headline(data)["tiles"]]
    prefix = f"run-{digest(title)[:8]}"  # ids in a page differ between runs
    figures: list[str | None] = []
    if data.stages:
        stage, is_share = data.stages[-1], not data.is_regression
        figures.append(plots.loss_curves(stage, f"{prefix}-loss"))
        curve = (stage, data.metric_name, data.per_run("epochs"), f"{prefix}-score")
        figures.append(plots.score_curve(*curve, is_share=is_share))
    if data.confusion.any():
        figures.append(plots.confusion_matrix(data.confusion, data.classes, f"{prefix}-confusion"))
    # The figures have dark text: notebooks may be dark.
    pictures = "".join(figure for figure in figures if figure)
    return (
        f'<div class="hpgmn-run">{facts_html(title, facts)}'
        f'<div style="background:#fff;color:#24292f">{pictures}</div></div>'
    )


def comparison_html(content: Mapping[str, Any], failures: Mapping[str, str]) -> str:
    """Render the scores of models, their differences to the reference, and bars of them."""
    metric, rows, scores = content["metric"], [], {}
    for row in content["rows"]:
        difference = row["difference"]
        interval = MISSING
        if difference is not None:
            keys = ("mean", "low", "high")
            mean, low, high = (
                MISSING if difference[key] is None else format_score(metric, difference[key])
                for key in keys
            )
            interval = f"{mean} ({low} to {high})"
        test = mean_and_deviation(row["test_score_mean"], row["test_score_std"], metric)
        rows.append((row["model"], test, interval, f"{row['seconds']:.1f}"))
        if row["test_score_mean"] is not None:
            scores[str(row["model"])] = float(row["test_score_mean"])
    words = f"test {metric_words(metric, content.get('positive'))}{unit_of(metric)}"
    head = ("model", words, f"minus {content['reference']} (95 %)", "seconds")
    failed = [(model, f"failed: {reason}", "", "") for model, reason in failures.items()]
    return (
        f'<div class="hpgmn-comparison">{table_html(str(content["graph"]), head, rows + failed)}'
        f"{bars_svg(scores, '.3f', words)}</div>"
    )
