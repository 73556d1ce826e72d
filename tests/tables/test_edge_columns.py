"""Aggregates of edge columns against pandas; later nodes and edges; broken columns."""

import datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpgmn.base.errors import HPGMNError
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


MANY = {"source": ["a", "b"] * 50, "target": ["c", "d"] * 50, "amount": None, "kind": None}
THREE_FORMS = [f"{day:02}.03.2024" for day in range(1, 31)] + [
    *(f"2024-03-{day:02}" for day in range(1, 31)),
    *(f"03/{day:02}/2024" for day in range(1, 31)),
    *["01.04.2024"] * 10,
]
INF = float("inf")
LATER = {"id": ["e"], "age": [1.0]}

BROKEN = {
    "words among numbers": (
        MANY | {"amount": [*["1.5"] * 60, *["2"] * 39, "two"]},
        {},
        "column 'amount' holds 'two' in row 100, but most.*edge_categories",
    ),
    "infinity": ({"amount": [1.0, INF, 2.0, -INF]}, {}, r"2 numbers beyond .*row 2.*edge_drop="),
    "a huge number": ({"amount": [1.0, 1e39, 2.0, 3.0]}, {}, "1 number beyond ±3.4e38.*row 2"),
    "unknown drop": ({}, {"edge_drop": ["amuont"]}, "edges has no column 'amuont'.*'amount'"),
    "unknown category": ({}, {"edge_categories": ["kin"]}, "edges has no column 'kin'.*'kind'"),
    "unknown time": ({}, {"edge_time": "when"}, "edges has no column 'when'.*edge_time"),
    "all unknown names": (
        {},
        {"edge_drop": ["one", "two"], "edge_time": "three", "drop": ["four"], "label": "five"},
        "nodes has no column 'five', 'four'; .*edges has no column 'one', 'two', 'three'",
    ),
    "an end dropped": ({}, {"edge_drop": ["source"]}, "'source' of edges already has another role"),
    "an end as a category": ({}, {"edge_categories": ["target"]}, "already has another role"),
    "drop as text": ({}, {"edge_drop": "amount"}, r"edge_drop takes a list.*\['amount'\]"),
    "drop as numbers": ({}, {"edge_drop": [1]}, r"edge_drop takes a list of names \(got \[1\]\)"),
    "categories as a mapping": ({}, {"edge_categories": {"kind": 1}}, "takes a list of names"),
    "time as a number": ({}, {"edge_time": 3}, r"edge_time takes a column name \(got 3\)"),
    "a node column named like an aggregate": (
        {},
        {"nodes": {"amount (out, mean)": [1.0, 2.0, 3.0, 4.0]}},
        r"'amount \(out, mean\)' of nodes has the name of an aggregate of edges.*drop=",
    ),
    "edge columns named like each other's aggregates": (
        {"kind=card (share)": [1.0, 2.0, 3.0, 5.0], "kind": None},
        {"directed": False},
        None,
    ),
    "zero weights": ({"w": [0.0, 1, 2, 3]}, {"weight": "w"}, "weights must be finite and positive"),
    "no edges": (
        {"source": [], "target": [], "amount": [], "kind": []},
        {"nodes": {"age": [1.0] * 4}},
        "no attributes that can be used, and edges no edges",
    ),
    "unknown option": ({}, {"edge_dorp": ["kind"]}, "Unknown option of columns 'edge_dorp'.*drop"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_columns_are_one_sentence(case):
    edges, options, message = BROKEN[case]
    if message is None:
        assert read(edges, **options).num_features > 1
        return
    with pytest.raises(HPGMNError, match=message) as caught:
        read(edges, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy is not None or "(got" in str(caught.value)


LEFT_OUT = {
    "lists": ({"amount": [[1], [2], [3], [4]]}, "amount", "of type list"),
    "bytes": ({"amount": [b"1", b"2", b"3", b"4"]}, "amount", "of type binary"),
    "durations": (
        {"amount": [datetime.timedelta(number) for number in range(4)]},
        "amount",
        "of type duration",
    ),
    "times of day": ({"amount": [datetime.time(number) for number in range(4)]}, "amount", "time"),
    "nothing": ({"amount": [None] * 4}, "amount", "empty"),
    "one number": ({"amount": [7, 7, 7, 7]}, "amount", "constant"),
    "one number and nothing": ({"amount": [7, 7, None, 7]}, "amount", "constant"),
    "one word": ({"kind": ["card"] * 4}, "kind", "constant"),
    "blank words": ({"kind": ["", " ", "NA", None]}, "kind", "empty"),
    "three forms of dates": (MANY | {"when": THREE_FORMS}, "when", "dates not written as 2024-"),
    "row numbers": (MANY | {"number": list(range(100))}, "number", "row numbers or ids"),
    "ids": (MANY | {"code": [f"c{number}" for number in range(100)]}, "code", "row numbers or ids"),
    "free text": (
        MANY | {"note": [f"text {number % 90}" for number in range(100)]},
        "note",
        "free text or names",
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_useless_columns_are_left_out_and_reported(case, caplog):
    caplog.set_level("INFO")
    edges, column, reason = LEFT_OUT[case]
    graph = read(edges)
    assert not [name for name in graph.feature_names if name.startswith(column)]
    assert [line for line in caplog.messages if f"'{column}'" in line and reason in line]


def test_booleans_and_missing_values_are_numbers():
    graph = read({"paid": [True, None, False, True], "kind": [None, "card", None, "cash"]})
    names = graph.feature_names.tolist()
    assert "paid (out, mean)" in names
    assert np.isfinite(graph.x).all()


def test_a_million_words_are_hashed_if_they_repeat():
    """As many as memory holds: the words are numbered, not one-hot encoded."""
    count = 20_000
    words = [f"w{number % 9_000}" for number in range(count)]
    ends = {"source": ["a"] * count, "target": ["b", "c"] * (count // 2)}
    names = read(ends | {"amount": None, "kind": words}).feature_names.tolist()
    assert sum(name.startswith("kind#") for name in names) <= 64


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ({"amount": None}, "edges has no column 'amount', which the model was trained with"),
        ({"amount": None, "kind": None}, "edges has no column 'amount', 'kind', which"),
        ({"amount": ["much"]}, "column 'amount' holds 'much' in row 1, which is not a number"),
        ({"amount": [INF]}, "1 number beyond"),
        ({"kind": [[1]]}, "column 'kind' of type list.* cannot be read as text"),
    ],
)
def test_later_tables_need_the_same_columns(edges, message):
    new = {"source": ["e"], "target": ["a"], "amount": [1.0], "kind": ["card"]} | edges
    kept = {name: own for name, own in new.items() if own is not None}
    with pytest.raises(HPGMNError, match=message):
        from_tables(LATER, kept, onto=read())


def test_unknown_words_of_later_tables_are_reported(caplog):
    caplog.set_level("INFO")
    new = {"source": ["e", "e"], "target": ["a", "b"], "amount": [1, 2], "kind": ["gold", "card"]}
    grown = from_tables(LATER, new, onto=read())
    assert "column 'kind' holds 'gold', unknown when the model was trained" in caplog.text
    assert aggregates_of(grown)["kind=card (out, share)"][4] == 1


def test_uneven_weights_are_a_warning(caplog):
    read({"amount": [0.01, 1.0, 2.0, 5000.0]}, weight="amount")
    [warning] = caplog.messages
    assert "range from 0.01 to 5e+03: few edges dominate" in warning
    assert 'weight=""' in warning
    caplog.clear()
    read(weight="amount")
    assert not caplog.messages


def test_attributes_of_pyg_edges_are_aggregated():
    torch = pytest.importorskip("torch")
    from torch_geometric.data import Data

    from hpgmn.graph import Graph

    edges = torch.tensor([[0, 0, 1], [1, 2, 2]])
    values = torch.tensor([[1.0, 5.0], [3.0, 6.0], [5.0, 9.0]])
    plain = Data(torch.eye(3), edges, y=torch.tensor([0, 1, 0]))
    graph = Graph.from_pyg(Data(torch.eye(3), edges, values, y=torch.tensor([0, 1, 0])))
    np.testing.assert_array_equal(graph.x[:, :3], Graph.from_pyg(plain).x)
    names = graph.feature_names.tolist()
    assert names[:3] == ["x[0]", "x[1]", "x[2]"]
    column = graph.x[:, names.index("edge_attr[0] (out, mean)")]
    logs = np.log1p([2.0, 5.0])
    expected = (np.append(logs, logs.mean()) - logs.mean()) / logs.std()
    np.testing.assert_allclose(column, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(HPGMNError, match=r"edge_attr must be finite numbers.*shape \(2, 2\)"):
        Graph.from_pyg(Data(torch.eye(3), edges, values[:2]))


def test_attributes_of_networkx_edges_are_aggregated():
    networkx = pytest.importorskip("networkx")
    from hpgmn.graph import Graph

    network = networkx.DiGraph()
    for name, age in zip("abcd", (1.0, 2.0, 3.0, 4.0), strict=True):
        network.add_node(name, age=age)
    rows = {name: EDGES[name][1:] for name in EDGES}
    for source, target, amount, kind in zip(*rows.values(), strict=True):
        network.add_edge(source, target, amount=amount, kind=kind)
    graph = Graph.from_networkx(network)
    expected = from_tables({name: NODES[name] for name in ("id", "age")}, rows)
    assert graph.feature_names.tolist() == expected.feature_names.tolist()
    np.testing.assert_allclose(graph.x, expected.x)
    assert Graph.from_networkx(network, edge_drop=["amount", "kind"]).num_features == 1


@pytest.mark.parametrize("form", ["%m/%d/%Y", "%d.%m.%Y %H:%M"])
def test_dates_in_another_form_are_left_out_with_a_warning(form, caplog):
    start = datetime.datetime(2025, 1, 1)
    days = [start + datetime.timedelta(hours=9 * (k // 2)) for k in range(400)]
    nodes = {"id": list(range(20)), "size": list(range(20))}
    ends = {"source": [k % 20 for k in range(400)], "target": [k % 7 for k in range(400)]}
    graph = from_tables(nodes, ends | {"when": [day.strftime(form) for day in days]})
    assert not any("when" in name for name in graph.feature_names)
    assert "dates not written as 2025-" in caplog.text
