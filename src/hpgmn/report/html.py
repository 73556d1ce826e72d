"""The report of a run: one self-contained page, made from the run folder's files alone.

The page asks for nothing from outside: no scripts, fonts or images; its own policy forbids them,
all but the script of the node explorer (:mod:`hpgmn.report.explorer`).
Whatever comes from data passes :func:`_text`, so that a name can never become markup. The same
files give the same page.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.files import write_text
from hpgmn.base.metrics import metric_words
from hpgmn.base.text import (
    MISSING,
    count_noun,
    format_duration,
    format_setting,
    format_time,
    percent,
    points,
)
from hpgmn.graph import Array
from hpgmn.report import plots
from hpgmn.report.calibration import calibration_sections
from hpgmn.report.explorer import explorer, explorer_script
from hpgmn.report.health import health_sections
from hpgmn.report.page import Row, page, panel, table, text, tiles
from hpgmn.report.reading import (
    AUDIT_FILE,
    METRICS_FILE,
    UNDERSTANDING_FILE,
    Run,
    Stage,
    mapping,
    naming,
    number,
    read_run,
)
from hpgmn.report.understanding import understanding_sections
from hpgmn.report.words import deviation, finite_mean, share_of, value_range

_METRIC_NAMES = {
    "roc_auc": "ROC-AUC",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "average_precision": "average precision",
}
_STAGE_NAMES = {
    "estimator": "Label estimator",
    "refinement": "First training, for pseudo labels",
    "pretraining": "Pre-training",
    "prior": "Prior beliefs",
    "representation": "Representation, without labels",
    "gcnii": "GCNII",
    "main": "Main training",
}
_FACT_NAMES = {
    "num_nodes": "Nodes",
    "num_edges": "Edges",
    "num_features": "Attributes",
    "num_classes": "Classes",
    "homophily": "Homophily",
    "cpu": "Processor",
    "gpu": "GPU",
    "torch": "PyTorch",
}


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into a run folder; a crash leaves the old page or the new one."""
    content = build_report(folder)
    path = folder / "report.html"
    write_text(path, content)
    return path


def build_report(folder: Path) -> str:
    """The page of a run folder as text, or an HPGMNError that names the file at fault."""
    run = read_run(folder)
    with naming(folder / METRICS_FILE):
        calibration = calibration_sections(run)
    with naming(folder / AUDIT_FILE):
        health = health_sections(run)
    with naming(folder / UNDERSTANDING_FILE):
        understanding = understanding_sections(run)
    sections = [
        ("warnings", "Warnings", _warnings(run)),
        ("graph", "Graph", _graph(run)),
        *health,
        ("scores", "Scores by split", _scores(run)),
        ("curves", "Learning curves", _curves(run)),
        ("confusion", "Confusion matrix", _confusion(run)),
        ("classes", "Scores by class", _per_class(run)),
        *calibration,
        *understanding,
        *explorer(folder),
        *_portfolio(run),
        ("settings", "Settings", _settings(run)),
        ("repeat", "How to repeat it", _repeat(run)),
    ]
    title = f"{run.metrics['model']} on {run.metrics['graph']}"
    return page(title, _made(run), _headline(run), sections, explorer_script(sections))


def class_scores(confusion: Array) -> dict[str, Array]:
    """Precision, recall, F1 and support of each class, not a number for a share of nothing.

    Args:
        confusion: (C, C), nodes by class and prediction.

    Returns:
        Four arrays of shape (C,).

    >>> scores = class_scores(np.array([[3, 1], [0, 0]]))
    >>> scores["recall"]
    array([0.75,  nan])
    """
    hits, support, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    return {
        "precision": share_of(hits, predicted),
        "recall": share_of(hits, support),
        "f1": share_of(2 * hits, support + predicted),
        "support": support,
    }


def command(config: Mapping[str, Any]) -> list[str]:
    """The arguments of the command that trains the run again."""
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


_TABLE_OPTIONS = {"split": "split-column", "categories": "category"}


def _table_options(name: str, value: Any) -> list[str]:
    """What was said of the columns of two tables, as it is typed."""
    option = f"--{_TABLE_OPTIONS.get(name, name).replace('_', '-')}"
    if name == "directed":
        return [option if value else "--undirected"]
    if name == "split_by":
        return [option, *(str(word) for word in value)]
    if isinstance(value, bool):
        return [option] if value else []
    many = value if isinstance(value, list) else [value]
    return [word for one in many for word in (option, str(one))]


