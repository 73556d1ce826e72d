"""Files as tables: their content in batches, and errors of files that cannot be read."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpgmn.base.errors import GraphError
from hpgmn.tables import sources
from hpgmn.tables.memory import memory_table
from hpgmn.tables.sources import NATIVE, NUMBER, TEXT, CsvTable, MemoryTable, as_numbers, open_table

EDGE_NAMES = (("source", "from"), ("target", "to"), ("weight",))
Write = Callable[..., Path]


def rows(table, *columns):
    kinds = dict.fromkeys(columns or table.types, TEXT)
    return [tuple(row.values()) for batch in table.batches(kinds) for row in batch.to_pylist()]


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_some_columns_of_all_rows_come_in_the_order_asked_for(tmp_path, write_table, ending):
    columns = {"a": ["1", "2", "3"], "b": ["x", "ü", "z"], "c": ["7", "8", "9"]}
    table = open_table(write_table(tmp_path / f"t.{ending}", columns))
    assert list(table.types) == ["a", "b", "c"]
    assert table.num_rows() == 3
    assert rows(table, "c", "b") == [("7", "x"), ("8", "ü"), ("9", "z")]
    assert table.label == f"t.{ending}"
    assert table.row(1_233) == "row 1,234" + ("" if ending == "parquet" else " below the header")


def test_a_parquet_file_comes_in_batches(tmp_path):
    pq.write_table(pa.table({"a": range(10), "b.c": range(10)}), tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    batches = list(table.batches({"b.c": NUMBER}, 4))
    assert [batch.num_rows for batch in batches] == [4, 4, 2]
    assert batches[0].schema.names == ["b.c"]


def test_a_csv_file_comes_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 16)
    (tmp_path / "t.csv").write_text("a\n" + "12345\n" * 10)
    table = open_table(tmp_path / "t.csv")
    assert len(list(table.batches({"a": NUMBER}))) > 2
    counts = []
    assert table.num_rows(counts.append) == 10
    assert counts[-1] == 10
    assert len(counts) > 2


def test_a_table_in_memory_comes_in_batches():
    table = MemoryTable(pa.table({"a": range(5), "b": range(5)}), "the nodes")
    assert [batch.num_rows for batch in table.batches({"b": NUMBER}, 2)] == [2, 2, 1]
    assert table.num_rows() == 5
    assert table.label == "the nodes"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_of_a_csv_file_is_seen_in_its_header(tmp_path, separator):
    lines = (("id", "a"), ("x", "1"), ("y", "2"))
    text = "\n".join(separator.join(line) for line in lines)
    (tmp_path / "t.csv").write_text(text, encoding="utf-8-sig")
    assert rows(open_table(tmp_path / "t.csv")) == [("x", "1"), ("y", "2")]


def test_quoted_values_and_windows_lines_are_read(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'id,a\r\n"x, ""y""",1\r\n\r\n"z\nz",2\r\n')
    assert rows(open_table(tmp_path / "t.csv")) == [('x, "y"', "1"), ("z\nz", "2")]


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        ("1 2\n3 4\n", ["source", "target"], [("1", "2"), ("3", "4")]),
        ("1\t2\t0.5\n", ["source", "target", "weight"], [("1", "2", "0.5")]),
        ("# a list\n% of edges\n\n1,2\n", ["source", "target"], [("1", "2")]),
        ("1;2;3;4;5", ["source", "target", "weight", "column 4", "column 5"], [tuple("12345")]),
        ("# head\nFrom To\n1 2\n", ["From", "To"], [("1", "2")]),
        (
            "source target weight time\n1 2 3 4\n",
            ["source", "target", "weight", "time"],
            [tuple("1234")],
        ),
        ("from there\n1 2\n", ["source", "target"], [("from", "there"), ("1", "2")]),
    ],
)
@pytest.mark.parametrize("ending", ["txt", "edgelist", "edges"])
def test_an_edge_list_needs_no_names(tmp_path, text, names, expected, ending):
    (tmp_path / f"e.{ending}").write_text(text)
    table = open_table(tmp_path / f"e.{ending}", EDGE_NAMES)
    assert list(table.types) == names
    assert rows(table) == expected


def test_integers_differ_from_text(tmp_path):
    columns = {
        "whole": [1],
        "float": [1.5],
        "large": pa.array([1], pa.uint64()),
        "text": ["1"],
        "day": pa.array([1], pa.int32()).cast(pa.date32()),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    assert [name for name in table.types if table.has_integers(name)] == ["whole", "float"]
    (tmp_path / "t.csv").write_text("whole\n1\n")
    assert not open_table(tmp_path / "t.csv").has_integers("whole")


def test_the_first_text_is_found_and_missing_values_are_none(tmp_path):
    (tmp_path / "t.csv").write_text("id,a,b\n1,,1\n2,NA,2\n3,x,3e5\n4,y,inf\n")
    table = open_table(tmp_path / "t.csv")
    assert table.first_text("a") == (2, "x")
    assert table.first_text("b") is None


UNREADABLE = {
    "empty.csv": (b"", r"empty\.csv' cannot be read as a csv file \(.*Empty CSV file"),
    "blank.csv": (b"\n\n", r"cannot be read as a csv file"),
    "ragged.csv": (
        b"a,b\n1\n",
        r"^ragged.csv: row 2 of the file has 1 of 2 values; the file may be",
    ),
    "latin.csv": (
        "a,b\nü,1\n".encode("latin-1"),
        r"is not UTF-8 text \(line 2 holds the byte 0xfc\)",
    ),
    "other.parquet": (b"id,a\n1,2\n", r"other\.parquet' cannot be read as a parquet file"),
    "cut.parquet": (b"PAR1", r"cannot be read as a parquet file"),
    "twice.csv": (b"a,b,a\n1,2,3\n", r"^twice\.csv has two columns named 'a'\. Rename or remove"),
    "nothing.txt": (b"# nothing\n\n", r"^nothing\.txt lists no edges\."),
    "spaces.txt": (b"1 2\n1  2\n", r"^spaces.txt: row 2 of the file has 3 values for 2 columns\."),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name):
    content, message = UNREADABLE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GraphError, match=message) as caught:
        rows(open_table(tmp_path / name, EDGE_NAMES))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "t.csv"):
        with pytest.raises(GraphError, match="does not exist or is not a file"):
            open_table(path)


