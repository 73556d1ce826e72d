"""Which column is what: by name, by the user's word, and what is told where neither helps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.tables.column_types import Number
from hpgmn.tables.columns import Columns, open_tables
from hpgmn.tables.preparation import Preparation

WriteTables = Callable[..., Path]


@pytest.mark.parametrize("name", ["id", "node", "node_id", "name", "ID", " Name"])
def test_ids_are_found_by_name(write_tables: WriteTables, name: str) -> None:
    folder = write_tables("csv", {"id": None, name: list("abcd")})
    assert open_tables(folder).id == name


@pytest.mark.parametrize("name", ["label", "class", "y", "target", "Class"])
def test_labels_are_found_by_name(write_tables: WriteTables, name: str) -> None:
    tables = open_tables(write_tables("csv", {"label": None, name: list("xyxy")}))
    assert tables.label == name
    assert tables.attributes == ("age", "rich")


@pytest.mark.parametrize(("source", "target"), [("src", "dst"), ("from", "to"), ("From", "Target")])
def test_ends_are_found_by_name(write_tables: WriteTables, source: str, target: str) -> None:
    edges = {"source": None, "target": None, target: ["a"], source: ["b"], "Weight": [1]}
    tables = open_tables(write_tables("csv", edges=edges))
    assert (tables.source, tables.target, tables.weight) == (source, target, "Weight")


def test_the_first_name_counts_and_the_others_are_attributes(write_tables: WriteTables) -> None:
    nodes = {"name": [5, 6, 7, 8], "y": [1, 2, 3, 4], "node": [1, 1, 1, 1]}
    tables = open_tables(write_tables("csv", nodes))
    assert (tables.id, tables.label) == ("id", "label")
    assert tables.attributes == ("age", "rich", "name", "y", "node")


def test_the_user_may_name_every_column(write_tables: WriteTables) -> None:
    nodes = {"who": list("abcd"), "kind": list("abab"), "part": ["train"] * 4, "id": [1, 2, 3, 4]}
    edges = {"u": ["a"], "v": ["b"], "w": [2.0], "source": [1], "target": [1], "weight": [1]}
    folder = write_tables("csv", {**nodes, "label": [0] * 4, "split": [0] * 4}, edges)
    named = Columns("who", "kind", "part", "u", "v", "w", drop=("label", "age"))
    tables = open_tables(folder, named)
    assert (tables.id, tables.label, tables.split) == ("who", "kind", "part")
    assert (tables.source, tables.target, tables.weight) == ("u", "v", "w")
    assert tables.attributes == ("id", "rich", "split")


def test_the_user_may_want_no_label_split_or_weight(write_tables: WriteTables) -> None:
    folder = write_tables("csv", {"label": [1, 2, 3, 4], "split": [1] * 4}, {"weight": [1] * 4})
    tables = open_tables(folder, Columns(label="", split="", weight=""))
    assert (tables.label, tables.split, tables.weight) == (None, None, None)
    assert tables.attributes == ("age", "rich", "label", "split")


def test_the_columns_are_said(write_tables: WriteTables) -> None:
    tables = open_tables(
        write_tables("csv", edges={"weight": [1] * 4, "when": [1] * 4, "b": "abcd"})
    )
    assert tables.sentences() == [
        "nodes.csv: id is 'id', label is 'label', split is 'split'; 2 attributes: age, rich.",
        "edges.csv: source is 'source', target is 'target', weight is 'weight', directed.",
    ]
    assert tables.ignored() == ["edges.csv: ignored: 'when', 'b'."]
    assert replace(tables, weight=None).ignored() == [
        "edges.csv: ignored: 'weight' (--weight weight uses it), 'when' (--weight when uses it), "
        "'b'."
    ]
    assert open_tables(write_tables("csv", folder="thin")).ignored() == []
    many = replace(
        tables, label=None, split=None, weight=None, directed=False, attributes=tuple("abcdefg")
    )
    assert many.sentences()[:3] == [
        "nodes.csv: id is 'id'; 7 attributes: a, b, c, d, e, ….",
        "nodes.csv: no label column.",
        "nodes.csv: no split column.",
    ]
    assert many.sentences()[3].endswith("target is 'target', undirected.")
    assert replace(tables, attributes=()).sentences()[0].endswith("'split'; no attributes.")
    one = replace(tables, attributes=("a",))
    assert one.sentences()[0].endswith("; 1 attribute: a.")


def test_direction_is_the_users_word(write_tables: WriteTables) -> None:
    folder = write_tables("csv")
    assert [open_tables(folder, directed=one).directed for one in (None, True, False)] == [
        True,
        True,
        False,
    ]


def test_an_edge_list_takes_its_nodes_from_elsewhere(write_tables: WriteTables) -> None:
    folder = write_tables("csv")
    (folder / "list.txt").write_text("a b 0.5\nb c 2\n")
    tables = open_tables(folder / "list.txt", nodes=folder / "nodes.csv")
    assert (tables.source, tables.target, tables.weight) == ("source", "target", "weight")
    (folder / "edges.csv").unlink()
    (folder / "list.txt").rename(folder / "edges.txt")
    assert open_tables(folder).weight == "weight"


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], Columns, str]] = {
    "no id": (
        {"id": None, "person": list("abcd")},
        {},
        Columns(),
        "nodes.csv has no column for the id (id, node, node_id, name). Name it with --id: age, "
        "rich, label, split, person.",
    ),
    "no source": (
        {},
        {"source": None, "begin": list("abcd")},
        Columns(),
        "edges.csv has no column for the source (source, src, from). Name it with --source: "
        "target, begin.",
    ),
    "no target": (
        {},
        {"target": None},
        Columns(),
        "edges.csv has no column for the target (target, dst, to). Name it with --target: source.",
    ),
    "an id is needed": (
        {},
        {},
        Columns(id=""),
        "nodes.csv has no column for the id (id, node, node_id, name). Name it with --id: id, "
        "age, rich, label, split.",
    ),
    "absent column": (
        {},
        {},
        Columns(label="lable"),
        "--label: nodes.csv has no column 'lable'. Did you mean 'label'? Choose from: "
        "id, age, rich, label, split.",
    ),
    "absent split": (
        {},
        {},
        Columns(split="zzz"),
        "--split-column: nodes.csv has no column 'zzz'. Did you mean 'split'? Choose from: "
        "id, age, rich, label, split.",
    ),
    "another word for the label": (
        {},
        {},
        Columns(label="kind"),  # nearer to 'id' than to 'label', by letters
        "--label: nodes.csv has no column 'kind'. Did you mean 'label'? Choose from: "
        "id, age, rich, label, split.",
    ),
    "absent category": (
        {},
        {},
        Columns(categories=("zzz",)),
        "--category: nodes.csv has no column 'zzz'. Choose from: id, age, rich, label, split.",
    ),
    "absent dropped column": (
        {},
        {},
        Columns(drop=("rich", "agee")),
        "--drop: nodes.csv has no column 'agee'. Did you mean 'age'? Choose from: "
        "id, age, rich, label, split.",
    ),
    "dropped column in use": (
        {},
        {},
        Columns(drop=("label",)),
        "--drop: column 'label' of nodes.csv is in use already. Choose another one.",
    ),
    "one column twice": (
        {},
        {},
        Columns(source="target"),
        "--source and --target are both column 'target'. Name another for one.",
    ),
    "text": (
        {"city": ["1", "Rome", "Oslo", "2"], "zip": list("abcd")},
        {},
        Columns(),
        "nodes.csv: column 'city' holds 'Rome' in row 2 below the header, which is not a number. "
        "Turn it into numbers, or leave it out (--drop for an attribute, --weight '' for the "
        "weight).",
    ),
    "days": (
        {"born": ["2001-02-03"] * 4},
        {},
        Columns(),
        "nodes.csv: column 'born' holds '2001-02-03' in row 1 below the header, which is not a "
        "number. Turn it into numbers, or leave it out (--drop for an attribute, --weight '' for "
        "the weight).",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_found_is_one_sentence(write_tables: WriteTables, case: str) -> None:
    nodes, edges, columns, message = REFUSED[case]
    folder = write_tables("csv", nodes, edges)
    with pytest.raises(HPGMNError) as caught:
        open_tables(folder, columns)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array(["1", "2", "3", "4"]), "column 'age' is of type string, not numbers. Turn it"),
        (pa.array([[1.0]] * 4), r"column 'age' holds '\[1.0\]' in row 1, which is not a number"),
        (pa.array(list("abab")).dictionary_encode(), "column 'age' holds 'a' in row 1, which"),
        (pa.array([0] * 4, pa.timestamp("s")), "column 'age' holds '1970-01-01 00:00:00' in row"),
    ],
)
def test_columns_of_other_types_are_no_attributes(
    write_tables: WriteTables, values: pa.Array, message: str
) -> None:
    with pytest.raises(GraphError, match=f"nodes.parquet: {message}"):
        open_tables(write_tables("parquet", {"age": values}))


def test_long_lists_of_columns_are_cut(write_tables: WriteTables) -> None:
    folder = write_tables("csv", {f"a{place}": [1] * 4 for place in range(40)})
    with pytest.raises(HPGMNError, match=r"Choose from: id, age, .*, a14, …\.$"):
        open_tables(folder, Columns(id="zzz"))


def test_a_folder_must_have_one_table_of_each(write_tables: WriteTables) -> None:
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


def test_other_sources_are_told(write_tables: WriteTables, tmp_path: Path) -> None:
    folder = write_tables("csv")
    with pytest.raises(GraphError, match=r"absent' does not exist; check the path\."):
        open_tables(tmp_path / "absent")
    with pytest.raises(GraphError, match=r"edges\.csv' lists edges, and nodes need attributes too"):
        open_tables(folder / "edges.csv")
    with pytest.raises(HPGMNError, match=r"--nodes belongs to an edge list, but '.*tables' has"):
        open_tables(folder, nodes=folder / "nodes.csv")
    with pytest.raises(GraphError, match=r"Table '.*absent\.csv' does not exist"):
        open_tables(folder / "edges.csv", nodes="absent.csv")
    (tmp_path / "graph.gexf").write_text("<gexf/>")
    with pytest.raises(GraphError, match=r"graph\.gexf' is no source of a graph: give a folder"):
        open_tables(tmp_path / "graph.gexf")


def test_what_the_user_said_is_kept_in_plain_values() -> None:
    said = Columns("who", drop=("age",), split_by=("time", "day"), directed=False)
    content = said.as_dict()
    assert content == {
        "id": "who",
        "drop": ["age"],
        "split_by": ["time", "day"],
        "directed": False,
    }
    assert Columns.from_dict(json.loads(json.dumps(content))) == said
    assert Columns().as_dict() == {}
    with pytest.raises(HPGMNError, match=r"Unknown entry of tables: 'lable'.*'label'"):
        Columns.from_dict({"lable": "kind"})


def test_direction_may_stand_with_the_columns(write_tables: WriteTables) -> None:
    folder = write_tables("csv")
    assert not open_tables(folder, Columns(directed=False)).directed
    assert open_tables(folder, Columns(directed=False), directed=True).directed


def test_columns_of_any_type_may_be_prepared(write_tables: WriteTables) -> None:
    tables = open_tables(write_tables("csv", {"city": list("xyxy")}), prepare=True)
    assert tables.attributes == ("age", "rich", "city")
    assert tables.sentences()[0].endswith("split is 'split'; 3 more columns: age, rich, city.")


def test_the_column_that_splits_is_no_attribute(write_tables: WriteTables) -> None:
    folder = write_tables("csv", {"team": list("xyxy")})
    tables = open_tables(folder, Columns(split_by=("group", "team")), prepare=True)
    assert (tables.split, tables.split_by) == (None, ("group", "team"))
    assert tables.attributes == ("age", "rich")
    assert not any("no split column" in line for line in tables.sentences())


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (Columns(split_by=("groups", "age")), "Unknown kind of --split-by: 'groups'.*'group'"),
        (Columns(split_by=("group", "ag")), "--split-by: nodes.csv has no column 'ag'.*'age'"),
        (Columns(split_by=("group", "label")), "--split-by: column 'label' of nodes.csv is in use"),
        (Columns(split="split", split_by=("group", "age")), "--split-column and --split-by excl"),
        (Columns(categories=("ag",)), "--category: nodes.csv has no column 'ag'.*'age'"),
    ],
)
def test_wrong_splits_and_categories_are_told(
    write_tables: WriteTables, columns: Columns, told: str
) -> None:
    with pytest.raises(HPGMNError, match=told):
        open_tables(write_tables("csv"), columns, prepare=True)


def fitted(**roles: Any) -> Preparation:
    """A preparation of tables like those of the fixture, some roles changed."""
    usual = {"id": "id", "label": "label", "split": "split", "source": "source"}
    usual |= {"target": "target", "weight": None, "split_by": None}
    every: dict[str, Any] = usual | {"drop_unknown_edges": False, "directed": True} | roles
    return Preparation((Number("age"),), roles=every)


def test_later_tables_have_the_roles_of_the_first(write_tables: WriteTables) -> None:
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
    with pytest.raises(HPGMNError, match=r"--id: nodes\.csv has no column 'who'"):
        open_tables(folder, prepare=True, preparation=fitted(id="who"))


def test_weights_are_used_as_in_training(write_tables: WriteTables) -> None:
    weighted, plain = fitted(weight="amount"), fitted()
    bare = write_tables("csv")
    told = (
        r"^edges\.csv has no column 'amount', which the model was trained with\. Add it, or name "
        r"the column of weights with --weight\.$"
    )
    with pytest.raises(GraphError, match=told):
        open_tables(bare, prepare=True, preparation=weighted)
    other = write_tables("csv", edges={"sum": [1, 2, 3, 4]}, folder="other")
    given = Columns(weight="sum")
    assert open_tables(other, given, prepare=True, preparation=weighted).weight == "sum"
    unasked = Columns(weight="")
    assert open_tables(bare, unasked, prepare=True, preparation=weighted).weight is None
    ignoring = open_tables(other, given, prepare=True, preparation=plain)
    assert ignoring.weight is None
    assert ignoring.ignored() == [
        "edges.csv: ignored: 'sum' (the model was trained without weights)."
    ]