# The sections, in the order of the page.


def _made(run: Run) -> str:
    version, created = run.metrics.get("version"), run.metrics.get("created")
    parts = [f"hpgmn {text(version)}" if version else "hpgmn"]
    if created:
        parts.append(f'<time datetime="{text(created)}">{text(format_time(created))}</time>')
    return f'<p class="quiet">{" · ".join(parts)}</p>'


def _headline(run: Run) -> str:
    metrics, metric = run.metrics, _metric(run)
    score = _spread(run, metrics, "test_score")
    num_splits, num_seeds = run.test_score.shape
    runs = f"{count_noun(num_splits, 'split')} × {count_noun(num_seeds, 'seed')}"
    over = f"mean and standard deviation over {run.num_runs} runs"
    over = over if run.num_runs > 1 else "of a single run"
    facts = [(f"Test {metric}", score, over)]
    if metrics["metric"] != "accuracy" and not math.isnan(_accuracy(run)):
        facts.append(("Test accuracy", _spread(run, metrics, "test_accuracy"), over))
    estimator = mapping(metrics.get("label_estimator"))
    said = ""
    if not math.isnan(number(estimator.get("test_accuracy_mean"))):
        guess = _spread(run, estimator, "test_accuracy")
        facts.append(("Label estimator", guess, "accuracy from the attributes alone"))
        said = _against_estimator(run, estimator)
    calibration = mapping(metrics.get("calibration"))
    error = number(calibration.get("ece_after_mean"))
    if not math.isnan(error):
        before = percent(number(calibration.get("ece_before_mean")))
        facts.append(("Calibration error", percent(error), f"{before} without temperature"))
    facts.append(("Runs", f"{run.num_runs}", runs))
    if not math.isnan(number(metrics.get("seconds"))):
        facts.append(("Time", format_duration(metrics["seconds"]), "for all runs together"))
    return tiles(facts) + (f"\n<p>{said}</p>" if said else "")


def _against_estimator(run: Run, estimator: Mapping[str, Any]) -> str:
    """The difference to the label estimator, and how it compares with the spread of the runs."""
    difference = _accuracy(run) - number(estimator["test_accuracy_mean"])
    if math.isnan(difference):
        return ""
    if round(100 * difference, 2) == 0:
        return "In accuracy the model equals its label estimator, which knows no edges."
    side = "above" if difference > 0 else "below"
    sentence = (
        f"In accuracy the model is <strong>{100 * abs(difference):.2f} points {side}</strong> "
        "its label estimator, which knows no edges"
    )
    spread = number(run.metrics.get("test_accuracy_std"))
    if run.num_runs < 2:
        return f"{sentence}. One run cannot tell whether that is chance."
    if math.isnan(spread):
        return f"{sentence}."
    size = "less" if abs(difference) < spread else "more"
    return f"{sentence}: {size} than the standard deviation between the runs."


def _warnings(run: Run) -> str:
    warnings = run.metrics.get("warnings") or []
    if isinstance(warnings, str):
        warnings = [warnings]
    if not warnings:
        return '<p class="quiet">None.</p>'
    items = "".join(f"<li>{text(warning)}</li>" for warning in warnings)
    return f'<ul class="warnings">{items}</ul>'


def _graph(run: Run) -> str:
    summary = mapping(run.metrics.get("graph_summary"))
    facts = _facts({key: value for key, value in summary.items() if key != "class_names"})
    return tiles(facts, "small") if facts else '<p class="quiet">Not described.</p>'


def _scores(run: Run) -> str:
    metric, (num_splits, num_seeds) = _metric(run), run.test_score.shape
    splits = [str(split) for split in run.metrics["splits"]]
    head, rows = ["Split", "Test", "Validation", "Best epoch"], []
    groups = list(zip(splits, run.test_score, run.val_score, run.best_epochs, strict=True))
    if num_splits > 1:
        flat = (run.test_score.ravel(), run.val_score.ravel(), run.best_epochs.ravel())
        groups.append(("All", *flat))
    for split, test, val, epochs in groups:
        rows.append(
            [
                split,
                percent(finite_mean(test)),
                percent(finite_mean(val)),
                value_range(epochs, "{:g}"),
            ]
        )
        if num_seeds > 1 or num_splits > 1:
            low_high = value_range(test, "{:.2%}") if len(test) > 1 else MISSING
            rows[-1][2:2] = [points(deviation(test)), low_high]
    if num_seeds > 1 or num_splits > 1:
        head[2:2] = ["Deviation (points)", "Lowest to highest"]
    caption = f"{metric[:1].upper()}{metric[1:]} by split"
    if num_seeds > 1:
        caption += f", {num_seeds} seeds each"
    numbers = table(caption, head, rows, foot=num_splits > 1)
    if run.num_runs == 1 or not np.isfinite(run.test_score).any():
        return numbers
    picture = plots.run_scores(run.test_score, splits, metric, "scores")
    return f"{panel(picture, wide='Test scores of all runs')}\n{numbers}"


