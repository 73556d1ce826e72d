"""Input becomes arrays of the right kind, or one sentence says why not."""

import networkx
import numpy as np
import pytest
import torch

from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph, Splits, validation

X, EDGES = [[1.0], [2.0]], [[0], [1]]


def test_numbers_of_half_precision_are_read():
    half = torch.tensor([[1.5], [-2.0]], dtype=torch.bfloat16)
    assert validation.attributes(half).tolist() == [[1.5], [-2.0]]
    sparse = torch.tensor([[0.0, 1.5]], dtype=torch.float16).to_sparse()
    assert validation.attributes(sparse).toarray().tolist() == [[0.0, 1.5]]
    blocks = torch.ones(2, 2).to_sparse(1)  # sparse rows of dense values
    assert validation.attributes(blocks).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_names_of_a_tensor_are_its_numbers():
    found = validation.names("node_ids", torch.tensor([7, 3]), 2)
    assert found.tolist() == ["7", "3"]


def test_names_may_be_views_that_have_an_order():
    network = networkx.Graph([("b", "a")])
    graph = Graph(X, EDGES, [1, 0], node_ids=network.nodes(), class_names={"x": 0, "y": 1}.keys())
    assert graph.node_ids.tolist() == ["b", "a"]
    assert graph.class_names == ("x", "y")


def test_a_name_that_no_file_can_hold_is_spelt_out():
    assert Graph(X, EDGES, name="caf\udce9").name == "caf\\udce9"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"directed": "no"}, r"directed must be True or False \(got str\)"),
        ({"directed": np.array([True, False])}, r"directed must be True or False \(got ndarray\)"),
        ({"name": None}, r"name must be text \(got NoneType\)"),
        ({"node_ids": "ab"}, r"node_ids must be a list of names \(got str\)"),
        ({"node_ids": {"a", "b"}}, r"node_ids must be a list of names \(got set\)"),
        ({"node_ids": {"a": 0, "b": 1}}, r"node_ids must be a list of names \(got dict\)"),
        ({"node_ids": np.zeros((2, 1))}, r"node_ids must be a list of names \(got shape \(2, 1\)"),
        ({"node_ids": ["a", "a\0"]}, "node_ids holds a NUL character in name 1. Remove it"),
        ({"node_ids": ["é", "\ud800"]}, "holds an invalid character in name 1"),
        ({"node_ids": np.array(["ab", "c\ud800"])}, "holds an invalid character in name 1"),
        ({"class_names": 5}, r"class_names must be a list of names \(got int\)"),
        ({"y": np.ma.masked_array([0, 1], [False, True])}, "Masked arrays hold missing values"),
        ({"y": object()}, r"y must be numbers \(got object\)"),
        ({"y": torch.zeros(2, dtype=torch.float8_e4m3fn)}, r"y must be numbers \(got Tensor\)"),
        ({"edge_weight": [3e38]}, r"edge_weight adds up to 3e\+38"),
        ({"train_mask": np.zeros((2, 0), bool)}, "train_mask holds no split"),
        ({"alternative_splits": {"geom": 3}}, "alternative_splits must be a dict of names and"),
    ],
)
def test_what_is_no_input_is_refused(given, message):
    with pytest.raises(GraphError, match=message):
        Graph(X, EDGES, **given)


def test_truth_in_any_form():
    for value in (False, 0, np.False_, np.zeros(1, bool), np.array(0)):
        assert Graph(X, EDGES, directed=value).directed is False
    mask = np.array([[True], [False]])
    family = {"geom": Splits(mask, mask[::-1], mask & False)}
    assert Graph(X, EDGES, [0, 1], alternative_splits=family).alternative_splits["geom"]
