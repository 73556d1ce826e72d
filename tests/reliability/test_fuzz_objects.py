"""Whatever tables, networks and objects of PyTorch Geometric hold: a right graph, or a sentence."""

import datetime
import decimal
import math
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import strategies as st

pytestmark = pytest.mark.soak

IDS = [
    *("a", "b", "c", "a ", " a", "A", "é", "e\u0301", "0", "00", "0.0", "1", "1.0", "nan", "NA"),
    *("", " ", "../x", "/etc/passwd", "~", "con", "x/", "a\x00", "\u202eb", "\u200b", "\ufeffa"),
    *("a\nb", "a\rb", "\x1b[31m", "🙂", "<script>", "a,b", 'say "x"', "long" * 300, "\ud800"),
]
VALUES: list[Any] = [
    *(0, 1, 2, -1, 0.5, 1.5, None, float("nan"), float("inf"), -1e300, 1e38, 3.5e38, 2**62, 2**80),
    *(True, False, "x", "y", "", " ", "1", "1.5", "NA", "true", b"bytes", decimal.Decimal("1.1")),
    *(datetime.date(2020, 2, 29), datetime.datetime(1, 1, 1), datetime.timedelta(1), pd.NaT, pd.NA),
    *(datetime.datetime(9999, 12, 31, 23, 59), np.float32(2), np.int64(3), [1, 2], {"a": 1}, (1,)),
    *(np.datetime64("NaT"), 1j, object(), "2020-01-01", "20:15", "train", "val", "test", "\ud800"),
]
"""What columns hold at times."""


@st.composite
def columns(draw, length):
    """A column: of one kind with something odd in it, or of anything."""
    usual = ["number", "word", "flag"] * 3
    kind = draw(st.sampled_from([*usual, "constant", "empty", "any"]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made: dict[str, Any] = {
        "number": lambda: (random.normal(size=length) * 10.0 ** random.integers(-3, 4)).tolist(),
        "word": lambda: random.choice(["red", "blue", "green"], length).tolist(),
        "flag": lambda: random.integers(0, 2, length).astype(bool).tolist(),
        "constant": lambda: [7] * length,
        "empty": lambda: [None] * length,
        "any": lambda: [draw(st.sampled_from(VALUES)) for _ in range(length)],
    }
    values: list[Any] = made[kind]()
    if length and draw(st.integers(0, 5)) == 0:
        values[draw(st.integers(0, length - 1))] = draw(st.sampled_from(VALUES))
    return values


@st.composite
def tables(draw):
    """A node table, an edge table and options; mostly right, in part odd."""
    count = draw(st.sampled_from([*[5, 9, 9, 12, 12] * 2, 0, 1, 2]))
    kind = draw(st.sampled_from([*["text", "text", "whole"] * 2, "float", "odd"]))
    ids: list[Any] = {
        "text": [f"n{place}" for place in range(count)],
        "whole": list(range(count)),
        "float": [float(place) for place in range(count)],
        "odd": [draw(st.sampled_from([*IDS, *VALUES])) for _ in range(count)],
    }[kind]
    nodes: dict[Any, Any] = {draw(st.sampled_from([*["id", "Node"] * 3, "name", " ID "])): ids}
    if draw(st.integers(0, 4)):
        nodes["label"] = [draw(st.sampled_from(["x", "y", "z", None])) for _ in range(count)]
    if draw(st.integers(0, 9)) == 0:
        nodes["split"] = [
            draw(st.sampled_from(["train", "val", "test", None])) for _ in range(count)
        ]
    for place in range(draw(st.integers(0, 3))):
        nodes[draw(st.sampled_from([f"c{place}", f"c{place}", *IDS[:3], 5]))] = draw(columns(count))
    size = draw(st.integers(0, 14))
    pool = [*ids, draw(st.sampled_from([*IDS, *VALUES]))] if draw(st.integers(0, 7)) == 0 else ids
    ends = [[draw(st.sampled_from(pool)) if pool else "n0" for _ in range(size)] for _ in range(2)]
    edges: dict[Any, Any] = {"source": ends[0], "target": ends[1]}
    if draw(st.integers(0, 3)) == 0:
        edges["weight"] = [draw(st.sampled_from([1, 2.5, 1e-30, 1e30])) for _ in range(size)]
    if draw(st.integers(0, 7)) == 0:
        edges[draw(st.sampled_from(["weight", "kind"]))] = draw(columns(size))
    if draw(st.integers(0, 9)) == 0:
        victim = draw(st.sampled_from([nodes, edges]))
        key = draw(st.sampled_from(list(victim)))
        if draw(st.booleans()):
            del victim[key]
        else:
            victim[key] = victim[key][:-1]
    options: dict[str, Any] = {}
    if draw(st.integers(0, 2)) == 0:
        options = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "id": st.sampled_from(["id", "c0", "nope", "", 3]),
                    "label": st.sampled_from(["label", "c0", "", "id", "nope"]),
                    "split": st.sampled_from(["", "label", "nope"]),
                    "source": st.sampled_from(["target", "source"]),
                    "weight": st.sampled_from(["", "kind", "source"]),
                    "attributes": st.sampled_from(
                        [[], ["c0"], ["c0", "c0"], ["nope"], "c0", [1], 5]
                    ),
                    "drop": st.sampled_from([["c0"], ["id"], "c0", ["nope"], 5]),
                    "directed": st.booleans(),
                    "categories": st.sampled_from([["c0"], ["nope"], "c0"]),
                    "split_by": st.sampled_from(
                        [
                            ("group", "c0"),
                            ("time", "c0"),
                            ("time", "c1"),
                            ("day", "c0"),
                            "time",
                            (1,),
                        ]
                    ),
                    "drop_unknown_edges": st.booleans(),
                    "prepare": st.booleans(),
                    "name": st.sampled_from(IDS),
                },
            )
        )
    return {"nodes": nodes, "edges": edges, "form": draw(st.sampled_from(FORMS)), **options}


