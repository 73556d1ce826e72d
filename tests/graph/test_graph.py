"""Graph: what it accepts, what it refuses and how, and its neighbourhoods by a dense reference."""

import hashlib
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph, Splits, random_splits
from hpgmn.graph.edges import SortedEdges

X = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]
EDGES = [[0, 1, 1, 2], [1, 2, 2, 2]]  # 1 → 2 twice, and a self-loop at 2


@st.composite
def edge_lists(draw):
    """Nodes, edges with weights (none, repeats and self-loops included), weighted?, directed?"""
    num_nodes = draw(st.integers(1, 5))
    node = st.integers(0, num_nodes - 1)
    weight = st.sampled_from([0.25, 0.5, 1.0, 2.0])
    edges = draw(st.lists(st.tuples(node, node, weight), max_size=12))
    return num_nodes, edges, draw(st.booleans()), draw(st.booleans())


def make_graph(num_nodes, edges, weighted, directed):
    ends = np.array([edge[:2] for edge in edges], np.int64).reshape(-1, 2).T
    weight = np.array([edge[2] for edge in edges]) if weighted else None
    return Graph(np.ones((num_nodes, 1)), ends, edge_weight=weight, directed=directed)


def dense_adjacency(num_nodes, edges, weighted, directed, neighbors):
    """The same matrix in the most obvious way: one edge after the other."""
    out = np.zeros((num_nodes, num_nodes))
    for source, target, weight in edges:
        if source != target:
            out[source, target] = out[source, target] + weight if weighted else 1.0
    if not directed:
        return np.maximum(out, out.T)
    if neighbors == "out":
        return out
    if neighbors == "in":
        return out.T
    return out + out.T if weighted else np.maximum(out, out.T)


@given(edge_lists(), st.sampled_from(["out", "in", "undirected"]))
def test_adjacency_matches_the_dense_reference(case, neighbors):
    found = make_graph(*case).adjacency(neighbors)
    np.testing.assert_array_equal(found.toarray(), dense_adjacency(*case, neighbors))
    assert found.has_sorted_indices
    assert (found.data > 0).all()
    assert (found.dtype, found.indices.dtype, found.indptr.dtype) == ("float32", "int32", "int32")


@given(edge_lists())
def test_counts_of_edges_and_isolated_nodes_match_the_dense_reference(case):
    graph = make_graph(*case)
    out = dense_adjacency(*case, "out") > 0
    assert graph.num_edges == (out.sum() if case[3] else out.sum() // 2)
    assert graph.isolated_nodes.tolist() == np.flatnonzero(~(out | out.T).any(axis=0)).tolist()


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(-3, 6), st.integers(-3, 6)), max_size=6))
def test_edges_are_refused_exactly_when_a_node_is_absent(num_nodes, edges):
    ends = np.array(edges, np.int64).reshape(-1, 2).T
    if all(0 <= end < num_nodes for edge in edges for end in edge):
        np.testing.assert_array_equal(Graph(np.ones((num_nodes, 1)), ends).edge_index, ends)
    else:
        with pytest.raises(GraphError, match="Remove such edges or add the nodes"):
            Graph(np.ones((num_nodes, 1)), ends)


@given(st.lists(st.floats(width=32), min_size=6, max_size=6), st.booleans())
def test_attributes_are_refused_exactly_when_one_is_not_finite(values, is_sparse):
    x: Any = np.array(values, np.float32).reshape(3, 2)
    given_x = sp.csr_array(x) if is_sparse else x
    if np.isfinite(x).all():
        found: Any = Graph(given_x, EDGES).x
        np.testing.assert_array_equal(found.toarray() if is_sparse else found, x)
    else:
        row, column = np.argwhere(~np.isfinite(x))[0]
        with pytest.raises(GraphError, match=f"at node {row}, attribute {column}"):
            Graph(given_x, EDGES)


def test_sizes_and_defaults():
    graph = Graph(X, EDGES, [0, 2, -1])
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (3, 2, 3)
    assert graph.num_edges == 2
    assert graph.class_names == ("0", "1", "2")
    assert graph.splits is None
    assert graph.node_ids is None
    assert repr(graph) == "Graph('graph': 3 nodes, 2 edges, 2 attributes, 3 classes)"


