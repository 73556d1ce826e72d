"""Graphs as of a date: later edges reach nothing that is trained, and are there to predict."""

import json

import numpy as np
import pytest

from hpgmn.base.errors import HPGMNError
from hpgmn.graph import from_tables, random_splits
from hpgmn.graph.content import graph_content, search_content
from hpgmn.graph.files import read_graph, write_graph

NAMES = [f"n{number}" for number in range(40)]
RANDOM = np.random.default_rng(0)
ENDS = RANDOM.integers(0, 40, (2, 160))
TIMES = [str(np.datetime64("2024-01-01T00:30") + np.timedelta64(5 * n, "h")) for n in range(160)]
NODES = {
    "id": NAMES,
    "age": RANDOM.normal(size=40).tolist(),
    "label": ["x", "y"] * 20,
    "day": [str(np.datetime64("2024-01-01") + np.timedelta64(number, "D")) for number in range(40)],
}


def transfers(last_kind="card", last_amount=5.0, **columns):
    """Edges by time; the last one is to be changed."""
    return {
        "source": [NAMES[end] for end in ENDS[0]],
        "target": [NAMES[end] for end in ENDS[1]],
        "amount": [*RANDOM_AMOUNTS, last_amount],
        "kind": [*(["card", "cash"] * 80)[:159], last_kind],
        "time": TIMES,
    } | columns


RANDOM_AMOUNTS = RANDOM.lognormal(size=159).tolist()


def same(one, other):
    fitted = [json.dumps(graph.preparation) for graph in (one, other)]
    return one.fingerprint == other.fingerprint and fitted[0] == fitted[1]


def test_later_edges_change_only_the_full_graph():
    before = from_tables(NODES, transfers(), as_of="2024-01-20")
    after = from_tables(NODES, transfers("gold", 1e9), as_of="2024-01-20")
    assert same(before, after)
    contents = [graph.with_splits(random_splits(graph.y)) for graph in (before, after)]
    assert len({search_content(graph, [0]) for graph in contents}) == 1
    assert len({graph_content(graph, [0]) for graph in contents}) == 2
    assert not np.array_equal(before.full.x, after.full.x)
    is_early = [time < "2024-01-21" for time in TIMES]
    assert before.num_listed_edges == sum(is_early) < before.full.num_listed_edges == 160
    early = {name: np.asarray(own)[is_early].tolist() for name, own in transfers().items()}
    only = from_tables(NODES, early)
    assert only.fingerprint == before.fingerprint
    assert from_tables(NODES, transfers(), like=only).fingerprint == before.full.fingerprint


def test_nodes_split_by_time_bring_their_date():
    graph = from_tables(NODES, transfers(), split_by=["time", "day"])
    newest = max(np.asarray(NODES["day"])[graph.split(0).val])
    assert graph.preparation["roles"]["as_of"] == newest
    assert graph.num_listed_edges == sum(time[:10] <= newest for time in TIMES) < 160
    assert same(graph, from_tables(NODES, transfers("gold"), split_by=["time", "day"]))
    np.testing.assert_array_equal(graph.full.split(0).test, graph.split(0).test)
    everything = from_tables(NODES, transfers(), split_by=["time", "day"], edge_time="")
    assert everything.full is everything
    later = from_tables(NODES, transfers(), like=graph)  # as if to predict
    assert later.num_listed_edges == 160


def test_numbers_may_be_times():
    steps = transfers(time=list(range(160)))
    graph = from_tables(NODES, steps, edge_time="time", as_of="99")
    assert (graph.num_listed_edges, graph.full.num_listed_edges) == (100, 160)


def test_files_keep_both_graphs(tmp_path):
    graph = from_tables(NODES, transfers(), as_of="2024-01-20T10:00", name="mine")
    for name in ("mine.npz", "mine.graph"):
        write_graph(graph, tmp_path / name)
        again = read_graph(tmp_path / name)
        assert same(again, graph)
        assert same(again.full, graph.full)
        np.testing.assert_array_equal(again.full.edge_values, graph.full.edge_values)


