"""Tables read in batches against the obvious reading row by row; errors by fact and remedy."""

import csv
import json
import logging
import re
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.errors import GraphError
from hpgmn.graph import Graph
from hpgmn.graph.conversion import read_graph_tables
from hpgmn.tables import edges as edge_reading
from hpgmn.tables import reading, sources
from hpgmn.tables.column_types import Degree
from hpgmn.tables.columns import open_tables
from hpgmn.tables.options import Columns
from hpgmn.tables.preparation import Preparation
from hpgmn.tables.reading import EncodedWords, similar_names
from hpgmn.tables.sources import canonical

read_tables = partial(read_graph_tables, Graph)


WriteTables = Callable[..., Path]

WHOLE = st.integers(-(2**40), 2**40)
WORDS = st.text("ab07é漢𝔘 -'\",;", min_size=1, max_size=6)


LABELS = (["x", "y", "é", None], ["10", "9", "-1", None], ["10", "9", "x"])


@contextmanager
def small_batches(is_small=True):
    """Tables are read a few rows at a time."""
    with pytest.MonkeyPatch.context() as patch:
        if is_small:
            patch.setattr(sources, "_BLOCK_BYTES", 64)
            patch.setattr(reading, "_BATCH_VALUES", 1)
            patch.setattr(reading, "_MIN_BATCH_ROWS", 2)
            patch.setattr(edge_reading, "_LOOKUP_EDGES", 2)
        yield


def read(source, columns=None, **options):
    return read_tables(open_tables(source, columns or Columns(), **options))


def rows_of(path):
    """Every row as a dict; what is missing is None."""
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: v or None for k, v in row.items()} for row in csv.DictReader(file)]


def slow_reading(nodes, edges):
    """The graph's arrays in the most obvious way: one row after the other."""
    place = {}
    x, labels, splits = [], [], []
    for row in rows_of(nodes):
        place[str(row.pop("id"))] = len(place)
        labels.append(row.pop("label", None))
        splits.append(row.pop("split", None))
        x.append([float(value) for value in row.values()])
    names = sorted({str(label) for label in labels if label is not None})
    if all(name.lstrip("-").isdigit() for name in names):
        names.sort(key=int)
    ends, weights = [], []
    for row in rows_of(edges):
        ends.append((place[str(row["source"])], place[str(row["target"])]))
        weights.append(float(row.get("weight") or 0))
    return {
        "x": np.array(x, np.float32),
        "edge_index": np.array(ends, np.int64).reshape(-1, 2).T,
        "y": [-1 if label is None else names.index(str(label)) for label in labels],
        "class_names": tuple(names),
        "node_ids": list(place),
        "weights": np.array(weights, np.float32),
        **{part: [word == part for word in splits] for part in ("train", "val", "test")},
    }


def assert_read_slowly(graph, expected):
    np.testing.assert_array_equal(graph.x, expected["x"])
    np.testing.assert_array_equal(graph.edge_index, expected["edge_index"])
    assert graph.y.tolist() == expected["y"]
    assert graph.class_names == expected["class_names"]
    assert graph.node_ids.tolist() == expected["node_ids"]
    if graph.edge_weight is not None:
        np.testing.assert_array_equal(graph.edge_weight, expected["weights"])
    if graph.splits is not None:
        for part in ("train", "val", "test"):
            assert getattr(graph.splits, part)[:, 0].tolist() == expected[part]


def assert_same(one, two):
    assert one.fingerprint == two.fingerprint
    assert (one.class_names, one.y.tolist()) == (two.class_names, two.y.tolist())


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_tables_become_the_graph(write_tables, ending, is_small):
    with small_batches(is_small):
        graph = read(write_tables(ending))
    assert graph.x.tolist() == [[1.5, 1], [2, 0], [-3.25, 0], [4, 1]]
    assert graph.x.dtype == np.float32
    assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 2, 2, 2]]
    assert graph.y.tolist() == [1, -1, 0, 1]
    assert graph.class_names == ("blue", "red")
    assert graph.node_ids.tolist() == ["a", "b", "c", "d"]
    assert graph.feature_names.tolist() == ["age", "rich"]
    assert graph.splits.train.tolist() == [[True], [False], [False], [False]]
    assert graph.splits.val.tolist() == [[False], [False], [True], [False]]
    assert graph.splits.test.tolist() == [[False], [False], [False], [True]]
    assert graph.edge_weight is None
    assert graph.directed


