"""A run on a graph that grows has the predictions of its model on the graph built at once."""

import warnings

import numpy as np
import pytest

import hpgmn
from hpgmn.base.errors import HPGMNError
from hpgmn.runs.run import Run
from hpgmn.service import live as module
from hpgmn.service.live import LiveRun
from hpgmn.training.ensemble import SavedEnsemble

from .small_tables import NUM_OLD, SHORT, columns, is_old, tables

TABLES = {
    "directed": {},
    "undirected": {"directed": False},
    "weighted": {"edges": ("weight",)},
    "types": {"edges": ("way",), "edge_type": "way"},
    "edge columns": {"edges": ("amount", "way", "time")},
    "undirected edge columns": {"edges": ("amount", "weight"), "directed": False},
    "no attributes": {"nodes": ("id", "label")},
    "regression": {"regression": True},
}
SETTINGS = {
    "attributes": {"statistics": ("attributes",)},
    "hops": {"statistics": ("attributes", "hops"), "hops": 2},
    "two steps": {"statistics": ("attributes", "neighbor_class_means", "neighbor_adjacency")},
    "refinement": {"refinement": True},
    "soft counts": {"statistics": ("attributes", "class_counts"), "soft_counts": True},
    "message passing": {"statistics": ("attributes", "message_passing"), "mp_layers": 2},
    "diffusion": {"statistics": ("attributes", "diffusion")},
    "batches": {"batch_size": 16},
}


@pytest.fixture
def train(tmp_path):
    """Train a short run on a graph."""

    def train(graph, model="hpgmn", **settings):
        return hpgmn.train(
            graph,
            model=model,
            settings=SHORT | settings if model == "hpgmn" else {"epochs": 4} | settings,
            splits=[0],
            out=tmp_path / "run",
            report=False,
            overwrite=True,
        )

    return train


@pytest.fixture
def ego_networks_only(monkeypatch):
    """Small graphs have ego networks of most of their nodes."""
    monkeypatch.setattr(module, "WHOLE_SHARE", 2.0)


def graphs(kind, seed=0):
    """The graph to train on, the rows that are added to it, and the whole graph."""
    options = dict(TABLES[kind])
    names, edge_columns = options.pop("nodes", None), options.pop("edges", ())
    regression = options.pop("regression", False)
    nodes, edges = tables(seed, regression=regression, edge_columns=edge_columns)
    names = names or list(nodes[0])
    old_edges, new_edges = (
        [edge for edge in edges if is_old(edge) == old] for old in (True, False)
    )
    with warnings.catch_warnings(action="ignore"):
        trained = hpgmn.from_tables(columns(nodes[:NUM_OLD], names), columns(old_edges), **options)
    trained = trained.with_splits(hpgmn.random_splits(trained, 1))
    new_nodes = [{name: row[name] for name in names if name != "label"} for row in nodes[NUM_OLD:]]
    whole = hpgmn.from_tables(columns(new_nodes), columns(new_edges), onto=trained)
    return trained, new_nodes, new_edges, whole


def expected(run, graph):
    values = run.models_of()[1].mean_probabilities(graph).numpy()
    return dict(zip(graph.node_ids.tolist(), values, strict=True))


def served(live, ids):
    rows = live.predict(ids)
    assert [row["id"] for row in rows] == ids
    if live.class_names:
        return [list(row["probabilities"].values()) for row in rows]
    return [[row["prediction"]] for row in rows]


def add_in_random_order(live, nodes, edges, seed=0):
    """Add rows one by one, a node before its edges; all predictions are read now and then."""
    random = np.random.default_rng(seed)
    rows = {row["id"]: row for row in nodes}
    for count, number in enumerate(random.permutation(len(edges)).tolist()):
        edge = edges[number]
        new = [rows.pop(end) for end in {edge["source"], edge["target"]} if end in rows]
        live.apply(live.prepare(new, [edge]))
        if count % 7 == 0:
            live.predict(list(live.graph.node_ids) if count % 2 else [edge["source"]])
    for row in rows.values():
        live.apply(live.prepare([row], []))


