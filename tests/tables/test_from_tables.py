"""Tables and networks in memory give the graph that the same data in files give."""

from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hpgmn.base.errors import GraphError, HPGMNError, SettingError
from hpgmn.graph import Graph
from hpgmn.graph import from_networkx as any_network
from hpgmn.graph import from_tables as any_tables
from hpgmn.graph.conversion import read_graph_tables
from hpgmn.graph.datasets import load
from hpgmn.tables.columns import open_tables
from hpgmn.tables.options import Columns

networkx = pytest.importorskip("networkx")
from_tables = partial(any_tables, prepare=False)  # numbers as they are; what follows is prepared
from_networkx = partial(any_network, prepare=False)


read_tables = partial(read_graph_tables, Graph)


NODES = {
    "id": ["a", "b", "c", "d"],
    "age": [1.5, 2.0, -3.25, 4.0],
    "rich": [1, 0, 0, 1],
    "label": ["red", None, "blue", "red"],
    "split": ["train", None, "val", "test"],
}
EDGES: dict[str, Any] = {
    "source": ["a", "b", "b", "c"],
    "target": ["b", "c", "c", "c"],
    "weight": [1.0, 2.0, 0.5, 3.0],
}


def as_arrow(columns):
    return pa.table(columns)


def as_pandas(columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def as_mapping(columns):
    return {name: np.array(own) if name == "age" else own for name, own in columns.items()}


KINDS = [as_arrow, as_pandas, as_mapping]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("directed", [True, False])
def test_tables_in_memory_give_the_graph_of_the_files(write_tables, kind, directed):
    folder = write_tables("parquet", edges={"weight": EDGES["weight"]})
    expected = read_tables(open_tables(folder, Columns(directed=directed)), name="mine")
    found = from_tables(kind(NODES), kind(EDGES), directed=directed, name="mine")
    assert found.fingerprint == expected.fingerprint
    assert found.node_ids.tolist() == ["a", "b", "c", "d"]
    assert found.y.tolist() == expected.y.tolist() == [1, -1, 0, 1]
    assert found.class_names == expected.class_names == ("blue", "red")
    assert found.feature_names.tolist() == ["age", "rich"]
    assert found.split(0).train.tolist() == [True, False, False, False]
    assert (found.directed, found.name) == (directed, "mine")


def test_a_named_index_of_pandas_is_a_column_and_another_is_not():
    pandas = pytest.importorskip("pandas")
    nodes = pandas.DataFrame({"age": [1, 2]}, index=pandas.Index([7, 9], name="node"))
    edges = pandas.DataFrame({"from": [9], "to": [7]}, index=["first"])
    graph = from_tables(nodes, edges)
    assert graph.node_ids.tolist() == ["7", "9"]
    assert graph.edge_index.tolist() == [[1], [0]]


def test_columns_can_be_named_and_left_out():
    nodes = {"who": [3, 4], "kind": [8, 9], "age": [1, 2], "tall": [5, 6], "note": ["x", "y"]}
    edges = {"u": [3], "v": [4], "w": [2.5]}
    named = {"id": "who", "label": "kind", "source": "u", "target": "v"}
    graph = from_tables(nodes, edges, **named, weight="w", drop=["note"])
    assert graph.x.tolist() == [[1, 5], [2, 6]]
    assert graph.edge_weight.tolist() == [2.5]
    assert graph.class_names == ("8", "9")
    wanted = from_tables(nodes, edges, **named, attributes=["tall"])
    assert wanted.x.tolist() == [[5], [6]]
    assert not wanted.is_weighted


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ({"id": "idd"}, 'id="id"'),
        ({"attributes": ["size"]}, "attributes=..."),
        ({"attributes": ["label"]}, "attributes=..."),
        ({"drop": ["label"]}, "drop=..."),
        ({"split": "label"}, "split=..."),
        ({"label": ""}, 'drop=["label"]'),
        ({"split_by": ("group", "ag")}, "split_by=..."),
    ],
)
def test_remedies_name_keywords(options, keyword):
    with pytest.raises(HPGMNError) as caught:
        from_tables(NODES, EDGES, **options)
    assert f"({keyword})" in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize("value", [[1, 2], None, "nodes.csv"])
def test_what_is_no_table_is_refused(value):
    with pytest.raises(GraphError, match=rf"pandas DataFrame.*got {type(value).__name__}\)"):
        from_tables(value, EDGES)