def _frame(columns_):
    return pd.DataFrame({key: pd.Series(own, dtype=object) for key, own in columns_.items()})


FORMS = ["mapping", "mapping", "pandas", "objects", "arrow"]


def plain(values):
    """A column without NaT of NumPy, which pyarrow's own reader ends the process over."""
    return [None if isinstance(one, np.datetime64) else one for one in values]


def given_as(form, table):
    """A table as the object of some library; as it is where the library refuses it."""
    try:
        if form == "pandas":
            return pd.DataFrame(table)
        if form == "objects":
            return _frame(table)
        if form == "arrow":
            return pa.table({str(key): pa.array(plain(own)) for key, own in table.items()})
    except Exception:  # the library's own refusals are no concern here
        return table
    return table


def check_whole(graph):
    """What holds of every graph made of tables."""
    x = graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray()
    assert np.isfinite(x).all()
    ends = graph.edge_index
    assert ends.size == 0 or 0 <= ends.min() <= ends.max() < graph.num_nodes
    assert graph.node_ids is not None
    assert len(set(graph.node_ids.tolist())) == graph.num_nodes
    assert graph.y.max() < graph.num_classes
    assert all(name.strip() for name in graph.class_names)
    "".join(
        [*graph.node_ids, *graph.class_names, *(graph.feature_names or [])]
        if graph.feature_names is None
        else [*graph.node_ids, *graph.feature_names]
    ).encode()
    if graph.splits is not None:
        parts = np.stack([graph.splits.train, graph.splits.val, graph.splits.test])
        assert parts.sum(axis=0).max() <= 1
        assert not parts[:, graph.y < 0].any()
    assert len(graph.fingerprint) == 64


def plain_ids(values):
    """The names of ids where nothing is odd about them; None otherwise."""
    if all(type(one) is str for one in values) or all(type(one) is int for one in values):
        return [str(one) for one in values]
    return None


def test_any_tables(fuzz):
    from hpgmn.graph import from_tables

    def check(case):
        case = dict(case)
        nodes, edges, form = case.pop("nodes"), case.pop("edges"), case.pop("form")
        graph = from_tables(given_as(form, nodes), given_as(form, edges), **case)
        check_whole(graph)
        known = next((own for key, own in nodes.items() if "id" in str(key).lower()), None)
        names = plain_ids(known) if known is not None and "id" not in case else None
        if names is None or "label" in case or case.get("drop_unknown_edges"):
            return
        assert graph.node_ids is not None
        assert graph.node_ids.tolist() == names
        if "source" not in case:
            place = {name: number for number, name in enumerate(names)}
            wanted = [[place[str(end)] for end in edges[key]] for key in ("source", "target")]
            assert graph.edge_index.tolist() == wanted
        if len(nodes.get("label", ())) == len(names):
            words = [None if one == -1 else graph.class_names[one] for one in graph.y.tolist()]
            assert words == nodes["label"]

    fuzz("from_tables", tables(), check, short=80, long=4000)