def check_growth(run, parts, seed=0):
    _, nodes, edges, whole = parts
    live = LiveRun(run)
    live.predict(list(run.graph.node_ids))
    add_in_random_order(live, nodes, edges, seed)
    assert (live.num_nodes, live.num_edges) == (whole.num_nodes, whole.num_listed_edges)
    answers = expected(run, whole)
    ids = list(answers)
    np.testing.assert_allclose(served(live, ids), [answers[name] for name in ids], atol=1e-5)
    # The order of rows differs, the graph does not.
    order = [live.graph.node_ids.tolist().index(name) for name in ids]
    np.testing.assert_allclose(live.graph.x[order], whole.x, atol=1e-5)
    return live


@pytest.mark.usefixtures("ego_networks_only")
@pytest.mark.parametrize("kind", TABLES)
def test_growth_on_tables(kind, train):
    parts = graphs(kind)
    check_growth(train(parts[0]), parts)


@pytest.mark.usefixtures("ego_networks_only")
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", ["directed", "edge columns"])
def test_growth_with_settings(name, kind, train):
    parts = graphs(kind, seed=1)
    check_growth(train(parts[0], **SETTINGS[name]), parts, seed=1)


@pytest.mark.parametrize("model", ["gcn", "mlp"])
def test_growth_of_other_models(model, train):
    parts = graphs("weighted")
    check_growth(train(parts[0], model=model), parts)


def test_most_of_the_graph_is_recomputed_as_a_whole(train):
    parts = graphs("edge columns")
    check_growth(train(parts[0]), parts)


@pytest.mark.parametrize("other", ["gcn", "mlp"])
def test_an_ensemble(other, train, monkeypatch):
    monkeypatch.setattr(module, "WHOLE_SHARE", 2.0)
    parts = graphs("directed")
    first = train(parts[0], statistics=("attributes", "neighbor_class_counts"))
    members = {"memory": first.model, "other": train(parts[0], model=other).model}
    weights = {"memory": [0.75], "other": [0.25]}
    model = SavedEnsemble.of(members, weights, [0])
    run = Run(first.folder, first.spec, model, graph=first.graph, metrics=first.metrics)
    check_growth(run, parts)


@pytest.mark.usefixtures("ego_networks_only")
@pytest.mark.parametrize("kind", ["edge columns", "types", "no attributes"])
def test_predict_new_equals_adding_and_changes_nothing(kind, train):
    graph, nodes, edges, _ = graphs(kind)
    live = LiveRun(train(graph))
    known = {row["id"] for row in nodes[:3]} | set(graph.node_ids.tolist())
    some = [edge for edge in edges if {edge["source"], edge["target"]} <= known]
    assert some
    live.apply(live.prepare(*_last_node(nodes, edges, graph)))
    before, fingerprint = served(live, graph.node_ids.tolist()), live.graph.fingerprint
    answers = live.predict_new(nodes[:3], some)
    assert served(live, graph.node_ids.tolist()) == before
    with pytest.raises(HPGMNError):
        live.predict([nodes[0]["id"]])
    live._graph = None
    assert live.graph.fingerprint == fingerprint
    live.apply(live.prepare(nodes[:3], some))
    added = served(live, [row["id"] for row in answers])
    np.testing.assert_allclose(added, [list(row["probabilities"].values()) for row in answers])


@pytest.mark.usefixtures("ego_networks_only")
@pytest.mark.parametrize("name", SETTINGS)
def test_new_nodes_with_settings(name, train):
    graph, nodes, edges, whole = graphs("undirected edge columns", seed=2)
    run = train(graph, **SETTINGS[name])
    rows, answers = LiveRun(run).predict_new(nodes, edges), expected(run, whole)
    assert [row["id"] for row in rows] == [row["id"] for row in nodes]
    for row in rows:
        found = list(row["probabilities"].values())
        np.testing.assert_allclose(found, answers[row["id"]], atol=1e-5)


