"""Aggregates of edge columns against pandas; later nodes and edges; broken columns."""

import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpgmn.graph import from_tables
from hpgmn.graph.conversion import reading_options
from hpgmn.tables.edge_columns import aggregates
from hpgmn.tables.preparation import Preparation

pd = pytest.importorskip("pandas")

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
START = datetime.datetime(2024, 1, 1)
TIMES = st.integers(0, 10**7).map(lambda seconds: START + datetime.timedelta(seconds=seconds))


ALWAYS = [  # so that every column varies, times have hours, and all words occur
    (0, 1, 1.0, "card", START),
    (1, 0, 2.0, "cash", START + datetime.timedelta(days=100, hours=5)),
    (0, 2, None, "wire", None),
]


@st.composite
def edge_tables(draw, nodes=6):
    node = st.integers(0, nodes - 1)
    row = st.tuples(
        *(node, node, st.one_of(st.none(), st.floats(-1e6, 1e6))),
        *(st.sampled_from(["card", "cash", "wire", None]), st.one_of(st.none(), TIMES)),
    )
    rows = draw(st.lists(row, max_size=25))
    edges = pd.DataFrame([*ALWAYS, *rows], columns=["source", "target", "amount", "kind", "time"])
    return edges.assign(time=pd.to_datetime(edges.time), amount=edges.amount.astype(float))


def reference(edges, nodes, directed, period):
    """The aggregates by pandas: name → one number for each node."""
    both = pd.concat(
        [edges.assign(node=edges.source, end="out, "), edges.assign(node=edges.target, end="in, ")]
    )
    if not directed:
        is_loop = (both.end == "in, ") & (both.source == both.target)
        both = both[~is_loop].assign(end="")
    found = {}
    for end in ("out, ", "in, ") if directed else ("",):
        rows = both[both.end == end]
        by_node = rows.groupby("node")
        amount, time = by_node.amount, by_node.time
        repeated = rows.assign(again=edges.duplicated(["source", "target"]).loc[rows.index])
        numbers = {
            "edges repeated": np.log1p(
                repeated.groupby("node").again.sum().reindex(range(nodes), fill_value=0)
            ),
            "edges count": np.log1p(by_node.size().reindex(range(nodes), fill_value=0)),
            "amount sum": signed_log(amount.sum().reindex(range(nodes), fill_value=0)),
            "amount mean": signed_log(amount.mean()),
            "amount maximum": signed_log(amount.max()),
            "amount deviation": signed_log(amount.std(ddof=0)),
            "time first": (time.min() - period[0]) / (period[1] - period[0]),
            "time last": (time.max() - period[0]) / (period[1] - period[0]),
            "time mean gap": np.log1p(time.agg(mean_gap)),
        }
        for word in ("card", "cash", "wire"):
            known = rows[rows.kind.notna()]
            share = (known.kind == word).groupby(known.node).mean()
            found[f"kind={word} ({end}share)"] = share.reindex(range(nodes), fill_value=0)
        timed = rows[rows.time.notna()]
        recent = timed.time > period[0] + 0.9 * (period[1] - period[0])
        shares = {"last 10 %": recent}
        shares |= {day: timed.time.dt.day_of_week == number for number, day in enumerate(DAYS)}
        shares |= {
            f"{3 * part} to {3 * part + 3} h": timed.time.dt.hour // 3 == part for part in range(8)
        }
        for name, marks in shares.items():
            share = marks.groupby(timed.node).mean().astype(float)
            found[f"time ({end}{name})"] = share.reindex(range(nodes), fill_value=0)
        for name, own in numbers.items():
            column, what = name.split(" ", 1)
            found[f"{column} ({end}{what})"] = own.reindex(range(nodes))
    return {name: own.to_numpy(float) for name, own in found.items()}


def signed_log(values):
    return np.sign(values) * np.log1p(values.abs())


def mean_gap(times):
    return times.sort_values().diff().mean().total_seconds()


def aggregates_of(graph):
    """The aggregates of a graph before they are standardised."""
    fitted = Preparation.from_dict(graph.preparation)
    edges = (graph.edge_index, graph.edge_values, fitted.edge_columns)
    return dict(aggregates(*edges, graph.num_nodes, graph.directed))


def people(nodes, first=0):
    ids = list(range(first, first + nodes))
    return {"id": ids, "age": [number % 3 for number in ids]}


@settings(max_examples=60, deadline=None)
@given(edges=edge_tables(), directed=st.booleans())
def test_aggregates_equal_those_of_pandas(edges, directed):
    found = aggregates_of(from_tables(people(6), edges, directed=directed))
    expected = reference(edges, 6, directed, (edges.time.min(), edges.time.max()))
    assert set(found) == set(expected)
    for name, own in expected.items():
        np.testing.assert_allclose(found[name], own, atol=1e-6, err_msg=name)