def test_a_file_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("a\n1\n")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(CsvTable, "_open", refuse)
    with pytest.raises(GraphError, match=r"cannot be read as a csv file \(Permission denied\)"):
        open_table(tmp_path / "t.csv")


def test_values_that_are_not_of_the_type_of_the_first_rows_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_PROBE_BYTES", 64)
    path = tmp_path / "t.csv"
    path.write_text("day,b\n" + "2020-01-01,1\n" * 20 + ",1\nlater,1\n")
    with pytest.raises(GraphError, match=r"'day' holds 'later' in row 22 .* date32") as caught:
        list(open_table(path).batches({"b": NUMBER, "day": NATIVE}))
    assert "(--category day), or leave the column out (--drop day)" in caught.value.render(cli=True)
    path.write_text("ago,day\n" + "2020-01-01,2020-01-01\n" * 20 + "2020-01-01,later\n")
    with pytest.raises(GraphError, match=r"column 'day' holds 'later' in row 21 below the header"):
        list(open_table(path).batches({"ago": NATIVE, "day": NATIVE}))
    path.write_text("day\n" + "2020-01-01\n" * 20 + "2020-01-02,7\n")
    with pytest.raises(GraphError, match="row 22 of the file has 2 values for 1 column"):
        list(open_table(path).batches({"day": NATIVE}))


def test_another_encoding_far_below_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_PROBE_BYTES", 64)
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n" + b"x,1\n" * 40 + "ü,1\n".encode("latin-1"))
    with pytest.raises(GraphError, match=r"^t\.csv is not UTF-8 text\. Save it with the encoding"):
        list(open_table(path).batches({"a": TEXT}))
    path.write_text("a,b\nx,1\n", encoding="utf-16")
    with pytest.raises(GraphError, match=r"t\.csv is not UTF-8 text \(line 1 holds the byte 0xff"):
        open_table(path)


def test_the_beginning_of_a_file_may_cut_a_character(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("\ufeffa,b\nü,1\n", encoding="utf-8")
    monkeypatch.setattr(sources, "_PROBE_BYTES", 8)  # in the middle of ü
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(CsvTable, "_open", with_large_blocks(CsvTable._open))
    assert list(open_table(tmp_path / "t.csv").types) == ["a", "b"]


def with_large_blocks(opened):
    return lambda table, types, block: opened(table, types, 64)


def test_text_in_memory_has_the_type_of_a_file():
    long = "x" * (1 << 21)  # longer than a block of the CSV reader
    columns = {
        "number": ["1", "", None],
        "day": ["2024-01-01", None, "NA"],
        "words": ["1", "x", None],
        "long": [long, "a\nb", '"'],
        "chosen": pa.array(["1", "2", "1"]).dictionary_encode(),
        "nothing": pa.array([None, None, None], pa.string()),
    }
    table = MemoryTable(pa.table(columns), "t")
    assert table.types["number"] == pa.int64()
    assert table.types["day"] == pa.date32()
    assert table.types["words"] == table.types["long"] == pa.string()
    assert pa.types.is_dictionary(table.types["chosen"])
    assert table.types["nothing"] == pa.null()
    (batch,) = table.batches({"number": NUMBER, "day": NATIVE, "long": TEXT})
    assert batch.column("number").to_pylist() == [1, None, None]
    assert str(batch.column("day")[0]) == "2024-01-01"
    assert batch.column("long").to_pylist() == [long, "a\nb", '"']
    (text,) = table.batches({"number": TEXT})
    assert text.column(0).to_pylist() == ["1", "", None]
    assert not table.has_integers("number")
    assert MemoryTable(pa.table({"a": [1]}), "t").has_integers("a")


@pytest.mark.parametrize("in_memory", [False, True])
def test_integers_with_leading_zeros_are_text_that_can_still_be_read_as_numbers(
    tmp_path, in_memory
):
    codes, counts = ["04109", "", "80331"], ["4109", "0", "80331"]
    if in_memory:
        table = memory_table({"code": codes, "count": counts}, "nodes")
    else:
        rows = "".join(f"{code},{count}\n" for code, count in zip(codes, counts, strict=True))
        (tmp_path / "nodes.csv").write_text(f"code,count\n{rows}")
        table = open_table(tmp_path / "nodes.csv")
    assert table.types == {"code": pa.string(), "count": pa.int64()}
    assert table.holds_numbers("code")
    assert [batch.column(0).to_pylist() for batch in table.batches({"code": TEXT})] == [codes]
    [batch] = table.batches({"code": NUMBER})
    assert as_numbers(batch.column(0))[[0, 2]].tolist() == [4109, 80331]
