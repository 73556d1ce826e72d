"""Tables of what is new, added to a graph: the whole is what whole tables would give."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.graph import Graph, from_tables

Table = dict[str, list[Any]]
TODAY: Table = {
    "id": [7, 8, 9, 10],
    "age": [20.0, 30.0, None, 50.0],
    "region": ["north", "south", "north", "south"],
    "label": ["good", "bad", "good", "bad"],
    "split": ["train", "train", "val", "test"],
}
EDGES: Table = {"source": [7, 8, 9, 10], "target": [8, 9, 10, 7]}
NEW: Table = {"id": [11, 12], "age": [90.0, None], "region": ["south", "west"]}
NEW_EDGES: Table = {"source": [11, 7, 8], "target": [8, 12, 7]}


def changed(table, **columns):
    """A table with some columns changed; None leaves one out."""
    found = {**table, **columns}
    return {name: own for name, own in found.items() if own is not None}


def test_the_whole_is_what_whole_tables_give():
    today = from_tables(TODAY, EDGES, name="today")
    tomorrow = from_tables(NEW, NEW_EDGES, onto=today, name="tomorrow")
    nothing = {"label": [None, None], "split": [None, None]}
    everything = {name: TODAY[name] + {**NEW, **nothing}[name] for name in TODAY}
    whole = from_tables(
        everything, {name: EDGES[name] + NEW_EDGES[name] for name in EDGES}, like=today
    )
    assert tomorrow.name == "tomorrow"
    assert tomorrow.fingerprint == whole.fingerprint
    assert tomorrow.node_ids.tolist() == ["7", "8", "9", "10", "11", "12"]
    assert tomorrow.y.tolist() == whole.y.tolist() == [1, 0, 1, 0, -1, -1]
    assert tomorrow.class_names == ("bad", "good")
    assert tomorrow.preparation == today.preparation
    # Mean 30 of the known ages, deviation 10.8; 12 has no age and so the median, and no region.
    np.testing.assert_allclose(tomorrow.x[4:, 0], whole.x[4:, 0])
    assert tomorrow.x[4, 0] > 3
    assert tomorrow.split(0).train.tolist() == [True, True, False, False, False, False]
    assert tomorrow.split(0).val.tolist() == [False, False, True, False, False, False]
    np.testing.assert_array_equal(tomorrow.x[:4], today.x)


def test_labels_of_new_nodes_are_read_and_new_classes_come_last():
    today = from_tables(TODAY, EDGES)
    tomorrow = from_tables(changed(NEW, label=["awful", "good"]), NEW_EDGES, onto=today)
    assert tomorrow.class_names == ("bad", "good", "awful")
    assert tomorrow.y.tolist() == [1, 0, 1, 0, 2, 1]


def test_weights_and_direction_are_those_of_the_graph():
    weighted = from_tables(TODAY, changed(EDGES, weight=[1.0, 2.0, 3.0, 4.0]), directed=False)
    new = changed(NEW_EDGES, weight=[5.0, 6.0, 7.0])
    tomorrow = from_tables(NEW, new, onto=weighted)
    assert not tomorrow.directed
    assert tomorrow.edge_weight.tolist() == [1, 2, 3, 4, 5, 6, 7]
    plain = from_tables(NEW, new, onto=from_tables(TODAY, EDGES))
    assert plain.directed
    assert plain.edge_weight is None
    with pytest.raises(HPGMNError, match=r"^edges has no column 'weight', which the model was"):
        from_tables(NEW, NEW_EDGES, onto=weighted)
    numbers = changed(TODAY, age=[1, 2, 3, 4])
    plain = from_tables(
        numbers, changed(EDGES, weight=[1.0] * 4), attributes=["age"], prepare=False
    )
    with pytest.raises(HPGMNError, match=r"edges has no weights, but the edges of graph 'graph'"):
        from_tables(NEW, NEW_EDGES, onto=plain)


def numbers(nodes):
    return {"age": [1.0] * len(nodes["id"]), "id": nodes["id"], "height": [2.0] * len(nodes["id"])}


def test_attributes_as_they_are_keep_their_columns_and_sparseness():
    today = from_tables(numbers(TODAY), EDGES, prepare=False)
    assert today.preparation is None
    new = {"shoe": [44, 45], "height": [3.0, 0.0], "id": [11, 12], "age": [0.0, 5.0]}
    tomorrow = from_tables(new, NEW_EDGES, onto=today)
    assert tomorrow.x[4:].tolist() == [[0, 3], [5, 0]]
    thin = Graph(sp.csr_array(today.x), today.edge_index, node_ids=today.node_ids)
    grown = from_tables(new, NEW_EDGES, onto=thin, drop=["shoe"])
    assert grown.has_sparse_attributes
    assert grown.x.toarray()[4:].tolist() == [[3, 0], [0, 5]]  # no names: as the columns stand
    assert grown.splits is None
    told = r"^The numbers of attributes differ: 3 of the new nodes, 2 of graph 'graph'"
    with pytest.raises(HPGMNError, match=told):
        from_tables(new, NEW_EDGES, onto=thin)


def test_no_label_at_all_is_unknown():
    today = Graph([[1.0], [2.0]], [[0], [1]], [0, 1], node_ids=["a", "b"])
    new = {"id": ["long name"], "x": [1.0]}
    grown = from_tables(new, {"source": ["long name"], "target": ["a"]}, onto=today)
    assert grown.y.tolist() == [0, 1, -1]
    assert grown.class_names == ("0", "1")
    assert grown.node_ids.tolist() == ["a", "b", "long name"]
    assert grown.edge_index.tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize(
    ("nodes", "edges", "told"),
    [
        (
            {"id": [11, 9]},
            {},
            "nodes: row 2 has the id '9', which graph 'graph' has already. Leave such rows out, or",
        ),
        ({"id": [8, 9]}, {}, r"row 1 has the id '8', which .* already (2 such rows in all)."),
        ({"id": [11, 11]}, {}, "nodes: row 2 repeats the id '11' of row 1"),
        ({}, {"source": [11, 7, 99]}, "edges: row 3 has the source '99', not an id in nodes. Add"),
        ({"age": None}, {}, "nodes has no column 'age', which the model was trained with."),
    ],
)
def test_what_cannot_be_added_is_one_sentence(nodes, edges, told):
    today = from_tables(TODAY, EDGES)
    with pytest.raises(HPGMNError) as caught:
        from_tables(changed(NEW, **nodes), changed(NEW_EDGES, **edges), onto=today)
    first, *rest = told.split(" .* ")
    assert first in str(caught.value)
    assert all(part in str(caught.value) for part in rest)
    assert "--" not in str(caught.value)


def test_a_graph_without_names_cannot_be_added_to():
    nameless = Graph([[1.0], [2.0]], [[0], [1]])
    with pytest.raises(HPGMNError, match="has no node_ids, so new edges cannot name its nodes"):
        from_tables({"id": ["c"], "age": [1.0]}, {"source": ["c"], "target": ["0"]}, onto=nameless)


def test_only_one_graph_is_followed():
    today = from_tables(TODAY, EDGES)
    with pytest.raises(SettingError, match="like and onto exclude each other"):
        from_tables(NEW, NEW_EDGES, like=today, onto=today)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_edges_to_an_earlier_graph_name_the_way_to_add(ending, tmp_path, write_table, caplog):
    from hpgmn.graph.datasets import load

    today = from_tables(TODAY, EDGES)
    for name, table in (("nodes", NEW), ("edges", changed(NEW_EDGES, target=[8, 12, 99]))):
        write_table(tmp_path / f"{name}.{ending}", table)
    options = {"preparation": today.preparation}
    with pytest.raises(HPGMNError, match="trained on 2 of the unknown nodes") as caught:
        load(tmp_path, **options, earlier_ids=today.node_ids)
    assert "(--add), or leave out such edges" in caught.value.render(cli=True)
    assert "(onto=...)" in str(caught.value)
    options["earlier_ids"] = today.node_ids
    graph = load(tmp_path, **options, drop_unknown_edges=True)
    assert graph.num_listed_edges == 0
    assert "trained on 2 of the unknown nodes" in caplog.text
    options["earlier_ids"] = np.array(["x"])
    with pytest.raises(HPGMNError, match=r"\(3 such edges in all\)\. Add the node"):
        load(tmp_path, **options)
    with pytest.raises(HPGMNError, match="trained on 2 of the unknown nodes"):
        from_tables(NEW, NEW_EDGES, like=today)


def test_tables_are_added_to_a_graph_and_files_are_not(tmp_path, write_table):
    from hpgmn.graph.datasets import load
    from hpgmn.graph.files import write_graph

    today = from_tables(TODAY, EDGES)
    for name, table in (("nodes", NEW), ("edges", NEW_EDGES)):
        write_table(tmp_path / "new" / f"{name}.csv", table)
    tomorrow = load(tmp_path / "new", onto=today)
    assert tomorrow.name == "new"
    assert tomorrow.fingerprint == from_tables(NEW, NEW_EDGES, onto=today).fingerprint
    write_graph(today, tmp_path / "today.npz")
    with pytest.raises(SettingError, match="only tables of new nodes and edges can be added"):
        load(tmp_path / "today.npz", onto=today)


def test_degrees_are_those_of_the_whole():
    bare = {"id": TODAY["id"], "label": TODAY["label"]}
    today = from_tables(bare, EDGES)
    tomorrow = from_tables({"id": NEW["id"]}, NEW_EDGES, onto=today)
    ends = [*EDGES["source"], *EDGES["target"], *NEW_EDGES["source"], *NEW_EDGES["target"]]
    counts = np.array([ends.count(name) for name in [*TODAY["id"], *NEW["id"]]])
    expected = np.log1p(counts) - np.log1p(2)  # a ring today: no deviation to divide by
    np.testing.assert_allclose(tomorrow.x[:, 0], expected, atol=1e-6)