@st.composite
def networks(draw):
    """A networkx graph of any class, with odd names and attributes."""
    kind = draw(st.sampled_from([nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]))
    network = kind(name=draw(st.sampled_from(["", "net", *IDS, 5])))
    count = draw(st.integers(0, 8))
    odd = draw(st.booleans())
    names: list[Any] = list(range(count))
    if odd:
        pool = [*IDS, 1, 1.5, True, (1, 2), None, frozenset([1]), b"x", float("nan"), 2**70]
        names = [one for one in (draw(st.sampled_from(pool)) for _ in names) if one is not None]
    keys = draw(
        st.lists(st.sampled_from(["label", "x", "age", "split", "id", 5, "weight"]), max_size=3)
    )
    for name in names:
        own: dict[Any, Any] = {}
        for key in keys:
            if draw(st.integers(0, 5)):
                own[key] = draw(
                    st.sampled_from(["p", "q"])
                    if key == "label"
                    else st.sampled_from([1, 2.5, [1, 2], *VALUES])
                    if draw(st.integers(0, 4)) == 0
                    else st.sampled_from([1.0, 2.0, 3.5])
                )
        network.add_node(name)
        network.nodes[name].update(own)
    for _ in range(draw(st.integers(0, 10)) if names else 0):
        ends = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        network.add_edge(*ends)
        if draw(st.integers(0, 5)) == 0:
            network.add_edge(*ends, weight=draw(st.sampled_from([1, 0.5, *VALUES])))
    return network


def test_any_network(fuzz):
    from hpgmn.graph import from_networkx

    def check(network):
        graph = from_networkx(network)
        check_whole(graph)
        assert graph.node_ids is not None
        assert graph.node_ids.tolist() == [str(node) for node in network]
        place = {node: number for number, node in enumerate(network)}
        wanted = [(place[source], place[target]) for source, target in network.edges()]
        assert list(zip(*graph.edge_index.tolist(), strict=True)) == wanted
        assert graph.directed == network.is_directed()
        labels = [own.get("label") for _, own in network.nodes(data=True)]
        words = [None if one < 0 else graph.class_names[one] for one in graph.y.tolist()]
        assert words == labels

    fuzz("from_networkx", networks(), check, short=60, long=2500)
    with pytest.raises(Exception, match="networkx graph"):
        from_networkx({"a": ["b"]})


class Thing:
    """An object with attributes, as PyTorch Geometric's is."""

    def __init__(self, **values):
        self.x = self.y = self.edge_index = None
        self.__dict__.update(values)


@st.composite
def pyg_objects(draw):
    """An object of PyTorch Geometric, mostly right."""
    count, width = draw(st.integers(0, 6)), draw(st.integers(0, 3))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values: dict[str, Any] = {
        "x": torch.randn(count, width, generator=seed),
        "edge_index": torch.randint(0, max(count, 1), (2, draw(st.integers(0, 9))), generator=seed),
    }
    if draw(st.booleans()):
        values["y"] = torch.randint(-1, 3, (count,), generator=seed)
    if draw(st.integers(0, 3)) == 0:
        values["train_mask"] = torch.zeros(count, dtype=torch.bool)
    odd: list[Any] = [
        *(None, torch.tensor(1), torch.randn(count, 2, 2), torch.randn(count).to(torch.bfloat16)),
        *(torch.full((count,), math.nan), torch.full((2, 3), 2**40), torch.randn(2, 3), "text", []),
        *(torch.eye(3).to_sparse(), torch.zeros(0), torch.zeros(count, dtype=torch.complex64), 7),
        *(np.zeros(count), [[0, 1], [1, 0]], torch.zeros(3).to(torch.float8_e4m3fn)),
    ]
    if draw(st.integers(0, 2)) == 0:
        names = ["x", "edge_index", "y", "edge_weight", "train_mask", "val_mask"]
        values[draw(st.sampled_from(names))] = draw(st.sampled_from(odd))
    return Thing(**values)


def test_any_object_of_pytorch_geometric(fuzz):
    from hpgmn.graph import Graph

    def check(data):
        graph = Graph.from_pyg(data)
        assert np.isfinite(graph.x if isinstance(graph.x, np.ndarray) else graph.x.data).all()
        assert graph.edge_index.tolist() == np.asarray(data.edge_index).reshape(2, -1).tolist()
        assert graph.num_classes == (
            0 if data.y is None else max(-1, *np.asarray(data.y).tolist(), -1) + 1
        )
        if isinstance(data.x, torch.Tensor) and data.x.layout == torch.strided:
            assert graph.x.tolist() == data.x.float().tolist()
        wanted = [-1] * graph.num_nodes if data.y is None else np.asarray(data.y).tolist()
        assert graph.y.tolist() == wanted

    fuzz("from_pyg", pyg_objects(), check, short=60, long=1500)
