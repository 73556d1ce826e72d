"""The report page: recorded values as tables, figures and facts, rendered by templates.

Templates escape every value (autoescape), and the page's policy forbids loading anything from
outside; the node explorer is the only script, allowed by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from hpgmn.auditing.findings import ALIKE, MEASURES
from hpgmn.base.metrics import metric_words
from hpgmn.explain.explanation import DIRECTIONS, STATISTICS
from hpgmn.graph import Array
from hpgmn.report import plots
from hpgmn.report.data import LearningCurves, ReportData, mapping, number
from hpgmn.report.plots import printable, short

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

DASH = "–"
"""Shown for a missing value."""
MOST_PATTERNS = 60
"""Patterns beyond which the heatmap shows the most used only."""
MOST_BARS = 16
"""Classes beyond which the bars show those with the most sampled nodes only."""
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
_SEVERITIES = {"defect": "Defect", "warning": "Warning", "info": "Note"}
_CALIBRATION_ERRORS = {
    "ece": "Calibration error, bins of equal width",
    "ece_equal_mass": "Calibration error, bins of equal size",
    "nll": "Log loss",
    "brier": "Brier score",
}
_TABLE_OPTIONS = {"split": "split-column", "categories": "category"}
_LONGEST_ID = 40  # letters of a node id in a link, as in the script

Row = Sequence[Any]


class ReportDataError(ValueError):
    """Recorded data does not have the expected form; ``part`` is a field of ReportData."""

    def __init__(self, part: str, cause: Exception) -> None:
        super().__init__(f"{part}: {cause!r}")
        self.part = part


@dataclass(frozen=True)
class Cell:
    """A cell of a table with a second line, or in bold."""

    text: str
    note: str = ""
    is_strong: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the page; its cells are text, numbers or :class:`Cell`.

    Attributes:
        foot: whether the last row is a total.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Row]
    foot: bool = False


def render_report(data: ReportData) -> str:
    """Return the HTML page of a run; ReportDataError for data of an unexpected form."""
    with _checked("metrics"):
        headline = _headline(data)
        created = data.metrics.get("created")
        sections: dict[str, Any] = {
            "warnings": _warnings(data),
            "graph": _graph(data),
            "scores": _scores(data),
            "curves": _curves(data),
            "confusion": _confusion(data),
            "classes": _class_scores(data),
            "calibration": _calibration(data),
            "choice": _choice(data),
        }
    with _checked("audit"):
        sections["health"] = _health(data.audit)
    with _checked("understanding"):
        sections |= _understanding(data)
    with _checked("explorer"):
        sections["explorer"] = _explorer(data.explorer)
    with _checked("config"):
        settings = data.config["settings"].items()
        rows = [(str(name), setting_text(value)) for name, value in settings]
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
        created_short=_short_time(created),
    )


@contextmanager
def _checked(part: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ReportDataError(part, error) from None


# Rendering


@cache
def environment() -> Environment:
    """Return the template environment: autoescape, and control characters replaced."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("hpgmn.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_finalize,
    )
    env.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return env


def _finalize(value: Any) -> Any:
    return value if hasattr(value, "__html__") else printable(value)


def render_page(template: str, *, title: str, script: str = "", **context: Any) -> str:
    """Render a template that extends ``base.html.j2``, with at most one inline script."""
    from markupsafe import Markup

    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    return (
        environment()
        .get_template(template)
        .render(
            title=title,
            styles=resource("style.css"),
            policy=Markup(policy),  # nosec B704
            script=Markup(script),  # nosec B704
            **context,
        )
    )


def resource(name: str) -> Markup:
    """Return a style sheet or script of the templates' folder."""
    from markupsafe import Markup

    loader = environment().loader
    assert loader is not None
    return Markup(loader.get_source(environment(), name)[0])  # nosec B704


def markup(svg: str | None) -> Markup | None:
    """Mark a figure as safe: :func:`hpgmn.report.plots.inline_svg` has escaped its text."""
    from markupsafe import Markup

    return None if svg is None else Markup(svg)  # nosec B704


# Formatting


def percent(value: float) -> str:
    """Format a share in percent with two decimals, NaN as a dash."""
    return DASH if math.isnan(value) else f"{value:.2%}"


def decimals(value: float) -> str:
    """Format a number with three decimals, NaN as a dash."""
    return DASH if math.isnan(value) else f"{value:.3f}"


def value_range(values: Array, form: str) -> str:
    """Format the smallest and the largest finite value, or the one value if they agree."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return DASH
    low, high = form.format(finite.min()), form.format(finite.max())
    return low if low == high else f"{low} to {high}"


def finite_mean(values: Array) -> float:
    """Average the finite values; NaN if there is none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def duration(seconds: float) -> str:
    """Format seconds.

    >>> duration(14.2), duration(125), duration(3599.9)
    ('14 s', '2 min 05 s', '1 h 00 min')
    """
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def setting_text(value: object) -> str:
    """Format a value as ``--set`` takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(setting_text(item) for item in value)
    return str(value)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _short_time(created: object) -> str:
    """Format ``2026-01-31T12:34:56+00:00`` as ``2026-01-31 12:34``; anything else unchanged."""
    text = str(created)
    return f"{text[:10]} {text[11:16]}" if text[10:11] == "T" and len(text) >= 16 else text


def _facts(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Flatten a recorded mapping into rows of name and value."""
    rows = []
    for key, value in content.items():
        name = _FACT_NAMES.get(key, str(key).removeprefix("num_").replace("_", " ").capitalize())
        if isinstance(value, dict):
            rows += [(f"{name}, {inner.lower()}", text) for inner, text in _facts(value)]
        elif isinstance(value, float):
            rows.append((name, f"{value:.3g}" if math.isfinite(value) else DASH))
        elif isinstance(value, int) and not isinstance(value, bool):
            rows.append((name, f"{value:,}"))
        elif value is not None:
            rows.append((name, setting_text(value)))
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
    grid = f"{_plural(num_splits, 'split')} × {_plural(num_seeds, 'seed')}"
    tiles.append(("Runs", f"{data.num_runs}", grid))
    if not math.isnan(number(metrics.get("seconds"))):
        tiles.append(("Time", duration(metrics["seconds"]), "all runs"))
    difference = accuracy - baseline
    std = number(metrics.get("test_accuracy_std"))
    versus_spread = None
    if data.num_runs > 1 and not math.isnan(std) and round(100 * difference, 2):
        versus_spread = "less than" if abs(difference) < std else "more than"
    return {"tiles": tiles, "difference": _points(difference), "versus_spread": versus_spread}