@given(data=st.data(), is_weighted=st.booleans(), is_split=st.booleans(), is_small=st.booleans())
def test_any_tables_are_read_as_row_by_row(
    tmp_path_factory, write_table, data, is_weighted, is_split, is_small
):
    def column(values, length):
        return data.draw(st.lists(values, min_size=length, max_size=length))

    kind = data.draw(st.sampled_from([WHOLE, WORDS]))
    ids = data.draw(st.lists(kind, min_size=1, max_size=8, unique=True))
    count, size = len(ids), data.draw(st.integers(0, 10))
    nodes = {
        "a": column(st.floats(-(2.0**100), 2.0**100), count),
        "id": ids,
        "label": column(st.sampled_from(data.draw(st.sampled_from(LABELS))), count),
        "b": column(st.integers(-(2**60), 2**60), count),
    }
    if is_split:
        words = st.sampled_from(["train", "val", "test"])
        nodes["split"] = [
            None if label is None else data.draw(words | st.none()) for label in nodes["label"]
        ]
    edges = {end: column(st.sampled_from(ids), size) for end in ("source", "target")}
    if is_weighted:
        edges["weight"] = column(st.floats(0.01, 100), size)
    folder = tmp_path_factory.mktemp("any")
    graphs = []
    for ending in ("csv", "parquet"):
        tables = [folder / f"{name}.{ending}" for name in ("nodes", "edges")]
        write_table(tables[0], nodes)
        write_table(tables[1], edges)
        with small_batches(is_small):
            graph = read(tables[1], nodes=tables[0])
        assert_read_slowly(graph, slow_reading(*tables))
        assert (graph.edge_weight is not None) == is_weighted
        assert (graph.splits is not None) == is_split
        graphs.append(graph)
    assert_same(*graphs)


IDS = {
    "whole": pa.array([30, 7, -2, 10**12]),
    "small whole": pa.array([30, 7, 2, 1], pa.uint8()),
    "large whole": pa.array([30, 7, 2, 2**64 - 1], pa.uint64()),
    "whole as floats": pa.array([30.0, 7.0, -2.0, 1e15]),
    "text": pa.array(["30", "007", " x", "ü漢𝔘"]),
    "long text": pa.array(["30", "007", "x" * 300, "y"], pa.large_string()),
    "views": pa.array(["30", "007", "x", "y"], pa.string_view()),
    "categories": pa.array(["30", "007", "x", "y"]).dictionary_encode(),
    "bytes": pa.array([b"30", b"007", b"x", b"y"]),
    "days": pa.array([0, 1, 2, 3], pa.int32()).cast(pa.date32()),
    "truth": pa.array([True, False]),
}


def plain_type(column):
    is_categories = pa.types.is_dictionary(column.type)
    return column.type.value_type if is_categories else column.type


@pytest.mark.parametrize("case", IDS)
@pytest.mark.parametrize("is_text", [False, True])
def test_ids_of_any_type_are_found(tmp_path, case, is_text):
    """Whatever their type, also where the edges have them as text."""
    ids = IDS[case]
    count = len(ids)
    plain = ids.cast(pa.int64()) if pa.types.is_floating(ids.type) else ids
    words = [str(word) for word in plain.cast(pa.string()).to_pylist()]
    pq.write_table(pa.table({"id": ids, "a": np.arange(count)}), tmp_path / "nodes.parquet")
    ends = pa.array(words) if is_text else ids
    edges = pa.table({"src": ends, "dst": pa.array(ends.to_pylist()[::-1], plain_type(ends))})
    pq.write_table(edges, tmp_path / "edges.parquet")
    graph = read(tmp_path)
    assert graph.node_ids.tolist() == words
    assert graph.edge_index.tolist() == [list(range(count)), list(range(count))[::-1]]