def test_new_nodes_are_added_to_all_edges():
    graph = from_tables(NODES, transfers(), as_of="2024-01-20")
    new = {"source": ["new"], "target": ["n0"], "amount": [1.0], "kind": ["card"]}
    new["time"] = ["2024-03-01T00:30"]
    grown = from_tables({"id": ["new"], "age": [0.5], "day": ["2024-03-01"]}, new, onto=graph)
    assert grown.num_listed_edges == 161


def test_attributes_that_are_not_prepared_have_later_edges_too():
    nodes = {name: NODES[name] for name in ("id", "age", "label", "day")}
    graph = from_tables(nodes, transfers(), split_by=["time", "day"], prepare=False)
    assert graph.num_listed_edges < graph.full.num_listed_edges == 160
    np.testing.assert_array_equal(graph.full.split(0).test, graph.split(0).test)


def test_dates_may_have_a_time_zone_and_nanoseconds():
    zoned = transfers(time=[f"{time}+02:00" for time in TIMES])
    counts = {
        as_of: from_tables(NODES, zoned, as_of=as_of).num_listed_edges
        for as_of in (f"{TIMES[90]}+02:00", "2024-01-19T16:30", "2024-01-19T16:30Z")
    }
    assert set(counts.values()) == {91}
    exact = transfers(time=np.asarray(TIMES, "datetime64[ns]") + np.timedelta64(7, "ns"))
    assert from_tables(NODES, exact, as_of="2024-01-20").num_listed_edges == sum(
        time < "2024-01-21" for time in TIMES
    )


def test_a_date_means_its_end_however_it_is_written():
    graphs = [
        from_tables(NODES, transfers(), as_of=text)
        for text in ("2024-01-20", "20240120", "2024-01-20T23:59:59")
    ]
    assert len({graph.num_listed_edges for graph in graphs}) == 1


@pytest.mark.parametrize("model", ["hpgmn", "gcn"])
def test_training_sees_no_later_edge(tmp_path, model):
    from hpgmn import open_run, train

    runs = {}
    for name, edges in {"one": transfers(), "other": transfers("gold", 1e9)}.items():
        graph = from_tables(NODES, edges, split_by=["time", "day"])
        small = {"hidden_dim": 4, "epochs": 3}
        options = {"model": model, "settings": small, "report": False, "out": tmp_path / name}
        runs[name] = train(graph, **options)
    one, other = runs["one"], runs["other"]
    assert one.metrics["val_score"] == other.metrics["val_score"]
    for stage, parameters in one.model.done.items():
        for name, value in parameters.items():
            np.testing.assert_array_equal(value, other.model.done[stage][name])
    opened = open_run(one.folder)
    assert opened.graph.num_listed_edges < opened.graph.full.num_listed_edges
    first, second = opened.predict().probabilities, open_run(other.folder).predict().probabilities
    assert not np.array_equal(first, second)
    assert opened.predict().num_new is None
    scored = opened.evaluate()
    assert scored["nodes"] == "test nodes"
    assert scored["score_mean"] == pytest.approx(one.metrics["test_score_mean"])


@pytest.mark.parametrize(
    ("edges", "options", "message"),
    [
        ({}, {"as_of": "yesterday"}, "as_of takes a date such as 2024-03-01"),
        ({}, {"as_of": "2019-05-01"}, "begins at 2024-01-01 00:30:00: no edge is left"),
        ({"time": None}, {"as_of": "2024-01-20"}, "that holds dates, and none does"),
        (
            {"time": None, "sent": TIMES, "booked": TIMES},
            {"as_of": "2024-01-20"},
            "several do: 'sent', 'booked'.*edge_time",
        ),
        ({"step": list(range(160))}, {"edge_time": "step", "as_of": "x"}, "as_of takes a number"),
        ({}, {"edge_time": "kind", "as_of": "2024-01-20"}, "neither numbers nor dates"),
        ({"time": [None] * 160}, {"edge_time": "time", "as_of": "7"}, "is empty: no edge is left"),
        ({}, {"as_of": 20}, r"as_of takes a date in quotes \(got 20\)"),
    ],
)
def test_dates_that_cannot_be_used_are_one_sentence(edges, options, message):
    chosen = {name: own for name, own in {**transfers(), **edges}.items() if own is not None}
    with pytest.raises(HPGMNError, match=message) as caught:
        from_tables(NODES, chosen, **options)
    assert "\n" not in str(caught.value)
