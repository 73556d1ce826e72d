"""The report page: recorded values as tables, figures and facts, rendered by templates."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpgmn.base.errors import (
    MISSING,
    count_noun,
    format_duration,
    format_setting,
    format_time,
    percent,
)
from hpgmn.base.metrics import metric_words
from hpgmn.graph import Array
from hpgmn.report import plots
from hpgmn.report.model_sections import (
    calibration_section,
    explorer_section,
    health_section,
    model_sections,
)
from hpgmn.report.rendering import (
    LearningCurves,
    ReportData,
    Row,
    Table,
    difference_text,
    finite_mean,
    mapping,
    markup,
    number,
    printable,
    render_page,
    resource,
    value_range,
)

MOST_ERRORS = 15
"""Rows in the list of the most frequent errors."""

SECTIONS = {
    "warnings": "Warnings",
    "graph": "Graph",
    "health": "Graph health",
    "scores": "Scores by split",
    "curves": "Learning curves",
    "confusion": "Confusion matrix",
    "classes": "Scores by class",
    "calibration": "Calibration",
    "learned": "What the model has learned",
    "statistics": "Contribution of the statistics",
    "memory": "The memory",
    "label-next": "Nodes to label next",
    "explorer": "Node explorer",
    "choice": "Choice of settings",
    "settings": "Settings",
    "repeat": "Reproduce this run",
}
"""The sections in the order of the page; those without data are left out."""

STAGE_NAMES = {
    "estimator": "Label estimator",
    "refinement": "First training, for pseudo-labels",
    "pretraining": "Pre-training",
    "prior": "Prior beliefs",
    "representation": "Representation, without labels",
    "gcnii": "GCNII",
    "main": "Main training",
}
_METRIC_NAMES = {
    "roc_auc": "ROC-AUC",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "average_precision": "average precision",
}
_FACT_NAMES = {
    "num_nodes": "Nodes",
    "num_edges": "Edges",
    "num_features": "Attributes",
    "num_classes": "Classes",
    "cpu": "Processor",
    "gpu": "GPU",
    "torch": "PyTorch",
}
_TABLE_OPTIONS = {"split": "split-column", "categories": "category"}


class ReportDataError(ValueError):
    """Recorded data does not have the expected form; ``part`` is a field of ReportData."""

    def __init__(self, part: str, cause: Exception) -> None:
        super().__init__(f"{part}: {cause!r}")
        self.part = part


def render_report(data: ReportData) -> str:
    """Return the HTML page of a run; ReportDataError for data of an unexpected form."""
    with _report_invalid("metrics"):
        headline = _headline(data)
        created = data.metrics.get("created")
        sections: dict[str, Any] = {
            "warnings": _warnings(data),
            "graph": _graph(data),
            "scores": _scores(data),
            "curves": _curves(data),
            "confusion": _confusion(data),
            "classes": _class_scores(data),
            "calibration": calibration_section(data),
            "choice": _choice(data),
        }
    with _report_invalid("audit"):
        sections["health"] = health_section(data.audit)
    with _report_invalid("understanding"):
        sections |= model_sections(data)
    with _report_invalid("explorer"):
        sections["explorer"] = explorer_section(data.explorer)
    with _report_invalid("config"):
        settings = data.config["settings"].items()
        rows = [(str(name), format_setting(value)) for name, value in settings]
        caption = f"Settings of {data.config['model']}"
        sections["settings"] = Table(caption, ("Setting", "Value"), rows)
        sections["repeat"] = _repeat(data)
    shown = {key: sections.get(key) for key in SECTIONS if sections.get(key) is not None}
    return render_page(
        "report.html.j2",
        title=f"{data.metrics['model']} on {data.metrics['graph']}",
        titles={key: SECTIONS[key] for key in shown},
        script=resource("explorer.js") if "explorer" in shown else "",
        sections=shown,
        data=data,
        headline=headline,
        version=data.metrics.get("version") or "",
        created=created,
        created_short=format_time(created),
    )


@contextmanager
def _report_invalid(part: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ReportDataError(part, error) from None


def _facts(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Flatten a recorded mapping into rows of name and value."""
    rows = []
    for key, value in content.items():
        name = _FACT_NAMES.get(key, str(key).removeprefix("num_").replace("_", " ").capitalize())
        if isinstance(value, dict):
            rows += [(f"{name}, {inner.lower()}", text) for inner, text in _facts(value)]
        elif isinstance(value, float):
            rows.append((name, f"{value:.3g}" if math.isfinite(value) else MISSING))
        elif isinstance(value, int) and not isinstance(value, bool):
            rows.append((name, f"{value:,}"))
        elif value is not None:
            rows.append((name, format_setting(value)))
    return rows


