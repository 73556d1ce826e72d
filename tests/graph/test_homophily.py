"""Measures of homophily against loops, known properties, and published values of real graphs."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.graph import Graph
from hpgmn.graph.datasets import DATASETS
from hpgmn.graph.files import read_graph
from hpgmn.graph.homophily import Homophily, homophily, node_homophily


def homophily_by_loop(num_nodes, edges, y):
    shares = []
    for node in range(num_nodes):
        neighbors = {b for a, b in edges if a == node} | {a for a, b in edges if b == node}
        known = [other for other in neighbors - {node} if y[other] >= 0]
        if y[node] >= 0 and known:
            shares.append(sum(y[other] == y[node] for other in known) / len(known))
    return sum(shares) / len(shares) if shares else math.nan


@pytest.mark.parametrize("name", [name for name, known in DATASETS.items() if known.homophily])
def test_real_graphs_have_the_known_homophily(data_dir, name):
    path = data_dir / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{name}.npz is not in the folder of graph files")
    assert node_homophily(read_graph(path)) == pytest.approx(DATASETS[name].homophily, abs=6e-4)


def pairs_by_loop(edges, y):
    """The classes at the ends of every distinct undirected edge, seen from both ends."""
    distinct = {frozenset(edge) for edge in edges if edge[0] != edge[1]}
    labelled = [tuple(edge) for edge in distinct if all(y[end] >= 0 for end in edge)]
    return [(y[a], y[b]) for a, b in labelled] + [(y[b], y[a]) for a, b in labelled]


def edge_by_loop(edges, y):
    pairs = pairs_by_loop(edges, y)
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else math.nan


def class_insensitive_by_loop(edges, y):
    pairs, labels = pairs_by_loop(edges, y), [label for label in y if label >= 0]
    classes = set(labels)
    if not pairs or len(classes) < 2:
        return math.nan
    total = 0.0
    for one in classes:
        own = [b for a, b in pairs if a == one]
        if own:
            total += max(0.0, own.count(one) / len(own) - labels.count(one) / len(labels))
    return total / (len(classes) - 1)


def adjusted_by_loop(edges, y):
    pairs = pairs_by_loop(edges, y)
    ends = Counter(a for a, _ in pairs)
    if len(ends) < 2:
        return math.nan
    chance = sum((count / len(pairs)) ** 2 for count in ends.values())
    return (edge_by_loop(edges, y) - chance) / (1 - chance)


def informativeness_by_loop(edges, y):
    """Mutual information over entropy: the definition, not the formula of the code."""
    pairs = pairs_by_loop(edges, y)
    one, two = Counter(a for a, _ in pairs), Counter(pairs)
    if len(one) < 2:
        return math.nan
    share = {label: count / len(pairs) for label, count in one.items()}
    entropy = -sum(p * math.log(p) for p in share.values())
    together = {pair: count / len(pairs) for pair, count in two.items()}
    shared = sum(p * math.log(p / (share[a] * share[b])) for (a, b), p in together.items())
    return shared / entropy


@given(
    y=st.lists(st.integers(-1, 2), min_size=7, max_size=7),
    edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=16),
    directed=st.booleans(),
    weighted=st.booleans(),
)
def test_measures_match_loops(y, edges, directed, weighted):
    ends = np.array(edges, np.int64).reshape(-1, 2).T
    weight = np.linspace(1, 2, len(edges)) if weighted else None
    graph = Graph(np.ones((7, 1)), ends, y, edge_weight=weight, directed=directed)
    expected = Homophily(
        node=homophily_by_loop(7, edges, y),
        edge=edge_by_loop(edges, y),
        class_insensitive=class_insensitive_by_loop(edges, y),
        adjusted=adjusted_by_loop(edges, y),
        label_informativeness=informativeness_by_loop(edges, y),
    )
    measures = homophily(graph)
    for name in vars(expected):
        assert getattr(measures, name) == pytest.approx(
            getattr(expected, name), abs=1e-9, nan_ok=True
        ), name
    assert node_homophily(graph) == pytest.approx(measures.node, abs=0, nan_ok=True)


def blocks(rates, seed, size=60):
    """Classes of equal size; any two nodes are joined with the probability of their classes."""
    random = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(rates)), size)
    joined = np.triu(random.random((y.size, y.size)) < np.asarray(rates)[y][:, y], 1)
    return Graph(np.ones((y.size, 1)), np.stack(np.nonzero(joined)), y, directed=False)


def test_a_perfectly_homophilous_graph_has_one_everywhere():
    measures = homophily(blocks([[0.2, 0, 0], [0, 0.1, 0], [0, 0, 0.3]], 0))
    assert list(vars(measures).values()) == pytest.approx([1, 1, 1, 1, 1])


def test_neighbours_by_chance_tell_nothing():
    measures = homophily(blocks([[0.3] * 4] * 4, 1))
    assert measures.edge == pytest.approx(0.25, abs=0.02)
    assert measures.class_insensitive == pytest.approx(0, abs=0.02)
    assert measures.adjusted == pytest.approx(0, abs=0.02)
    assert measures.label_informativeness == pytest.approx(0, abs=0.002)


def test_independent_labels_are_exactly_uninformative():
    """A complete bipartite-free pattern: every pair of classes equally often."""
    y, edges = [0, 0, 1, 1], [(0, 1), (2, 3), (0, 2), (1, 3)]
    graph = Graph(np.ones((4, 1)), np.array(edges).T, y)
    assert homophily(graph).label_informativeness == 0
    assert homophily(graph).adjusted == 0


def test_a_cycle_of_classes_is_informative_without_homophily():
    measures = homophily(blocks([[0, 0.3], [0.3, 0]], 2))
    assert (measures.node, measures.edge, measures.class_insensitive) == (0, 0, 0)
    assert measures.adjusted == pytest.approx(-1)
    assert measures.label_informativeness == pytest.approx(1)


def test_names_of_classes_directions_and_repeats_do_not_matter():
    graph = blocks([[0.1, 0.2, 0.05], [0.2, 0.02, 0.1], [0.05, 0.1, 0.3]], 3)
    ends = graph.edge_index
    again = np.concatenate([ends[::-1], ends[:, :5], [[0, 1], [0, 1]]], axis=1)
    renamed = np.array([4, 0, 2])[graph.y]  # with classes that nobody has
    other = Graph(graph.x, again, renamed, directed=True)
    assert vars(homophily(other)) == pytest.approx(vars(homophily(graph)))


@pytest.mark.parametrize(
    ("name", "edge", "adjusted", "informativeness"),
    [  # table 1 of Platonov et al. 2023 (Characterizing Graph Datasets), as printed
        ("cora", 0.81, 0.77, 0.59),
        ("citeseer", 0.74, 0.67, 0.45),
        ("pubmed", 0.80, 0.69, 0.41),
        ("minesweeper", 0.68, 0.01, 0.00),
        ("actor", 0.22, 0.00, 0.00),
    ],
)
def test_real_graphs_have_the_published_measures(data_dir, name, edge, adjusted, informativeness):
    path = data_dir / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{name}.npz is not in the folder of graph files")
    measures = homophily(read_graph(path))
    assert measures.edge == pytest.approx(edge, abs=0.0051)
    assert measures.adjusted == pytest.approx(adjusted, abs=0.0051)
    assert measures.label_informativeness == pytest.approx(informativeness, abs=0.0051)
