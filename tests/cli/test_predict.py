"""``hpgmn predict``: tables of classes and probabilities."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph


def mean_over_seeds(run, split):
    """(N, C) the probabilities of a split, averaged over its seeds and then calibrated.

    Those in predictions.parquet are calibrated one by one, which is undone first.
    """
    rows = pq.read_table(run / "predictions.parquet").to_pylist()
    metrics = json.loads((run / "metrics.json").read_text())
    temperatures = metrics["calibration"]["temperature"]
    chosen = [row for row in rows if row["split"] == split]
    nodes = max(row["node"] for row in chosen) + 1
    total, seeds = np.zeros((nodes, 3)), {row["seed"] for row in chosen}
    place = metrics["splits"].index(split)
    for row in chosen:
        own = temperatures[place * len(seeds) + row["seed"]]
        powers = np.array([row[f"probability_{name}"] for name in "012"]) ** own
        total[row["node"]] += powers / powers.sum()
    powers = (total / len(seeds)) ** (1 / metrics["calibration"]["mean_temperature"][place])
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def read_table(path):
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def chances_of(path):
    rows = read_table(path)
    return np.array([[float(row[f"probability_{name}"]) for name in "012"] for row in rows])


def changed(graph, **values):
    assert graph.splits is not None
    given = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y, "name": graph.name}
    given |= {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    return Graph(**(given | values))


# predict


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
@pytest.mark.parametrize(("option", "split"), [([], 1), (["--split", "0"], 0)])
def test_predict_averages_over_the_seeds_of_one_split(hpgmn, trained, name, option, split):
    answer = hpgmn("predict", trained, *option, "--out", name)
    assert answer.code == 0, answer.err
    assert answer.out == ""
    assert answer.err == f"18 nodes, split {split}, 2 seeds: {name}\n"
    expected = mean_over_seeds(trained, split)
    np.testing.assert_allclose(chances_of(Path(name)), expected, atol=1e-6)
    rows = read_table(Path(name))
    assert [row["prediction"] for row in rows] == [str(c) for c in expected.argmax(axis=1)]
    assert [float(row["confidence"]) for row in rows] == pytest.approx(
        expected.max(axis=1), abs=1e-6
    )
    assert [str(row["node_id"]) for row in rows] == [str(node) for node in range(18)]


def test_the_splits_differ_so_averaging_over_them_would_show(trained):
    difference = np.abs(mean_over_seeds(trained, 0) - mean_over_seeds(trained, 1))
    assert difference.max() > 1e-3


def test_predict_on_the_graph_by_name_gives_the_same(hpgmn, trained, shelf):
    assert hpgmn("predict", trained, "--out", "one.csv").code == 0
    assert hpgmn("predict", trained, shelf / "small.npz", "--out", "other.csv").code == 0
    assert Path("one.csv").read_bytes() == Path("other.csv").read_bytes()


def test_predict_serves_graphs_not_seen_in_training(hpgmn, tiny, graph_file, small_graph):
    options = [*tiny(statistics="attributes,class_counts,class_means"), "--out", "run"]
    assert hpgmn("train", graph_file, *options).code == 0
    rng = np.random.default_rng(0)
    other = Graph(
        rng.normal(size=(5, 5)),
        [[0, 1, 2], [1, 2, 3]],
        node_ids=[f"new {number}" for number in range(5)],
    )
    write_graph(other, "other.npz")
    answer = hpgmn("predict", "run", "other.npz", "--out", "p.csv")
    assert answer.code == 0, answer.err
    rows = read_table(Path("p.csv"))
    assert [row["node_id"] for row in rows] == [f"new {number}" for number in range(5)]
    np.testing.assert_allclose(chances_of(Path("p.csv")).sum(axis=1), 1, atol=1e-5)


def test_predictions_do_not_look_at_labels(hpgmn, trained, small_graph):
    """Without its labels the training graph is still the training graph."""
    write_graph(
        changed(small_graph, y=None, train_mask=None, val_mask=None, test_mask=None), "g.npz"
    )
    assert hpgmn("predict", trained, "g.npz", "--out", "one.csv").code == 0
    assert hpgmn("predict", trained, "--out", "other.csv").code == 0
    assert Path("one.csv").read_bytes() == Path("other.csv").read_bytes()


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_below_the_least_confidence_nothing_is_predicted(hpgmn, trained, name):
    assert hpgmn("predict", trained, "--out", f"all-{name}").code == 0
    every = read_table(Path(f"all-{name}"))
    levels = sorted(float(row["confidence"]) for row in every)
    least = (levels[6] + levels[7]) / 2
    answer = hpgmn("predict", trained, "--min-confidence", least, "--out", name)
    assert answer.code == 0, answer.err
    assert answer.err == f"18 nodes, split 1, 2 seeds, 7 below {least:g} left empty: {name}\n"
    empty = "" if name == "p.csv" else None
    for row, before in zip(read_table(Path(name)), every, strict=True):
        sure = float(before["confidence"]) >= least
        assert row == before | {"prediction": before["prediction"] if sure else empty}
