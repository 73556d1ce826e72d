"""A node's statistics without neighbours equal those of a graph that never had the edges."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.explain.removal import statistics_without
from hpgmn.explain.replicas import open_replicas
from hpgmn.graph import Graph
from hpgmn.statistics import LocalStatistics
from hpgmn.training.saved import SavedModel

Fit = Callable[..., SavedModel]

FOUR = ("attributes", "class_counts", "class_means", "diffusion")
CHOSEN = (0, 3, 4, 10, 13)  # in the small graph 3 has a self-loop, 4 a repeated edge
NEIGHBORS = ("adjacency", "neighbor_class_counts", "neighbor_class_means", "neighbor_adjacency")


def cut(graph, node, gone):
    """The graph without the edges between a node and others, edge by edge."""
    kept = [
        place
        for place, (source, target) in enumerate(graph.edge_index.T.tolist())
        if not ((source == node and target in gone) or (target == node and source in gone))
    ]
    weights = None if graph.edge_weight is None else graph.edge_weight[kept]
    return Graph(
        graph.x,
        graph.edge_index[:, kept],
        graph.y,
        edge_weight=weights,
        directed=graph.directed,
        node_ids=graph.node_ids,
    )


def recomputed(opened, node, gone, columns=None):
    """All statistics built anew without the edges, labels fixed: the node's rows and logits."""
    graph = cut(opened.graph, node, gone)
    width = None if columns is None else opened.task.statistics.width
    statistics = LocalStatistics(graph, columns=columns, width=width)
    shares = None if opened.shares is None else opened.shares[None]
    inputs = statistics.build(
        opened.labels[None], opened.task.num_classes, opened.task.settings, shares
    )
    with torch.no_grad():
        logits = opened.module(inputs).logits[0, node]
    rows = {name: inputs[name].rows(torch.tensor([node]))[0] for name in opened.module.names}
    return rows, logits


def compare(opened, columns=None, tolerance=1e-5):
    """Check every node with each of its neighbours, and with two at once; returns how many."""
    checked = 0
    both = opened.graph.adjacency("undirected")
    for node in CHOSEN:
        near = both.indices[both.indptr[node] : both.indptr[node + 1]].tolist()
        assert near
        sets = [[], *([one] for one in near[:4]), near[:2], near]
        inputs = statistics_without(opened, node, [np.array(own, np.int64) for own in sets])
        with torch.no_grad():
            logits = opened.module(inputs).logits[0]
        for place, gone in enumerate(sets):
            rows, expected = recomputed(opened, node, gone, columns)
            for name, row in rows.items():
                found = inputs[name].rows(torch.tensor([place]))[0]
                torch.testing.assert_close(found, row, atol=tolerance, rtol=tolerance)
            torch.testing.assert_close(
                logits[place].softmax(dim=-1), expected.softmax(dim=-1), atol=1e-5, rtol=0
            )
            checked += 1
    return checked


