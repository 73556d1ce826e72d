"""``hpgmn statistics``: arrays of the local statistics."""

from pathlib import Path

import numpy as np
import pytest

from hpgmn.base.settings import make_settings
from hpgmn.graph import Graph
from hpgmn.graph.files import write_graph
from hpgmn.models.hpgmn import HPGMNSettings
from hpgmn.training.trainer import estimate_labels


def changed(graph, **values):
    assert graph.splits is not None
    given = {"x": graph.x, "edge_index": graph.edge_index, "y": graph.y, "name": graph.name}
    given |= {f"{part}_mask": getattr(graph.splits, part) for part in ("train", "val", "test")}
    return Graph(**(given | values))


# statistics


def dense_out(graph):
    """The adjacency of out-edges without self-loops and repeats, edge by edge."""
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    for source, target in graph.edge_index.T:
        if source != target:
            matrix[source, target] = 1
    return matrix


RAW = ["neighbors=out", "class_counts_scaling=raw", "class_means_scaling=raw"]
RAW += ["diffusion_scaling=raw", "diffusion_self_entry=yes", "teleport=0.2"]
RAW_OPTIONS = [word for one in RAW for word in ("--set", one)]


def test_statistics_are_those_of_the_dense_formulas(hpgmn, graph_file, small_graph):
    answer = hpgmn("statistics", graph_file, "--out", "s.npz", *RAW_OPTIONS)
    assert answer.code == 0, answer.err
    adjacency, onehot = dense_out(small_graph), np.eye(3)[small_graph.y]
    with np.load("s.npz") as arrays:
        assert set(arrays.files) == {"class_counts", "class_means", "diffusion", "labels"}
        np.testing.assert_array_equal(arrays["labels"], small_graph.y)
        counts = adjacency @ onehot
        np.testing.assert_allclose(arrays["class_counts"], counts, atol=1e-6)
        sums = np.einsum("vu,uc,uf->vcf", adjacency, onehot, small_graph.x)
        means = sums / np.maximum(counts, 1)[..., None]
        np.testing.assert_allclose(arrays["class_means"], means.reshape(18, -1), atol=1e-5)
        moves = adjacency / np.maximum(adjacency.sum(axis=0), 1)  # A·D⁻¹: columns sum to one
        rows = 0.2 * np.linalg.inv(np.eye(18) - 0.8 * moves)
        np.testing.assert_allclose(arrays["diffusion"], rows, atol=1e-4)


def test_estimated_labels_keep_train_labels_and_ignore_test_labels(hpgmn, graph_file, small_graph):
    options = ["--labels", "estimated", "--set", "estimator_epochs=5", *RAW_OPTIONS]
    assert hpgmn("statistics", graph_file, "--out", "one.npz", *options).code == 0
    y, test = small_graph.y.copy(), small_graph.split(0).test
    y[test] = (y[test] + 1) % 3
    write_graph(changed(small_graph, y=y), "shuffled.npz")
    assert hpgmn("statistics", "shuffled.npz", "--out", "other.npz", *options).code == 0
    train = small_graph.split(0).train
    with np.load("one.npz") as one, np.load("other.npz") as other:
        assert (one["labels"][train] == small_graph.y[train]).all()
        for name in one.files:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("confidence", ["0", "0.6", "1"])
def test_soft_counts_and_confidence_are_honoured(hpgmn, graph_file, small_graph, confidence):
    given = ["estimator_epochs=20", "statistics=class_counts", f"label_confidence={confidence}"]
    options = [word for one in (*RAW, *given) for word in ("--set", one)]
    options += ["--labels", "estimated"]
    for name, soft in (("hard.npz", "false"), ("soft.npz", "true")):
        answer = hpgmn(
            "statistics", graph_file, "--out", name, *options, "--set", f"soft_counts={soft}"
        )
        assert answer.code == 0, answer.err
    settings = make_settings(HPGMNSettings, {"estimator_epochs": 20})
    labels, shares, _ = estimate_labels(small_graph, settings)
    known = (shares.max(axis=1) >= float(confidence)) & (float(confidence) < 1)
    known |= small_graph.split(0).train
    adjacency = dense_out(small_graph)
    with np.load("hard.npz") as hard, np.load("soft.npz") as soft:
        np.testing.assert_array_equal(hard["labels"], np.where(known, labels, -1))
        np.testing.assert_array_equal(soft["labels"], hard["labels"])
        counts = adjacency @ (np.eye(3)[labels] * known[:, None])
        np.testing.assert_allclose(hard["class_counts"], counts, atol=1e-6)
        counts = adjacency @ (shares * known[:, None])
        np.testing.assert_allclose(soft["class_counts"], counts, atol=1e-5)


@pytest.mark.parametrize("labels", ["true", "estimated"])
def test_statistics_of_a_second_training_are_refused(hpgmn, graph_file, labels):
    options = ["--labels", labels, "--set", "refinement=true"]
    answer = hpgmn("statistics", graph_file, "--out", "s.npz", *options)
    assert answer.code == 2
    assert "(--set refinement=false)" in answer.err
    assert not Path("s.npz").exists()


def test_both_directions_are_two_arrays_when_asked_for(hpgmn, graph_file):
    answer = hpgmn("statistics", graph_file, "--out", "s.npz", "--set", "neighbors=both")
    assert answer.code == 0, answer.err
    with np.load("s.npz") as arrays:
        assert {"class_counts_out", "class_counts_in"} < set(arrays.files)
    assert hpgmn("statistics", graph_file, "--out", "s.npz").code == 0
    with np.load("s.npz") as arrays:
        assert set(arrays.files) == {"class_counts", "class_means", "diffusion", "labels"}
