"""Whatever is given to ``Graph`` and its makers: a right graph, or a sentence."""

import datetime
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import strategies as st

pytestmark = pytest.mark.soak

TEXTS = [
    *("", " ", "a", "a ", "A", "é", "e\u0301", "ß", "0", "00", "0.0", "nan", "None", "NA"),
    *("../x", "/etc/passwd", "~", "~root", "con", "x/", "a\x00b", "a\x00", "\x00", ".", ".."),
    *("\u202egnp.x", "\u200b", "\ufeff", "a\nb", "a\r\nb", "\x1b[31mred", "\ud800", "🙂", "日本"),
    *("<script>alert(1)</script>", "'; DROP TABLE nodes;--", "a,b", '"', "{0}", "%s", "[bold]x"),
    "long" * 2000,
]
"""Names that have broken programs before."""

HUGE = [1e30, 3.4e38, 3.5e38, 1e300, -1e300, 2**63, -(2**63), 2**64, 10**30, 1e-45, 1e-300]
NUMBERS = [0, 1, -1, 2, 0.5, -0.0, float("nan"), float("inf"), float("-inf"), *HUGE]

texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=6))
numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(-3, 9), st.floats())
DTYPES = [
    "?",
    "i1",
    "u1",
    "i4",
    "u8",
    "i8",
    "f2",
    "f4",
    "f8",
    "g",
    "c8",
    "M8[s]",
    "m8[s]",
    "U3",
    "S3",
    "O",
]


