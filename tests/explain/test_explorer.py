"""The data behind the node explorer: the numbers of ``explain_node`` for many nodes, and limits."""

import json

import numpy as np
import pytest

import hpgmn.explain.explorer as module
from hpgmn.explain.ensemble import explain_ensemble
from hpgmn.explain.explorer import explained_node_data, explorer_data, sample_nodes
from hpgmn.explain.node import explain_node
from hpgmn.explain.replicas import open_replicas
from hpgmn.graph import Graph
from hpgmn.runs.outputs import roles
from hpgmn.training.ensemble import SavedEnsemble


def data_of(saved, graph, first=()):
    replicas = open_replicas(saved, graph)
    return explorer_data(replicas, saved.class_names, roles(graph.split(0)), graph.y, first)


def made(saved, graph):
    """The data as a reader of its JSON sees it."""
    content = json.loads(json.dumps(data_of(saved, graph), allow_nan=False))
    assert isinstance(content, dict)
    return content


def test_every_node_has_the_numbers_of_its_explanation(named_graph, fit):
    saved = fit(named_graph, seeds=2, neighbors="both", epochs=30)
    content = made(saved, named_graph)
    split = named_graph.split(0)
    ids, names = content["ids"], content["classes"]
    assert sorted(ids) == sorted(f"account-{v}" for v in range(named_graph.num_nodes))
    assert content["num_nodes"] == len(content["nodes"]) == named_graph.num_nodes
    assert names == list(named_graph.class_names)
    turned = 0
    for place, row in enumerate(content["nodes"]):
        result = explain_node(saved, named_graph, ids[place])
        number = int(ids[place].removeprefix("account-"))
        assert getattr(split, row["role"])[number]
        assert row["label"] == named_graph.y[number]
        assert names[row["prediction"]] == result.prediction
        assert row["probabilities"] == pytest.approx(list(result.probabilities.values()), abs=1e-5)
        shares = {name: row["shares"][k] for k, (name, _) in enumerate(content["statistics"])}
        assert shares == pytest.approx(result.statistics, abs=1e-5)
        assert row["baseline"] == pytest.approx(result.baseline, abs=1e-5)
        for [k, attention], own in zip(row["patterns"], result.patterns, strict=True):
            pattern = content["patterns"][k]
            assert k == own.number
            assert attention == pytest.approx(own.attention, abs=1e-5)
            assert pattern["classes"] == pytest.approx(list(own.classes.values()), abs=1e-5)
            assert pattern["typical_nodes"] == list(own.typical_nodes)
            assert list(pattern["neighborhood"]) == list(own.neighborhood) == ["out", "in"]
            for mode, every in own.neighborhood.items():
                near = pattern["neighborhood"][mode]
                assert near == pytest.approx(list(every.values()), abs=1e-5)

        assert row["degree"] == len(result.neighbors)
        assert [ids[u] for u in row["neighbors"]] == [one.node for one in result.neighbors]
        assert row["support"] == pytest.approx([one.support for one in result.neighbors], abs=1e-5)
        for u, one in zip(row["neighbors"], result.neighbors, strict=True):
            taken = content["counts_as"][u]
            assert (names[taken] if taken >= 0 else None) == one.counts_as
            assert bool(content["is_known"][u]) == one.is_known
        for key in ("without", "turning"):
            own, changed = getattr(result, key), row[key]
            assert (own is None) == (changed is None)
            if own is not None:
                turned += key == "turning"
                assert tuple(ids[u] for u in changed["neighbors"]) == own.neighbors
                assert names[changed["prediction"]] == own.prediction
                chance = own.probabilities[own.prediction]
                assert changed["probability"] == pytest.approx(chance, abs=1e-5)
        assert set(result.notes) == {*content["notes"], *row["notes"]}
        largest = result.column_effects[:5]
        assert row["columns"] == [
            [str(one), pytest.approx(one.effect, abs=1e-5), one.error] for one in largest
        ]
    assert turned


def test_edges_have_their_direction(named_graph, fit):
    content = made(fit(named_graph), named_graph)
    listed = {(int(s), int(t)) for s, t in named_graph.edge_index.T}
    numbers = [int(name.removeprefix("account-")) for name in content["ids"]]
    kinds = set()
    for place, row in enumerate(content["nodes"]):
        for other, bits in zip(row["neighbors"], row["edges"], strict=True):
            v, u = numbers[place], numbers[other]
            assert bits == ((v, u) in listed) + 2 * ((u, v) in listed)
            kinds.add(bits)
    assert kinds == {1, 2, 3}


def test_a_model_without_statistics_has_probabilities_and_neighbours(small_graph, fit):
    saved = fit(small_graph, "gcn")
    content = made(saved, small_graph)
    assert content["statistics"] == content["patterns"] == []
    assert any("reads no local statistics" in note for note in content["notes"])
    for place, row in enumerate(content["nodes"]):
        result = explain_node(saved, small_graph, content["ids"][place])
        assert row["probabilities"] == pytest.approx(list(result.probabilities.values()), abs=1e-5)
        near = {content["ids"][u] for u in row["neighbors"]}
        assert near == {one.node for one in result.neighbors}
        assert not {"shares", "support", "patterns", "turning"} & set(row)