@pytest.mark.parametrize(
    ("values", "names", "y"),
    [
        (["b", None, "a", ""], ("a", "b"), [1, -1, 0, -1]),
        (["10", "9", "2", "10"], ("2", "9", "10"), [2, 1, 0, 2]),
        (["1.0", "0.0", None, "1.0"], ("0.0", "1.0"), [1, 0, -1, 1]),
        (["1", "1.0", "-1", "07"], ("-1", "1", "1.0", "07"), [1, 2, 0, 3]),
        (["NA", "nan", " ", "a b"], ("NA", "a b", "nan"), [0, 2, -1, 1]),
        ([10, 9, None, 10], ("9", "10"), [1, 0, -1, 1]),
        ([1.0, float("nan"), None, -1.0], ("-1", "1"), [1, -1, -1, 0]),
        ([True, False, None, True], ("False", "True"), [1, 0, -1, 1]),
        ([None, None, None, None], (), [-1, -1, -1, -1]),
    ],
)
def test_classes_are_in_the_order_of_their_names_or_numbers(write_tables, values, names, y):
    graph = read(write_tables("parquet", {"label": values, "split": None}))
    assert graph.class_names == names
    assert graph.y.tolist() == y


NUMBERS = {
    "whole": pa.array([1, 2, 3, 4], pa.int8()),
    "truth": pa.array([True, False, True, True]),
    "half": pa.array(np.array([1, 2.5, 3, 4], np.float16)),
    "single": pa.array([0.1, 2.5, 3, 4], pa.float32()),
    "decimal": pa.array([1, 2, 3, 4]).cast(pa.decimal128(30, 2)),
    "large": pa.array([2**63, 2, 3, 4], pa.uint64()),
    "categories": pa.array([1.5, 2.0, 1.5, 2.0]).dictionary_encode(),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_of_any_type_are_attributes(write_tables, case):
    graph = read(write_tables("parquet", {"age": NUMBERS[case]}))
    expected = [float(value) for value in NUMBERS[case].to_pylist()]
    assert graph.x[:, 0].tolist() == np.array(expected, np.float32).tolist()


def test_truth_is_a_number_in_text_too(write_tables):
    graph = read(write_tables("csv", {"age": ["true", "FALSE", "True", "0"]}))
    assert graph.x[:, 0].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_words_of_a_split_may_be_spelt_differently(write_tables, ending):
    words = ["Training", " valid ", "TEST", None]
    graph = read(write_tables(ending, {"split": words, "label": ["a", "b", "a", "b"]}))
    masks = [getattr(graph.splits, part)[:, 0].tolist() for part in ("train", "val", "test")]
    assert masks == np.eye(4, dtype=bool)[:3].tolist()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_graph_without_edges_is_a_graph(write_tables, ending):
    graph = read(write_tables(ending, edges={"source": [], "target": []}))
    assert graph.edge_index.shape == (2, 0)


def test_tables_of_two_kinds_go_together(write_tables, write_table):
    folder = write_tables("csv", {"id": [1, 2, 3, 4]}, {"source": [1], "target": [4]})
    (folder / "edges.csv").unlink()
    write_table(folder / "edges.parquet", {"source": [1], "target": [4]})
    assert read(folder).edge_index.tolist() == [[0], [3]]


def test_ids_in_a_csv_file_stay_as_they_are_written(write_tables):
    ids = ["007", "7", "1e3", "1000"]
    graph = read(write_tables("csv", {"id": ids}, {"source": ids, "target": ids[::-1]}))
    assert graph.node_ids.tolist() == ids
    assert graph.edge_index.tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]


def test_a_value_may_hold_a_line_end(write_tables):
    ids = ["a", "b", "new\nline " + "x" * 40, "d"]
    with small_batches():
        graph = read(write_tables("csv", {"id": ids}, {"source": ids[:3], "target": ids[1:]}))
    assert graph.edge_index.tolist() == [[0, 1, 2], [1, 2, 3]]