@pytest.mark.parametrize("change", [{"age": [1, "x", None, 2.0]}, {"age": [1, 2]}])
def test_columns_of_mixed_types_or_lengths_are_refused(change):
    with pytest.raises(GraphError, match=r"table of nodes cannot be read \(.*\)\. Give every col"):
        from_tables(NODES | change, EDGES)


def network(kind):
    """Three nodes of any names, two edges from high to low."""
    made = kind(name="club")
    made.add_node("ann", age=41, member=True, role="good")
    made.add_node(7, age=35.5, member=False, role="bad")
    made.add_node((1, 2), age=28, member=True)
    made.add_edge(7, "ann", weight=2.0, since=1999)
    made.add_edge((1, 2), 7, weight=0.5)
    return made


@pytest.mark.parametrize("kind", [networkx.Graph, networkx.DiGraph])
def test_a_network_becomes_a_graph(kind):
    graph = from_networkx(network(kind), label="role")
    assert graph.node_ids.tolist() == ["ann", "7", "(1, 2)"]
    assert graph.x.tolist() == [[41, 1], [35.5, 0], [28, 1]]
    assert (graph.class_names, graph.y.tolist()) == (("bad", "good"), [1, 0, -1])
    assert (graph.name, graph.directed) == ("club", kind is networkx.DiGraph)
    expected = np.zeros((3, 3))
    expected[1, 0], expected[2, 1] = 2.0, 0.5
    if kind is networkx.Graph:
        expected += expected.T
    np.testing.assert_array_equal(graph.adjacency("out").toarray(), expected)


def test_parallel_edges_of_a_network_add_their_weights():
    made = network(networkx.MultiDiGraph)
    made.add_edge(7, "ann", weight=3.0)
    assert from_networkx(made, label="role").adjacency("out")[1, 0] == 5.0


def test_parts_of_a_network_can_be_chosen():
    made = network(networkx.DiGraph)
    only = from_networkx(made, label="role", weight="", attributes=["age"], name="mine")
    assert only.x.tolist() == [[41], [35.5], [28]]
    assert (only.is_weighted, only.name) == (False, "mine")
    nameless = from_networkx(networkx.create_empty_copy(made), label="", drop=["role", "age"])
    assert nameless.x.tolist() == [[1], [0], [1]]
    assert nameless.num_classes == 0
    assert nameless.num_edges == 0


def test_the_split_of_a_network_is_read():
    made = network(networkx.Graph)
    made.nodes["ann"]["part"], made.nodes[7]["part"] = "train", "test"
    graph = from_networkx(made, label="role", split="part")
    assert graph.split(0).train.tolist() == [True, False, False]
    assert graph.split(0).test.tolist() == [False, True, False]


def test_lists_of_numbers_become_columns():
    made = networkx.path_graph(3)
    for node in made:
        made.nodes[node]["x"] = [node, 2.0 * node]
        made.nodes[node]["z"] = np.array([1.0, 2.0, 3.0])
        made.nodes[node][5] = node
    graph = from_networkx(made)
    assert graph.feature_names.tolist() == ["x[0]", "x[1]", "z[0]", "z[1]", "z[2]", "5"]
    assert graph.x[2].tolist() == [2, 4, 1, 2, 3, 2]
    assert from_networkx(made, attributes=["x"]).x.tolist() == [[0, 0], [1, 2], [2, 4]]
    assert from_networkx(made, drop=["z", "5"]).num_features == 2
    made.nodes[1]["x"] = [1]
    with pytest.raises(GraphError, match="attribute 'x' has lists of 1 to 2 numbers"):
        from_networkx(made)


def test_words_and_missing_numbers_are_refused():
    made = network(networkx.Graph)
    with pytest.raises(GraphError, match="column 'role' holds 'good' in row 1"):
        from_networkx(made)
    del made.nodes[7]["age"]
    with pytest.raises(GraphError, match="'age' has 1 missing number, the first in row 2"):
        from_networkx(made, label="role")
    made.add_node("7", age=1)
    with pytest.raises(GraphError, match="row 4 repeats the id '7' of row 2"):
        from_networkx(made, label="role")


def test_what_is_no_network_is_refused():
    with pytest.raises(GraphError, match=r"takes a networkx graph \(got dict\)"):
        from_networkx({})
    with pytest.raises(GraphError, match="nodes has no rows"):
        from_networkx(networkx.Graph())
    with pytest.raises(SettingError, match="Leave out id, source and target"):
        from_networkx(network(networkx.Graph), id="age")


