"""A run exported as ONNX predicts what the run predicts, and its description is right."""

import json
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import hpgmn
from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.runs import export
from hpgmn.runs.run import open_run

SHORT = {"epochs": 6, "estimator_epochs": 4, "hidden_dim": 4, "num_patterns": 3}
CLOSE = 1e-5


def changed(graph, **values):
    assert graph.splits is not None
    masks = {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    given = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y, **masks}
    ids = [f"n{number}" for number in range(graph.num_nodes)]
    names = {"node_ids": ids, "name": graph.name, "class_names": graph.class_names}
    return Graph(**(given | names | values))


def trained(graph, folder, *, model="hpgmn", seeds=1, splits=0, settings=None, **options):
    chosen = (SHORT if model == "hpgmn" else {"epochs": 6}) | (settings or {})
    return hpgmn.train(
        graph,
        model=model,
        settings=chosen,
        seeds=seeds,
        splits=splits,
        out=folder / "run",
        report=False,
        **options,
    )


def answer(path, rows):
    """What onnxruntime computes from rows."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert {value.name for value in session.get_inputs()} == set(rows)
    [result] = session.run(None, rows)
    return session.get_outputs()[0].name, result


def assert_same(run, tmp_path, split=None):
    path = tmp_path / "model.onnx"
    open_run(run.folder).export_onnx(path, split)
    name, result = answer(path, run.statistics(split=split))
    predictions = run.predict(split=split)
    expected = predictions.probabilities
    if not run.model.class_names:
        expected = predictions.labels[:, None]
    assert name == ("probabilities" if run.model.class_names else "prediction")
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, atol=CLOSE, rtol=CLOSE)
    return result


CASES = {
    "defaults": {},
    "no gate": {"gate": False},
    "no memory": {"memory": False},
    "resized": {"memory_dim": 5, "unit_encodings": True},
    "resized without memory": {"memory_dim": 5, "memory": False},
    "deep": {"classifier_layers": 3, "encoder_layers": 3},
    "shallow": {"encoder_layers": 1, "gate": False, "unit_encodings": True},
    "soft": {"soft_counts": True, "class_counts_scaling": "raw"},
    "weighted": {"class_weights": "balanced"},
    "refined": {"refinement": True},
    "batches": {"batch_size": 4},
    "diffusion and hops": {
        "statistics": ("attributes", "diffusion", "hops"),
        "neighbors": "undirected",
    },
    "means of neighbours": {
        "statistics": ("class_counts", "neighbor_class_means", "neighbor_adjacency")
    },
    "sketches": {
        "statistics": ("class_means", "diffusion", "hops"),
        "diffusion_form": "sketch",
        "diffusion_dim": 16,
        "class_means_form": "sketch",
        "class_means_dim": 4,
        "hops_dim": 5,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_the_file_predicts_what_the_run_predicts(case, small_graph, tmp_path):
    result = assert_same(trained(small_graph, tmp_path, settings=CASES[case]), tmp_path)
    assert result.std(axis=0).min() > 1e-3  # it depends on the rows


def test_seeds_of_one_split_are_averaged_and_calibrated(small_graph, tmp_path):
    run = trained(
        small_graph, tmp_path, seeds=3, splits=(1, 0), settings={"class_weights": "balanced"}
    )
    calibration = run.model.mean_calibration
    assert calibration[:, 1].any()  # biases, which an average of calibrated seeds would not have
    first, second = (assert_same(run, tmp_path, split) for split in (None, 0))
    assert np.abs(first - second).max() > 1e-2
    rows = run.statistics()
    widths = {name: value.shape for name, value in rows.items()}
    assert widths["attributes"] == (18, 5)
    assert widths["class_counts_in"] == (3, 18, 3)


def test_a_threshold_is_a_decision_offset(rare_run, tmp_path):
    description = rare_run.export_onnx(tmp_path / "rare.onnx")
    offsets = np.array(json.loads(description.read_text())["decision"]["offsets"])
    _, chances = answer(tmp_path / "rare.onnx", rare_run.statistics())
    decided = (np.log(chances) + offsets).argmax(axis=1)
    names = np.array(rare_run.model.class_names)
    assert (names[decided] == rare_run.predict().labels).all()
    assert (decided != chances.argmax(axis=1)).any()


@pytest.mark.parametrize("edge_types", ["separate", "merged"])
def test_edge_types_are_inputs(edge_types, small_graph, tmp_path):
    types = np.arange(small_graph.edge_index.shape[1]) % 2
    graph = changed(small_graph, edge_type=types, edge_type_names=["card", "cash"])
    run = trained(graph, tmp_path, settings={"edge_types": edge_types})
    assert_same(run, tmp_path)
    inputs = json.loads((tmp_path / "model.onnx.json").read_text())["inputs"]
    found = {one["name"]: one["edge_type"] for one in inputs}
    if edge_types == "merged":
        assert set(found.values()) == {None}
    else:
        assert found["class_counts_in_type1"] == "cash"
        assert found["class_means_out_type0"] == "card"
        assert found["adjacency_out"] is None


def test_a_regression_predicts_in_the_unit_of_the_target(small_graph, tmp_path):
    random = np.random.default_rng(0)
    target = 1e6 + 1e4 * small_graph.x[:, 0] + random.normal(size=18)
    graph = changed(small_graph, y=target, class_names=None)
    statistics = ("attributes", "class_counts", "class_means", "target_means")
    run = trained(graph, tmp_path, seeds=2, settings={"statistics": statistics})
    result = assert_same(run, tmp_path)
    assert result.dtype == np.float64
    about = json.loads((tmp_path / "model.onnx.json").read_text())
    assert (about["class_names"], about["decision"]) == ([], None)
    widths = {one["name"]: one["shape"][-1] for one in about["inputs"]}
    assert (widths["target_means_in"], widths["class_counts_in"]) == (3, 8)  # bins


@pytest.mark.parametrize("model", ["hpgmn", "mlp"])
def test_sparse_attributes_are_dense_rows(model, small_graph, tmp_path):
    graph = changed(small_graph, x=sp.csr_array(np.where(small_graph.x > 0.5, small_graph.x, 0)))
    assert graph.has_sparse_attributes
    assert_same(trained(graph, tmp_path, model=model, seeds=2), tmp_path)


def test_rows_are_those_of_the_statistics(small_graph, tmp_path):
    settings = {"statistics": ("attributes", "adjacency"), "neighbors": "out"}
    run = trained(changed(small_graph), tmp_path, settings=settings)
    rows = run.statistics(nodes=["n7", "n2", "n7"])
    np.testing.assert_allclose(rows["attributes"], small_graph.x[[7, 2, 7]], rtol=1e-6)
    dense = small_graph.adjacency("out").toarray()[[7, 2, 7]]
    expected = dense / np.linalg.norm(dense, axis=1, keepdims=True)
    np.testing.assert_allclose(rows["adjacency"], expected, rtol=1e-6)
    run.export_onnx(tmp_path / "m.onnx")
    _, some = answer(tmp_path / "m.onnx", rows)
    np.testing.assert_allclose(some, run.predict().probabilities[[7, 2, 7]], atol=CLOSE)
    with pytest.raises(HPGMNError, match="no node"):
        run.statistics(nodes=["nobody"])


def test_nodes_of_another_graph_have_rows(small_graph, tmp_path):
    run = trained(changed(small_graph), tmp_path)
    ids = [*(f"n{number}" for number in range(17)), "new"]
    edges = np.concatenate([small_graph.edge_index, [[17, 17], [3, 5]]], axis=1)
    other = changed(small_graph, node_ids=ids, edge_index=edges, name="later")
    run.export_onnx(tmp_path / "m.onnx")
    _, result = answer(tmp_path / "m.onnx", run.statistics(other))
    np.testing.assert_allclose(result, run.predict(other).probabilities, atol=CLOSE)
    assert np.abs(result - run.predict().probabilities).max() > 1e-3


def test_the_description_is_that_of_the_file(small_graph, tmp_path):
    graph = changed(small_graph, feature_names=["a", "b", "c", "d", "e"])
    run = trained(graph, tmp_path, settings={"neighbors": "out"})
    path = tmp_path / "deep" / "model.onnx"
    assert run.export_onnx(path) == tmp_path / "deep" / "model.onnx.json"
    about = json.loads((tmp_path / "deep" / "model.onnx.json").read_text())
    assert (about["model"], about["split"], about["seeds"]) == ("hpgmn", 0, [0])
    assert about["version"] == hpgmn.__version__
    assert about["class_names"] == list(graph.class_names)
    assert about["feature_names"] == ["a", "b", "c", "d", "e"]
    assert about["settings"]["adjacency_scaling"] == "unit"
    inputs = {one["name"]: one for one in about["inputs"]}
    assert {name: one["shape"] for name, one in inputs.items()} == {
        name: ["batch", value.shape[1]] for name, value in run.statistics().items()
    }
    assert inputs["attributes"]["neighbors"] is None
    assert inputs["adjacency"]["neighbors"] == "out"
    assert inputs["class_counts"]["columns"].startswith("class_names")


def test_columns_are_in_the_order_described(small_graph, tmp_path):
    settings = {"statistics": ("class_counts", "class_means", "hops"), "neighbors": "undirected"}
    raw = {"class_counts_scaling": "raw", "class_means_scaling": "raw", "label_confidence": 1.0}
    graph = changed(small_graph)
    run = trained(graph, tmp_path, settings=settings | raw | {"hops": 2})
    rows = run.statistics()
    dense = (graph.adjacency("undirected").toarray() > 0).astype(float)
    known = np.where(graph.split(0).train, graph.y, -1)
    members = known[:, None] == np.arange(3)  # pseudo-labels are unknown
    counts = dense @ members
    np.testing.assert_allclose(rows["class_counts"], counts, rtol=1e-6)
    totals = np.einsum("nm,mc,mf->ncf", dense, members, graph.x)
    means = totals / np.maximum(counts, 1)[..., None]
    found = rows["class_means"].reshape(18, 3, 5)  # attributes of the first class come first
    assert np.corrcoef(found.ravel(), means.ravel())[0, 1] > 0.99
    near = rows["hops"].reshape(18, 2, 5)[:, 0]
    assert np.corrcoef(near.ravel(), (dense @ graph.x).ravel())[0, 1] > 0.7


def test_the_versions_are_read_by_onnxruntime_1_18(small_graph, tmp_path):
    onnx = pytest.importorskip("onnx")
    trained(small_graph, tmp_path).export_onnx(tmp_path / "m.onnx")
    made = onnx.load(tmp_path / "m.onnx")
    assert (made.ir_version, made.opset_import[0].version) == (8, 17)  # 1.18 reads up to 10, 21


def test_a_graph_that_is_gone_is_not_needed(small_graph, tmp_path):
    run = trained(small_graph, tmp_path)
    before = run.predict().probabilities
    rows = run.statistics()
    (run.folder / "graph.npz").unlink()
    opened = open_run(run.folder)
    opened.export_onnx(tmp_path / "m.onnx")
    np.testing.assert_allclose(answer(tmp_path / "m.onnx", rows)[1], before, atol=CLOSE)


def test_message_passing_is_refused(small_graph, tmp_path):
    statistics = ("attributes", "message_passing")
    run = trained(small_graph, tmp_path, settings={"statistics": statistics})
    with pytest.raises(HPGMNError, match="messages") as caught:
        run.export_onnx(tmp_path / "m.onnx")
    assert caught.value.remedy.setting == "statistics"
    assert caught.value.remedy.value == ("attributes", "hops")
    assert not (tmp_path / "m.onnx").exists()


def test_other_models_are_refused(small_graph, tmp_path):
    run = trained(small_graph, tmp_path, model="gcn")
    with pytest.raises(HPGMNError, match="gcn") as caught:
        run.export_onnx(tmp_path / "m.onnx")
    assert caught.value.remedy.value == "hpgmn"
    with pytest.raises(HPGMNError, match="gcn"):
        run.statistics()


def test_members_of_an_ensemble_are_exported_one_by_one(small_graph, tmp_path):
    run = hpgmn.train(
        small_graph,
        ensemble=True,
        members=["boosting", "hpgmn-out-light"],
        settings={"epochs": 4},
        splits=0,
        out=tmp_path / "run",
        report=False,
    )
    with pytest.raises(HPGMNError, match="ensemble") as caught:
        run.export_onnx(tmp_path / "m.onnx")
    remedies = (caught.value.remedy, *caught.value.remedy.alternatives)
    folders = [path for path in (run.folder / "members").iterdir() if path.is_dir()]
    for folder in folders:
        member = open_run(folder)
        is_named = any(str(folder) in remedy.action for remedy in remedies)
        assert is_named == (member.spec.model == "hpgmn")
        if is_named:
            member.export_onnx(tmp_path / "m.onnx")
            _, result = answer(tmp_path / "m.onnx", member.statistics(small_graph))
            expected = member.model.mean_probabilities(small_graph).numpy()
            np.testing.assert_allclose(result, expected, atol=CLOSE)


def test_a_model_too_large_for_a_file_is_refused(small_graph, tmp_path, monkeypatch):
    run = trained(small_graph, tmp_path)
    monkeypatch.setattr(export, "MOST_BYTES", 1000)
    with pytest.raises(HPGMNError, match="parameters") as caught:
        run.export_onnx(tmp_path / "m.onnx")
    assert caught.value.remedy.setting == "hidden_dim"


def test_a_missing_package_gives_the_install_line(small_graph, tmp_path, monkeypatch):
    run = trained(small_graph, tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(HPGMNError) as caught:
        run.export_onnx(tmp_path / "m.onnx")
    assert "pip install 'hpgmn[onnx]'" in str(caught.value)
    assert not (tmp_path / "m.onnx").exists()