def test_progress_reports_each_step_to_its_end(write_tables):
    steps = {}
    with small_batches():
        tables = open_tables(
            write_tables("csv", edges={"source": ["a"] * 20, "target": ["b"] * 20})
        )
        read_tables(tables, progress=lambda step, *rows: steps.setdefault(step, []).append(rows))
    assert list(steps) == [
        "Reading the names in nodes.csv",
        "Reading the attributes in nodes.csv",
        "Counting the edges in edges.csv",
        "Reading the edges in edges.csv",
        "Checking the graph",
    ]
    assert [amounts[-1] for amounts in steps.values()] == [
        (4, None),
        (4, 4),
        (20, None),
        (20, 20),
        (0, None),
    ]
    assert len(steps["Reading the edges in edges.csv"]) > 1


NAN, INF = float("nan"), float("inf")
DROP_AGE, NO_WEIGHT = ("drop", ["age"]), ("weight", "")
SKIP_EDGES, OTHER_SPLIT = ("drop_unknown_edges", True), ("split", None)
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str, Any]] = {
    "no rows": (
        {key: [] for key in ("id", "age", "rich", "label", "split")},
        {"source": [], "target": []},
        "nodes.* has no rows",
        None,
    ),
    "repeated id": (
        {"id": ["a", "b", "a", "a"]},
        {},
        "nodes.*: row 3* repeats the id 'a' of row 1 (2 such rows in all)",
        None,
    ),
    "empty id": (
        {"id": ["a", None, "c", None]},
        {},
        "nodes.*: row 2* has no id in column 'id' (2 such rows in all)",
        None,
    ),
    "missing numbers": (
        {"age": [1.0, None, 2.0, None], "rich": [None, 1, 1, 1]},
        {},
        "column 'age' has 2 missing numbers, the first in row 2*, and in 1 other column",
        DROP_AGE,
    ),
    "only missing numbers": (
        {"age": [None] * 4},
        {},
        "column 'age' has 4 missing numbers, the first in row 1*",
        DROP_AGE,
    ),
    "infinite numbers": (
        {"age": [1.0, 1.0, -INF, 1e39]},
        {},
        "column 'age' has 2 numbers beyond ±3.4e38, the first in row 3*",
        DROP_AGE,
    ),
    "text among numbers": (
        {"age": ["1.5", "2", "old", "?"]},
        {},
        "nodes.*: column 'age' holds 'old' in row 3*, which is not a number",
        DROP_AGE,
    ),
    "word of a split": (
        {"split": ["train", "holdout", "test", "rest"]},
        {},
        "nodes.*: column 'split' holds 'holdout' in row 2* (2 such rows in all)",
        OTHER_SPLIT,
    ),
    "split without label": (
        {"split": ["train", "Test", "test", "val"]},
        {},
        "nodes.*: row 2* is in split 'Test' but has no label",
        None,
    ),
    "splits without labels": (
        {"label": None},
        {},
        "nodes.*: row 1* is in split 'train' but has no label (3 such rows in all)",
        None,
    ),
    "unknown target": (
        {},
        {"target": ["b", "z", "c", "y"]},
        "edges.*: row 2* has the target 'z', not an id in nodes.* (2 such edges in all)",
        SKIP_EDGES,
    ),
    "empty target": (
        {},
        {"target": ["b", "c", None, "c"]},
        "edges.*: row 3* has no target",
        SKIP_EDGES,
    ),
    "missing weight": (
        {},
        {"weight": [1.0, None, 1.0, NAN]},
        "edges.*: row 2* has no weight (2 such edges in all); weights must be finite",
        NO_WEIGHT,
    ),
    "negative and infinite weight": (
        {},
        {"weight": [0.5, 0.5, -2.5, INF]},
        "edges.*: row 3* has weight -2.5 (2 such edges in all)",
        NO_WEIGHT,
    ),
    "text as weight": (
        {},
        {"weight": ["1", "2", "heavy", "3"]},
        "edges.*: column 'weight' holds 'heavy' in row 3*, which is not a number",
        NO_WEIGHT,
    ),
}


