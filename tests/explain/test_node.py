"""Explaining one node: ids, values that agree with their parts, models of every kind."""

import re

import numpy as np
import pytest

import hpgmn.explain.neighbors as neighbors
import hpgmn.explain.node as module
from hpgmn.base.errors import HPGMNError
from hpgmn.explain.neighbors import neighbor_support, turning_point
from hpgmn.explain.node import explain_node, find_node
from hpgmn.explain.replicas import open_replicas
from hpgmn.graph import Graph


def test_an_explanation_is_made_of_its_parts(named_graph, fit, predicted, statistic_shares):
    saved = fit(named_graph, seeds=2, neighbors="both", epochs=30)
    opened = open_replicas(saved, named_graph)
    expected = predicted(saved, named_graph)
    train = named_graph.split(0).train
    names = named_graph.class_names
    turned_somewhere = 0
    for place in (0, 3, 4, 8):
        result = explain_node(saved, named_graph, f"account-{place}", most=2)
        label = int(expected[place].argmax())
        assert result.node == f"account-{place}"
        assert result.prediction == names[label]
        assert list(result.probabilities.values()) == pytest.approx(expected[place], abs=1e-6)
        assert result.label == (names[named_graph.y[place]] if train[place] else None)
        [shares] = statistic_shares(opened, [place], [label])
        assert result.statistics == pytest.approx(shares)
        assert list(result.statistics.values()) == sorted(shares.values(), reverse=True)
        assert result.baseline is not None
        full = result.baseline + sum(result.statistics.values())
        assert full == pytest.approx(np.log(expected[place, label]), abs=1e-5)

        support = neighbor_support(opened, place, label, most=2)
        assert [one.node for one in result.neighbors] == [f"account-{u}" for u in support.neighbors]
        assert [one.support for one in result.neighbors] == pytest.approx(support.support)
        for one, u in zip(result.neighbors, support.neighbors, strict=True):
            assert one.is_known == train[u]
            if one.is_known:
                assert one.counts_as == names[named_graph.y[u]]
        assert result.without is not None
        assert len(result.without.neighbors) == support.removed
        without = list(result.without.probabilities.values())
        assert without == pytest.approx(support.without)
        assert result.without.prediction == names[int(support.without.argmax())]
        turned = turning_point(opened, place, label, support)
        assert (result.turning is None) == (turned is None)
        if turned is not None:
            turned_somewhere += 1
            assert result.turning is not None
            assert result.turning.neighbors == tuple(f"account-{u}" for u in turned[0])
            assert result.turning.prediction == names[int(turned[1].argmax())]

        attention = opened[0].attention
        assert attention is not None
        own = attention[place].numpy()
        assert [one.number for one in result.patterns] == np.argsort(-own)[:3].tolist()
        assert [one.attention for one in result.patterns] == pytest.approx(np.sort(own)[::-1][:3])
        for one in result.patterns:
            first = int(attention[:, one.number].argmax())
            assert one.typical_nodes[0] == f"account-{first}"
    assert turned_somewhere
    assert any("mean of 2 seeds" in note and "seed 0" in note for note in result.notes)


def test_the_label_is_that_of_training_whatever_is_predicted(named_graph, fit, predicted):
    saved = fit(named_graph, epochs=1, lr=1e-5)
    labels, names = predicted(saved, named_graph).argmax(axis=1), named_graph.class_names
    wrong = np.flatnonzero(named_graph.split(0).train & (labels != named_graph.y))
    assert wrong.size
    for place in wrong:
        result = explain_node(saved, named_graph, f"account-{place}")
        assert result.label == names[named_graph.y[place]] != result.prediction


def test_positions_serve_where_there_are_no_ids(small_graph, fit):
    saved = fit(small_graph)
    assert explain_node(saved, small_graph, 4) == explain_node(saved, small_graph, "4")
    assert explain_node(saved, small_graph, 4).node == "4"


@pytest.mark.parametrize("node", [18, -1, "four", "1.5"])
def test_a_wrong_position_is_refused_with_the_range(small_graph, node):
    with pytest.raises(HPGMNError, match=rf"no node '{node}'.*0 to 17"):
        find_node(small_graph, node)


