"""A made-up run folder, as ``hpgmn train`` writes it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

MakeRun = Callable[..., Path]

SETTINGS = {"lr": 0.01, "weight_decay": 5e-05, "gate": True, "statistics": ["x", "counts"]}


def history_rows(splits: Sequence[int], seeds: int, epochs: int) -> list[dict[str, Any]]:
    """Falling losses and rising scores; in the main stage the runs stop one after the other."""
    random = np.random.default_rng(1)
    rows = []
    for stage, length in (("estimator", epochs // 2), ("pretraining", epochs // 3)):
        for split in splits:
            for seed in range(seeds):
                for epoch in range(length):
                    pre = stage == "pretraining"
                    loss = float(1.6 * np.exp(-6 * epoch / length) + 0.1 * random.random())
                    row = {"split": split, "seed": seed, "stage": stage, "epoch": epoch}
                    row |= {"loss": loss, "val_loss": None if pre else loss + 0.4}
                    rows.append(row | {"val_score": None if pre else 0.8 - 0.3 * loss})
    for split in splits:
        for seed in range(seeds):
            last = epochs - int(random.integers(0, max(epochs // 2, 1)))
            for epoch in range(epochs):
                done = epoch / epochs
                loss = float(1.7 * np.exp(-7 * done) + 0.08 * random.random())
                val_loss = float(0.6 + np.exp(-9 * done) + 0.3 * done + 0.15 * random.random())
                score = float(0.86 - 0.4 * np.exp(-9 * done) + 0.05 * random.normal())
                values = (loss, val_loss, score) if epoch < last else (None, None, None)
                row = {"split": split, "seed": seed, "stage": "main", "epoch": epoch}
                rows.append(row | dict(zip(("loss", "val_loss", "val_score"), values, strict=True)))
    return rows


def prediction_columns(
    splits: Sequence[int], seeds: int, classes: Sequence[str], num_nodes: int
) -> dict[str, list[Any]]:
    random = np.random.default_rng(2)
    share = random.dirichlet(np.full(len(classes), 4.0))
    labels = random.choice(len(classes), num_nodes, p=share)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("split", "seed", "node", "node_id", "role", "label", "prediction")
    }
    columns |= {f"probability_{name}": [] for name in classes}
    for split in splits:
        roles = random.choice(
            ["train", "val", "test", "unlabelled"], num_nodes, p=[0.4, 0.2, 0.3, 0.1]
        )
        for seed in range(seeds):
            for node in range(num_nodes):
                true = int(labels[node])
                hit = random.random() < 0.8
                guess = true if hit else int(random.integers(len(classes)))
                role = str(roles[node])
                # Some test nodes have no label: they are nobody's mistake.
                label = None if role == "unlabelled" or node % 17 == 0 else classes[true]
                values = (split, seed, node, f"n{node}", role, label, classes[guess])
                for column, value in zip(columns, values, strict=False):
                    columns[column].append(value)
                for index, name in enumerate(classes):
                    chance = 0.9 if index == guess else 0.1 / max(len(classes) - 1, 1)
                    columns[f"probability_{name}"].append(chance)
    return columns


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes a run folder: ``make_run(splits=[0, 1], seeds=2, classes=[…], metrics={…})``."""

    def make(
        splits: Sequence[int] = (0, 3),
        seeds: int = 2,
        classes: Sequence[str] = ("course", "faculty", "student"),
        epochs: int = 30,
        num_nodes: int = 60,
        folder: Path | None = None,
        graph: str = "texas",
        **changes: Any,
    ) -> Path:
        folder = folder or tmp_path / "run"
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(0)
        runs = len(splits) * seeds
        test = np.clip(random.normal(0.84, 0.04, runs), 0, 1)
        spread = float(test.std(ddof=1)) if runs > 1 else None
        config = {
            "graph": graph,
            "model": "hpgmn",
            "metric": changes.get("metric", "accuracy"),
            "splits": list(splits),
            "seeds": seeds,
            "settings": SETTINGS,
            "version": "0.1.0",
        }
        metrics = {
            "model": "hpgmn",
            "graph": graph,
            "splits": list(splits),
            "seeds": seeds,
            "metric": "accuracy",
            "test_score_mean": float(test.mean()),
            "test_score_std": spread,
            "test_score": test.tolist(),
            "val_score": random.uniform(0.8, 0.9, runs).tolist(),
            "test_accuracy_mean": float(test.mean()),
            "test_accuracy_std": spread,
            "seconds": 14.2,
            "seconds_statistics": 0.31,
            "seconds_training": 13.5,
            "epochs": random.integers(epochs // 5, epochs // 2, runs).tolist(),
            "peak_memory_mb": 812.4,
            "version": "0.1.0",
            "config": config,
            "hardware": {"cpu": "A Processor", "device": "cpu", "torch": "2.13.0"},
            "graph_summary": {
                "num_nodes": num_nodes,
                "num_edges": 1325,
                "num_features": 1703,
                "num_classes": len(classes),
                "class_names": list(classes),
                "homophily": 0.1077,
            },
            "label_estimator": {"test_accuracy_mean": 0.7812, "test_accuracy_std": 0.05},
            "warnings": ["2 test nodes repeat a train node."],
            "created": "2026-01-31T12:34:56+00:00",
        } | changes
        (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
        lines = "".join(json.dumps(row) + "\n" for row in history_rows(splits, seeds, epochs))
        (folder / "history.jsonl").write_text(lines, encoding="utf-8")
        columns = prediction_columns(splits, seeds, classes, num_nodes)
        pq.write_table(pa.table(columns), folder / "predictions.parquet")
        return folder

    return make


Tables = Callable[[str], dict[str, list[list[str]]]]


@pytest.fixture
def tables_of() -> Tables:
    """Reads the tables of a page by their captions, cells as plain text."""

    def plain(markup: str) -> str:
        return html.unescape(re.sub(r"<[^>]*>", "", markup))

    def read(page: str) -> dict[str, list[list[str]]]:
        found = {}
        for one in re.findall(r"<table.*?</table>", page, flags=re.S):
            [caption] = re.findall(r"<caption>(.*?)</caption>", one)
            rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in one.split("<tr>")[1:]]
            found[plain(caption)] = [[plain(cell) for cell in row] for row in rows]
        return found

    return read


def understanding(
    classes: Sequence[str] = ("course", "faculty", "student"),
    num_patterns: int = 6,
    num_nodes: int = 40,
    **changes: Any,
) -> dict[str, Any]:
    """What ``understanding.json`` holds: the last pattern is unused, the last but one redundant."""
    random = np.random.default_rng(3)
    use = np.sort(random.dirichlet(np.full(num_patterns, 3.0)))[::-1]

    def shares() -> dict[str, float]:
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
def make_understanding() -> Callable[..., dict[str, Any]]:
    """Makes what ``understanding.json`` holds."""
    return understanding