@pytest.mark.parametrize("neighbors", ["out", "in", "undirected", "both"])
@pytest.mark.parametrize("statistics", [FOUR, ("attributes", *NEIGHBORS)])
def test_every_statistic_in_every_mode(named_graph, fit, neighbors, statistics):
    saved = fit(named_graph, neighbors=neighbors, statistics=statistics)
    assert compare(open_replicas(saved, named_graph)[0]) > 25


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"class_counts_scaling": "raw", "class_means_scaling": "unit"},
        {"class_counts_scaling": "fraction", "diffusion_scaling": "raw"},
        {"class_counts_scaling": "unit", "diffusion_self_entry": True},
        {"soft_counts": True},
        {"label_confidence": 0.5},
        {"refinement": True, "epochs": 3},
        {"diffusion": "heat"},
        {"diffusion_form": "implicit", "normalization": "row"},
        {"normalization": "symmetric", "diffusion_self_loop": 1},
        {"diffusion_form": "sketch", "diffusion_dim": 16},
        {"diffusion_form": "sketch", "diffusion_dim": 16, "diffusion_self_entry": True},
        {"diffusion_form": "sketch", "diffusion_dim": 16, "diffusion_scaling": "raw"},
        {"diffusion_form": "topk", "diffusion_topk": 4, "diffusion_threshold": 1e-9},
        {"diffusion_form": "topk", "diffusion_topk": 4, "diffusion_threshold": 0.02},
        {"diffusion_form": "topk", "diffusion": "heat", "diffusion_self_entry": True},
        {"batch_size": 4},
        {"batch_size": 4, "class_means_form": "half", "class_means_scaling": "unit"},
        {"class_means_form": "sketch", "class_means_dim": 4},
        {"class_means_form": "factored", "class_means_scaling": "unit"},
    ],
)
def test_every_form_and_scaling(small_graph, fit, changes):
    saved = fit(small_graph, **{"neighbors": "out", "statistics": FOUR} | changes)
    # Half precision may round the last digit the other way.
    is_half = "batch_size" in changes or changes.get("class_means_form") == "sketch"
    assert compare(open_replicas(saved, small_graph)[0], tolerance=1e-3 if is_half else 1e-5) > 25


@pytest.mark.parametrize("scaling", ["raw", "fraction", "unit"])
def test_adjacency_rows_in_every_scaling(small_graph, fit, scaling):
    saved = fit(small_graph, statistics=("adjacency",), adjacency_scaling=scaling)
    compare(open_replicas(saved, small_graph)[0])


def test_sparse_attributes(small_graph, fit):
    x = np.where(np.abs(small_graph.x) > 0.3, small_graph.x, 0)
    assert small_graph.splits is not None
    masks = {f"{part}_mask": getattr(small_graph.splits, part) for part in ("train", "val", "test")}
    graph = Graph(sp.csr_array(x), small_graph.edge_index, small_graph.y, **masks)
    saved = fit(graph, statistics=(*FOUR[:3], "neighbor_attributes"))
    compare(open_replicas(saved, graph)[0])


def test_columns_are_those_of_the_training_on_another_graph(named_graph, fit):
    saved = fit(named_graph, neighbors="both", statistics=("adjacency", "diffusion"))
    order = np.random.default_rng(0).permutation(18)[:14]
    place = {int(old): new for new, old in enumerate(order)}
    edges = [
        (place[s], place[t])
        for s, t in named_graph.edge_index.T.tolist()
        if s in place and t in place
    ]
    assert named_graph.node_ids is not None
    names = named_graph.node_ids[order].copy()
    names[0] = "a new one"
    other = Graph(
        named_graph.x[order], np.array(edges).T, named_graph.y[order], node_ids=names, name="other"
    )
    columns = np.where(np.arange(14) == 0, -1, order)
    assert compare(open_replicas(saved, other)[0], columns) > 25


def test_a_kept_diffusion_row_is_the_only_one_that_stays(small_graph, fit):
    opened = open_replicas(fit(small_graph, neighbors="out", statistics=FOUR), small_graph)[0]
    near = small_graph.adjacency("out").indices[:1].astype(np.int64)
    row = torch.tensor([0])
    kept = statistics_without(opened, 0, [near], keep_diffusion=True)
    anew = statistics_without(opened, 0, [near])
    whole = opened.stage.inputs["diffusion"].rows(row)
    torch.testing.assert_close(kept["diffusion"].rows(row), whole)
    assert not torch.allclose(anew["diffusion"].rows(row), whole, atol=1e-3)
    torch.testing.assert_close(kept["class_counts"].rows(row), anew["class_counts"].rows(row))


def test_a_node_without_neighbours_keeps_its_statistics(small_graph, fit):
    saved = fit(small_graph, neighbors="both", statistics=(*FOUR, *NEIGHBORS))
    opened = open_replicas(saved, small_graph)[0]
    inputs = statistics_without(opened, 17, [np.array([], np.int64)])
    with torch.no_grad():
        torch.testing.assert_close(opened.module(inputs).logits[0, 0], opened.logits[17])