def test_names_of_an_array_are_as_wide_as_the_longest():
    """So that equal graphs have equal fingerprints, however their names came."""
    names = np.array(["a", "bbb", "ü"], "U40")
    graph = Graph(X, EDGES, node_ids=names)
    assert graph.node_ids.dtype == "U3"
    assert graph.fingerprint == Graph(X, EDGES, node_ids=list(names)).fingerprint
    with pytest.raises(GraphError, match="'a' repeats"):
        Graph(X, EDGES, node_ids=names[[0, 1, 0]])


def test_the_largest_attributes_are_fine_and_infinite_ones_do_not_cancel():
    largest = float(np.finfo(np.float32).max)
    assert Graph(np.full((50, 20), largest), []).x.max() == largest
    x = np.ones((50, 20))
    x[48, 3], x[49, 1] = np.inf, -np.inf
    with pytest.raises(GraphError, match="x holds inf at node 48, attribute 3"):
        Graph(x, [])


def test_graph_without_labels_has_no_class():
    graph = Graph(X, EDGES)
    assert graph.y.tolist() == [-1, -1, -1]
    assert graph.num_classes == 0


def test_no_edges_are_a_graph():
    graph = Graph(X, [])
    assert graph.num_edges == 0
    assert graph.isolated_nodes.tolist() == [0, 1, 2]
    assert graph.adjacency("in").toarray().tolist() == np.zeros((3, 3)).tolist()


def test_sparse_attributes_stay_sparse_and_merge_repeats():
    x = sp.coo_array(([1.0, 2.0, 0.0], ([0, 0, 2], [1, 1, 0])), shape=(3, 2))
    graph = Graph(x, EDGES)
    assert graph.has_sparse_attributes
    found: Any = graph.x
    assert found.toarray().tolist() == [[0, 3], [0, 0], [0, 0]]
    assert found.nnz == 1  # a stored zero is dropped
    assert x.nnz == 3  # and what the user gave is left alone


def test_torch_tensors_are_accepted():
    torch = pytest.importorskip("torch")
    x = torch.tensor(X, requires_grad=True)
    graph = Graph(x, torch.tensor(EDGES), torch.tensor([0, 1, 0]))
    np.testing.assert_array_equal(graph.x, X)
    sparse: Any = Graph(x.to_sparse(), torch.tensor(EDGES)).x
    np.testing.assert_array_equal(sparse.toarray(), X)


@pytest.mark.parametrize("field", ["train_mask", "val_mask", "test_mask"])
def test_one_split_may_be_given_as_a_vector(field):
    masks = {"train_mask": [True, False, False], field: [False, True, False]}
    graph = Graph(X, EDGES, [0, 1, 0], **masks)
    assert getattr(graph.splits, field.removesuffix("_mask"))[:, 0].tolist() == masks[field]
    assert len(graph.splits) == 1


