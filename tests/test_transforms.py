"""The statistics as transforms: against slow loops, against LocalStatistics, without a leak."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hpgmn.base.errors import GraphError, HPGMNError, SettingError
from hpgmn.graph import Graph
from hpgmn.statistics import LocalStatistics, StatisticsSettings, statistic_names

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG uses what torch has deprecated
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.transforms import Compose, NormalizeFeatures

    from hpgmn import transforms
    from hpgmn.transforms import AddAdjacencyRows, AddClassCounts, AddClassMeans, AddDiffusion

NODES, CLASSES, WIDTH = 14, 3, 4
LABELWISE = [AddClassCounts, AddClassMeans]
WITHOUT_LABELS = [AddDiffusion, AddAdjacencyRows]


@pytest.fixture(params=["directed", "undirected", "weighted"])
def data(request):
    """Random edges with repeats and self-loops, two splits, every class among the train nodes."""
    random = np.random.default_rng(5)
    edges = random.integers(NODES - 1, size=(2, 40))  # the last node has no edge
    if request.param == "undirected":
        edges = np.concatenate([edges, edges[::-1]], axis=1)
    y = np.arange(NODES) % CLASSES
    part = np.stack([random.permutation(NODES) % 3, np.arange(NODES) // 5], axis=1)
    made = Data(
        x=torch.from_numpy(random.normal(size=(NODES, WIDTH)).astype(np.float32)),
        edge_index=torch.from_numpy(edges),
        y=torch.from_numpy(y),
    )
    for number, name in enumerate(("train", "val", "test")):
        made[f"{name}_mask"] = torch.from_numpy(part == number)
    if request.param == "weighted":
        made.edge_weight = torch.from_numpy(random.uniform(0.5, 2, 40).astype(np.float32))
    return made


def neighbors_of(data, node, mode):
    """Neighbour → weight, by a loop over the listed edges."""
    weights = data.edge_weight.tolist() if "edge_weight" in data else None
    found: dict[int, float] = {}
    for place, (source, target) in enumerate(data.edge_index.T.tolist()):
        ends = {"out": [(source, target)], "in": [(target, source)]}
        ends["undirected"] = ends["out"] + ends["in"]
        for center, neighbor in ends[mode]:
            if center == node and neighbor != node:
                more = found.get(neighbor, 0.0) + weights[place] if weights else 1.0
                found[neighbor] = more
    return found


def slow_counts(data, labels, mode):
    counts = np.zeros((NODES, CLASSES))
    for node in range(NODES):
        for neighbor, weight in neighbors_of(data, node, mode).items():
            if labels[neighbor] >= 0:
                counts[node, labels[neighbor]] += weight
    return counts


def slow_means(data, labels, mode):
    means = np.zeros((NODES, CLASSES, WIDTH))
    for node in range(NODES):
        near = neighbors_of(data, node, mode)
        for label in range(CLASSES):
            own = {one: weight for one, weight in near.items() if labels[one] == label}
            for one, weight in own.items():
                means[node, label] += weight * data.x[one].numpy() / sum(own.values())
    return means.reshape(NODES, -1)


def train_labels(data, split):
    return torch.where(data.train_mask[:, split], data.y, -1).tolist()


@pytest.mark.parametrize("mode", ["out", "in", "undirected"])
@pytest.mark.parametrize("split", [0, 1])
def test_class_counts_match_a_loop_over_edges(data, mode, split):
    found = AddClassCounts(neighbors=mode, scaling="raw", split=split)(data).class_counts
    np.testing.assert_allclose(found, slow_counts(data, train_labels(data, split), mode), rtol=1e-5)


@pytest.mark.parametrize("mode", ["out", "in", "undirected"])
@pytest.mark.parametrize("form", ["auto", "dense", "sparse"])
def test_class_means_match_a_loop_over_edges(data, mode, form):
    found = AddClassMeans(neighbors=mode, form=form, split=1)(data).class_means
    assert found.is_sparse == (form == "sparse")
    expected = slow_means(data, train_labels(data, 1), mode)
    np.testing.assert_allclose(found.to_dense(), expected, rtol=1e-4, atol=1e-6)


def test_both_directions_stand_side_by_side(data):
    labels = train_labels(data, 0)
    sides = [slow_counts(data, labels, mode) for mode in ("out", "in")]
    found = AddClassCounts(scaling="raw", split=0)(data).class_counts
    np.testing.assert_allclose(found, np.concatenate(sides, axis=1), rtol=1e-5)


def slow_diffusion(data, mode, teleport):
    """t·(I - (1-t)·A·D⁻¹)⁻¹ without its diagonal, rows of length 1."""
    adjacency = np.zeros((NODES, NODES))
    for node in range(NODES):
        for neighbor, weight in neighbors_of(data, node, mode).items():
            adjacency[node, neighbor] = weight
    degree = adjacency.sum(axis=0)
    transition = adjacency / np.where(degree > 0, degree, 1)
    matrix = teleport * np.linalg.inv(np.eye(NODES) - (1 - teleport) * transition)
    np.fill_diagonal(matrix, 0)
    length = np.linalg.norm(matrix, axis=1, keepdims=True)
    return matrix / np.where(length > 0, length, 1)


@pytest.mark.parametrize("mode", ["out", "in", "undirected"])
def test_diffusion_matches_the_inverse(data, mode):
    found = AddDiffusion(neighbors=mode, teleport=0.3)(data).diffusion
    np.testing.assert_allclose(found, slow_diffusion(data, mode, 0.3), atol=1e-5)


def test_the_largest_entries_of_diffusion_are_sparse_and_right(data):
    options: dict[str, Any] = {"neighbors": "out", "scaling": "raw", "teleport": 0.3}
    whole = AddDiffusion(**options)(data).diffusion
    top = AddDiffusion(**options, form="topk", topk=2, threshold=1e-8)(data).diffusion
    assert top.is_sparse
    largest = torch.zeros_like(whole)
    value, place = whole.topk(2, dim=1)
    torch.testing.assert_close(top.to_dense(), largest.scatter(1, place, value), atol=1e-5, rtol=0)


def test_adjacency_rows_are_sparse_and_right(data):
    found = AddAdjacencyRows(scaling="raw")(data).adjacency_rows
    assert found.is_sparse
    expected = np.zeros((NODES, 2 * NODES))
    for node in range(NODES):
        for side, mode in enumerate(("out", "in")):
            for neighbor, weight in neighbors_of(data, node, mode).items():
                expected[node, side * NODES + neighbor] = weight
    np.testing.assert_allclose(found.to_dense(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("transform", "settings"),
    [
        (AddClassCounts(split=1), {}),
        (AddClassCounts(scaling="unit", split=1), {"class_counts_scaling": "unit"}),
        (AddClassMeans(split=1), {}),
        (AddClassMeans(scaling="unit", split=1), {"class_means_scaling": "unit"}),
        (
            AddClassMeans(form="sketch", dim=4, split=1),
            {"class_means_form": "sketch", "class_means_dim": 4},
        ),
        (AddDiffusion(), {}),
        (AddDiffusion(kind="heat", heat_time=1.0), {"diffusion": "heat", "heat_time": 1.0}),
        (
            AddDiffusion(form="sketch", dim=32, self_entry=True, self_loop=1),
            {
                "diffusion_form": "sketch",
                "diffusion_dim": 32,
                "diffusion_self_entry": True,
                "diffusion_self_loop": 1,
            },
        ),
        (AddAdjacencyRows(), {}),
    ],
)
@pytest.mark.parametrize("mode", ["out", "both"])
def test_rows_are_those_of_local_statistics(data, transform, settings, mode):
    chosen = StatisticsSettings(statistics=(transform.statistic,), neighbors=mode, **settings)
    labels = np.array([train_labels(data, 1)])
    graph = Graph.from_pyg(data)
    built = LocalStatistics(graph).build(labels, CLASSES, [chosen])
    every = torch.arange(NODES)
    rows = torch.cat([built[name].rows(every) for name in statistic_names(chosen)], dim=1)
    added = replace(transform, neighbors=mode)(data)[transform.name]
    torch.testing.assert_close(added.to_dense(), rows, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LABELWISE)
def test_labels_outside_the_train_nodes_change_nothing(data, kind):
    before = kind(split=0)(data)[kind.statistic]
    other = data.clone()
    hidden = ~data.train_mask[:, 0]
    other.y[hidden] = torch.tensor([7, -1, 2, 9, 0] * 3)[: int(hidden.sum())]
    torch.testing.assert_close(kind(split=0)(other)[kind.statistic], before, rtol=0, atol=0)
    other.y[data.train_mask[:, 0]] = 0  # the check can see a change
    assert not torch.equal(kind(split=0, num_classes=3)(other)[kind.statistic], before)


@pytest.mark.parametrize("kind", WITHOUT_LABELS)
def test_a_statistic_without_labels_needs_none(data, kind):
    bare = Data(edge_index=data.edge_index, num_nodes=NODES)
    if "edge_weight" in data:
        bare.edge_weight = data.edge_weight
    name = kind().name
    assert torch.equal(kind()(bare)[name].to_dense(), kind()(data)[name].to_dense())


def test_true_labels_are_read_when_asked_for(data):
    found = AddClassCounts(neighbors="out", scaling="raw", labels="true")(data).class_counts
    np.testing.assert_allclose(found, slow_counts(data, data.y.tolist(), "out"), rtol=1e-5)


def test_pseudo_labels_are_taken_as_they_are(data):
    guess = (torch.arange(NODES) * 2) % CLASSES
    guess[3] = -1
    data.guess = guess.unsqueeze(1)
    found = AddClassCounts(neighbors="in", scaling="raw", labels="guess")(data).class_counts
    np.testing.assert_allclose(found, slow_counts(data, guess.tolist(), "in"), rtol=1e-5)


def test_the_number_of_classes_can_be_given(data):
    wide = AddClassCounts(neighbors="out", split=0, num_classes=5)(data).class_counts
    assert wide.shape == (NODES, 5)
    assert not wide[:, 3:].any()
    narrow = AddClassCounts(neighbors="out", split=0)(data).class_counts
    torch.testing.assert_close(wide[:, :3], narrow)
    with pytest.raises(SettingError, match=r"num_classes is 2, but the labels hold class 2\. Give"):
        AddClassCounts(split=0, num_classes=2)(data)


def test_transforms_work_in_a_compose_and_leave_the_object_alone(data):
    keys = set(data.keys())
    chain = Compose([AddClassCounts(split=0, name="counts"), NormalizeFeatures(["counts"])])
    raw = AddClassCounts(split=0)(data).class_counts
    shares = chain(data).counts
    torch.testing.assert_close(shares, raw / raw.sum(dim=1, keepdim=True).clamp(min=1))
    assert set(data.keys()) == keys


def test_nodes_without_edges_are_counted_where_there_are_no_attributes(data):
    expected = AddClassCounts(split=0)(data).class_counts
    del data.x
    assert torch.equal(AddClassCounts(split=0)(data).class_counts, expected)


def test_a_single_split_needs_no_number(data):
    expected = AddClassCounts(split=1)(data).class_counts
    data.train_mask = data.train_mask[:, 1]
    assert torch.equal(AddClassCounts()(data).class_counts, expected)
    data.train_mask = data.train_mask[:, None]
    assert torch.equal(AddClassCounts()(data).class_counts, expected)


def test_sparse_attributes_give_sparse_means_that_a_linear_layer_takes(data):
    dense = AddClassMeans(split=0)(data).class_means
    data.x = data.x.to_sparse_coo()
    sparse = AddClassMeans(split=0)(data).class_means
    assert sparse.is_sparse
    torch.testing.assert_close(sparse.to_dense(), dense)
    layer = torch.nn.Linear(dense.size(1), 2)
    torch.testing.assert_close(layer(sparse), layer(dense))


def test_auto_forms_leave_dense_rows_where_they_grow_too_large(data, monkeypatch):
    monkeypatch.setattr(transforms, "MEANS_LIMIT_BYTES", 4 * NODES * CLASSES * WIDTH - 1)
    monkeypatch.setattr(transforms, "DENSE_LIMIT_BYTES", 4 * NODES**2 - 1)
    assert AddClassMeans(split=0)(data).class_means.is_sparse
    assert AddDiffusion(neighbors="out", dim=16)(data).diffusion.shape == (NODES, 16)


def test_the_text_form_names_what_differs_from_the_defaults():
    assert repr(AddClassCounts()) == "AddClassCounts()"
    text = "AddClassMeans(neighbors='out', form='sparse', labels='guess', split=2)"
    assert repr(eval(text)) == text
    assert repr(AddDiffusion("heat", topk=8)) == "AddDiffusion(kind='heat', topk=8)"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: AddClassCounts(scaling="lgo"), "AddClassCounts: .*'scaling': 'lgo'.*mean 'log'"),
        (lambda: AddClassMeans(neighbors="up"), "AddClassMeans: .*'neighbors': 'up'.*Choose from"),
        (lambda: AddClassMeans(form="factored"), "'form': 'factored'.*auto, dense, sparse, sketch"),
        (lambda: AddDiffusion(form="implicit"), "'form': 'implicit'.*auto, dense, topk, sketch"),
        (lambda: AddDiffusion(topk=0), "AddDiffusion: Setting 'topk' must be at least 1"),
        (lambda: AddDiffusion(kind="pagerank"), "'kind': 'pagerank'.*Choose from: ppr, heat"),
    ],
)
def test_a_wrong_option_is_refused_when_the_transform_is_made(make, told):
    with pytest.raises(SettingError, match=told):
        make()


def without(data, *names):
    for name in names:
        del data[name]
    return data


def changed(data, **values):
    for name, value in values.items():
        data[name] = value
    return data


@pytest.mark.parametrize(
    ("transform", "change", "told"),
    [
        (AddClassCounts(), lambda d: d, r"2 splits, .*split=None\)\. Choose one with split=0 to 1"),
        (AddClassCounts(split=2), lambda d: d, r"2 splits, .*got split=2\)\. Choose one"),
        (AddClassCounts(split=-1), lambda d: d, r"got split=-1\)"),
        (AddClassCounts(), lambda d: without(d, "train_mask"), "has no train_mask, so no label"),
        (AddClassCounts(), lambda d: without(d, "y"), "has no attribute 'y' to read labels from"),
        (AddClassCounts(labels="guess"), lambda d: d, "has no attribute 'guess'"),
        (
            AddClassCounts(labels="guess"),
            lambda d: changed(d, guess=torch.ones(NODES, 3)),
            r"'guess' must hold one class .*shape \(14, 3\).*argmax",
        ),
        (
            AddClassCounts(),
            lambda d: changed(d, train_mask=torch.zeros(NODES, dtype=torch.bool)),
            "AddClassCounts found no label it may read. Mark train nodes",
        ),
        (
            AddClassCounts(),
            lambda d: changed(d, train_mask=torch.arange(4)),
            r"train_mask must be true or false for each of the 14 nodes \(got \(4,\) values of tor",
        ),
        (
            AddClassMeans(split=0),
            lambda d: without(d, "x"),
            "no attributes x, of which class means",
        ),
        (AddDiffusion(), lambda d: without(d, "edge_index"), "no edge_index.*ToSparseTensor"),
        (AddDiffusion(), lambda d: HeteroData(), r"got HeteroData\)\. Call to_homogeneous"),
    ],
)
def test_an_object_that_cannot_be_read_is_refused(data, transform, change, told):
    with pytest.raises(HPGMNError, match=told):
        transform(change(data))


def test_negative_weights_are_refused_as_in_a_graph(data):
    data.edge_weight = -torch.ones(data.edge_index.size(1))
    with pytest.raises(GraphError, match="edge_weight must be finite and positive"):
        AddDiffusion()(data)