def _curves(run: Run) -> str:
    parts = []
    for index, stage in enumerate(run.stages):
        best = run.best_epochs if stage is run.stages[-1] else None
        pictures = (
            plots.loss_curves(stage, f"loss-{index}"),
            plots.score_curve(stage, _metric(run), best, f"score-{index}"),
        )
        drawn = "".join(panel(picture) for picture in pictures if picture)
        if drawn:
            title = text(_STAGE_NAMES.get(stage.name, stage.name))
            note = f'<p class="quiet">{_stops(stage)}</p>'
            parts.append(f'<h3>{title}</h3>\n<div class="pair">{drawn}</div>\n{note}')
    return "\n".join(parts) or "<p>No epochs were recorded.</p>"


def _stops(stage: Stage) -> str:
    """What the lines and bands mean, and from where on they stand for fewer runs."""
    known = np.isfinite(np.stack(list(stage.curves.values()))).any(axis=0)  # (R, E)
    count = len(known)
    if count == 1:
        return "A single run."
    last = [stage.epochs[row].max() for row in known if row.any()]
    said = f"Line: mean of {count} runs. Band: from the lowest run to the highest."
    if min(last) < max(last):
        said += (
            f" After epoch {min(last)}, where the first run stops, both leave out the stopped ones."
        )
    return said


def _confusion(run: Run) -> str:
    if not run.confusion.any():
        return "<p>There is no labelled test node.</p>"
    matrix = plots.confusion_matrix(run.confusion, run.classes, "confusion")
    pooled = (
        f"All {run.num_runs} runs together: a node counts once in each run that tests it. "
        if run.num_runs > 1
        else ""
    )
    rest = len(run.classes) - plots.MOST_CLASSES + 1
    joined = f" The {rest} classes with the fewest test nodes are drawn as one." * (rest > 1)
    note = f'<p class="quiet">{pooled}Shares are of the true class.{joined}</p>'
    if len(run.classes) <= plots.MOST_CELLS_WITH_TEXT:
        name = "Test nodes by true class (row) and predicted class (column)"
        rows = [
            [label, *(f"{count:,}" for count in counts)]
            for label, counts in zip(run.classes, run.confusion, strict=True)
        ]
        numbers = table(name, ["True class", *run.classes], rows)
    else:
        name = "The most frequent mistakes"
        numbers = table(name, ("Mistake", "Test nodes", "Share of the class"), _mistakes(run))
    summary = "The matrix as a table" if name.startswith("Test") else name
    details = f"<details><summary>{summary}</summary>{numbers}</details>"
    return f"{note}\n{panel(matrix, wide='Confusion matrix')}\n{details}"


def _mistakes(run: Run, most: int = 15) -> list[Row]:
    wrong = run.confusion - np.diag(np.diag(run.confusion))
    rows: list[Row] = []
    for place in np.argsort(-wrong, axis=None, kind="stable")[:most]:
        true, predicted = divmod(int(place), len(run.classes))
        count = wrong[true, predicted]
        if count:
            share = percent(count / run.confusion[true].sum())
            mistake = f"{run.classes[true]} taken for {run.classes[predicted]}"
            rows.append((mistake, f"{count:,}", share))
    return rows


