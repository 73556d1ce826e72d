"""Made-up data of a run, as ``hpgmn train`` records it."""

import html
import re
from collections.abc import Callable

import numpy as np
import pytest

from hpgmn.report import LearningCurves, ReportData

MakeData = Callable[..., ReportData]

SETTINGS = {"lr": 0.01, "weight_decay": 5e-05, "gate": True, "statistics": ["x", "counts"]}


def learning_curves(num_runs, epochs):
    """Falling losses and rising scores; in the main stage the runs stop one after the other."""
    random = np.random.default_rng(1)
    stages = []
    for stage, length in (("estimator", epochs // 2), ("pretraining", epochs // 3)):
        loss = 1.6 * np.exp(-6 * np.arange(length) / length) + 0.1 * random.random(
            (num_runs, length)
        )
        missing = np.full_like(loss, np.nan)
        is_pretraining = stage == "pretraining"
        curves = {
            "loss": loss,
            "val_loss": missing if is_pretraining else loss + 0.4,
            "val_score": missing if is_pretraining else 0.8 - 0.3 * loss,
        }
        stages.append(LearningCurves(stage, np.arange(length), curves))
    done = np.arange(epochs) / epochs
    noise = random.random((3, num_runs, epochs))
    curves = {
        "loss": 1.7 * np.exp(-7 * done) + 0.08 * noise[0],
        "val_loss": 0.6 + np.exp(-9 * done) + 0.3 * done + 0.15 * noise[1],
        "val_score": 0.86 - 0.4 * np.exp(-9 * done) + 0.05 * noise[2],
    }
    for run in range(num_runs):
        for values in curves.values():
            values[run, epochs - 1 - 2 * run :] = np.nan
    return (*stages, LearningCurves("main", np.arange(epochs), curves))


@pytest.fixture
def make_data():
    """Makes the data of a report: ``make_data(splits=[0, 1], classes=[…], warnings=[…])``."""

    def make(
        splits=(0, 3),
        seeds=2,
        classes=("course", "faculty", "student"),
        epochs=30,
        graph="texas",
        config=None,
        audit=None,
        understanding=None,
        explorer=None,
        ranked=None,
        **metrics,
    ):
        random = np.random.default_rng(0)
        num_runs, num_classes = len(splits) * seeds, len(classes)
        test = np.clip(random.normal(0.84, 0.04, num_runs), 0, 1)
        spread = float(test.std(ddof=1)) if num_runs > 1 else None
        confusion = random.integers(0, 5, (num_classes, num_classes))
        np.fill_diagonal(confusion, 40)
        settings = {
            "graph": graph,
            "model": "hpgmn",
            "metric": metrics.get("metric", "accuracy"),
            "splits": list(splits),
            "seeds": seeds,
            "settings": SETTINGS,
            "version": "0.1.0",
        }
        recorded = {
            "model": "hpgmn",
            "graph": graph,
            "splits": list(splits),
            "seeds": seeds,
            "metric": "accuracy",
            "test_score_mean": float(test.mean()),
            "test_score_std": spread,
            "test_score": test.tolist(),
            "val_score": random.uniform(0.8, 0.9, num_runs).tolist(),
            "test_accuracy_mean": float(test.mean()),
            "test_accuracy_std": spread,
            "seconds": 14.2,
            "seconds_statistics": 0.31,
            "seconds_training": 13.5,
            "epochs": random.integers(epochs // 5, epochs // 2, num_runs).tolist(),
            "peak_memory_mb": 812.4,
            "version": "0.1.0",
            "hardware": {"cpu": "A Processor", "device": "cpu", "torch": "2.13.0"},
            "graph_summary": {"num_nodes": 60, "num_edges": 1325, "homophily": 0.1077},
            "label_estimator": {"test_accuracy_mean": 0.7812, "test_accuracy_std": 0.05},
            "warnings": ["2 test nodes repeat a train node."],
            "created": "2026-01-31T12:34:56+00:00",
        }
        return ReportData(
            config=settings | (config or {}),
            metrics=recorded | metrics,
            stages=learning_curves(num_runs, epochs),
            classes=tuple(classes),
            confusion=confusion,
            audit=audit or {},
            understanding=understanding or {},
            explorer=explorer or {},
            ranked=ranked or {},
        )

    return make


Tables = Callable[[str], dict[str, list[list[str]]]]


@pytest.fixture
def tables_of():
    """Reads the tables of a page by their captions, cells as plain text."""

    def plain(markup):
        return html.unescape(re.sub(r"<[^>]*>", "", markup))

    def read(page):
        found = {}
        for table in re.findall(r"<table.*?</table>", page, flags=re.S):
            [caption] = re.findall(r"<caption>(.*?)</caption>", table)
            rows = [
                re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("<tr>")[1:]
            ]
            found[plain(caption)] = [[plain(cell) for cell in row] for row in rows]
        return found

    return read


def understanding(
    classes=("course", "faculty", "student"), num_patterns=6, num_nodes=40, **changes
):
    """What ``understanding.json`` holds: the last pattern is unused, the last but one redundant."""
    random = np.random.default_rng(3)
    use = np.sort(random.dirichlet(np.full(num_patterns, 3.0)))[::-1]

    def shares():
        return dict(zip(classes, random.dirichlet(np.ones(len(classes))).tolist(), strict=True))

    patterns = [
        {
            "number": (5 * place + 2) % num_patterns if num_patterns % 5 else place,
            "attention": float(use[place]),
            "classes": shares(),
            "neighborhood": {"out": shares(), "in": shares()},
            "typical_nodes": [f"n{place}", f"n{place + 1}", f"n{place + 2}"],
        }
        for place in range(num_patterns)
    ]
    numbers = [one["number"] for one in patterns]
    names = ("class_counts", "attributes")
    return {
        "split": 0,
        "seeds": 2,
        "class_names": list(classes),
        "model": "hpgmn",
        "statistics": {"class_counts": 0.75, "attributes": 0.25},
        "columns": {"amount (out, mean)": 0.5, "<b>age</b>": 0.125},
        "sampled": 30,
        "patterns": patterns,
        "redundant": [sorted([numbers[0], numbers[-2]])],
        "unused": [numbers[-1]],
        "label_next": [
            {"node": "n7", "prediction": classes[0], "entropy": 1.0986, "degree": 1234},
            {"node": "n3", "prediction": classes[1], "entropy": 0.5, "degree": 0},
        ],
        "notes": ["Unused: hardly attended.", "Nodes to label next are chosen so."],
        "statistics_by_class": [
            {"name": name, "nodes": place + 1, "statistics": {names[0]: 0.5 + place, names[1]: 0.1}}
            for place, name in enumerate(classes)
        ],
        "map": {
            "all_nodes": num_nodes,
            "node_variance": [0.5, 0.25],
            "pattern_variance": [0.3, 0.1],
            "classes": [place % len(classes) for place in range(num_nodes)],
            "nodes": random.normal(size=(num_nodes, 2)).round(3).tolist(),
            "patterns": (0.01 * random.normal(size=(num_patterns, 2))).round(5).tolist(),
        },
    } | changes


@pytest.fixture
def make_understanding():
    """Makes what ``understanding.json`` holds."""
    return understanding