@pytest.mark.parametrize(("ending", "is_small"), [("csv", True), ("parquet", False)])
@pytest.mark.parametrize("case", REFUSED)
def test_errors_name_the_first_row_the_count_and_the_remedy(write_tables, case, ending, is_small):
    nodes, edges, fact, remedy = REFUSED[case]
    folder = write_tables(ending, nodes, edges)
    below = " below the header" if ending == "csv" else ""
    fact = re.sub(r"(?<=row \d)\*", below, fact).replace(".*", f".{ending}")
    with small_batches(is_small), pytest.raises(GraphError) as caught:
        read(folder)
    assert fact in caught.value.message
    if remedy is not None:
        last = caught.value.remedy.alternatives[-1]
        assert (last.option, last.value) == remedy


def test_text_far_below_the_first_rows_is_found(write_tables):
    """Types are guessed from the beginning; the guess may turn out wrong."""
    count = 30_000
    nodes = {
        "id": range(count),
        "age": ["1.50000000"] * (count - 2) + ["old", "older"],
        "rich": ["true"] * (count - 1) + ["7"],
        "label": ["a"] * count,
        "split": None,
    }
    folder = write_tables("csv", nodes, {"source": [], "target": []})
    with small_batches(False), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_PROBE_BYTES", 4096)
        with pytest.raises(GraphError, match=r"'age' holds 'old' in row 29,999 below the header"):
            read(folder)


def test_fractions_are_no_ids(write_tables):
    with pytest.raises(GraphError, match=r"nodes.parquet: column 'id' holds fractions; ids are"):
        read(write_tables("parquet", {"id": [1.0, 2.5, 3.0, 4.0]}, {"source": [1], "target": [1]}))


def test_lists_are_no_ids(write_tables):
    with pytest.raises(GraphError, match=r"column 'id' of type list<.*> cannot be read as text"):
        read(write_tables("parquet", {"id": [[1], [2], [3], [4]]}))


def test_damage_below_the_first_rows_is_refused(write_tables):
    folder = write_tables("csv")
    with (folder / "edges.csv").open("a") as file:
        file.write("a,b,c\n")
    with pytest.raises(
        GraphError, match=r"^edges.csv: row [\d,]+ of the file has 3 values for 2 c"
    ):
        read(folder)


def test_weights_may_be_ignored(write_tables):
    folder = write_tables("csv", edges={"weight": [1, 0, 0, 0]})
    assert read(folder, Columns(weight="")).edge_weight is None


ONCE = {"source": list("abc"), "target": list("bcc")}  # no edge twice


def prepared(folder, columns=None, **options):
    return read(folder, columns, prepare=True, **options)


def test_prepared_columns_keep_their_roles(write_tables):
    folder = write_tables("csv", {"city": ["x", "y", "", "x"]}, ONCE)
    graph = prepared(folder)
    assert graph.feature_names.tolist() == ["age", "rich", "city=x", "city=y", "city is missing"]
    assert graph.x[:, 1:].tolist() == [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0]]
    assert graph.split(0).val.tolist() == [False, False, True, False]
    assert graph.preparation["class_names"] == ["blue", "red"]
    assert graph.preparation["roles"]["split"] == "split"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_later_nodes_have_the_columns_and_classes_of_the_first(write_tables, ending):
    first = prepared(write_tables(ending, {"city": list("xyxy")}, ONCE))
    assert first.preparation is not None
    nodes = {
        "city": ["z", "y", "x", "x"],
        "label": ["red", "azure", None, "red"],
        "split": None,
        "new": [1, 2, 3, 4],
        "age": [-3.25, 4.0, 1.5, 2.0],
    }
    lines = []
    folder = write_tables(ending, nodes, folder="later")
    fitted = Preparation.from_dict(first.preparation)
    later = read_tables(open_tables(folder, prepare=True, preparation=fitted), log=lines.append)
    assert (later.class_names, later.y.tolist()) == (("blue", "red", "azure"), [1, 2, -1, 1])
    np.testing.assert_array_equal(later.x[:, 0], first.x[[2, 3, 0, 1], 0])
    assert later.x[:, 2:].tolist() == [[0, 0], [0, 1], [1, 0], [1, 0]]
    assert "column 'label' holds 'azure', which the model does not know" in lines[-2]
    assert "ignored, because the model does not know: 'new'." in lines[-1]
    changes = {"label": None, "split": ["test"] * 4}  # as if they were to be scored
    without = write_tables(ending, nodes | changes, folder="unlabelled")
    unlabelled = read(without, prepare=True, preparation=fitted)
    assert (unlabelled.class_names, unlabelled.y.tolist()) == (("blue", "red"), [-1] * 4)
    assert not unlabelled.split(0).test.any()


