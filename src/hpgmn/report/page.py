"""The report page: recorded values as figures, tables and facts, rendered by templates.

Each section is a macro of ``sections.html.j2``, which formats what was recorded; what has to be
computed or drawn first is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpgmn.auditing.graph_audit import ALIKE, MEASURES
from hpgmn.base.errors import MISSING, count_noun, format_duration, format_setting, percent
from hpgmn.evaluation.rankings import noise_words
from hpgmn.evaluation.scores import class_scores
from hpgmn.explain.descriptions import DIRECTIONS, describe_statistic
from hpgmn.report import members, model_plots, plots
from hpgmn.report.predictions import calibration_content, ranking_content, target_content
from hpgmn.report.rendering import (
    LearningCurves,
    ReportData,
    environment,
    facts,
    finite_mean,
    largest_shares,
    mapping,
    number,
    render_page,
    resource,
    short,
    value_range,
)
from hpgmn.report.reproduction import reproduction

MOST_ERRORS = 15
"""Rows in the list of the most frequent errors."""
MOST_PATTERNS = 24
"""Patterns beyond which the heatmap shows the most used only."""
MOST_BARS = 16
"""Classes beyond which the bars show those with the most sampled nodes only."""

_SCRIPTS = ("contents.js", "explorer.js", "embedded.js")

STAGE_NAMES = {
    "estimator": "Label estimator",
    "refinement": "First training, for pseudo-labels",
    "pretraining": "Pre-training",
    "prior": "Prior beliefs",
    "representation": "Representation, without labels",
    "gcnii": "GCNII",
    "main": "Main training",
}


class ReportDataError(ValueError):
    """Recorded data does not have the expected form; ``part`` is a field of ReportData."""

    def __init__(self, part: str, cause: Exception) -> None:
        super().__init__(f"{part}: {cause!r}")
        self.part = part


def render_report(data: ReportData) -> str:
    """Return the HTML page of a run; ReportDataError for data of an unexpected form."""
    sections: Any = environment().get_template("sections.html.j2").module
    with _report_invalid("metrics"):
        shown = headline(data)
        warnings = data.metrics.get("warnings") or []
        summary = dict(mapping(data.metrics.get("graph_summary")))
        for key in ("class_names", *(("num_classes", "is_regression") * data.is_regression)):
            summary.pop(key, None)
        bodies = {
            "graph": sections.graph(facts(summary)),
            "scores": sections.scores(**_scores(data)),
            "curves": sections.curves(_curves(data), data.explained_member),
        }
        if data.is_regression:
            bodies["targets"] = sections.targets(**target_content(data))
        else:
            bodies["classes"] = sections.classes(**_class_scores(data), **_confusion(data))
        if calibration := mapping(data.metrics.get("calibration")):
            bodies["calibration"] = sections.calibration(**calibration_content(data, calibration))
        if sets := data.metrics.get("prediction_sets"):
            bodies["sets"] = sections.sets(sets)
        if ranking := mapping(data.metrics.get("ranking")):
            bodies["ranking"] = sections.ranking(**ranking_content(data, ranking))
        if data.metrics.get("members"):
            bodies["ensemble"] = sections.ensemble(**members.ensemble(data))
        elif choice := members.choice(data, data.metric_name):
            bodies["choice"] = sections.choice(**choice)
    with _report_invalid("audit"):
        if "left_out" in data.audit:
            bodies["health"] = sections.left_out(data.audit["left_out"])
        elif data.audit:
            bodies["health"] = sections.health(data.audit, MEASURES, ALIKE)
    with _report_invalid("understanding"):
        if "left_out" in data.understanding:
            bodies["learned"] = sections.left_out(data.understanding["left_out"])
        elif data.understanding:
            bodies |= _model_sections(sections, data)
    with _report_invalid("explorer"):
        if data.has_explorer:
            bodies["explorer"] = sections.explorer(
                member=data.explained_member, **_explorer(data.explorer)
            )
        if data.ranked.get("rows"):
            bodies["ranked"] = sections.ranked(
                data.ranked, _reasons(data), data.has_explorer, data.is_regression
            )
    with _report_invalid("config"):
        settings = data.config["settings"].items()
        rows = [(str(name), format_setting(value)) for name, value in settings]
        if rows or "ensemble" not in bodies:
            bodies["settings"] = sections.settings(data.config["model"], rows)
        bodies["repeat"] = sections.repeat(*reproduction(data))
    return render_page(
        title=f"{data.metrics['model']} on {data.metrics['graph']}",
        titles={key: title for key, title in sections.titles.items() if key in bodies},
        bodies=bodies,
        script="".join(map(resource, _SCRIPTS)) if data.has_explorer else "",
        version=data.metrics.get("version") or "",
        created=data.metrics.get("created"),
        warnings=[warnings] if isinstance(warnings, str) else warnings,
        num_runs=data.num_runs,
        **shown,
    )


@contextmanager
def _report_invalid(part: str) -> Iterator[None]:
    from jinja2 import UndefinedError

    invalid = (KeyError, IndexError, TypeError, ValueError, AttributeError, UndefinedError)
    try:
        yield
    except invalid as error:
        raise ReportDataError(part, error) from None


# Sections about the scores


def headline(data: ReportData) -> dict[str, Any]:
    """Return the main numbers of a run: name, value and remark of each tile, and comparisons."""
    metrics = data.metrics
    over = f"mean and standard deviation of {data.num_runs} runs"
    over = over if data.num_runs > 1 else "single run"
    tiles = [(f"Test {data.metric_name}", data.format_mean(metrics, "test_score"), over)]
    is_accuracy = metrics["metric"] == "accuracy"
    accuracy = number(metrics.get("test_score_mean" if is_accuracy else "test_accuracy_mean"))
    if not is_accuracy and not math.isnan(accuracy):
        tiles.append(("Test accuracy", data.format_mean(metrics, "test_accuracy"), over))
    estimator = mapping(metrics.get("label_estimator"))
    compared = "test_score" if "test_score_mean" in estimator else "test_accuracy"  # before 0.4
    measure = data.metric_name if compared == "test_score" else "accuracy"
    baseline = number(estimator.get(f"{compared}_mean"))
    if not math.isnan(baseline):
        score = data.format_mean(estimator, compared)
        tiles.append(("Label estimator", score, f"{measure} from attributes alone"))
    calibration = mapping(metrics.get("calibration"))
    by_class = "_by_class" if "ece_by_class_after_mean" in calibration else ""  # since 0.4
    error = number(calibration.get(f"ece{by_class}_after_mean"))
    if not math.isnan(error):
        before = percent(number(calibration.get(f"ece{by_class}_before_mean")))
        over = "mean over classes, " if by_class else ""
        tiles.append(("Calibration error", percent(error), f"{over}{before} before"))
    if members := metrics.get("members"):
        used = sum(row["weight"] > 0 for row in members)
        tiles.append(("Members", f"{used}", f"of {len(members)} trained"))
    num_splits, num_seeds = len(metrics["splits"]), metrics["seeds"]
    grid = f"{count_noun(num_splits, 'split')} × {count_noun(num_seeds, 'seed')}"
    tiles.append(("Runs", f"{data.num_runs}", grid))
    if not math.isnan(number(metrics.get("seconds"))):
        tiles.append(("Time", format_duration(metrics["seconds"]), "all runs"))
    own = number(metrics.get("test_score_mean")) if compared == "test_score" else accuracy
    difference, std = own - baseline, number(metrics.get(f"{compared}_std"))
    is_shown = not (math.isnan(difference) or data.is_regression)
    points = round(100 * difference, 2) if is_shown else None
    versus_spread = None
    if data.num_runs > 1 and not math.isnan(std) and points:
        versus_spread = "less than" if abs(difference) < std else "more than"
    noise = metrics.get("val_noise")
    return {
        "tiles": tiles,
        "points": points,
        "versus_spread": versus_spread,
        "measure": measure,
        "noise": noise and noise_words(noise, data.metric_name),
    }


def _scores(data: ReportData) -> dict[str, Any]:
    metric = data.metric_name
    tests, vals, epochs = (data.per_run(name) for name in ("test_score", "val_score", "epochs"))
    num_splits, num_seeds = tests.shape
    splits = [str(split) for split in data.metrics["splits"]]
    groups = list(zip(splits, tests, vals, epochs, strict=True))
    if num_splits > 1:
        groups.append(("All", tests.ravel(), vals.ravel(), epochs.ravel()))
    has_spread = num_seeds > 1 or num_splits > 1
    head, rows = ["Split", "Test", "Validation", "Best epoch"], []
    if has_spread:
        head[2:2] = ["Std" if data.is_regression else "Std (points)", "Minimum to maximum"]
    for split, test, val, best in groups:
        row = [split, *(data.format_score(finite_mean(values)) for values in (test, val))]
        row.append(value_range(best, "{:g}"))
        if has_spread:
            finite = test[np.isfinite(test)]
            form = "{:.3f}" if data.is_regression else "{:.2%}"
            std = data.format_difference(finite.std(ddof=1) if finite.size > 1 else math.nan)
            row[2:2] = [std, value_range(test, form) if test.size > 1 else MISSING]
        rows.append(row)
    caption = f"{metric[:1].upper()}{metric[1:]} by split"
    caption += f", {num_seeds} seeds each" if num_seeds > 1 else ""
    is_drawn = data.num_runs > 1 and np.isfinite(tests).any()
    return {
        "figure": plots.run_scores(tests, splits, metric, "scores", is_share=not data.is_regression)
        if is_drawn
        else None,
        "caption": caption,
        "head": head,
        "rows": rows[:num_splits],
        "foot": rows[num_splits] if num_splits > 1 else None,
    }


def _curves(data: ReportData) -> list[dict[str, Any]]:
    shown = []
    for index, stage in enumerate(data.stages):
        best = data.per_run("epochs") if stage is data.stages[-1] else None
        figures = [
            plots.loss_curves(stage, f"loss-{index}"),
            plots.score_curve(
                stage, data.metric_name, best, f"score-{index}", is_share=not data.is_regression
            ),
        ]
        if any(figures):
            shown.append(
                {
                    "title": STAGE_NAMES.get(stage.stage, stage.stage),
                    "figures": [figure for figure in figures if figure],
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
    counts, classes = data.confusion, data.classes
    errors = None
    if len(classes) > plots.MOST_CELLS_WITH_TEXT:
        wrong = counts - np.diag(np.diag(counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_ERRORS]
        pairs = [divmod(int(position), len(classes)) for position in order]
        errors = [
            {
                "true": classes[true],
                "predicted": classes[predicted],
                "count": int(wrong[true, predicted]),
                "share": float(wrong[true, predicted] / counts[true].sum()),
            }
            for true, predicted in pairs
            if wrong[true, predicted]
        ]
    return {
        "num_merged": len(classes) - plots.MOST_CLASSES + 1,
        "figure": plots.confusion_matrix(counts, classes, "confusion") if counts.any() else None,
        "names": list(classes),
        "counts": [[name, *row] for name, row in zip(classes, counts.tolist(), strict=True)],
        "errors": errors,
    }


def _class_scores(data: ReportData) -> dict[str, Any]:
    rows = class_scores(data.confusion, data.classes)
    means = {
        key: finite_mean(np.array([number(row[key]) for row in rows]))
        for key in ("precision", "recall", "f1")
    }
    total = {"class": "Mean, total support", **means, "support": int(data.confusion.sum())}
    has_dash = any(None in row.values() for row in rows)
    return {"num_runs": data.num_runs, "rows": rows, "total": total, "has_dash": has_dash}


# Sections about the model


def _model_sections(sections: Any, data: ReportData) -> dict[str, Any]:
    content = data.understanding
    scope = None
    if data.num_runs > 1 or data.explained_member is not None:
        models = "Model" if content["seeds"] == 1 else f"Mean of {content['seeds']} models"
        member = "" if data.explained_member is None else f", member '{data.explained_member}'"
        scope = f"{models} of split {content['split']}{member}."
    label_notes = [line for line in content["notes"] if line.startswith("Nodes to label")]
    other_notes = [line for line in content["notes"] if line not in label_notes]
    bodies = {
        "statistics": sections.statistics(
            content,
            scope,
            {name: describe_statistic(name) for name in content["statistics"] or ()},
            **_statistics(content),
        ),
        "memory": sections.memory(content, scope, **_memory(content, other_notes)),
    }
    if sizes := mapping(content.get("columns")):  # earlier versions: none
        shown = {short(name, 40): sizes[name] for name in list(sizes)[:MOST_BARS]}
        figure = model_plots.share_bars(shown, "columns", "mean size", "Contribution of columns")
        bodies["columns"] = sections.columns(sizes, scope, figure, len(shown))
    if content["label_next"]:
        note = " ".join(label_notes)
        bodies["label-next"] = sections.label_next(content["label_next"], note, data.has_explorer)
    return bodies


def _statistics(content: Mapping[str, Any]) -> dict[str, Any]:
    shares = mapping(content["statistics"])
    names, figures = list(shares), []
    groups = sorted(content["statistics_by_class"], key=lambda group: -group["nodes"])
    if shares:
        figures.append(model_plots.share_bars(shares, "shares"))
    if len(groups) > 1:
        figures.append(model_plots.class_bars(names, groups[:MOST_BARS], "class-shares"))
    by_class = [
        (group["name"], group["nodes"], *(f"{group['statistics'][key]:.3f}" for key in names))
        for group in groups
    ]
    return {"figures": figures, "most_bars": MOST_BARS, "by_class": by_class}


def _memory(content: Mapping[str, Any], notes: Sequence[str]) -> dict[str, Any]:
    patterns, classes = content["patterns"], content["class_names"]
    if not patterns:
        return dict.fromkeys(("figure", "notes", "head", "rows", "profiles", "map"))
    marks, shown = model_plots.pattern_marks(content), patterns[:MOST_PATTERNS]
    cuts = []
    num_merged = len(classes) - plots.MOST_CLASSES + 1
    if num_merged > 1:
        cuts.append(f"The {num_merged} classes with the smallest shares are merged.")
    if len(shown) < len(patterns):
        cuts.append(f"Shown are the {len(shown)} most used patterns of {len(patterns)}.")
    modes = list(patterns[0]["neighborhood"])
    neighbor_heads = [f"Classes of {DIRECTIONS.get(mode, mode)}" for mode in modes]
    numbers = {row["number"]: str(row["number"]) for row in patterns}
    numbers |= {k: f"{k} ({mark})" for k, mark in marks.items()}
    profiles = None
    if len(classes) <= plots.MOST_CELLS_WITH_TEXT:
        profiles = [
            [row["number"], *(f"{row['classes'][label]:.0%}" for label in classes)]
            for row in patterns
        ]
    used = [row["number"] for row in patterns if row["number"] not in marks]
    return {
        "figure": model_plots.pattern_heatmap(shown, classes, marks, len(patterns), "patterns"),
        "notes": [*cuts, *notes],
        "head": ["Pattern", "Attention", "Classes of its nodes", *neighbor_heads, "Typical nodes"],
        "rows": [
            [
                numbers[row["number"]],
                f"{row['attention']:.1%}",
                largest_shares(row["classes"]) or MISSING,
                *(largest_shares(row["neighborhood"][mode]) or MISSING for mode in modes),
                ", ".join(short(node) for node in row["typical_nodes"]),
            ]
            for row in patterns
        ],
        "profiles": profiles,
        "map": content.get("map") and _map(content["map"], classes, used),
    }


def _map(content: Mapping[str, Any], names: Sequence[str], used: Sequence[int]) -> dict[str, Any]:
    classes, nodes = np.array(content["classes"], int), np.array(content["nodes"], float)
    present, counts = np.unique(classes, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    centres = [
        (names[label], f"{count:,}", *_coordinates(nodes[classes == label].mean(axis=0)))
        for label, count in zip(present[order].tolist(), counts[order].tolist(), strict=True)
    ]
    return {
        **content,
        "figure": model_plots.memory_map(content, names, used, "map"),
        "enlargement": model_plots.enlargement(content),
        "centres": centres,
        "positions": [(k, *_coordinates(point)) for k, point in enumerate(content["patterns"])],
    }


def _coordinates(point: Iterable[float]) -> list[str]:
    return [f"{part:.3g}" for part in point]


def _explorer(content: Mapping[str, Any]) -> dict[str, Any]:
    """Choose examples: a wrong prediction, one decided by few neighbours, an unsure one."""
    nodes = content["nodes"]
    evaluated = [n for n, node in enumerate(nodes) if node["role"] in ("val", "test")]
    answers = [node.get("ensemble", [node["prediction"]])[0] for node in nodes]
    wrong = [n for n in evaluated if nodes[n]["label"] not in (None, answers[n])]
    turned = [n for n, node in enumerate(nodes) if node.get("turning")]
    reasons: dict[int, str] = {}
    if wrong:
        reasons[wrong[0]] = "wrong prediction"
    if turned:
        fewest = min(turned, key=lambda n: len(nodes[n]["turning"]["neighbors"]))
        reasons.setdefault(fewest, "decided by few neighbours")
    unsure = min(range(len(nodes)), key=lambda n: max(nodes[n]["probabilities"]))
    reasons.setdefault(unsure, "least confident")
    return {
        "content": content,
        "styles": resource("explorer.css"),
        "num_weighed": sum("support" in node for node in nodes),
        "examples": [(content["ids"][n], reason) for n, reason in reasons.items()],
    }


def _reasons(data: ReportData) -> dict[str, str]:
    """Return what speaks most for the class that a node is ranked by, where it is explained."""
    content = data.explorer
    if not data.has_explorer or not content.get("statistics"):
        return {}
    rows, reasons = dict(zip(content["ids"], content["nodes"], strict=False)), {}
    for ranked in data.ranked["rows"]:
        node = rows.get(ranked["node"])
        if node is None or "shares" not in node:
            continue
        # Shares are for the predicted class; of two classes the other one gets the opposite.
        predicted = content["classes"][node["prediction"]]
        sign = 1 if predicted == ranked["class"] else -1
        shares = sign * np.array(node["shares"])
        size, (name, words) = shares.max(), content["statistics"][int(shares.argmax())]
        if name == "attributes" and node.get("columns"):
            size, words = max((sign * effect, column) for column, effect, _ in node["columns"])
        reasons[ranked["node"]] = f"{words} ({size:+.2f})"
    return reasons