def test_a_label_that_is_not_there_is_refused():
    with pytest.raises(SettingError, match=r"has no column 'rle'; .*\(label=\"role\"\)"):
        from_networkx(network(networkx.Graph), label="rle")


def test_tables_and_networks_are_prepared_unless_the_user_says_no():
    nodes = NODES | {"age": [0, 4, None, 2], "city": ["x", "y", "y", None]}
    graph = any_tables(nodes, EDGES)
    assert graph.feature_names.tolist()[:6] == [
        *("age", "age is missing", "rich", "city=x", "city=y", "city is missing")
    ]
    deviation = (8 / 3) ** 0.5  # of 0, 4 and 2
    np.testing.assert_allclose(graph.x[:, 0], [-2 / deviation, 2 / deviation, 0, 0], rtol=1e-6)
    found = any_network(network(networkx.Graph), label="role")
    assert found.x[:, 1].tolist() == [1, 0, 1]
    assert found.x[:, 0].sum() == pytest.approx(0, abs=1e-6)


def test_new_tables_are_prepared_like_the_first():
    first = any_tables(NODES | {"age": [0, 4, 0, 4]}, EDGES)
    assert first.num_features > 2  # aggregates of edges follow
    new = {"id": ["e", "f"], "age": [6, 2], "rich": [1, 1], "label": [None, "red"]}
    links = {"source": ["e"], "target": ["f"], "weight": [2]}
    graph = any_tables(new, links, like=first)
    assert graph.x[:, :2].tolist() == [[2, 1], [0, 1]]
    assert graph.feature_names.tolist() == first.feature_names.tolist()
    undirected = any_tables(NODES, EDGES, directed=False)
    assert not any_tables(new, links, like=undirected).directed
    assert (graph.class_names, graph.y.tolist()) == (("blue", "red"), [-1, 1])
    with pytest.raises(SettingError, match="like takes a graph whose tables were prepared"):
        any_tables(new, EDGES, like=from_tables(NODES, EDGES))


def test_unknown_edges_and_groups_are_options():
    edges = {"source": ["a", "z"], "target": ["b", "a"]}
    with pytest.raises(GraphError, match=r"\(drop_unknown_edges=True\)"):
        any_tables(NODES, edges)
    assert any_tables(NODES, edges, drop_unknown_edges=True).num_edges == 1
    nodes = NODES | {"label": list("uvuv"), "team": list("xyzz")}
    graph = any_tables(nodes, EDGES, split_by=("group", "team"))
    assert len(graph.splits) == 10


def test_text_is_read_as_in_a_csv_file(write_tables):
    nodes = {
        "id": ["007", "08", "9", "10"],
        "day": ["2024-03-01", "", None, "2024-03-11"],
        "size": ["1.5", "NA", "2", "3"],
        "ok": ["true", "False", "TRUE", None],
        "code": ["01", "x", "01", "y"],
        "note": ["two\nlines", "a,b", 'a "b"', "a,b"],
        "label": ["1.0", "0.0", "1.0", None],
        "split": None,
    }
    edges = {"source": ["007", "9"], "target": ["08", "10"], "weight": ["1", "2.5"]}
    folder = write_tables("csv", nodes, edges)
    expected = read_tables(open_tables(folder, prepare=True))
    held = {name: own for name, own in {**NODES, **nodes}.items() if own is not None}
    graph = any_tables(held, edges)
    assert graph.feature_names.tolist() == expected.feature_names.tolist()
    assert "day" in graph.feature_names
    assert "size" in graph.feature_names
    np.testing.assert_array_equal(graph.x, expected.x)
    assert graph.node_ids.tolist() == nodes["id"] == expected.node_ids.tolist()
    assert graph.class_names == expected.class_names == ("0.0", "1.0")
    assert graph.edge_weight.tolist() == [1, 2.5]


def test_a_network_without_attributes_has_degrees(caplog):
    club = networkx.karate_club_graph()
    graph = any_network(club, label="club", edge_drop=["weight"])
    expected = np.log1p([degree for _, degree in club.degree()])
    expected = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(graph.x[:, 0], expected, rtol=1e-5)
    assert graph.feature_names.tolist() == ["degree"]
    assert graph.class_names == ("Mr. Hi", "Officer")
    assert len(caplog.messages) == 1
    assert "nodes has no attributes that can be used, so nodes have one: degree" in caplog.text
    raw = from_networkx(club, label="club")
    np.testing.assert_allclose(raw.x[:, 0], np.log1p([degree for _, degree in club.degree()]))