def test_a_wrong_id_is_refused_with_similar_ones(named_graph, monkeypatch):
    def similar(node):
        with pytest.raises(HPGMNError, match=f"no node '{node}'") as caught:
            find_node(named_graph, node)
        assert caught.value.remedy is not None
        [ids] = re.findall(r"ids: (.*?)\.", caught.value.message)
        assert caught.value.remedy.value == ids.split(", ")[0]
        return list(ids.split(", "))

    assert similar("acount-12")[0] == "account-12"
    assert similar("zzz") == ["account-0", "account-1", "account-2"]
    similar(4)  # a position is no id
    monkeypatch.setattr(module, "_COMPARED", 5)
    assert similar("account-12x") == ["account-12"]
    assert similar("zzz") == ["account-0", "account-1", "account-2"]


def test_a_node_without_neighbours(small_graph, fit):
    result = explain_node(fit(small_graph), small_graph, 17)
    assert (result.neighbors, result.without, result.turning) == ((), None, None)
    assert "The node has no neighbours." in result.notes


def test_a_model_of_attributes_alone(small_graph, fit):
    result = explain_node(fit(small_graph, statistics=("attributes",)), small_graph, 4)
    assert {one.support for one in result.neighbors} == {0.0}
    assert any("attributes only" in note for note in result.notes)
    assert result.without is None


def test_a_neighbour_of_unknown_class(small_graph, fit):
    result = explain_node(fit(small_graph, label_confidence=1.0), small_graph, 4)
    train = small_graph.split(0).train
    for one in result.neighbors:
        assert (one.counts_as is None) == (not train[int(one.node)])


@pytest.mark.parametrize(("model", "patterns"), [("hpgmn-gcn", 3), ("gcn", 0)])
def test_other_models_note_what_is_missing(small_graph, fit, model, patterns):
    saved = fit(small_graph, model)
    result = explain_node(saved, small_graph, 4)
    assert result.statistics == {}
    assert result.baseline is None
    assert len(result.patterns) == patterns
    assert result.neighbors
    assert any(note.startswith(f"{model} reads no local statistics") for note in result.notes)
    assert any("no memory" in note for note in result.notes) == (patterns == 0)
    assert any("the model run again" in note for note in result.notes)


def test_approximations_are_noted(small_graph, fit, monkeypatch):
    monkeypatch.setattr(neighbors, "RERUNS", 1)
    notes = explain_node(fit(small_graph, "gcn"), small_graph, 4).notes
    assert any("more neighbours were not evaluated: gcn has" in note for note in notes)
    monkeypatch.setattr(neighbors, "EXACT_UP_TO", 1)
    notes = explain_node(fit(small_graph, statistics=("diffusion",)), small_graph, 4).notes
    assert any("exact for the 32 neighbours" in note for note in notes)


def test_nodes_of_another_graph(named_graph, fit, predicted):
    saved = fit(named_graph, statistics=("attributes", "class_counts"))
    other = Graph(named_graph.x[:6] + 0.1, [[0, 1, 2], [1, 2, 5]], node_ids=list("uvwxyz"))
    result = explain_node(saved, other, "w")
    assert [one.node for one in result.neighbors] in (["v", "z"], ["z", "v"])
    expected = predicted(saved, other)[2]
    assert list(result.probabilities.values()) == pytest.approx(expected, abs=1e-6)
    assert list(result.probabilities) == ["student", "faculty", "staff"]


def test_neighbours_and_statistics_name_edge_types(named_graph, typed, fit):
    graph = typed(named_graph)
    chosen = ("attributes", "class_counts", "message_passing")
    found = explain_node(fit(graph, statistics=chosen), graph, "account-4")
    types = [f"class_counts ({name})" for name in graph.edge_type_names]
    assert set(found.statistics) == {"attributes", *types, "message_passing"}
    assert "how many neighbours of each class it has (card)" in str(found)
    assert found.neighbors
    pairs = list(zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True))
    for neighbor in found.neighbors:
        other = find_node(graph, neighbor.node)
        own = {kind for *ends, kind in pairs if set(ends) == {4, other}}
        assert neighbor.edge_types == tuple(graph.edge_type_names[kind] for kind in sorted(own))
        assert f"{neighbor.node} ({', '.join(neighbor.edge_types)}), " in str(found)
    every = ("attributes", "class_counts", "class_means", "adjacency", "diffusion")
    many = explain_node(fit(graph, statistics=every), graph, "account-4")
    assert set(many.statistics) == set(every)  # too many subsets