def _points(difference: float) -> str | None:
    """Format a difference of shares as points above or below; None for NaN.

    >>> _points(0.0412), _points(-0.01), _points(0)
    ('4.12 points above', '1.00 points below', 'equal to')
    """
    if math.isnan(difference):
        return None
    if not round(100 * difference, 2):
        return "equal to"
    return f"{100 * abs(difference):.2f} points {'above' if difference > 0 else 'below'}"


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
            std = f"{100 * finite.std(ddof=1):.2f}" if finite.size > 1 else DASH
            row[2:2] = [std, value_range(test, "{:.2%}") if test.size > 1 else DASH]
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
    has_dash = any(DASH in row for row in rows)
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
            duration(float(row.get("seconds") or 0)),
            "chosen" if row.get("name") == content.get("chosen") else str(row.get("failure") or ""),
        )
        for row in members
    ]
    return {
        "metric": _metric_name(data),
        "splits": _plural(len(content.get("splits") or ()), "split"),
        "table": Table("The portfolio", ("Settings", "Model", "Validation", "Time", "Note"), rows),
    }


# Sections about the probabilities and the graph


def _calibration(data: ReportData) -> dict[str, Any] | None:
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
        section["figure"] = markup(plots.reliability_diagram(bins, "reliability"))
        section["errors"] = Table(
            "Errors of the probabilities on test nodes, mean of the runs",
            ("Measure", "Without temperature", "With temperature"),
            [
                (name, *(decimals(number(content.get(f"{key}_{when}_mean"))) for when in WHENS))
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
        figure = plots.coverage_curve(coverage, thresholds, "coverage")
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


WHENS = ("before", "after")


def _health(audit: Mapping[str, Any]) -> dict[str, Any] | None:
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


# Sections about the model


def _understanding(data: ReportData) -> dict[str, Any]:
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
    figures = [markup(plots.share_bars(shares, "shares"))]
    if len(groups) > 1:
        figures.append(markup(plots.class_bars(names, groups[:MOST_BARS], "class-shares")))
    by_class = [
        (group["name"], str(group["nodes"]), *(f"{group['statistics'][key]:.3f}" for key in names))
        for group in groups
    ]
    rows = [(Cell(name, STATISTICS.get(name, DASH)), f"{shares[name]:.3f}") for name in names]
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
    numbers = {one["number"]: str(one["number"]) for one in patterns}
    numbers |= {k: f"{k} ({mark})" for k, mark in marks.items()}
    rows = [
        [
            numbers[one["number"]],
            f"{one['attention']:.1%}",
            plots.largest_shares(one["classes"]) or DASH,
            *(plots.largest_shares(one["neighborhood"][mode]) or DASH for mode in modes),
            ", ".join(short(node) for node in one["typical_nodes"]),
        ]
        for one in patterns
    ]
    profiles = None
    if len(classes) <= plots.MOST_CELLS_WITH_TEXT:
        profiles = Table(
            "Classes of each pattern's nodes",
            ["Pattern", *classes],
            [[one["number"], *(f"{one['classes'][c]:.0%}" for c in classes)] for one in patterns],
        )
    figure = plots.pattern_heatmap(shown, classes, marks, len(patterns), "patterns")
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
        "figure": markup(plots.memory_map(content, names, used, "map")),
        "sample": sample,
        "node_variance": f"{first + second:.0%}",
        "first": f"{first:.0%}",
        "second": f"{second:.0%}",
        "pattern_variance": f"{sum(content['pattern_variance']):.0%}",
        "enlargement": f"{plots.enlargement(content):.3g}",
        "by_class": Table(
            "Mean position of each predicted class",
            ("Predicted class", "Nodes shown", *axes),
            by_class,
        ),
        "by_pattern": Table("Positions of the patterns", ("Pattern", *axes), by_pattern),
    }


def _coordinates(point: Iterable[float]) -> list[str]:
    return [f"{part:.3g}" for part in point]


def _explorer(content: Mapping[str, Any]) -> dict[str, Any] | None:
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
        words += ["--set", f"{name}={setting_text(value)}"]
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
    rows = [("hpgmn", str(metrics.get("version") or data.config.get("version") or DASH))]
    rows += _facts(mapping(metrics.get("hardware")))
    for key, name in (
        ("seconds", "Time, total"),
        ("seconds_statistics", "Time, statistics"),
        ("seconds_training", "Time, training"),
    ):
        if not math.isnan(number(metrics.get(key))):
            rows.append((name, duration(metrics[key])))
    if not math.isnan(number(metrics.get("peak_memory_mb"))):
        rows.append(("Peak memory", f"{metrics['peak_memory_mb']:,.0f} MB"))
    return {
        # A quoted word may contain line breaks, which belong to the command.
        "code": Markup("\n").join(printable(p) for line in lines for p in line.split("\n")),
        "table": Table("Versions, machine and cost", ("What", "Value"), rows),
    }