def _last_node(nodes, edges, graph):
    known = {nodes[-1]["id"]} | set(graph.node_ids.tolist())
    return nodes[-1:], [edge for edge in edges if {edge["source"], edge["target"]} <= known]


def test_a_refused_addition_changes_nothing(train):
    graph, nodes, _, _ = graphs("weighted")
    live = LiveRun(train(graph))
    before = live.graph.fingerprint
    node, edge = nodes[0], {"source": nodes[0]["id"], "target": "n1", "weight": 1.0}
    refused = {
        "unknown column": ([node | {"hue": 3}], []),
        "known id": ([node | {"id": "n1"}], []),
        "repeated id": ([node, node], []),
        "no id": ([{"size": 1.0, "kind": "red"}], []),
        "empty id": ([node | {"id": None}], []),
        "no column": ([{"id": "new"}], []),
        "text for a number": ([node | {"size": "large"}], []),
        "infinite": ([node | {"size": 1e300}], []),
        "nested": ([node | {"size": {"a": 1}}], []),
        "unknown class": ([node | {"label": "perhaps"}], []),
        "unknown end": ([node], [edge | {"target": "nobody"}]),
        "no end": ([node], [{"source": "n1", "weight": 1.0}]),
        "no weight": ([node], [{"source": "n1", "target": "n2"}]),
        "weight of zero": ([node], [edge | {"weight": 0}]),
        "unknown edge column": ([node], [edge | {"hue": 3}]),
    }
    for what, (new_nodes, new_edges) in refused.items():
        for method in (live.prepare, live.predict_new):
            with pytest.raises(HPGMNError) as error:
                method(new_nodes, new_edges)
            assert error.value.remedy is not None, what
    live._graph = None
    assert live.graph.fingerprint == before
    live.apply(live.prepare([node], []))
    assert live.num_nodes == graph.num_nodes + 1


def test_rows_may_lack_values_and_numbers_may_be_text(train):
    graph, *_ = graphs("directed")
    live = LiveRun(train(graph))
    rows = [{"id": "p", "size": "1.5", "kind": "red"}, {"id": "q", "kind": "green"}]
    table = {"id": ["p", "q"], "size": [1.5, None], "kind": ["red", "green"]}
    whole = hpgmn.from_tables(table, {"source": [], "target": []}, onto=graph)
    answers = expected(live.run, whole)
    found = {row["id"]: list(row["probabilities"].values()) for row in live.predict_new(rows, [])}
    assert found == {name: pytest.approx(answers[name], abs=1e-6) for name in ("p", "q")}
    assert live.predict_new([], []) == []


@pytest.mark.parametrize("sparse", [False, True])
def test_graphs_without_names(sparse, train):
    random = np.random.default_rng(0)
    x, edges = random.normal(size=(50, 3)).round(), random.integers(50, size=(2, 120))
    y, types = random.integers(2, size=50), random.integers(2, size=120)
    weights = random.random(120) + 0.5
    if sparse:
        import scipy.sparse as sp

        x = sp.csr_array(x)
    graph = hpgmn.Graph(x, edges, y, edge_weight=weights, edge_type=types)
    run = train(graph.with_splits(hpgmn.random_splits(graph, 1)))
    live = LiveRun(run)
    usual = run.predict()
    np.testing.assert_allclose(served(live, list(range(50))), usual.probabilities, atol=1e-6)
    node = {"id": 50, "x[0]": 1, "x[1]": 0, "x[2]": 2}
    edge = {"source": 3, "target": 50, "weight": 2.0, "type": "1"}
    answer = live.predict_new([node], [edge])
    live.apply(live.prepare([node], [edge]))
    assert live.predict([50]) == answer
    assert answer[0]["id"] == 50
    named = [f"{number}" for number in range(51)]
    rows = np.vstack([x.toarray() if sparse else x, [[1, 0, 2]]])
    larger = hpgmn.Graph(
        *(rows, np.append(edges, [[3], [50]], axis=1), np.append(y, -1)),
        edge_weight=np.append(weights, 2),
        edge_type=np.append(types, 1),
        node_ids=named,
    )
    answers = live.run.models_of()[1].mean_probabilities(larger).numpy()
    np.testing.assert_allclose(served(live, list(range(51))), answers, atol=1e-5)