def _metric_name(data: ReportData) -> str:
    name = str(data.metrics["metric"])
    words = metric_words(name, data.metrics.get("positive"))
    return words.replace(name, _METRIC_NAMES.get(name, name), 1)


def _mean_and_std(data: ReportData, content: Mapping[str, Any], name: str) -> str:
    """Format ``<name>_mean`` and ``<name>_std`` as ``84.12 ± 4.20%``."""
    mean, std = number(content.get(f"{name}_mean")), number(content.get(f"{name}_std"))
    if data.num_runs == 1 or math.isnan(mean) or math.isnan(std):
        return percent(mean)
    return f"{100 * mean:.2f} ± {100 * std:.2f}%"


# Sections about the scores


def _headline(data: ReportData) -> dict[str, Any]:
    metrics = data.metrics
    over = f"mean and standard deviation of {data.num_runs} runs"
    over = over if data.num_runs > 1 else "single run"
    tiles = [(f"Test {_metric_name(data)}", _mean_and_std(data, metrics, "test_score"), over)]
    is_accuracy = metrics["metric"] == "accuracy"
    accuracy = number(metrics.get("test_score_mean" if is_accuracy else "test_accuracy_mean"))
    if not is_accuracy and not math.isnan(accuracy):
        tiles.append(("Test accuracy", _mean_and_std(data, metrics, "test_accuracy"), over))
    estimator = mapping(metrics.get("label_estimator"))
    baseline = number(estimator.get("test_accuracy_mean"))
    if not math.isnan(baseline):
        score = _mean_and_std(data, estimator, "test_accuracy")
        tiles.append(("Label estimator", score, "accuracy from attributes alone"))
    calibration = mapping(metrics.get("calibration"))
    error = number(calibration.get("ece_after_mean"))
    if not math.isnan(error):
        before = percent(number(calibration.get("ece_before_mean")))
        tiles.append(("Calibration error", percent(error), f"{before} without temperature"))
    num_splits, num_seeds = len(metrics["splits"]), metrics["seeds"]
    grid = f"{count_noun(num_splits, 'split')} × {count_noun(num_seeds, 'seed')}"
    tiles.append(("Runs", f"{data.num_runs}", grid))
    if not math.isnan(number(metrics.get("seconds"))):
        tiles.append(("Time", format_duration(metrics["seconds"]), "all runs"))
    difference = accuracy - baseline
    std = number(metrics.get("test_accuracy_std"))
    versus_spread = None
    if data.num_runs > 1 and not math.isnan(std) and round(100 * difference, 2):
        versus_spread = "less than" if abs(difference) < std else "more than"
    return {
        "tiles": tiles,
        "difference": difference_text(difference),
        "versus_spread": versus_spread,
    }


def _warnings(data: ReportData) -> list[str]:
    warnings = data.metrics.get("warnings") or []
    return [warnings] if isinstance(warnings, str) else list(warnings)


def _graph(data: ReportData) -> list[tuple[str, str]]:
    summary = mapping(data.metrics.get("graph_summary"))
    return _facts({key: value for key, value in summary.items() if key != "class_names"})


