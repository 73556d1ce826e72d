"""A run as an object: opened from a folder, it predicts, evaluates and explains."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.graph import Graph
from hpgmn.runs.run import Run, open_run

SHORT = {
    "epochs": 4,
    "estimator_epochs": 3,
    "hidden_dim": 4,
    "num_patterns": 3,
    "statistics": ("attributes", "class_counts", "class_means"),
}
_made: dict[str, Run] = {}


@pytest.fixture
def run(small_graph, tmp_path_factory):
    """A run of splits 1 and 0 with two seeds each, trained once; read it only."""
    if "run" not in _made:
        folder = tmp_path_factory.mktemp("runs") / "run"
        _made["run"] = hpgmn.train(
            small_graph, splits=(1, 0), seeds=2, settings=SHORT, out=folder, report=False
        )
    return _made["run"]


def changed(graph, **values):
    assert graph.splits is not None
    masks = {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    given = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y, **masks}
    return Graph(**(given | {"node_ids": graph.node_ids, "name": graph.name} | values))


def test_an_opened_run_predicts_as_the_trained_one(run):
    opened = open_run(run.folder)
    for split in (None, 0):
        first, second = run.predict(split=split), opened.predict(split=split)
        np.testing.assert_allclose(first.probabilities, second.probabilities, atol=1e-6)
        assert first.labels.tolist() == second.labels.tolist()
        assert first.split == (1 if split is None else 0)
        assert first.seeds == 2
    assert repr(opened) == repr(run)


def test_predictions_are_a_table(run, tmp_path):
    predictions = run.predict(min_confidence=0.9)
    table = predictions.to_table()
    names = [f"probability_{name}" for name in run.model.class_names]
    assert table.column_names == ["node_id", "prediction", "confidence", *names]
    unsure = predictions.confidence < 0.9
    assert [label is None for label in table["prediction"].to_pylist()] == unsure.tolist()
    predictions.write(tmp_path / "p.parquet")
    assert pq.read_table(tmp_path / "p.parquet").equals(table)
    with pytest.raises(SettingError, match=r"\.csv or \.parquet"):
        predictions.write(tmp_path / "p.txt")


def test_a_split_that_was_not_trained_is_refused(run):
    with pytest.raises(HPGMNError, match="no split 7"):
        run.predict(split=7)


def test_a_confidence_is_a_share(run):
    with pytest.raises(SettingError, match="0 to 1"):
        run.predict(min_confidence=1.5)


def test_evaluation_repeats_the_scores_of_the_run(run):
    result = run.evaluate()
    assert result["nodes"] == "test nodes"
    assert result["score"] == pytest.approx(run.metrics["test_score"])
    assert result["runs"] == 4
    assert open_run(run.folder).evaluate() == result


def test_without_ids_every_node_of_another_graph_is_scored(run, small_graph):
    other = changed(small_graph, x=np.asarray(small_graph.x) * 0.5)
    assert run.evaluate(other)["left_out"] == [0, 0, 0, 0]


def test_nodes_that_the_run_has_used_are_not_scored(small_graph, tmp_path):
    ids = np.array([f"node {number}" for number in range(18)])
    named = changed(small_graph, node_ids=ids)
    settings = SHORT | {"statistics": ("attributes",)}
    run = hpgmn.train(
        named, splits=(1, 0), settings=settings, out=tmp_path / "run", seeds=1, report=False
    )
    # The other graph has the nodes in another order, and the last three under new names.
    order = np.random.default_rng(0).permutation(18)
    names = ids[order]
    names[-3:] = ["new a", "new b", "new c"]
    other = Graph(
        named.x[order], [[0], [1]], named.y[order], node_ids=names, class_names=["0", "1", "2"]
    )
    expected, left_out = [], []
    for number in (1, 0):
        split = named.split(number)
        unseen = ~(split.train | split.val)[order]
        unseen[-3:] = True
        assert 6 < unseen.sum() < 18
        correct = run.predict(other, split=number).labels.astype(int) == other.y
        expected.append(correct[unseen].mean())
        left_out.append(18 - unseen.sum())
    result = run.evaluate(other)
    assert result["left_out"] == left_out
    assert result["score"] == pytest.approx(expected, abs=1e-6)


def test_a_graph_without_labels_cannot_be_scored(run, small_graph):
    with pytest.raises(HPGMNError, match="no labels"):
        run.evaluate(
            Graph(small_graph.x, small_graph.edge_index, np.full(small_graph.num_nodes, -1))
        )


def test_a_graph_in_memory_cannot_be_added(run, small_graph):
    with pytest.raises(SettingError, match="complete already"):
        run.predict(small_graph, add=True)


def test_a_run_explains_nodes_and_itself(run):
    node = run.explain(0 if run.graph.node_ids is None else str(run.graph.node_ids[0]), split=0)
    probabilities = run.predict(split=0).probabilities[0]
    np.testing.assert_allclose(list(node.probabilities.values()), probabilities, atol=1e-6)
    assert run.explain().as_dict()


def test_a_folder_without_a_finished_run_is_refused(run, tmp_path):
    with pytest.raises(HPGMNError, match=r"config\.yaml is missing") as refused:
        open_run(tmp_path)
    assert refused.value.remedy is not None
    (tmp_path / "comparison.json").write_text("{}")
    with pytest.raises(HPGMNError, match="several models"):
        open_run(tmp_path)


def test_the_files_of_two_runs_do_not_mix(run, tmp_path):
    config = (run.folder / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(config.replace("model: hpgmn", "model: gcn"))
    (tmp_path / "model.safetensors").write_bytes((run.folder / "model.safetensors").read_bytes())
    with pytest.raises(HPGMNError, match="of gcn"):
        open_run(tmp_path)


def test_a_graph_that_changed_is_not_taken_for_the_trained_one(run, small_graph, tmp_path):
    from hpgmn.graph.files import write_graph

    opened = open_run(run.folder)
    path = Path(opened.spec.graph)
    content = path.read_bytes()
    try:
        write_graph(changed(small_graph, x=np.asarray(small_graph.x) + 1), path)
        with pytest.raises(HPGMNError, match="no longer the graph"):
            opened.predict()
    finally:
        path.write_bytes(content)


def test_a_run_on_edge_types_is_opened_and_extended(tmp_path):
    random = np.random.default_rng(0)
    names = [f"n{number}" for number in range(24)]
    ends = {"source": random.choice(names, 60), "target": random.choice(names, 60)}
    types = {"kind": random.choice(["card", "wire"], 60)}
    nodes = {"size": random.normal(size=24).round(2), "label": ["a", "b"] * 12}
    pa_csv.write_csv(pa.table({"id": names} | nodes), tmp_path / "nodes.csv")
    pa_csv.write_csv(pa.table(ends | types), tmp_path / "edges.csv")
    graph = hpgmn.load(tmp_path, edge_type="kind")
    statistics = ("attributes", "class_counts", "class_means", "message_passing")
    settings = SHORT | {"statistics": statistics}
    run = hpgmn.train(graph, splits=(0,), settings=settings, out=tmp_path / "run", report=False)
    opened = open_run(run.folder)
    expected = run.predict().probabilities
    np.testing.assert_allclose(opened.predict().probabilities, expected, atol=1e-6)
    new = tmp_path / "new"
    new.mkdir()
    link = {"source": ["x", "n0"], "target": ["n1", "x"]}
    pa_csv.write_csv(pa.table({"id": ["x"], "size": [0.5]}), new / "nodes.csv")
    found = {}
    for kinds in (["card", "wire"], ["wire", "card"]):
        pa_csv.write_csv(pa.table(link | {"kind": kinds}), new / "edges.csv")
        found[kinds[0]] = opened.predict(new, add=True, only_new=True).probabilities
    whole = hpgmn.load(new, onto=graph)
    assert whole.edge_type.tolist() == [*graph.edge_type.tolist(), 1, 0]
    np.testing.assert_allclose(
        run.predict(whole).probabilities[-1:], found["wire"], atol=1e-6, rtol=0
    )
    assert abs(found["card"] - found["wire"]).max() > 1e-4