def _per_class(run: Run) -> str:
    if not run.confusion.any():
        return "<p>There is no labelled test node.</p>"
    scores = class_scores(run.confusion)
    columns = [scores[name] for name in ("precision", "recall", "f1")]
    rows = [
        [label, *(percent(column[index]) for column in columns), f"{scores['support'][index]:,}"]
        for index, label in enumerate(run.classes)
    ]
    means = [percent(finite_mean(column)) for column in columns]
    rows.append(["Mean, total support", *means, f"{scores['support'].sum():,}"])
    head = ["Class", "Precision", "Recall", "F1", "Support"]
    if run.num_runs > 1:
        head.append("Support per run")
        supports = [*scores["support"], scores["support"].sum()]
        for row, support in zip(rows, supports, strict=True):
            row.append(f"{support / run.num_runs:,.1f}")
    caption = "Test nodes by class" + (", all runs together" if run.num_runs > 1 else "")
    note = f"{MISSING} marks a share of nothing (0 of 0); the means leave it out."
    dashed = any(MISSING in row for row in rows)
    return table(caption, head, rows, foot=True) + (
        f'\n<p class="quiet">{note}</p>' if dashed else ""
    )


def _portfolio(run: Run) -> list[tuple[str, str, str]]:
    """How the settings were chosen, where they were: the section, or none."""
    content = mapping(run.metrics.get("portfolio"))
    members = [mapping(row) for row in content.get("members") or []]
    if not members:
        return []
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
    splits = count_noun(len(content.get("splits") or ()), "split")
    words = (
        f"<p>Model and settings were chosen among these by {text(_metric(run))} on the validation "
        f"nodes of {splits}.</p>"
    )
    head = ("Settings", "Model", "Validation", "Time", "Note")
    return [("choice", "Choice of settings", words + table("The portfolio", head, rows))]


def _settings(run: Run) -> str:
    rows = [(str(name), format_setting(value)) for name, value in run.config["settings"].items()]
    return table(f"Settings of {run.config['model']}", ("Setting", "Value"), rows)


def _repeat(run: Run) -> str:
    words = [shlex.quote(word) for word in command(run.config)]
    lines = [" ".join(words[:3])]
    for place in range(3, len(words), 2):
        option = " ".join(words[place : place + 2])  # the last may have no value
        if len(lines[-1]) + len(option) > 87:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {option}"
    metrics = run.metrics
    rows = [("hpgmn", str(metrics.get("version") or run.config.get("version") or MISSING))]
    rows += _facts(mapping(metrics.get("hardware")))
    for key, name in (
        ("seconds", "Time, all"),
        ("seconds_statistics", "Time, statistics"),
        ("seconds_training", "Time, training"),
    ):
        if not math.isnan(number(metrics.get(key))):
            rows.append((name, format_duration(metrics[key])))
    if not math.isnan(number(metrics.get("peak_memory_mb"))):
        rows.append(("Peak memory", f"{metrics['peak_memory_mb']:,.0f} MB"))
    shell_lines = "\n".join(text(part) for line in lines for part in line.split("\n"))
    attributes = 'role="region" tabindex="0" aria-label="Command line"'
    box = f"<pre {attributes}><code>{shell_lines}</code></pre>"
    return f"{box}\n{table('Versions, machine and cost', ('What', 'Value'), rows)}"


def _facts(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A recorded mapping as rows of a table; mappings inside it become rows of their own."""
    rows = []
    for key, value in content.items():
        name = _FACT_NAMES.get(key, str(key).removeprefix("num_").replace("_", " ").capitalize())
        if isinstance(value, dict):
            rows += [(f"{name}, {inner[0].lower()}", inner[1]) for inner in _facts(value)]
        elif isinstance(value, float):
            rows.append((name, f"{value:.3g}" if math.isfinite(value) else MISSING))
        elif isinstance(value, int) and not isinstance(value, bool):
            rows.append((name, f"{value:,}"))
        elif value is not None:
            rows.append((name, format_setting(value)))
    return rows


# What several sections say.


def _metric(run: Run) -> str:
    name = str(run.metrics["metric"])
    words = metric_words(name, run.metrics.get("positive"))
    return words.replace(name, _METRIC_NAMES.get(name, name), 1)


def _accuracy(run: Run) -> float:
    key = "test_score_mean" if run.metrics["metric"] == "accuracy" else "test_accuracy_mean"
    return number(run.metrics.get(key))


def _spread(run: Run, content: Mapping[str, Any], name: str) -> str:
    """``84.12 ± 4.20%`` from ``<name>_mean`` and ``<name>_std``."""
    mean, spread = number(content.get(f"{name}_mean")), number(content.get(f"{name}_std"))
    if run.num_runs == 1 or math.isnan(mean) or math.isnan(spread):
        return percent(mean)
    return f"{100 * mean:.2f} ± {100 * spread:.2f}%"
