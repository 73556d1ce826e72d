"""Table 1: counts and homophilies against loops over edges, and what explains printed numbers."""

import json
import math

import numpy as np
import pytest

from hpgmn.base.errors import DataNotFoundError
from hpgmn.graph import Graph
from hpgmn.graph.datasets import load
from hpgmn.graph.homophily import node_homophily
from hpgmn_lab import paper
from hpgmn_lab.reproduction import facts as module
from hpgmn_lab.reproduction.cells import Records
from hpgmn_lab.reproduction.facts import (
    KEYS,
    do_facts,
    edge_counts,
    explain,
    graph_facts,
    homophilies,
    nearest_definition,
    recorded_facts,
)


def random_graph(seed):
    """Few nodes, so that self-loops, repeats, both directions and lonely nodes occur."""
    draw = np.random.default_rng(seed)
    return Graph(
        draw.normal(size=(9, 2)), draw.integers(0, 9, size=(2, 14)), draw.integers(-1, 3, size=9)
    )


def counted(graph):
    edges = [tuple(edge) for edge in graph.edge_index.T.tolist()]
    pairs = {frozenset(edge) for edge in edges}
    return [
        len(edges),
        len([edge for edge in edges if edge[0] != edge[1]]),
        len(set(edges)),
        len([edge for edge in set(edges) if edge[0] != edge[1]]),
        len(pairs),
        len([pair for pair in pairs if len(pair) == 2]),
    ]


def shares(graph, neighbors):
    """For each node with labelled neighbours the share that has its class."""
    found = []
    for node, others in neighbors.items():
        known = [other for other in others if graph.y[other] >= 0]
        if graph.y[node] >= 0 and known:
            found.append(np.mean([graph.y[other] == graph.y[node] for other in known]))
    return found


