"""Runs and comparisons as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpgmn.base.errors import format_difference, mean_and_deviation, unit_of
from hpgmn.base.files import digest
from hpgmn.base.html import bars_html, table_html
from hpgmn.base.metrics import metric_words
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
        f'<div class="hpgmn-run">{table_html(title, facts)}'
        f'<div style="background:#fff;color:#24292f">{pictures}</div></div>'
    )


def comparison_html(content: Mapping[str, Any], failures: Mapping[str, str]) -> str:
    """Render the scores of models, their differences to the reference, and bars of them."""
    metric, rows, scores = content["metric"], [], {}
    for row in content["rows"]:
        mean = row["test_score_mean"]
        difference = format_difference(row["difference"], metric)
        test = mean_and_deviation(mean, row["test_score_std"], metric)
        rows.append((row["model"], test, difference, f"{row['seconds']:.1f}"))
        if mean is not None:
            scores[row["model"]] = mean
    rows += [(model, f"failed: {reason}", "", "") for model, reason in failures.items()]
    words = f"test {metric_words(metric, content.get('positive'))}"
    head = ("model", words + unit_of(metric), f"minus {content['reference']} (95 %)", "seconds")
    return table_html(str(content["graph"]), rows, head) + bars_html(words, scores, ".3f")
