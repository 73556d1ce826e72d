"""GraphML files: nodes, edges, defaults and direction; networkx is asked for where it lacks."""

import math
import sys
from functools import partial
from xml.sax.saxutils import escape

import numpy as np
import pytest

from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.graph import Graph
from hpgmn.graph.conversion import read_graph_tables
from hpgmn.tables.columns import open_tables
from hpgmn.tables.memory import read_networkx
from hpgmn.tables.options import Columns
from hpgmn.tables.sources import TEXT

read_tables = partial(read_graph_tables, Graph)


KEYS = """
 <key id="d0" for="node" attr.name="age" attr.type="double"><default>3.5</default></key>
 <key id="d1" for="node" attr.name="class" attr.type="string"/>
 <key id="d2" for="edge" attr.name="weight" attr.type="double"/>
 <key id="d3" for="node" attr.name="old" attr.type="boolean"/>
"""
NODES = """
 <node id="n0"><data key="d0">1</data><data key="d1">red</data><data key="d3">true</data></node>
 <node id="ü"><data key="d1">blue</data><data key="d3">false</data></node>
 <node id="n2"><data key="d0">2</data><data key="d3">false</data></node>
"""
EDGES = """
 <edge source="n2" target="ü"><data key="d2">0.5</data></edge>
 <edge id="e1" source="n0" target="ü"><data key="d2">2</data></edge>
"""


def graphml(path, keys=KEYS, nodes=NODES, edges=EDGES, **names):
    kind = names.get("direction", "directed")
    path.write_text(
        f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{keys}'
        f'<graph edgedefault="{kind}">{nodes}{edges}</graph></graphml>',
        encoding="utf-8",
    )
    return path


def test_nodes_edges_and_defaults_are_read(tmp_path):
    tables = open_tables(graphml(tmp_path / "g.graphml"))
    assert tables.describe() == [
        "g.graphml (nodes): id is 'id', label is 'class'; 2 attributes: age, old.",
        "g.graphml (nodes): no split column.",
        "g.graphml (edges): source is 'source', target is 'target', weight is 'weight', directed.",
        "g.graphml (edges): not used: 'id'.",
    ]
    graph = read_tables(tables)
    assert graph.x.tolist() == [[1, 1], [3.5, 0], [2, 0]]
    assert graph.node_ids.tolist() == ["n0", "ü", "n2"]
    assert graph.y.tolist() == [1, 0, -1]
    assert graph.class_names == ("blue", "red")
    found = sorted(zip(*graph.edge_index.tolist(), graph.edge_weight.tolist(), strict=True))
    assert found == [(0, 1, 2.0), (2, 1, 0.5)]


@pytest.mark.parametrize("direction", ["directed", "undirected"])
@pytest.mark.parametrize("requested", [None, True, False])
def test_the_file_says_its_direction_unless_the_user_does(tmp_path, direction, requested):
    path = graphml(tmp_path / "g.graphml", direction=direction)
    expected = direction == "directed" if requested is None else requested
    assert open_tables(path, Columns(directed=requested)).directed == expected


def test_repeated_edges_are_kept(tmp_path):
    edges = EDGES + EDGES.replace('id="e1" ', "")
    graph = read_tables(open_tables(graphml(tmp_path / "g.graphml", edges=edges)))
    assert graph.edge_index.shape == (2, 4)


def test_an_attribute_may_be_called_id(tmp_path):
    path = graphml(tmp_path / "g.graphml", KEYS.replace('"age"', '"id"'))
    tables = open_tables(path)
    assert tables.id == "node"
    assert tables.attributes == ("id", "old")
    assert read_tables(tables).edge_index.shape == (2, 2)


def test_a_graph_without_edges_is_read(tmp_path):
    assert read_tables(open_tables(graphml(tmp_path / "g.graphml", edges=""))).num_edges == 0


def test_what_nodes_lack_is_told(tmp_path):
    path = graphml(tmp_path / "g.graphml", KEYS.replace("<default>3.5</default>", ""))
    message = r"g\.graphml \(nodes\): column 'age' has 1 missing number, the first in row 2\."
    with pytest.raises(GraphError, match=message):
        read_tables(open_tables(path))


def test_columns_are_not_the_users_to_name(tmp_path):
    path = graphml(tmp_path / "g.graphml")
    with pytest.raises(HPGMNError, match="Leave out id, source and target"):
        open_tables(path, Columns(id="age"))
    with pytest.raises(HPGMNError, match="node table belongs to an edge list"):
        open_tables(path, nodes="nodes.csv")
    assert open_tables(path, Columns(label="", drop=("class",))).label is None


@pytest.mark.parametrize("text", ["", "<graphml", "<html></html>", "id,a\n"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "g.graphml").write_text(text)
    with pytest.raises(GraphError, match=r"cannot be read as GraphML \(.+\)\. Write it"):
        open_tables(tmp_path / "g.graphml")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(GraphError, match="does not exist or is not a file"):
        open_tables(tmp_path / "g.graphml")


def test_without_networkx_the_remedy_is_its_installation(tmp_path, monkeypatch):
    path = graphml(tmp_path / "g.graphml")
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(HPGMNError, match="`pip install networkx`"):
        open_tables(path)


def test_words_that_look_like_nothing_are_words(tmp_path):
    names = ["nan", "None", "NaT", "<NA>"]
    nodes = "".join(f'<node id="{escape(name)}"/>' for name in names)
    edges = '<edge source="nan" target="None"/>'
    graph = read_tables(open_tables(graphml(tmp_path / "g.graphml", nodes=nodes, edges=edges)))
    assert graph.node_ids.tolist() == names
    assert graph.edge_index.tolist() == [[0], [1]]


def test_missing_values_among_others_are_missing():
    networkx, pd = pytest.importorskip("networkx"), pytest.importorskip("pandas")
    network = networkx.Graph()
    values = [None, math.nan, np.float32("nan"), pd.NaT, pd.NA, np.timedelta64("NaT")]
    for name, value in enumerate([*values, "nan", "None", 3, 2.5]):
        network.add_node(name, mixed=value)
    nodes = read_networkx(network).nodes
    mixed = next(nodes.batches({"mixed": TEXT})).column(0).to_pylist()
    assert mixed == [None] * len(values) + ["nan", "None", "3", "2.5"]