def _scores(data: ReportData) -> dict[str, Any]:
    metric = _metric_name(data)
    tests, vals, epochs = (data.per_run(name) for name in ("test_score", "val_score", "epochs"))
    num_splits, num_seeds = tests.shape
    splits = [str(split) for split in data.metrics["splits"]]
    groups = list(zip(splits, tests, vals, epochs, strict=True))
    if num_splits > 1:
        groups.append(("All", tests.ravel(), vals.ravel(), epochs.ravel()))
    has_spread = num_seeds > 1 or num_splits > 1
    head, rows = ["Split", "Test", "Validation", "Best epoch"], []
    if has_spread:
        head[2:2] = ["Std (points)", "Minimum to maximum"]
    for split, test, val, best in groups:
        row = [split, percent(finite_mean(test)), percent(finite_mean(val))]
        row.append(value_range(best, "{:g}"))
        if has_spread:
            finite = test[np.isfinite(test)]
            std = f"{100 * finite.std(ddof=1):.2f}" if finite.size > 1 else MISSING
            row[2:2] = [std, value_range(test, "{:.2%}") if test.size > 1 else MISSING]
        rows.append(row)
    caption = f"{metric[:1].upper()}{metric[1:]} by split"
    caption += f", {num_seeds} seeds each" if num_seeds > 1 else ""
    is_drawn = data.num_runs > 1 and np.isfinite(tests).any()
    figure = plots.run_scores(tests, splits, metric, "scores") if is_drawn else None
    table = Table(caption, head, rows, foot=num_splits > 1)
    return {"figure": markup(figure), "table": table}


def _curves(data: ReportData) -> list[dict[str, Any]]:
    shown = []
    for index, stage in enumerate(data.stages):
        best = data.per_run("epochs") if stage is data.stages[-1] else None
        figures = [
            plots.loss_curves(stage, f"loss-{index}"),
            plots.score_curve(stage, _metric_name(data), best, f"score-{index}"),
        ]
        if any(figures):
            shown.append(
                {
                    "title": STAGE_NAMES.get(stage.stage, stage.stage),
                    "figures": [markup(figure) for figure in figures if figure],
                    "num_runs": len(stage.curves["loss"]),
                    "first_stop": _first_stop(stage),
                }
            )
    return shown


def _first_stop(stage: LearningCurves) -> int | None:
    """Return the epoch after which the first run has stopped; None if all stop together."""
    has_value = np.isfinite(np.stack(list(stage.curves.values()))).any(axis=0)  # (R, E)
    last = [int(stage.epochs[row].max()) for row in has_value if row.any()]
    return min(last) if min(last) < max(last) else None


def _confusion(data: ReportData) -> dict[str, Any]:
    if not data.confusion.any():
        return {}
    if len(data.classes) <= plots.MOST_CELLS_WITH_TEXT:
        summary = "The matrix as a table"
        rows = [
            [label, *(f"{count:,}" for count in counts)]
            for label, counts in zip(data.classes, data.confusion, strict=True)
        ]
        caption = "Test nodes by true class (row) and predicted class (column)"
        table = Table(caption, ["True class", *data.classes], rows)
    else:
        summary = "The most frequent errors"
        head = ("True class", "Predicted class", "Test nodes", "Share of the class")
        table = Table(summary, head, list(_frequent_errors(data)))
    return {
        "figure": markup(plots.confusion_matrix(data.confusion, data.classes, "confusion")),
        "num_merged": len(data.classes) - plots.MOST_CLASSES + 1,
        "summary": summary,
        "table": table,
    }


def _frequent_errors(data: ReportData) -> Iterator[Row]:
    wrong = data.confusion - np.diag(np.diag(data.confusion))
    for position in np.argsort(-wrong, axis=None, kind="stable")[:MOST_ERRORS]:
        true, predicted = divmod(int(position), len(data.classes))
        count = wrong[true, predicted]
        if count:
            share = percent(count / data.confusion[true].sum())
            yield data.classes[true], data.classes[predicted], f"{count:,}", share


def class_scores(confusion: Array) -> dict[str, Array]:
    """Return precision, recall, F1 and support of each class, NaN where undefined.

    >>> class_scores(np.array([[3, 1], [0, 0]]))["recall"]
    array([0.75,  nan])
    """
    hits, support, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)

    def share(part: Array, whole: Array) -> Array:
        return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)

    return {
        "precision": share(hits, predicted),
        "recall": share(hits, support),
        "f1": share(2 * hits, support + predicted),
        "support": support,
    }


