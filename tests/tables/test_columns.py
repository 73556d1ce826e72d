"""Which column is what: by name, by the user's word, and what is told where neither helps."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.tables.column_types import Number
from hpgmn.tables.columns import open_tables
from hpgmn.tables.options import Columns
from hpgmn.tables.preparation import Preparation

WriteTables = Callable[..., Path]


@pytest.mark.parametrize("name", ["id", "node", "node_id", "name", "ID", " Name"])
def test_ids_are_found_by_name(write_tables, name):
    folder = write_tables("csv", {"id": None, name: list("abcd")})
    assert open_tables(folder).id == name


@pytest.mark.parametrize("name", ["label", "class", "y", "target", "Class"])
def test_labels_are_found_by_name(write_tables, name):
    tables = open_tables(write_tables("csv", {"label": None, name: list("xyxy")}))
    assert tables.label == name
    assert tables.attributes == ("age", "rich")


@pytest.mark.parametrize(("source", "target"), [("src", "dst"), ("from", "to"), ("From", "Target")])
def test_ends_are_found_by_name(write_tables, source, target):
    edges = {"source": None, "target": None, target: ["a"], source: ["b"], "Weight": [1]}
    tables = open_tables(write_tables("csv", edges=edges))
    assert (tables.source, tables.target, tables.weight) == (source, target, "Weight")


def test_the_first_name_counts_and_the_others_are_attributes(write_tables):
    nodes = {"name": [5, 6, 7, 8], "y": [1, 2, 3, 4], "node": [1, 1, 1, 1]}
    tables = open_tables(write_tables("csv", nodes))
    assert (tables.id, tables.label) == ("id", "label")
    assert tables.attributes == ("age", "rich", "name", "y", "node")


def test_the_user_may_name_every_column(write_tables):
    nodes = {"who": list("abcd"), "kind": list("abab"), "part": ["train"] * 4, "id": [1, 2, 3, 4]}
    edges = {"u": ["a"], "v": ["b"], "w": [2.0], "source": [1], "target": [1], "weight": [1]}
    folder = write_tables("csv", {**nodes, "label": [0] * 4, "split": [0] * 4}, edges)
    named = Columns("who", "kind", "part", "u", "v", "w", drop=("label", "age"))
    tables = open_tables(folder, named)
    assert (tables.id, tables.label, tables.split) == ("who", "kind", "part")
    assert (tables.source, tables.target, tables.weight) == ("u", "v", "w")
    assert tables.attributes == ("id", "rich", "split")


def test_the_user_may_want_no_label_split_or_weight(write_tables):
    folder = write_tables("csv", {"label": [1, 2, 3, 4], "split": [1] * 4}, {"weight": [1] * 4})
    tables = open_tables(folder, Columns(label="", split="", weight=""))
    assert (tables.label, tables.split, tables.weight) == (None, None, None)
    assert tables.attributes == ("age", "rich", "label", "split")


def test_columns_are_described(write_tables):
    tables = open_tables(
        write_tables("csv", edges={"weight": [1] * 4, "when": [1] * 4, "b": "abcd"})
    )
    assert tables.describe() == [
        "nodes.csv: id is 'id', label is 'label', split is 'split'; 2 attributes: age, rich.",
        "edges.csv: source is 'source', target is 'target', weight is 'weight', directed.",
        "edges.csv: not used: 'when', 'b'.",
    ]
    assert "not used" not in " ".join(replace(tables, prepare=True).describe())
    many = replace(
        tables, label=None, split=None, weight=None, directed=False, attributes=tuple("abcdefg")
    )
    assert many.describe()[:3] == [
        "nodes.csv: id is 'id'; 7 attributes: a, b, c, d, e and 2 more.",
        "nodes.csv: no label column.",
        "nodes.csv: no split column.",
    ]
    assert many.describe()[3].endswith("target is 'target', undirected.")
    assert replace(tables, attributes=()).describe()[0].endswith("'split'; no attributes.")
    one = replace(tables, attributes=("a",))
    assert one.describe()[0].endswith("; 1 attribute: a.")


def test_edges_are_directed_unless_the_user_says_otherwise(write_tables):
    folder = write_tables("csv")
    assert open_tables(folder).directed
    assert open_tables(folder, Columns(directed=True)).directed
    assert not open_tables(folder, Columns(directed=False)).directed


def test_an_edge_list_takes_its_nodes_from_elsewhere(write_tables):
    folder = write_tables("csv")
    (folder / "list.txt").write_text("a b 0.5\nb c 2\n")
    tables = open_tables(folder / "list.txt", nodes=folder / "nodes.csv")
    assert (tables.source, tables.target, tables.weight) == ("source", "target", "weight")
    (folder / "edges.csv").unlink()
    (folder / "list.txt").rename(folder / "edges.txt")
    assert open_tables(folder).weight == "weight"


REFUSED = {
    "no id": (
        {"id": None, "person": list("abcd")},
        {},
        Columns(),
        "nodes.csv has no column for the id (id, node, node_id, name); its columns are age",
        ("id", None),
    ),
    "no source": (
        {},
        {"source": None, "begin": list("abcd")},
        Columns(),
        "edges.csv has no column for the source (source, src, from)",
        ("source", None),
    ),
    "an id is needed": ({}, {}, Columns(id=""), "no column for the id", ("id", None)),
    "absent column": ({}, {}, Columns(label="lable"), "no column 'lable'", ("label", "label")),
    "another word for the label": (
        {},
        {},
        Columns(label="kind"),  # nearer to 'id' than to 'label', by letters
        "nodes.csv has no column 'kind'",
        ("label", "label"),
    ),
    "absent category": (
        {},
        {},
        Columns(categories=("zzz",)),
        "nodes.csv has no column 'zzz'",
        ("categories", None),
    ),
    "absent dropped column": (
        {},
        {},
        Columns(drop=("rich", "agee")),
        "nodes.csv has no column 'agee'",
        ("drop", ["age"]),
    ),
    "dropped column in use": (
        {},
        {},
        Columns(drop=("label",)),
        "Column 'label' of nodes.csv already has another role",
        ("drop", None),
    ),
    "one column twice": (
        {},
        {},
        Columns(source="target"),
        "Column 'target' cannot be both source and target",
        ("target", None),
    ),
    "text": (
        {"city": ["1", "Rome", "Oslo", "2"], "zip": list("abcd")},
        {},
        Columns(),
        "column 'city' holds 'Rome' in row 2 below the header, which is not a number",
        ("drop", ["city"]),
    ),
    "kind of split": ({}, {}, Columns(split_by=("groups", "age")), "'groups'", (None, "group")),
    "split by the label": (
        {},
        {},
        Columns(split_by=("group", "label")),
        "Column 'label' of nodes.csv already has another role",
        ("split_by", None),
    ),
    "two ways to split": (
        {},
        {},
        Columns(split="split", split_by=("group", "age")),
        "A split column and split_by exclude each other",
        ("split_by", None),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_name_the_fact_and_the_option(write_tables, case):
    nodes, edges, columns, fact, option = REFUSED[case]
    folder = write_tables("csv", nodes, edges)
    with pytest.raises(HPGMNError) as caught:
        open_tables(folder, columns)
    assert fact in caught.value.message
    remedy = caught.value.remedy
    last = remedy.alternatives[-1] if remedy.alternatives else remedy
    assert (last.option, last.value) == option


def test_options_are_spelt_for_their_reader(write_tables):
    with pytest.raises(HPGMNError) as caught:
        open_tables(write_tables("csv"), Columns(split="zzz"))
    assert "its columns are id, age, " in str(caught.value)
    assert str(caught.value).endswith('(split="split").')
    assert caught.value.render(cli=True).endswith("(--split-column split).")


def test_all_missing_columns_are_reported_at_once(write_tables):
    folder = write_tables("csv", edges={"source": None, "payer": list("abcd")})
    wrong = Columns(id="ids", label="lable", drop=("agee", "zzz"), edge_drop=("x",))
    with pytest.raises(HPGMNError) as caught:
        open_tables(folder, wrong)
    for name in ("'ids'", "'lable'", "'agee'", "'zzz'", "'x'", "for the source"):
        assert name in caught.value.message
    rendered = caught.value.render(cli=True)
    for remedy in (
        "--id id",
        "--label label",
        "--drop age",
        "and name another column (--edge-drop",
    ):
        assert remedy in rendered


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array(["1", "2", "3", "4"]), "column 'age' is of type string, not numbers"),
        (pa.array([[1.0]] * 4), r"column 'age' holds '\[1.0\]' in row 1, which is not a number"),
        (pa.array(list("abab")).dictionary_encode(), "column 'age' holds 'a' in row 1, which"),
        (pa.array([0] * 4, pa.timestamp("s")), "column 'age' holds '1970-01-01 00:00:00' in row"),
    ],
)
def test_columns_of_other_types_are_no_attributes(write_tables, values, message):
    with pytest.raises(GraphError, match=f"nodes.parquet: {message}"):
        open_tables(write_tables("parquet", {"age": values}))


def test_long_lists_of_columns_are_cut(write_tables):
    folder = write_tables("csv", {f"a{place}": [1] * 4 for place in range(40)})
    with pytest.raises(HPGMNError, match=r"columns are id, age, .*, a14 and 25 more\. "):
        open_tables(folder, Columns(id="zzz"))


def test_a_folder_must_have_one_table_of_each(write_tables):
    folder = write_tables("csv")
    write_tables("parquet")
    with pytest.raises(GraphError, match=r"has both nodes\.csv and nodes\.parquet\. Keep one"):
        open_tables(folder)
    (folder / "nodes.parquet").unlink()
    with pytest.raises(GraphError, match=r"has both edges\.csv and edges\.parquet\. Keep one"):
        open_tables(folder)
    for ending in ("csv", "parquet"):
        (folder / f"edges.{ending}").unlink()
    with pytest.raises(GraphError, match=r"has no table edges \(\.csv, .*\.txt.*\)\. Add it"):
        open_tables(folder)
    (folder / "nodes.csv").unlink()
    with pytest.raises(GraphError, match=r"has no table nodes \(\.csv, \.tsv, \.parquet\)\. Add"):
        open_tables(folder)


def test_other_sources_are_refused(write_tables, tmp_path):
    folder = write_tables("csv")
    with pytest.raises(GraphError, match=r"absent' does not exist\."):
        open_tables(tmp_path / "absent")
    with pytest.raises(GraphError, match=r"edges\.csv' lists edges, but nodes"):
        open_tables(folder / "edges.csv")
    with pytest.raises(HPGMNError, match="belongs to an edge list"):
        open_tables(folder, nodes=folder / "nodes.csv")
    with pytest.raises(GraphError, match=r"Table '.*absent\.csv' does not exist"):
        open_tables(folder / "edges.csv", nodes="absent.csv")
    (tmp_path / "graph.gexf").write_text("<gexf/>")
    with pytest.raises(GraphError, match=r"graph\.gexf' does not hold a graph"):
        open_tables(tmp_path / "graph.gexf")


def test_columns_of_any_type_may_be_prepared(write_tables):
    tables = open_tables(write_tables("csv", {"city": list("xyxy")}), prepare=True)
    assert tables.attributes == ("age", "rich", "city")
    assert tables.describe()[0].endswith("split is 'split'; 3 more columns: age, rich, city.")


def test_the_column_that_splits_is_no_attribute(write_tables):
    folder = write_tables("csv", {"team": list("xyxy")})
    tables = open_tables(folder, Columns(split_by=("group", "team")), prepare=True)
    assert (tables.split, tables.split_by) == (None, ("group", "team"))
    assert tables.attributes == ("age", "rich")
    assert not any("no split column" in line for line in tables.describe())


def fitted(**roles):
    """A preparation of tables like those of the fixture, some roles changed."""
    usual = {"id": "id", "label": "label", "split": "split", "source": "source"}
    usual |= {"target": "target", "weight": None, "split_by": None}
    every = usual | {"drop_unknown_edges": False, "directed": True} | roles
    return Preparation((Number("age"),), roles=every)


def test_later_tables_have_the_roles_of_the_first(write_tables):
    nodes = {"label": None, "split": None, "y": [5, 6, 7, 8], "rich": None}
    folder = write_tables("csv", nodes, {"weight": [1] * 4})
    given = fitted(split=None, directed=False, drop_unknown_edges=True, split_by=["time", "day"])
    tables = open_tables(folder, prepare=True, preparation=given)
    assert (tables.label, tables.split, tables.weight) == (None, None, None)  # y is no label there
    assert (tables.directed, tables.drop_unknown_edges, tables.split_by) == (False, True, None)
    assert tables.attributes == ("age",)
    again = open_tables(
        write_tables("csv", {"day": [1] * 4}, folder="other"), prepare=True, preparation=given
    )
    assert (again.label, again.split, again.split_by) == ("label", None, ("time", "day"))
    named = open_tables(folder, Columns(label="y"), prepare=True, preparation=fitted())
    assert named.label == "y"
    with pytest.raises(HPGMNError, match="has no column 'who'"):
        open_tables(folder, prepare=True, preparation=fitted(id="who"))


def test_weights_are_used_as_in_training(write_tables):
    weighted, plain = fitted(weight="amount"), fitted()
    bare = write_tables("csv")
    with pytest.raises(GraphError, match="has no column 'amount', which the model was") as caught:
        open_tables(bare, prepare=True, preparation=weighted)
    assert "(--weight)" in caught.value.render(cli=True)
    other = write_tables("csv", edges={"sum": [1, 2, 3, 4]}, folder="other")
    named = Columns(weight="sum")
    assert open_tables(other, named, prepare=True, preparation=weighted).weight == "sum"
    unweighted = Columns(weight="")
    assert open_tables(bare, unweighted, prepare=True, preparation=weighted).weight is None
    ignoring = open_tables(other, named, prepare=True, preparation=plain)
    assert ignoring.weight is None
    assert ignoring.describe()[-1] == "edges.csv: not used: 'sum'."