def test_splits_may_come_from_a_column(write_tables):
    folder = write_tables(
        "csv",
        {"id": list("abcdef"), "age": range(6), "rich": [0, 1] * 3, "split": None}
        | {"label": ["x", "y", "x", "y", "x", ""], "day": [5, 4, 3, 2, 1, 0]},
    )
    graph = prepared(folder, Columns(split_by=("time", "day")))
    assert "day" not in graph.feature_names
    assert graph.split(0).train.tolist() == [False, False, True, True, True, False]
    assert graph.split(0).test.tolist() == [True, False, False, False, False, False]
    groups = prepared(folder, Columns(split_by=("group", "day")))
    assert len(groups.splits) == 10


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, -1.0, 3.0]])
def test_edges_to_unknown_nodes_may_be_left_out(write_tables, weights):
    edges = {"source": ["a", "b", "q", "c"], "target": ["b", "z", "a", "a"], "weight": weights}
    folder = write_tables("csv", edges=edges)
    lines = []
    tables = open_tables(folder, Columns(drop_unknown_edges=True))
    graph = read_tables(tables, log=lines.append)
    assert graph.edge_index.tolist() == [[0, 2], [1, 0]]
    if weights is not None:  # the weight of an edge that is left out does not matter
        assert graph.edge_weight.tolist() == [1, 3]
    assert "row 2 below the header has the target 'z'" in lines[-1]
    assert "(2 such edges in all); left out." in lines[-1]