def test_top_ranks_unlabelled_nodes_of_the_current_graph(train):
    graph, nodes, edges, _ = graphs("directed")
    live = LiveRun(train(graph))
    add_in_random_order(live, nodes, edges)
    new = [row["id"] for row in nodes]
    chances = {row["id"]: row["probabilities"]["yes"] for row in live.predict(new)}
    rows = live.top(5, of="yes")
    assert [row["id"] for row in rows] == sorted(new, key=lambda name: -chances[name])[:5]
    assert all(isinstance(row["reason"], str | None) for row in rows)
    assert live.top(5) == live.top(5, of=live.positive)
    with pytest.raises(HPGMNError):
        live.top(5, of="perhaps")


def test_explanations_are_of_the_current_graph(train):
    graph, nodes, edges, whole = graphs("directed")
    live = LiveRun(train(graph))
    live.apply(live.prepare(nodes, edges))
    name = nodes[0]["id"]
    assert live.explain(name) == live.run.explain(name, graph=whole).as_dict()


def test_unknown_ids_are_named(train):
    live = LiveRun(train(graphs("directed")[0]))
    for method in (live.predict, live.read):
        with pytest.raises(HPGMNError) as error:
            method(["n1", "N22x"])
        assert "N22x" in error.value.message
        assert error.value.remedy is not None


def test_intervals_of_a_regression_are_those_of_the_run(train):
    run = train(graphs("regression")[0])
    usual = run.predict()
    row = LiveRun(run).predict([run.graph.node_ids[0]])[0]
    ends = {name: values[0] for name, values in usual.intervals.items() if np.isfinite(values[0])}
    assert ends
    finite = {name: value for name, value in row["intervals"].items() if value is not None}
    assert finite == pytest.approx(ends, abs=1e-5)
    assert set(row["intervals"]) == set(usual.intervals)
    assert set(row) == {"id", "prediction", "intervals"}


def test_a_run_as_of_a_date_predicts_on_all_edges(train):
    nodes, edges = tables(edge_columns=("amount", "time"))
    graph = hpgmn.from_tables(columns(nodes), columns(edges), as_of="2025-05-01")
    run = train(graph.with_splits(hpgmn.random_splits(graph, 1)))
    live = LiveRun(run)
    assert live.num_edges == len(edges) > run.graph.num_listed_edges
    np.testing.assert_allclose(
        served(live, graph.node_ids.tolist()), run.predict().probabilities, atol=1e-6
    )


@pytest.mark.slow
def test_ten_thousand_edges_one_by_one(train):
    accounts, transfers = hpgmn.bank_transfers(0)
    first = len(transfers["from"]) - 10_000
    old = {name: values[:first] for name, values in transfers.items()}
    new = {name: values[first:] for name, values in transfers.items()}
    graph = hpgmn.from_tables(accounts, old, label="fraud")
    run = train(graph)
    live = LiveRun(run)
    random = np.random.default_rng(0)
    ids = graph.node_ids.tolist()
    for edge in (dict(zip(new, row, strict=True)) for row in zip(*new.values(), strict=True)):
        live.apply(live.prepare([], [edge]))
        if random.random() < 0.01:
            live.predict(random.choice(ids, 20).tolist())
    nobody = {name: [] for name in accounts if name != "fraud"}
    answers = expected(run, hpgmn.from_tables(nobody, new, onto=graph))
    assert list(answers) == ids
    np.testing.assert_allclose(served(live, ids), list(answers.values()), atol=1e-5)