def measured(graph):
    nodes = range(graph.num_nodes)
    edges = [tuple(edge) for edge in graph.edge_index.T.tolist()]
    out = {node: {b for a, b in edges if a == node != b} for node in nodes}
    into = {node: {a for a, b in edges if b == node != a} for node in nodes}
    both = {node: out[node] | into[node] for node in nodes}
    loops = {node: both[node] | ({node} if (node, node) in edges else set()) for node in nodes}
    y = graph.y

    def edge_share(ends):
        return float(np.mean([y[a] == y[b] for a, b in ends if y[a] >= 0 and y[b] >= 0]))

    return [
        float(np.mean(shares(graph, both))),
        sum(shares(graph, both)) / graph.num_nodes,
        float(np.mean(shares(graph, loops))),
        float(np.mean(shares(graph, out))),
        sum(shares(graph, out)) / graph.num_nodes,
        float(np.mean(shares(graph, into))),
        edge_share(edges),
        edge_share([(a, b) for a in nodes for b in both[a]]),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_edges_and_homophilies_are_those_of_loops_over_the_edges(seed):
    graph = random_graph(seed)
    assert list(edge_counts(graph).values()) == counted(graph)
    assert list(homophilies(graph).values()) == pytest.approx(measured(graph))
    assert next(iter(homophilies(graph).values())) == pytest.approx(node_homophily(graph))


def test_without_labels_nothing_is_alike_or_not():
    graph = Graph([[0.0]] * 2, [[0], [1]])
    assert all(math.isnan(value) for value in homophilies(graph).values())


def test_the_first_way_that_gives_the_printed_number_explains_it():
    assert explain(3, {"a": 2, "b": 3, "c": 3}, {"a": 3}, "twin") == "printed 3 = b (3)"
    assert explain(0.83, {"a": 0.8252}, {}) == "printed 0.83 = a (0.8252)"
    assert explain(0.83, {"a": 0.8248}, {}).startswith("printed 0.83: no definition gives it")
    assert "of the graph 'twin', not of this one" in explain(4, {"a": 2}, {"a": 4}, "twin")
    assert nearest_definition(4, {"a": 1, "b": 6, "c": 2}) == "b"


def test_every_number_that_differs_is_explained(small_graph):
    small_graph.name = "texas"
    found = graph_facts(small_graph)
    assert (found.nodes, found.attributes, found.classes) == (18, 5, 3)
    assert found.explanations["nodes"] == "printed 183; the graph has 18"
    assert found.explanations["attributes"] == "printed 1,703; the graph has 5"
    assert found.explanations["classes"] == "printed 5; the graph has 3"
    nearest = max(edge_counts(small_graph).values())
    assert found.edges == nearest
    assert "no definition gives it" in found.explanations["edges"]


def test_facts_are_kept_until_the_graph_changes(save_as, small_graph, tmp_path, monkeypatch):
    save_as("texas")
    first = do_facts("texas", tmp_path / "cells")
    assert recorded_facts(Records.read(tmp_path / "cells"), "texas") == first
    with monkeypatch.context() as patch:
        patch.setattr(module, "graph_facts", None)  # not to be measured again
        assert do_facts("texas", tmp_path / "cells") == first
    save_as("texas", Graph(small_graph.x, small_graph.edge_index[:, :-2], small_graph.y))
    second = do_facts("texas", tmp_path / "cells")
    assert second.edge_counts["edges as listed"] == first.edge_counts["edges as listed"] - 2
    (tmp_path / "cells" / "texas-facts.json").write_text('{"graph": "texas"}')
    assert do_facts("texas", tmp_path / "cells") == second


def test_a_number_of_the_twin_is_found_where_the_twin_is(save_as, tmp_path, monkeypatch):
    printed = paper.PrintedFacts(18, 33, 5, 3, 0.5)
    monkeypatch.setitem(paper.TABLE_1, "cornell-geomgcn", printed)
    save_as("cornell-geomgcn")
    alone = do_facts("cornell-geomgcn", tmp_path)
    assert "no definition gives it" in alone.explanations["edges"]
    draw = np.random.default_rng(0)
    edges = draw.permutation(18 * 17)[:33]
    twin = Graph(np.zeros((18, 1)), [edges // 17, edges % 17], draw.integers(0, 2, 18))
    save_as("cornell", twin)
    beside = do_facts("cornell-geomgcn", tmp_path)
    expected = "printed 33 = edges as listed (33) of the graph 'cornell', not of this one"
    assert beside.explanations["edges"] == expected


def test_a_graph_that_is_not_here_has_no_facts(tmp_path, save_as):
    save_as("texas")
    with pytest.raises(DataNotFoundError):
        do_facts("cora", tmp_path)
    assert not list(tmp_path.glob("*-facts.json"))


LISTED, PROPER = "edges as listed", "edges as listed, without self-loops"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "edges"),
    [
        ("texas", PROPER),
        ("wisconsin", PROPER),
        ("cornell-geomgcn", PROPER),
        ("chameleon", LISTED),
        ("squirrel", LISTED),
        ("crocodile", LISTED),
        ("cora", None),
        ("citeseer", None),
        ("pubmed", None),
    ],
)
def test_the_papers_numbers_on_the_real_graphs(data_dir, tmp_path, graph, edges):
    found = do_facts(graph, tmp_path)
    printed = paper.TABLE_1[graph]
    own = (found.nodes, found.attributes, found.classes)
    assert own == (printed.nodes, printed.attributes, printed.classes)
    if edges is None:
        assert "no definition gives it" in found.explanations["edges"]
        assert found.edges == load(graph).num_edges
    else:
        assert (
            found.explanations["edges"] == f"printed {printed.edges:,} = {edges} ({found.edges:,})"
        )
    homophily = found.explanations["homophily"]
    if graph == "citeseer":
        assert "undirected neighbours, 0 for nodes without any (0.7067)" in homophily
    elif graph == "cornell-geomgcn":
        assert homophily.endswith("(0.111) of the graph 'cornell', not of this one")
    else:
        assert f"{found.homophily:.2f}" == f"{printed.homophily:.2f}"
        assert "= node homophily, undirected neighbours (" in homophily
    json.loads((tmp_path / f"{graph}-facts.json").read_text())


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"nodes": 1}'])
def test_damaged_facts_are_none(tmp_path, text):
    (tmp_path / "texas-facts.json").write_text(text)
    assert recorded_facts(Records.read(tmp_path), "texas") is None
    assert recorded_facts(Records.read(tmp_path), "cora") is None


def test_differences_are_those_in_the_decimals_shown(tmp_path, make_facts):
    make_facts(tmp_path)
    facts = recorded_facts(Records.read(tmp_path), "texas")
    assert [key for key in KEYS if facts.differs(key)] == ["edges"]