def test_no_time_beside_a_number_is_a_missing_value():
    """As objects they crashed pyarrow, and so the process."""
    pd = pytest.importorskip("pandas")
    mixed = [np.datetime64("NaT"), np.int64(3), [1]]
    nodes = {"id": ["a", "b", "c"], "age": [np.datetime64("NaT"), np.int64(3), np.int64(4)]}
    edges = {"source": ["a"], "target": ["b"]}
    frame = pd.DataFrame({name: pd.Series(own, dtype=object) for name, own in nodes.items()})
    for table in (nodes, frame):
        assert any_tables(table, edges).num_nodes == 3
    with pytest.raises(GraphError, match="Give every column values of one type"):
        from_tables(nodes | {"age": mixed}, edges)


TYPED = EDGES | {"kind": ["wire", None, "card", " wire "]}


def test_edge_types_are_read_only_if_named(write_tables):
    assert any_tables(NODES, TYPED).edge_type is None
    graph = any_tables(NODES, TYPED, edge_type="kind")
    assert graph.edge_type_names == ("card", "missing", "wire")
    assert graph.edge_type.tolist() == [2, 1, 0, 2]
    assert graph.adjacency("out", 2).nnz == 1  # without the self-loop
    for suffix in ("csv", "parquet"):
        edges = {"weight": EDGES["weight"], "kind": TYPED["kind"]}
        folder = write_tables(suffix, edges=edges, folder=suffix)
        found = load(folder, edge_type="kind", prepare=True)
        assert found.fingerprint == graph.fingerprint
    dropped = TYPED | {"source": ["z", "b", "b", "c"]}
    graph = any_tables(NODES, dropped, edge_type="kind", drop_unknown_edges=True)
    assert graph.edge_type.tolist() == [1, 0, 2]


def test_later_tables_have_the_types_of_the_first():
    many = {"source": ["a", "b"] * 10, "target": ["b", "c"] * 10, "kind": [*range(10)] * 2}
    for name, edges in (("few", TYPED), ("many", many)):
        first = any_tables(NODES, edges, edge_type="kind")
        like = any_tables(NODES, edges | {"kind": edges["kind"][::-1]}, like=first)
        assert like.edge_type_names == first.edge_type_names
        assert like.edge_type.tolist() == first.edge_type.tolist()[::-1]
        node = {"id": ["e"], "age": [6], "rich": [1]}
        link = {"source": ["e"], "target": ["a"], "weight": [2.0], "kind": [edges["kind"][0]]}
        larger = any_tables(node, link, onto=first)
        assert larger.edge_type.tolist() == [*first.edge_type.tolist(), first.edge_type[0]]
        unknown = link | {"kind": ["barter"]}
        if name == "many":
            assert any_tables(node, unknown, onto=first).edge_type[-1] == 7
        else:
            with pytest.raises(GraphError, match=r"of type 'barter', but .* 'card', 'missing'"):
                any_tables(node, unknown, onto=first)
        without = {key: link[key] for key in ("source", "target", "weight")}
        with pytest.raises(GraphError, match=r"no column 'kind'.*edge_type="):
            any_tables(node, without, onto=first)
    untyped = any_tables(node, link, onto=any_tables(NODES, EDGES))
    assert untyped.edge_type is None


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("kinds", r"no column 'kinds'; .*\(edge_type=\"kind\"\)"),
        ("source", "cannot be both source and edge type"),
        (7, r"edge_type takes a column name \(got 7\)"),
    ],
)
def test_a_wrong_column_of_types_is_refused(option, message):
    with pytest.raises(HPGMNError, match=message):
        any_tables(NODES, TYPED, edge_type=option)


def test_edges_of_a_network_have_types():
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from([("a", {"size": 1}), ("b", {"size": 2})])
    graph.add_edges_from([("a", "b", {"kind": "x"}), ("a", "b", {"kind": "y"}), ("b", "a", {})])
    found = any_network(graph, edge_type="kind")
    assert found.edge_type_names == ("missing", "x", "y")
    assert found.edge_type.tolist() == [1, 2, 0]


def test_a_column_of_many_types_is_warned_about(caplog):
    many = {"source": ["a", "b"] * 20, "target": ["b", "c"] * 20, "amount": [*range(40)]}
    graph = any_tables(NODES, many, edge_type="amount")
    assert graph.edge_type_names[-1] == "other"
    assert (graph.edge_type == 7).sum() == 33
    assert "holds 40 values" in caplog.text