def _array(values, dtype, how):
    """Values as an array of some type, held in some way; as they are where that cannot be."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _held(np.asarray(values).astype(dtype), how)
        except (TypeError, ValueError, OverflowError, RuntimeError, NotImplementedError):
            return values


def _held(array, how):
    """An array as another kind of object."""
    if how == "torch":
        return torch.from_numpy(array)
    if how == "half":
        return torch.from_numpy(array.astype("f4")).to(torch.bfloat16)
    if how == "gradient":
        return torch.from_numpy(array.astype("f4")).requires_grad_()
    if how == "torch sparse":
        return torch.from_numpy(array).to_sparse()
    if how == "sparse":
        return sp.coo_array(array)
    if how == "reversed":
        return array[::-1].copy()[::-1]  # the same values, held backwards
    if how == "read-only":
        array.flags.writeable = False
        return array
    if how == "masked":
        return np.ma.masked_array(array, mask=array == 1)
    return array.tolist() if how == "list" else array


WAYS = [
    *("array", "list", "torch", "half", "gradient", "torch sparse", "sparse", "reversed"),
    *("read-only", "masked"),
]
SCALARS: list[Any] = [
    *(None, "text", b"bytes", 3, -1, 2.5, float("nan"), True, [], [[]], {}, {"a": [1]}, set(), ()),
    *([[1, 2], [3]], [None], [[None]], ["a", "b"], object(), range(3), iter([1, 2]), [10**30]),
    *(datetime.date(2020, 1, 1), np.array(["2020-01-01"], "M8[D]"), np.zeros((2, 0)), [[[1]]]),
    *(np.zeros((0, 2)), np.zeros((3, 3, 3)), np.float32(1), np.ma.masked, sp.eye_array(3)),
    *(torch.zeros(3, 3), torch.zeros(0), np.zeros(3, [("a", "i4"), ("b", "f4")]), Ellipsis, len),
]


@st.composite
def odd_arrays(draw, length):
    """Something in place of an array of about that length."""
    if draw(st.integers(0, 2)) == 0:
        return draw(st.sampled_from(SCALARS))
    rows = draw(st.sampled_from([0, 1, 2, length, length + 1]))
    shape = draw(st.sampled_from([(rows,), (rows, 1), (rows, 2), (2, rows), (rows, 2, 1)]))
    size = int(np.prod(shape))
    pool = draw(st.lists(numbers, min_size=1, max_size=4))
    flat = [pool[place % len(pool)] for place in range(size)]
    held = np.empty(size, object)
    held[:] = flat
    return _array(
        held.reshape(shape).tolist(), draw(st.sampled_from(DTYPES)), draw(st.sampled_from(WAYS))
    )


SCALES = [1.0, 2.0**-130, 2.0**100, 2.0**127]
"""Powers of two, so that every type holds the numbers as they are."""


@st.composite
def right_values(draw):
    """What a small graph is to hold, in plain lists: the answer that a graph is compared with."""
    nodes, width = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    edges, splits = draw(st.integers(0, 12)), draw(st.integers(1, 2))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from(SCALES))
    y = random.integers(-1, 3, nodes)
    role = np.where(y[:, None] >= 0, random.integers(-1, 3, (nodes, splits)), -1)
    right: dict[str, Any] = {
        "x": (random.choice([0, 0, -1, 1, 0.5], (nodes, width)) * scale).tolist(),
        "edge_index": random.integers(0, nodes, (2, edges)).tolist(),
    }
    if draw(st.integers(0, 3)):
        right["y"] = y.tolist()
        parts = draw(st.sampled_from([[], [], ["train"], ["train", "val"], ["train", "test"]]))
        for place, part in enumerate(draw(st.sampled_from([parts, ["train", "val", "test"]]))):
            right[f"{part}_mask"] = (role == place).tolist()
    weight = draw(st.sampled_from([1.0, 2.0**-100, 2.0**100]))
    optional = {
        "edge_weight": (random.choice([0.5, 1, 2, 3], edges) * weight).tolist(),
        "directed": bool(draw(st.booleans())),
        "node_ids": [f"n{node}" for node in range(nodes)],
        "class_names": ["a", "b", "c"],
        "feature_names": [f"f{place}" for place in range(width)],
        "name": draw(texts),
    }
    for key, value in optional.items():
        if draw(st.booleans()):
            right[key] = value
    return right


@st.composite
def given_somehow(draw, right):
    """The same values as arguments of ``Graph``: arrays, tensors, sparse matrices, lists."""
    given = dict(right)
    given["x"] = _array(right["x"], "f4", draw(st.sampled_from(WAYS[:9])))
    edges = np.array(right["edge_index"], np.int64).reshape(2, -1)
    if draw(st.integers(0, 4)) == 0:
        from hpgmn.graph.edges import SortedEdges

        weight = given.pop("edge_weight", None)
        weights = None if weight is None else np.array(weight, "f4")
        given["edge_index"] = SortedEdges.of(edges, len(right["x"]), weights)
    else:
        kind = draw(st.sampled_from(["i8", "i4", "u1", "f8"]))
        given["edge_index"] = _array(edges, kind, draw(st.sampled_from(WAYS[:3])))
    for key in set(given) & {"y", "edge_weight", "train_mask", "val_mask", "test_mask"}:
        if draw(st.booleans()):
            kind = "?" if key.endswith("mask") else "f4" if key == "edge_weight" else "i8"
            given[key] = _array(right[key], kind, draw(st.sampled_from(["array", "torch"])))
    return given


@st.composite
def arguments(draw):
    """Arguments of ``Graph``, some of them odd, and the right values of the others."""
    right = draw(right_values())
    given = draw(given_somehow(right))
    number = draw(st.sampled_from([0, 0, 1, 1, 2]))
    names = ["x", "edge_index", "y", "edge_weight", "train_mask", "val_mask", "test_mask"]
    length = draw(st.integers(0, 6))
    for _ in range(number):
        key = draw(st.sampled_from([*names, "node_ids", "class_names", "feature_names", "rest"]))
        if key in ("node_ids", "class_names", "feature_names") and draw(st.booleans()):
            given[key] = draw(st.lists(texts, max_size=6))
        elif key == "rest":
            key = draw(st.sampled_from(["directed", "name", "alternative_splits"]))
            given[key] = draw(st.sampled_from(SCALARS))
        else:
            given[key] = draw(odd_arrays(length))
        right[key] = ODD
        if key == "edge_index":  # sorted edges hold their weights
            right["edge_weight"] = right.get("edge_weight") if "edge_weight" in given else ODD
    return given, right


ODD = object()
"""In the place of a value that was not given as it should be."""


def check_values(graph, right):
    """A graph holds what it was given, wherever that was not odd."""
    if right["x"] is not ODD:
        assert (graph.x.toarray() if sp.issparse(graph.x) else graph.x).tolist() == right["x"]
    if right["edge_index"] is not ODD:
        assert graph.edge_index.tolist() == right["edge_index"]
    for key, missing in (("y", [-1] * graph.num_nodes), ("edge_weight", None), ("directed", True)):
        found = getattr(graph, key)
        if right.get(key) is not ODD:
            assert (found.tolist() if hasattr(found, "tolist") else found) == right.get(
                key, missing
            )
    if right.get("class_names") is not ODD and right.get("y") is not ODD:
        count = max([-1, *right.get("y", ())]) + 1
        wanted = right.get("class_names", [str(number) for number in range(count)])
        assert list(graph.class_names) == wanted
    for key in ("node_ids", "feature_names"):
        names = getattr(graph, key)
        if right.get(key) is not ODD:
            assert (None if names is None else names.tolist()) == right.get(key)
    if right.get("name") is not ODD and "\ud800" not in right.get("name", ""):
        assert graph.name == right.get("name", "graph")
    masks = {part: right.get(f"{part}_mask") for part in ("train", "val", "test")}
    if ODD in masks.values():
        return
    if masks["train"] is None:
        assert graph.splits is None
        return
    nothing = [[False] * len(row) for row in masks["train"]]
    for part, mask in masks.items():
        assert getattr(graph.splits, part).tolist() == (nothing if mask is None else mask)


Pairs = dict[tuple[int, int], float]


def neighbours(right):
    """Who is whose neighbour, by the rules of ``Graph``, one listed edge after the other.

    Self-loops do not count. Weights of repeats are added; without weights a repeat is the same
    edge. In a graph that is not directed an edge runs both ways, listed once or twice.
    """
    weights = right.get("edge_weight")
    out: Pairs = {}
    for place, pair in enumerate(zip(*right["edge_index"], strict=True)):
        if pair[0] != pair[1]:
            out[pair] = 1.0 if weights is None else out.get(pair, 0.0) + weights[place]
    back = {(target, source): weight for (source, target), weight in out.items()}
    either = {pair: max(out.get(pair, 0.0), back.get(pair, 0.0)) for pair in out | back}
    if not right.get("directed", True):
        return {"out": either, "in": either, "undirected": either}
    added = {pair: out.get(pair, 0.0) + back.get(pair, 0.0) for pair in either}
    return {"out": out, "in": back, "undirected": either if weights is None else added}


def check_edges(graph, right):
    """Every way of reading neighbours gives those of the listed edges."""
    wanted = neighbours(right)
    for mode, pairs in wanted.items():
        matrix = graph.adjacency(mode).tocoo()
        ends = zip(matrix.row.tolist(), matrix.col.tolist(), strict=True)
        found = list(zip(ends, matrix.data.tolist(), strict=True))
        assert dict(found) == pairs
        assert len(found) == len(pairs)  # none twice
    directed = right.get("directed", True)
    distinct = wanted["out"] if directed else {tuple(sorted(pair)) for pair in wanted["out"]}
    assert graph.num_edges == len(distinct)
    assert graph.num_listed_edges == len(right["edge_index"][0])
    alone = set(range(graph.num_nodes)) - {end for pair in wanted["undirected"] for end in pair}
    assert graph.isolated_nodes.tolist() == sorted(alone)
    one_way = any(pair[::-1] not in wanted["out"] for pair in wanted["out"])
    assert graph.has_one_way_edges == one_way


def check_graph(graph):
    """What holds of every graph, found without its own code."""
    nodes = graph.num_nodes
    x = graph.x.toarray() if sp.issparse(graph.x) else graph.x
    assert x.shape == (nodes, graph.num_features)
    assert x.dtype == np.float32
    assert np.isfinite(x).all()
    ends = graph.edge_index
    assert ends.shape[0] == 2
    assert ends.dtype == np.int64
    assert ends.size == 0 or 0 <= ends.min() <= ends.max() < nodes
    assert graph.y.shape == (nodes,)
    assert graph.y.min() >= -1
    assert graph.y.max() < graph.num_classes
    weights = np.ones(ends.shape[1]) if graph.edge_weight is None else graph.edge_weight
    assert np.isfinite(weights).all()
    assert (weights > 0).all()
    naive = np.zeros((nodes, nodes))
    for source, target, weight in zip(*ends, weights, strict=True):
        if source != target:
            naive[source, target] += weight
    if graph.edge_weight is None:
        naive = np.minimum(naive, 1)
    if not graph.directed:
        naive = np.maximum(naive, naive.T)
    np.testing.assert_allclose(graph.adjacency("out").toarray(), naive, rtol=1e-5)
    np.testing.assert_allclose(graph.adjacency("in").toarray(), naive.T, rtol=1e-5)
    both = graph.adjacency("undirected").toarray()
    assert np.isfinite(both).all()
    assert ((both > 0) == ((naive + naive.T) > 0)).all()
    for splits in [graph.splits, *graph.alternative_splits.values()]:
        if splits is not None:
            parts = np.stack([splits.train, splits.val, splits.test])
            assert parts.shape[1] == nodes
            assert parts.dtype == bool
            assert parts.sum(axis=0).max(initial=0) <= 1
            assert not parts[:, graph.y < 0].any()
    if graph.node_ids is not None:
        assert len(set(graph.node_ids.tolist())) == nodes
    for names in (graph.node_ids, graph.feature_names, graph.class_names):
        "".join(names if names is not None else ()).encode()  # can be written to any file
    assert isinstance(graph.name, str)
    assert len(graph.fingerprint) == 64
    assert repr(graph)
    assert graph._repr_html_()


def test_any_arguments_of_a_graph(fuzz):
    from hpgmn.graph import Graph

    def check(case):
        given, right = case
        graph = Graph(**given)
        check_graph(graph)
        check_values(graph, right)
        if not {"edge_index", "edge_weight", "directed"} & {
            k for k, v in right.items() if v is ODD
        }:
            check_edges(graph, right)

    fuzz("Graph", arguments(), check, short=150, long=5000, accepted=0.2)


def test_right_arguments_are_never_refused(fuzz):
    from hpgmn.graph import Graph

    def check(case):
        given, right = case
        graph = Graph(**given)
        check_values(graph, right)
        check_edges(graph, right)

    cases = right_values().flatmap(lambda right: st.tuples(given_somehow(right), st.just(right)))
    fuzz("Graph with right arguments", cases, check, short=60, long=2000, accepted=1, refused=False)