def three_splits():
    role = np.array([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    return Graph(X, EDGES, [0, 1, 0], train_mask=role == 0, val_mask=role == 1, test_mask=role == 2)


def test_splits_are_a_sequence():
    graph = three_splits()
    assert [split.train.tolist().index(True) for split in graph.splits] == [0, 2, 1]
    assert graph.split(1).val.tolist() == [True, False, False]
    later = graph.splits[1:]
    assert isinstance(later, Splits)
    assert len(later) == 2
    assert later[0].test.tolist() == graph.splits[1].test.tolist()
    with pytest.raises(IndexError):
        graph.splits[3]


def test_an_absent_split_is_refused_with_those_that_exist():
    graph = three_splits()
    with pytest.raises(GraphError, match=r"has splits 0 to 2 \(got 3\)"):
        graph.split(3)
    with pytest.raises(GraphError, match=r"has splits 0 to 2 \(got -1\)"):
        graph.split(-1)
    with pytest.raises(GraphError, match=r"has only split 0 \(got 1\)"):
        graph.with_splits(graph.splits[:1]).split(1)
    with pytest.raises(GraphError, match=r"has no splits"):
        Graph(X, EDGES).split(0)


def test_with_splits_leaves_the_graph_alone_and_checks():
    graph = three_splits()
    twin = graph.with_splits(graph.splits[:1])
    assert (len(twin.splits), len(graph.splits)) == (1, 3)
    assert twin.x is graph.x
    everything = np.ones((3, 1), bool)
    with pytest.raises(GraphError, match="Split 0 uses node 0 twice"):
        graph.with_splits(Splits(everything, everything, everything))


def test_alternative_splits_are_checked_and_brought_to_one_form():
    train, val, test = np.eye(3, dtype=bool)
    graph = Graph(X, EDGES, [0, 1, 0], alternative_splits={"other": Splits(train, val, test)})
    assert graph.alternative_splits["other"].train.tolist() == [[True], [False], [False]]
    with pytest.raises(GraphError, match="Split 0 uses node 2, whose label is unknown"):
        Graph(X, EDGES, [0, 1, -1], alternative_splits={"other": Splits(train, val, test)})


REFUSED = {
    "text attributes": ({"x": [["a"], ["b"], ["c"]]}, r"x must be numbers \(got values of type <U"),
    "ragged attributes": ({"x": [[1.0], [1.0, 2.0], [3.0]]}, "some rows differ in length"),
    "flat attributes": ({"x": [1.0, 2.0, 3.0]}, r"two dimensions.*\(got shape \(3,\)\)"),
    "no attributes": ({"x": np.ones((3, 0))}, r"both at least 1 \(got shape \(3, 0\)\)"),
    "no sparse attributes": ({"x": sp.csr_array((3, 0))}, r"both at least 1 \(got shape \(3, 0\)"),
    "complex sparse attributes": ({"x": sp.csr_array(np.eye(3) * 1j)}, "x must be numbers"),
    "attribute too large": ({"x": [[1.0], [1e300], [1.0]]}, "x holds inf at node 1"),
    "sparse attribute too large": ({"x": sp.csr_array(np.eye(3) * 1e300)}, "x holds inf at node 0"),
    "edge to an absent node": (
        {"edge_index": [[0, 1, 5], [1, 3, 0]]},
        r"Edge 1 runs from 1 to 3 \(and 1 more like it\), but nodes are numbered 0 to 2",
    ),
    "edge from a huge place": ({"edge_index": [[1e300], [0]]}, "Edge 0 runs from 1000"),
    "edges by row": ({"edge_index": [[0, 1], [1, 2], [2, 0]]}, r"got \(3, 2\)\). Transpose it"),
    "edges between nodes": ({"edge_index": [[0.5], [1.0]]}, "edge_index must hold integers"),
    "named edges": ({"edge_index": [["a"], ["b"]]}, "edge_index must be numbers"),
    "infinite target": ({"y": [0.5, np.inf, 0]}, "y holds inf at node 1.*must be finite"),
    "named targets": ({"y": [0.5, 1, 0], "class_names": ["a"]}, "y holds targets of type float"),
    "named labels": ({"y": ["a", "b", "a"]}, "y must be numbers"),
    "negative label": ({"y": [0, -2, 0]}, "y holds -2 at node 1"),
    "huge label": ({"y": [0, 10**18, 0]}, "y holds class 1000"),
    "too few labels": ({"y": [0, 1]}, r"one label per node, 3 \(got 2\)"),
    "too few weights": ({"edge_weight": [1.0]}, r"one value per edge, 4 \(got 1\)"),
    "weight of zero": ({"edge_weight": [1, 0, 1, 1]}, r"\(got 0 at edge 1\). Remove edges"),
    "infinite weight": ({"edge_weight": [1, 1, 1e300, 1]}, r"\(got inf at edge 2\)"),
    "too few types": ({"edge_type": [1]}, r"one number per edge, 4 \(got 1\)"),
    "negative type": ({"edge_type": [0, 0, -1, 0]}, r"\(got -1 at edge 2\). Number the types"),
    "type between types": ({"edge_type": [0, 0.5, 1, 0]}, r"\(got 0.5 at edge 1\)"),
    "named types": ({"edge_type": list("abcd")}, "edge_type must be numbers"),
    "huge type": ({"edge_type": [0, 10**9, 1, 0]}, "edge_type holds 1000000000 among 4 edges"),
    "too few type names": (
        {"edge_type": [0, 1, 2, 0], "edge_type_names": ["a", "b"]},
        "2 names, but edge_type has types up to 2",
    ),
    "repeated type name": (
        {"edge_type": [0, 1, 1, 0], "edge_type_names": ["a", "a"]},
        "edge_type_names must be distinct",
    ),
    "type names alone": ({"edge_type_names": ["a"]}, "given without edge_type"),
    "mask of numbers": ({"train_mask": [0.5, 1, 0]}, "train_mask must be true or false"),
    "list of nodes as mask": ({"train_mask": [0, 2, 5]}, "train_mask must be true or false"),
    "short mask": ({"train_mask": [True, False]}, r"3 rows, one per node \(got shape \(2, 1\)\)"),
    "mask without train": ({"test_mask": [True, False, False]}, "Pass it too"),
    "different numbers of splits": (
        {"train_mask": np.zeros((3, 2), bool), "val_mask": np.zeros((3, 1), bool)},
        r"the same number of splits \(got 2, 1 and 2\)",
    ),
    "node used twice": (
        {"train_mask": [True, False, False], "test_mask": [True, False, False]},
        "Split 0 uses node 0 twice",
    ),
    "too few class names": ({"class_names": ["a"]}, "1 names, but y has classes up to 1"),
    "repeated class name": (
        {"class_names": ["a", "a"]},
        "class_names must be distinct; 'a' repeats",
    ),
    "too few node names": ({"node_ids": ["a"]}, r"node_ids must have 3 names \(got 1\)"),
    "repeated node name": ({"node_ids": ["a", "b", "b"]}, "'b' repeats"),
    "too few feature names": ({"feature_names": ["a"]}, r"must have 2 names \(got 1\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_sentence(case):
    changes, message = REFUSED[case]
    with pytest.raises(GraphError, match=message):
        Graph(**{"x": X, "edge_index": EDGES, "y": [0, 1, 0]} | changes)


def test_unknown_neighbour_mode_is_refused_with_the_nearest():
    with pytest.raises(GraphError, match="Did you mean 'undirected'"):
        Graph(X, EDGES).adjacency("undirect")
    with pytest.raises(GraphError, match="Unknown neighbour mode 'both'"):
        Graph(X, EDGES).adjacency("both")


@given(edge_lists(), st.sampled_from(["out", "in", "undirected"]))
def test_a_graph_of_sorted_edges_is_the_graph_of_the_listed_ones(case, neighbors):
    listed = make_graph(*case)
    edges = SortedEdges.of(listed.edge_index, listed.num_nodes, listed.edge_weight)
    graph = Graph(listed.x, edges, directed=listed.directed)
    assert graph.fingerprint == listed.fingerprint
    assert graph.is_weighted == listed.is_weighted == case[2]
    assert graph.num_listed_edges == listed.num_listed_edges == len(case[1])
    found = graph.adjacency(neighbors)
    np.testing.assert_array_equal(found.toarray(), dense_adjacency(*case, neighbors))
    assert "edge_index" not in graph.__dict__  # nobody needed them
    np.testing.assert_array_equal(graph.edge_index, listed.edge_index)
    assert graph.edge_index.dtype == np.int64
    if case[2]:
        np.testing.assert_array_equal(graph.edge_weight, listed.edge_weight)
    else:
        assert graph.edge_weight is None


def test_sorted_edges_that_do_not_go_with_the_nodes_are_refused():
    edges = SortedEdges.of(np.array(EDGES), 3)
    with pytest.raises(GraphError, match="x has 2 nodes, but the sorted edges 3"):
        Graph(X[:2], edges)
    with pytest.raises(GraphError, match="Pass the weights with them"):
        Graph(X, edges, edge_weight=[1, 2, 3, 4])
    bad = SortedEdges.of(np.array(EDGES), 3, np.float32([1, -2, 3, 4]))
    with pytest.raises(GraphError, match="edge_weight must be finite and positive"):
        Graph(X, bad)


def test_fingerprint_is_the_hash_it_has_always_been():
    """Models in files know their graph by it."""
    graph = Graph(X, EDGES, edge_weight=[1, 2, 3, 4], node_ids=["a", "b", "c"])
    digest = hashlib.sha256()
    for part in (
        np.array(EDGES, np.int64),
        np.array([True]),
        np.array(X, np.float32),
        np.array([1, 2, 3, 4], np.float32),
        np.array(["a", "b", "c"]),
    ):
        digest.update(f"{part.dtype}{part.shape}".encode())
        digest.update(part.tobytes())
    assert graph.fingerprint == digest.hexdigest()


def test_fingerprint_is_the_same_for_equal_graphs_only():
    base = {"x": X, "edge_index": EDGES, "y": [0, 1, 0]}
    wide = sp.csr_array(np.hstack([X, np.zeros((3, 1))]))
    others = [
        {"x": np.array(X) + 1},
        {"x": sp.csr_array(X)},
        {"x": wide},  # the entries of the one before, with an empty column more
        {"edge_index": [[0, 1, 1, 2], [1, 2, 2, 1]]},
        {"directed": False},
        {"edge_weight": [1, 1, 1, 1]},
        {"node_ids": ["a", "b", "c"]},
    ]
    prints = [Graph(**base | change).fingerprint for change in others]
    prints.append(Graph(**base).fingerprint)
    assert len(set(prints)) == len(prints)
    assert Graph(**base | {"y": None}).fingerprint == prints[-1]


def test_split_is_the_cut_permutation_of_the_labelled_nodes():
    y = np.array([0, 1, -1, 0, 1, 0, 1, 1, 0, 0, -1, 1])
    splits = random_splits(y, count=3, stratified=False)
    labelled = np.flatnonzero(y >= 0)
    for number, split in enumerate(splits):
        order = np.random.default_rng(number).permutation(labelled)
        assert np.flatnonzero(split.train).tolist() == sorted(order[:6])
        assert np.flatnonzero(split.val).tolist() == sorted(order[6:8])
        assert np.flatnonzero(split.test).tolist() == sorted(order[8:])


def test_a_split_depends_on_its_own_seed_alone():
    y = np.arange(40) % 3
    ten = random_splits(y, count=10, stratified=True)
    last = random_splits(y, count=1, stratified=True, first_seed=9)
    np.testing.assert_array_equal(ten[9].train, last[0].train)
    np.testing.assert_array_equal(ten[9].test, last[0].test)
    assert not np.array_equal(ten[0].train, ten[1].train)


def test_a_graph_may_be_given_for_its_labels():
    y = np.arange(20) % 2
    graph = Graph(np.ones((20, 1)), [], y)
    np.testing.assert_array_equal(random_splits(graph).val, random_splits(y).val)
    assert graph.with_splits(random_splits(graph)).split(9).train.sum() == 12


@given(st.lists(st.integers(-1, 3), min_size=30, max_size=60), st.booleans(), st.integers(0, 1000))
def test_every_labelled_node_is_in_one_part(labels, stratified, first_seed):
    y = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, *labels])
    splits = random_splits(y, count=2, stratified=stratified, first_seed=first_seed)
    parts = splits.train.astype(int) + splits.val + splits.test
    np.testing.assert_array_equal(parts, np.repeat((y >= 0).astype(int)[:, None], 2, axis=1))


@given(st.lists(st.integers(-1, 5), min_size=20, max_size=60))
def test_stratified_splits_have_the_fractions_in_every_class(labels):
    y = np.array([*[0] * 10, *labels])
    splits = random_splits(y, count=2, stratified=True)
    for label in np.unique(y[y >= 0]):
        size = (y == label).sum()
        train = splits.train[y == label].sum(axis=0)
        test = splits.test[y == label].sum(axis=0)
        assert (train >= 1).all()
        assert (np.abs(train - 0.6 * size) <= 0.5 + (size == 1)).all()
        assert (np.abs(test - 0.2 * size) <= 1).all()


def test_a_class_of_one_node_is_trained_on():
    y = np.array([0] * 10 + [1] * 10 + [2])
    assert random_splits(y, stratified=True).train[20].all()


def test_a_rest_stays_unused():
    splits = random_splits(np.zeros(100, int), count=1, fractions=(0.1, 0.2, 0.3))
    assert [mask.sum() for mask in (splits.train, splits.val, splits.test)] == [10, 20, 30]


def test_a_part_may_be_asked_to_be_empty():
    splits = random_splits(np.zeros(10, int), count=1, fractions=(0.8, 0, 0.2))
    assert [mask.sum() for mask in (splits.train, splits.val, splits.test)] == [8, 0, 2]


@pytest.mark.parametrize("labels", [[], [-1, -1, -1], [0, 1, -1, -1]])
@pytest.mark.parametrize("stratified", [False, True])
def test_too_few_labelled_nodes_are_refused(labels, stratified):
    count = sum(label >= 0 for label in labels)
    message = f"{count} labelled nodes are too few for a 0.6/0.2/0.2 split: .* Label more nodes"
    with pytest.raises(GraphError, match=message):
        random_splits(np.array(labels, int), stratified=stratified)


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (0.6, 0.3, 0.2), (0, 0.5, 0.5), (0.9, -0.1, 0)])
def test_impossible_fractions_are_refused(fractions):
    with pytest.raises(ValueError, match="fractions must be three shares"):
        random_splits(np.zeros(10, int), fractions=fractions)