def test_trees_have_shares_and_no_baseline(small_graph, fit):
    saved = fit(small_graph, "boosting")
    content = made(saved, small_graph)
    for place, row in enumerate(content["nodes"]):
        result = explain_node(saved, small_graph, content["ids"][place])
        shares = {name: row["shares"][k] for k, (name, _) in enumerate(content["statistics"])}
        assert shares == pytest.approx(result.statistics, abs=1e-5)
        assert "baseline" not in row


def test_the_answer_of_an_ensemble_is_beside_that_of_its_member(small_graph, fit):
    members = {name: fit(small_graph, name) for name in ("hpgmn", "mlp")}
    ensemble = SavedEnsemble.of(members, {"hpgmn": [0.5], "mlp": [0.5]}, [0])
    probabilities = ensemble.mean_probabilities(small_graph).numpy()
    content = explorer_data(
        open_replicas(members["hpgmn"], small_graph),
        ensemble.class_names,
        roles(small_graph.split(0)),
        small_graph.y,
        ensemble=ensemble,
    )
    for place, row in enumerate(content["nodes"]):
        own = probabilities[int(content["ids"][place])]
        label, probability = row["ensemble"]
        assert label == own.argmax()
        assert probability == pytest.approx(own.max(), abs=1e-5)


def test_one_explained_node_has_the_rows_of_many(named_graph, fit):
    """The data of a node from its explanation equal those computed for all nodes."""
    saved = fit(named_graph, seeds=2, neighbors="both", epochs=30)
    content = made(saved, named_graph)
    for place, row in enumerate(content["nodes"]):
        explanation = explain_node(saved, named_graph, content["ids"][place]).as_dict()
        alone = json.loads(
            json.dumps(explained_node_data(explanation, named_graph, saved.class_names))
        )
        [own] = alone["nodes"]

        def named(data, numbers):
            return [(data["ids"][k], data["counts_as"][k], data["is_known"][k]) for k in numbers]

        assert named(alone, own["neighbors"]) == named(content, row["neighbors"])
        for key in ("prediction", "degree", "edges"):
            assert own[key] == row[key]
        for key in ("probabilities", "support", "baseline"):
            assert own[key] == pytest.approx(row[key], abs=1e-5)
        names, alone_names = ([name for name, _ in data["statistics"]] for data in (content, alone))
        assert dict(zip(alone_names, own["shares"], strict=True)) == pytest.approx(
            dict(zip(names, row["shares"], strict=True)), abs=1e-5
        )
        assert own["columns"] == [
            [words, pytest.approx(effect, abs=1e-5), pytest.approx(error, abs=1e-5)]
            for words, effect, error in row["columns"]
        ]
        for [number, attention], [expected, weight] in zip(
            own["patterns"], row["patterns"], strict=True
        ):
            assert number == expected
            assert attention == pytest.approx(weight, abs=1e-5)
            pattern = content["patterns"][number]
            assert alone["patterns"][str(number)]["typical_nodes"] == pattern["typical_nodes"]
        for key in ("without", "turning"):
            assert (own[key] is None) == (row[key] is None)
            if row[key] is not None:
                assert own[key]["prediction"] == row[key]["prediction"]
                assert own[key]["probability"] == pytest.approx(row[key]["probability"], abs=1e-5)
                assert named(alone, own[key]["neighbors"]) == named(content, row[key]["neighbors"])


def test_one_explained_node_of_an_ensemble_names_its_member(small_graph, fit):
    members = {name: fit(small_graph, name) for name in ("hpgmn", "mlp")}
    ensemble = SavedEnsemble.of(members, {"hpgmn": [0.5], "mlp": [0.5]}, [0])
    explanation = explain_ensemble(ensemble, small_graph, 3)
    content = explained_node_data(explanation.as_dict(), small_graph, ensemble.class_names)
    [row] = content["nodes"]
    own = members[content["member"]].mean_probabilities(small_graph)[3].numpy()
    assert row["probabilities"] == pytest.approx(own, abs=1e-5)
    probabilities = ensemble.mean_probabilities(small_graph)[3].numpy()
    assert row["ensemble"] == [probabilities.argmax(), pytest.approx(probabilities.max(), abs=1e-5)]


def test_any_first_few_nodes_are_of_every_kind():
    random = np.random.default_rng(3)
    predicted, labels = random.integers(0, 3, 500), random.integers(-1, 3, 500)
    labels[:480] = np.where(labels[:480] >= 0, predicted[:480], -1)  # few are wrong
    trained = (random.random(500) < 0.3) & (labels >= 0)
    order = sample_nodes(predicted, labels, trained)
    assert sorted(order) == list(range(500))
    assert order.tolist() == sample_nodes(predicted, labels, trained).tolist()
    kinds = [
        (p, "unknown" if y < 0 else p == y, t)
        for p, y, t in zip(predicted, labels, trained, strict=True)
    ]
    assert {kinds[v] for v in order[: len(set(kinds))]} == set(kinds)
    assert order.tolist() != sorted(order)