def test_labels_that_cannot_be_learned_are_refused(write_tables):
    one = write_tables("csv", {"label": ["x", "", "x", "x"], "split": None})
    with pytest.raises(GraphError, match="column 'label' has a single value, 'x'") as caught:
        prepared(one)
    assert caught.value.remedy.option == "label"
    assert read(one).num_classes == 1
    count = 404

    def many(distinct):
        columns = {
            "id": range(count),
            "age": range(count),
            "rich": [0, 1] * (count // 2),
            "label": [number % distinct for number in range(count)],
            "split": None,
        }
        return write_tables("csv", columns, {"source": [0], "target": [1]})

    with pytest.raises(GraphError, match="has 101 different values for 404 labelled nodes"):
        prepared(many(101))
    assert prepared(many(100)).num_classes == 100
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MAX_CLASSES", 50)
        with pytest.raises(GraphError, match="has 51 different values"):
            prepared(many(51))


BARE = {"age": None, "rich": None}


def test_degrees_that_are_all_the_same_become_zero():
    column = Degree.fitted(np.full(3, 2.5))
    assert column.attributes(np.full(3, 2.5)).tolist() == [[0], [0], [0]]


def test_later_tables_are_scaled_as_the_first(write_tables):
    first = read_tables(open_tables(write_tables("csv", BARE, ONCE), prepare=True))
    kept = Preparation.from_dict(json.loads(json.dumps(first.preparation)))
    edges = {"source": ["a", "a", "a"], "target": ["b", "c", "d"]}
    folder = write_tables("csv", {"id": list("abcd"), **BARE}, edges, folder="later")
    later = read_tables(open_tables(folder, prepare=True, preparation=kept))
    before = np.log1p([1, 2, 3, 0])  # of these edges, one of them a self-loop
    expected = (np.log1p([3, 1, 1, 1]) - before.mean()) / before.std()
    np.testing.assert_allclose(later.x[:, 0], expected, rtol=1e-6)


def test_columns_that_cannot_be_used_are_as_good_as_none(write_tables):
    folder = write_tables("csv", BARE | {"planet": ["earth"] * 4}, ONCE)
    graph = read_tables(open_tables(folder, prepare=True))
    assert graph.feature_names.tolist() == ["degree"]


@pytest.mark.parametrize("prepare", [True, False])
def test_neither_attributes_nor_edges_is_refused(write_tables, prepare):
    folder = write_tables("csv", BARE, {"source": [], "target": []})
    with pytest.raises(GraphError, match="no attributes that can be used, and"):
        read_tables(open_tables(folder, prepare=prepare))


def classes(words, known=()):
    found = EncodedWords()
    found.add(pa.array(words, pa.string()))
    y, names = found.classes(known)
    return y.tolist(), names


@pytest.mark.parametrize(
    ("known", "word"),
    [("1", "1.0"), ("1.0", "1"), ("True", "true"), ("false", "False"), ("TRUE", "True")],
)
def test_a_known_class_is_found_in_another_spelling(known, word):
    assert classes([word, "other"], ("first", known)) == ([1, 2], ["first", known, "other"])


def test_the_same_spelling_comes_first():
    assert classes(["1.0", "1", "1."], ("1", "1.0")) == ([1, 0, 0], ["1", "1.0"])


def test_colours_are_not_numbers():
    assert classes(["Red", "red"], ("red",)) == ([1, 0], ["red", "Red"])
    assert [canonical(word) for word in ("1.50", "1e0", "v1.0", "-0.0")] == [
        *("1.50", "1e0", "v1.0", "-0")
    ]


def test_without_a_column_the_known_classes_stay():
    assert EncodedWords().classes() == (None, None)
    assert EncodedWords().classes(("a",)) == (None, ["a"])


def test_similar_names_are_found():
    assert similar_names(["a", "b", "B", "b ", "2", "02", "2.0", "True"]) == [
        *(("b", "B"), ("b", "b "), ("2", "2.0"))
    ]


@pytest.mark.parametrize("first", ["csv", "parquet"])
@pytest.mark.parametrize("values", [[True, None, False, True], [1.0, None, 0.0, 1.0]])
def test_a_class_is_the_same_in_csv_and_parquet(write_tables, first, values):
    second = "parquet" if first == "csv" else "csv"
    trained = read_tables(open_tables(write_tables(first, {"label": values}), prepare=True))
    assert trained.preparation is not None
    later = read_tables(
        open_tables(
            write_tables(second, {"label": values}, folder="later"),
            prepare=True,
            preparation=Preparation.from_dict(trained.preparation),
        )
    )
    assert later.class_names == trained.class_names
    assert later.y.tolist() == trained.y.tolist() == [1, -1, 0, 1]


def test_truth_has_one_spelling(write_tables):
    for number, words in enumerate((["TRUE", "FALSE"], ["true", "false"], ["True", "False"])):
        label = [words[0], None, words[1], words[0]]
        graph = read_tables(open_tables(write_tables("csv", {"label": label}, folder=f"{number}")))
        assert graph.class_names == ("False", "True")


def test_classes_that_are_probably_one_are_warned_about(write_tables, caplog):
    caplog.set_level(logging.WARNING)
    graph = read_tables(open_tables(write_tables("csv", {"label": ["1", None, "1.0", "2"]})))
    assert graph.class_names == ("1", "1.0", "2")
    assert len(caplog.messages) == 1
    assert "differ only by case, spaces or a trailing '.0': '1' and '1.0'" in caplog.messages[0]


def test_many_integers_are_read_as_classes_with_a_warning(caplog):
    nodes = {"id": list(range(90)), "size": list(range(90)), "label": [k % 30 for k in range(90)]}
    edges = {"source": [0, 1], "target": [1, 2]}
    graph = Graph.from_tables(nodes, edges)
    assert graph.num_classes == 30
    assert "regression" in caplog.text
    caplog.clear()
    Graph.from_tables(nodes | {"label": [k % 10 for k in range(90)]}, edges)
    assert "regression" not in caplog.text