def _class_scores(data: ReportData) -> dict[str, Any]:
    if not data.confusion.any():
        return {}
    scores = class_scores(data.confusion)
    columns = [scores[name] for name in ("precision", "recall", "f1")]
    supports = [*scores["support"], scores["support"].sum()]
    rows = [
        [label, *(percent(column[index]) for column in columns)]
        for index, label in enumerate(data.classes)
    ]
    rows.append(["Mean, total support", *(percent(finite_mean(column)) for column in columns)])
    head = ["Class", "Precision", "Recall", "F1", "Support"]
    for row, support in zip(rows, supports, strict=True):
        row.append(f"{support:,}")
        if data.num_runs > 1:
            row.append(f"{support / data.num_runs:,.1f}")
    if data.num_runs > 1:
        head.append("Support per run")
    caption = "Test nodes by class" + (", all runs pooled" if data.num_runs > 1 else "")
    has_dash = any(MISSING in row for row in rows)
    return {"table": Table(caption, head, rows, foot=True), "has_dash": has_dash}


def _choice(data: ReportData) -> dict[str, Any] | None:
    content = mapping(data.metrics.get("portfolio"))
    members = [mapping(row) for row in content.get("members") or []]
    if not members:
        return None
    rows = [
        (
            str(row.get("name")),
            str(row.get("model")),
            percent(number(row.get("val_score_mean"))),
            format_duration(float(row.get("seconds") or 0)),
            "chosen" if row.get("name") == content.get("chosen") else str(row.get("failure") or ""),
        )
        for row in members
    ]
    return {
        "metric": _metric_name(data),
        "splits": count_noun(len(content.get("splits") or ()), "split"),
        "table": Table("The portfolio", ("Settings", "Model", "Validation", "Time", "Note"), rows),
    }


# How to reproduce the run


def train_command(config: Mapping[str, Any]) -> list[str]:
    """Return the words of the command line that repeats a run."""
    words = ["hpgmn", "train", str(config["graph"]), "--model", str(config["model"])]
    words += ["--metric", str(config["metric"])]
    words += ["--splits", ",".join(str(split) for split in config["splits"])]
    words += ["--seeds", str(config["seeds"])]
    for name in ("positive", "protocol", "device"):
        if config.get(name):
            words += [f"--{name}", str(config[name])]
    for name, value in mapping(config.get("tables")).items():
        words += _table_options(name, value)
    for name, value in config["settings"].items():
        words += ["--set", f"{name}={format_setting(value)}"]
    return [*words, "--no-calibration"] if config.get("calibrate") is False else words


def _table_options(name: str, value: Any) -> list[str]:
    option = f"--{_TABLE_OPTIONS.get(name, name).replace('_', '-')}"
    if name == "directed":
        return [option if value else "--undirected"]
    if name == "split_by":
        return [option, *(str(word) for word in value)]
    if isinstance(value, bool):
        return [option] if value else []
    values = value if isinstance(value, list) else [value]
    return [word for item in values for word in (option, str(item))]


def _repeat(data: ReportData) -> dict[str, Any]:
    from markupsafe import Markup

    words = [shlex.quote(word) for word in train_command(data.config)]
    lines = [" ".join(words[:3])]
    for start in range(3, len(words), 2):
        option = " ".join(words[start : start + 2])
        if len(lines[-1]) + len(option) > 87:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {option}"
    metrics = data.metrics
    rows = [("hpgmn", str(metrics.get("version") or data.config.get("version") or MISSING))]
    rows += _facts(mapping(metrics.get("hardware")))
    for key, name in (
        ("seconds", "Time, total"),
        ("seconds_statistics", "Time, statistics"),
        ("seconds_training", "Time, training"),
    ):
        if not math.isnan(number(metrics.get(key))):
            rows.append((name, format_duration(metrics[key])))
    if not math.isnan(number(metrics.get("peak_memory_mb"))):
        rows.append(("Peak memory", f"{metrics['peak_memory_mb']:,.0f} MB"))
    return {
        # A quoted word may contain line breaks, which belong to the command.
        "code": Markup("\n").join(printable(p) for line in lines for p in line.split("\n")),
        "table": Table("Versions, machine and cost", ("What", "Value"), rows),
    }