def test_of_a_large_graph_some_nodes_are_listed(named_graph, fit, monkeypatch):
    saved = fit(named_graph)
    whole = made(saved, named_graph)
    monkeypatch.setattr(module, "LISTED", 4)
    monkeypatch.setattr(module, "DRAWN", 2)
    content = made(saved, named_graph)
    assert content["num_nodes"] == named_graph.num_nodes
    assert content["ids"][:4] == whole["ids"][:4]
    assert len(content["nodes"]) == 4
    assert 4 < len(content["ids"]) <= 4 + 4 * 7
    assert len(content["counts_as"]) == len(content["is_known"]) == len(content["ids"])
    for row, full in zip(content["nodes"], whole["nodes"], strict=False):
        strongest = sorted(np.abs(full["support"]), reverse=True)[:2]
        assert row["degree"] == full["degree"]
        assert sorted(np.abs(row["support"]), reverse=True) == strongest
        assert row["support"] == sorted(row["support"], reverse=True)
    monkeypatch.setattr(module, "SUBSETS", 16 * 3 + 1)
    assert len(made(saved, named_graph)["nodes"]) == 3  # 2^4 subsets of statistics each
    monkeypatch.setattr(module, "FEW_CLASSES", 2)  # there are three
    assert len(made(saved, named_graph)["nodes"]) == 2


def test_requested_nodes_are_listed_first(named_graph, small_graph, fit, monkeypatch):
    monkeypatch.setattr(module, "LISTED", 4)
    for graph, first in (
        (named_graph, ["account-7", "account-2", "unknown"]),
        (small_graph, ["7", "2"]),
    ):
        content = data_of(fit(graph), graph, first)
        assert content["ids"][:2] == first[:2]
        assert len(content["nodes"]) == 4


def test_effects_of_neighbours_stay_within_the_budget(named_graph, fit, monkeypatch):
    saved = fit(named_graph)
    costs: list[float] = []
    monkeypatch.setattr(module, "_seconds", lambda replicas, degree: costs.append(degree) or degree)
    monkeypatch.setattr(module, "SECONDS", 20)
    content = made(saved, named_graph)
    spent = sum(row["degree"] for row in content["nodes"] if "support" in row)
    left = [row["degree"] for row in content["nodes"] if "support" not in row]
    assert 0 < spent <= 20
    assert left
    assert min(left) > 20 - spent
    assert len(costs) == named_graph.num_nodes
    for row in content["nodes"]:
        assert ("support" in row) == ("without" in row) == ("turning" in row) == ("notes" in row)


def test_cost_grows_with_neighbours_and_seeds(named_graph, fit):
    statistics = ["attributes", "class_counts"]
    one, three = (
        open_replicas(fit(named_graph, statistics=statistics, seeds=seeds), named_graph)
        for seeds in (1, 3)
    )
    assert module._seconds(one, 200) - module._seconds(one, 100) == pytest.approx(0.05)
    assert module._seconds(three, 100) == pytest.approx(3 * module._seconds(one, 100))


def test_diffusion_adds_cost_for_each_exact_neighbour(named_graph, fit):
    def walks(seeds, degree):
        """What diffusion adds to the cost of a node."""
        given = [("attributes", name) for name in ("diffusion", "class_counts")]
        with_diffusion, without = (
            open_replicas(fit(named_graph, statistics=own, seeds=seeds), named_graph)
            for own in given
        )
        return module._seconds(with_diffusion, degree) - module._seconds(without, degree)

    at_ten, at_twenty, at_forty = (walks(1, degree) for degree in (10, 20, 40))
    assert at_twenty > at_ten > 0
    assert at_forty - at_twenty == pytest.approx(2 * (at_twenty - at_ten))
    assert walks(1, 64) == pytest.approx(walks(1, 1000))
    assert walks(3, 20) == pytest.approx(at_twenty)  # replicas share the rows


def test_long_ids_make_the_list_shorter(named_graph, fit, monkeypatch):
    assert named_graph.node_ids is not None
    long = Graph(
        named_graph.x,
        named_graph.edge_index,
        named_graph.y,
        node_ids=[name + "<" * 1000 for name in named_graph.node_ids],
        class_names=named_graph.class_names,
        train_mask=named_graph.splits.train if named_graph.splits else None,
        val_mask=named_graph.splits.val if named_graph.splits else None,
        test_mask=named_graph.splits.test if named_graph.splits else None,
    )
    saved = fit(long)
    whole = len(json.dumps(data_of(saved, long), separators=(",", ":")))
    monkeypatch.setattr(module, "LARGEST", whole - 1)
    shorter = data_of(saved, long)
    assert len(shorter["nodes"]) == 9
    monkeypatch.setattr(module, "LARGEST", 100)
    assert data_of(saved, long)["nodes"] == []