@settings(max_examples=30, deadline=None)
@given(edges=edge_tables(nodes=9), directed=st.booleans(), is_weighted=st.booleans())
def test_new_nodes_and_their_old_neighbours_are_as_if_read_at_once(edges, directed, is_weighted):
    options = {"weight": "trust"} if is_weighted else {}
    edges = edges.assign(trust=np.arange(len(edges)) % 3 + 1.0)
    is_old = edges[["source", "target"]].max(axis=1) < 6
    old = from_tables(people(6), edges[is_old], directed=directed, **options)
    grown = from_tables(people(3, 6), edges[~is_old], onto=old)
    everything = pd.concat([edges[is_old], edges[~is_old]])
    whole = from_tables(people(9), everything, like=old, **options)
    assert grown.fingerprint == whole.fingerprint
    assert grown.feature_names.tolist() == old.feature_names.tolist()
    np.testing.assert_array_equal(grown.edge_values, whole.edge_values)


EDGES = {
    "source": ["a", "a", "b", "c"],
    "target": ["b", "b", "c", "a"],
    "amount": [10.0, 20.0, 30.0, 1000.0],
    "kind": ["card", "cash", "card", "card"],
}
NODES = {"id": list("abcd"), "age": [1.0, 2.0, 3.0, 4.0], "label": list("xyxy")}


def read(edges=None, nodes=None, **options):
    chosen = {**EDGES, **(edges or {})}
    kept = {name: own for name, own in chosen.items() if own is not None}
    return from_tables({**NODES, **(nodes or {})}, kept, **options)


def test_attributes_are_standardised_and_named(caplog):
    caplog.set_level("INFO")
    graph = read()
    names = graph.feature_names.tolist()
    assert names[:3] == ["age", "edges (out, count)", "edges (out, repeated)"]
    assert {"amount (out, mean)", "kind=card (in, share)"} <= set(names)
    mean = graph.x[:, names.index("amount (out, mean)")]
    logs = np.log1p([15, 30, 1000])
    expected = (np.append(logs, np.median(logs)) - logs.mean()) / logs.std()  # d pays nothing
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
    for line in (
        "edges: numbers, aggregated per node and direction: 'amount'.",
        "edges: categories, aggregated per node and direction: 'kind'.",
        "edges: 4 edges, 3 distinct pairs.",
    ):
        assert line in caplog.messages


def test_an_undirected_graph_has_one_set_without_a_direction():
    names = read(directed=False).feature_names.tolist()
    assert "amount (mean)" in names
    assert not [name for name in names if "out" in name or "(in" in name]


def test_columns_are_dropped_or_read_as_categories():
    plain = read(edge_drop=["amount", "kind"]).feature_names.tolist()
    assert plain == [
        *("age", "edges (out, count)", "edges (out, repeated)"),
        *("edges (in, count)", "edges (in, repeated)"),
    ]
    names = read({"amount": [7, 7, 8, 8]}, edge_categories=["amount"]).feature_names.tolist()
    assert "amount=7 (out, share)" in names
    assert "amount (out, mean)" not in names


def test_many_words_are_hashed_and_names_left_out(caplog):
    count = 200
    ends = {"source": ["a", "b"] * (count // 2), "target": ["c", "d"] * (count // 2)}
    shops = [f"shop {number % 50}" for number in range(count)]
    notes = [f"note {number % 180}" for number in range(count)]
    ids = list(range(1000, 1000 + count))
    columns = {"amount": None, "kind": None, "shop": shops, "note": notes, "number": ids}
    names = read(ends | columns).feature_names.tolist()
    assert any(name.startswith("shop#") for name in names)
    assert not any(name.startswith(("note", "number")) for name in names)
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "'note': free text or names" in warning
    assert 'edge_categories=["note"]' in warning


def test_labels_reach_no_aggregate():
    x = read().x
    for labels in (["y", "x", "y", "x"], [None, None, "x", "y"]):
        np.testing.assert_array_equal(read(nodes={"label": labels}).x, x)


def test_a_model_without_edge_columns_ignores_them():
    graph = read()
    earlier = dict(graph.preparation)
    del earlier["edge_columns"]  # as version 0.3 wrote it
    earlier["columns"] = [column for column in earlier["columns"] if column["kind"] != "aggregate"]
    _, options = reading_options({}, True, None, None, earlier)
    assert options["preparation"].feature_names == ["age"]