def test_no_split_is_refused():
    with pytest.raises(ValueError, match=r"count must be at least 1 \(got 0\)"):
        random_splits(np.zeros(10, int), count=0)


@given(edge_lists(), st.data())
def test_adjacency_of_a_type_is_that_of_its_edges_alone(case, data):
    num_nodes, edges, weighted, directed = case
    types = data.draw(st.lists(st.integers(0, 2), min_size=len(edges), max_size=len(edges)))
    plain = make_graph(*case)
    names = ["card", "wire", "cash"]
    graph = Graph(
        plain.x,
        plain.edge_index,
        edge_weight=plain.edge_weight,
        edge_type=types,
        edge_type_names=names,
        directed=directed,
    )
    both = Graph(plain.x, graph.sorted_edges, edge_type_names=names, directed=directed)
    for neighbors in ("out", "in", "undirected"):
        merged = graph.adjacency(neighbors).toarray()
        np.testing.assert_array_equal(merged, plain.adjacency(neighbors).toarray())
        for number in range(3):
            own = [edge for edge, kind in zip(edges, types, strict=True) if kind == number]
            expected = dense_adjacency(num_nodes, own, weighted, directed, neighbors)
            for typed in (graph, both):
                found = typed.adjacency(neighbors, number)
                np.testing.assert_array_equal(found.toarray(), expected)
        rest = [edge for edge, kind in zip(edges, types, strict=True) if kind != 1]
        expected = dense_adjacency(num_nodes, rest, weighted, directed, neighbors)
        np.testing.assert_array_equal(graph.adjacency(neighbors, [0, 2]).toarray(), expected)
    np.testing.assert_array_equal(both.edge_type, graph.edge_type)
    assert graph.fingerprint == both.fingerprint != plain.fingerprint


def test_types_change_the_fingerprint_and_rare_ones_are_merged():
    graph = Graph(X, EDGES, edge_type=[0, 1, 1, 0])
    assert graph.edge_type_names == ("0", "1")
    assert graph.fingerprint != Graph(X, EDGES, edge_type=[1, 1, 1, 0]).fingerprint
    named = Graph(X, EDGES, edge_type=[0, 1, 1, 0], edge_type_names=["a", "b"])
    assert graph.fingerprint != named.fingerprint
    many = Graph(X, [[0, 1] * 6, [1, 2] * 6], edge_type=[*range(10), 9, 9])
    assert many.edge_type_names == (*"012345", "9", "other")
    assert many.edge_type.tolist() == [0, 1, 2, 3, 4, 5, 7, 7, 7, 6, 6, 6]
    with pytest.raises(GraphError, match=r"has 2 edge types \(got number 2\)"):
        graph.adjacency("out", 2)
    with pytest.raises(GraphError, match=r"has 0 edge types"):
        Graph(X, EDGES).adjacency("out", 0)
    with pytest.raises(GraphError, match="Pass the types with them"):
        Graph(X, graph.sorted_edges, edge_type=[0, 1, 1, 0])
