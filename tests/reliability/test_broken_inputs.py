"""A corpus of broken graphs, tables and configs: each is refused in one sentence with a remedy.

Every case is a name, what makes the input, and a part of the sentence that only this fault has.
"""

# ruff: noqa: E501 (a line for each case)

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hpgmn
from hpgmn.cli import main

Words = list[str]
Make = Callable[[], Words]
TRAIN = ("train", "--no-portfolio", "--set", "epochs=1", "--set", "estimator_epochs=1")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def arrays():
    """The arrays of a graph file that is right: 20 nodes, two classes, one split."""
    random = np.random.default_rng(0)
    role = np.arange(20)[:, None] % 4
    return {
        "x": random.normal(size=(20, 3)).astype(np.float32),
        "edge_index": random.integers(0, 20, (2, 60)),
        "directed": np.array(True),
        "y": (np.arange(20) // 4 + np.arange(20)) % 2,
        "class_names": np.array(["good", "bad"]),
        "node_ids": np.array([f"n{place}" for place in range(20)]),
        "train_mask": role < 2,
        "val_mask": role == 2,
        "test_mask": role == 3,
    }


def graph_file(**changes):
    """A graph file with some arrays changed, or left out where None."""
    found = {name: one for name, one in (arrays() | changes).items() if one is not None}
    np.savez("graph.npz", **found)
    return [*TRAIN, "graph.npz"]


def with_value(name, place, value):
    array = arrays()[name].copy()
    array[place] = value
    return {name: array}


def raw(content, name="graph.npz"):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(content)
    return [*TRAIN, name]


def cut(share):
    graph_file()
    return raw(Path("graph.npz").read_bytes()[: int(Path("graph.npz").stat().st_size * share)])


def flipped():
    graph_file()
    content = bytearray(Path("graph.npz").read_bytes())
    content[200] ^= 255  # among the values of x, so that only the checksum tells
    return raw(bytes(content))


def folder(**changes):
    """A graph folder with some arrays changed, or left out where None."""
    found = arrays() | {"edge_index": None}
    found |= {"edges_indptr": np.arange(21), "edges_indices": np.roll(np.arange(20), 1)}
    Path("g.graph").mkdir()
    for name, one in (found | changes).items():
        if one is not None:
            np.save(f"g.graph/{name}.npy", one)
    return [*TRAIN, "g.graph"]


def object_array():
    file = io.BytesIO()
    np.savez(file, **(arrays() | {"node_ids": np.array([object()] * 20)}))  # type: ignore[arg-type]
    return raw(file.getvalue())


def text_member():
    with zipfile.ZipFile("graph.npz", "w") as archive:
        archive.writestr("x.npy", b"these are no numbers")
    return [*TRAIN, "graph.npz"]


def csr(**changes):
    parts = {
        "x": None,
        "x_indptr": np.arange(21),
        "x_indices": np.zeros(20, int),
        "x_data": np.ones(20),
        "x_shape": np.array([20, 3]),
    }
    return graph_file(**(parts | changes))


GRAPHS: dict[str, tuple[Make, str]] = {
    "empty file": (lambda: raw(b""), "not a .npz file"),
    "text in place of a graph": (lambda: raw(b"hello\n"), "it is not a .npz file"),
    "only the magic letters": (lambda: raw(b"PK\x03\x04"), "damaged"),
    "cut in the middle": (lambda: cut(0.5), "damaged"),
    "last bytes missing": (lambda: cut(0.98), "damaged"),
    "one byte flipped": (flipped, "Bad CRC-32 for file 'x.npy'"),
    "archive of nothing": (lambda: graph_file(**dict.fromkeys(arrays())), "'directed' is missing"),
    "member that is no array": (text_member, "array 'x'"),
    "pickled objects": (object_array, "holds pickled Python objects, which are never loaded"),
    "no such file": (lambda: [*TRAIN, "nowhere.npz"], "'nowhere.npz' does not exist"),
    "no such dataset": (lambda: [*TRAIN, "texass"], "Did you mean 'texas'?"),
    "folder in place of a file": (lambda: [*TRAIN, "."], "has no tables nodes and edges"),
    "no attributes": (lambda: graph_file(x=None), "array 'x' is missing"),
    "no edges array": (lambda: graph_file(edge_index=None), "array 'edge_index' is missing"),
    "attributes of text": (lambda: graph_file(x=np.full((20, 3), "a")), "'x' has type <U1"),
    "complex attributes": (lambda: graph_file(x=np.ones((20, 3), "c8")), "'x' has type complex64"),
    "attributes of one dimension": (lambda: graph_file(x=np.ones(20)), "x must have two dimensions"),
    "attributes without columns": (lambda: graph_file(x=np.ones((20, 0))), "both at least 1"),
    "NaN attribute": (lambda: graph_file(**with_value("x", (3, 1), np.nan)), "x holds nan at node 3"),
    "infinite attribute": (lambda: graph_file(**with_value("x", (0, 2), np.inf)), "holds inf at node 0"),
    "beyond single precision": (lambda: graph_file(x=np.full((20, 3), 1e39)), "x holds inf at node 0"),
    "edge to nobody": (lambda: graph_file(**with_value("edge_index", (1, 5), 20)), "Edge 5 runs from"),
    "edge from before the first": (lambda: graph_file(**with_value("edge_index", (0, 0), -1)), "numbered 0 to 19"),
    "edges in the wrong shape": (lambda: graph_file(edge_index=arrays()["edge_index"].T), "Transpose it"),
    "fractional edges": (lambda: graph_file(edge_index=np.full((2, 3), 0.5)), "'edge_index' has type float64"),
    "too few labels": (lambda: graph_file(y=np.zeros(19, int)), "y must have one label per node"),
    "label below -1": (lambda: graph_file(**with_value("y", 4, -2)), "y holds -2 at node 4"),
    "label out of proportion": (lambda: graph_file(**with_value("y", 4, 10**6)), "y holds class 1000000"),
    "fewer names than classes": (lambda: graph_file(class_names=np.array(["one"])), "class_names must name every"),
    "two classes of one name": (lambda: graph_file(class_names=np.array(["a", "a"])), "class_names must be distinct"),
    "two nodes of one name": (lambda: graph_file(**with_value("node_ids", 3, "n2")), "'n2'"),
    "too few names": (lambda: graph_file(node_ids=np.array(["a"])), "node_ids must have 20 names"),
    "invalid character": (lambda: graph_file(**with_value("node_ids", 3, "\ud800")), "invalid character in name 3"),
    "splits overlap": (lambda: graph_file(val_mask=arrays()["train_mask"]), "uses node 0 twice"),
    "split of unknown labels": (lambda: graph_file(y=np.full(20, -1)), "Split 0 uses node 0"),
    "no validation nodes": (lambda: graph_file(val_mask=None), "has no val nodes. Give it some"),
    "train nodes of one class": (lambda: graph_file(train_mask=(np.arange(20) == 2)[:, None], val_mask=(np.arange(20) == 3)[:, None], test_mask=None), "of 1 class only"),
    "one class in all": (lambda: graph_file(y=np.zeros(20, int), class_names=None), "of 1 class only"),
    "no labels at all": (lambda: graph_file(y=None, train_mask=None, val_mask=None, test_mask=None), "has no splits and too few labels"),
    "masks of numbers": (lambda: graph_file(train_mask=np.ones((20, 1))), "'train_mask' has type float64"),
    "different numbers of splits": (lambda: graph_file(test_mask=np.zeros((20, 2), bool)), "the same number of splits"),
    "weight of zero": (lambda: graph_file(edge_weight=np.zeros(60)), "edge_weight must be finite and positive"),
    "negative weight": (lambda: graph_file(edge_weight=-np.ones(60)), "shift or drop negative ones"),
    "too few weights": (lambda: graph_file(edge_weight=np.ones(59)), "one value per edge, 60 (got 59)"),
    "weights that add up to infinity": (lambda: graph_file(edge_weight=np.full(60, 3e37)), "edge_weight adds up to"),
    "directed is a list": (lambda: graph_file(directed=np.array([True, False])), "'directed' has 2 values"),
    "dense and sparse at once": (lambda: csr(x=np.ones((20, 3))), "holds both 'x' and 'x_indptr'"),
    "sparse part missing": (lambda: csr(x_data=None), "array 'x_data' is missing"),
    "sparse index outside": (lambda: csr(x_indices=np.full(20, 3)), "'x_indices' holds 3, but there are 3"),
    "sparse pointers fall": (lambda: csr(x_indptr=np.arange(21)[::-1].copy()), "'x_indptr' must rise from 0"),
    "sparse shape of huge size": (lambda: csr(x_shape=np.array([2**40, 3])), "'x_shape' must be two sizes"),
    "sparse parts of two lengths": (lambda: csr(x_data=np.ones(19)), "must have 20 values"),
    "graph folder without edges": (lambda: folder(edges_indices=None), "array 'edges_indices' is missing"),
    "graph folder of falling targets": (lambda: folder(edges_indptr=np.array([0, *[20] * 20]), edges_indices=np.arange(20)[::-1].copy()), "must ascend for each source"),
    "graph folder of a wrong target": (lambda: folder(edges_indices=np.full(20, 99)), "'edges_indices' holds 99"),
    "graph folder of repeated places": (lambda: folder(edges_places=np.zeros(20, int)), "'edges_places' must name every edge once"),
}  # fmt: skip


NODES = "id,label,age\n" + "".join(f"n{i},{'xy'[i % 2]},{20 + i}\n" for i in range(20))
EDGES = "source,target\n" + "".join(f"n{i},n{(i * 7 + 1) % 20}\n" for i in range(20))


def tables(nodes=NODES, edges=EDGES, *options):
    Path("t").mkdir()
    for name, text in (("nodes", nodes), ("edges", edges)):
        content = text if isinstance(text, bytes) else text.encode()
        Path(f"t/{name}.csv").write_bytes(content)
    return [*TRAIN, "t", *options]


def parquet(**columns):
    words = tables()
    Path("t/nodes.csv").unlink()
    pq.write_table(pa.table(columns), "t/nodes.parquet")
    return words


def convert(nodes=NODES, edges=EDGES, *options):
    tables(nodes, edges)
    return ["convert", "t", "--out", "g.npz", *options]


def listed(text, name="list.txt"):
    tables()
    Path(name).write_text(text, encoding="utf-8")
    return [
        "convert",
        name,
        "--nodes",
        "t/nodes.csv",
        "--label",
        "",
        "--drop",
        "label",
        "--out",
        "g.npz",
    ]


TABLES: dict[str, tuple[Make, str]] = {
    "empty node table": (lambda: tables(""), "nodes.csv' cannot be read as a csv file (Empty CSV file)"),
    "node table of a header alone": (lambda: tables("id,label,age\n"), "nodes.csv has no rows. Add a row"),
    "edge table without edges": (lambda: tables("id,label\n" + "".join(f"n{i},{'xy'[i % 2]}\n" for i in range(20)), "source,target\n"), "nothing to learn from"),
    "Latin letters": (lambda: tables(NODES.replace("n3,", "né,").encode("latin-1")), "is not UTF-8 text (line 5 holds the byte 0xe9)"),
    "UTF-16": (lambda: tables(NODES.encode("utf-16")), "nodes.csv is not UTF-8 text"),
    "row too short": (lambda: tables(NODES.replace("n4,x,24", "n4,x")), "row 6 of the file has 2 of 3 values"),
    "row too long": (lambda: tables(NODES.replace("n4,x,24", "n4,x,24,7")), "row 6 of the file has 4 values for 3 columns"),
    "open quote": (lambda: tables(NODES.replace("n4,", '"n4,')), "nodes.csv"),
    "duplicate id": (lambda: tables(NODES.replace("n5,", "n4,")), "repeats the id 'n4' of row 5"),
    "id missing": (lambda: tables(NODES.replace("n5,", ",")), "row 6 below the header has no id in column 'id'"),
    "id of NUL": (lambda: tables(NODES.replace("n5,", "n5\x00,")), "NUL"),
    "no id column": (lambda: tables(NODES.replace("id,", "key,", 1)), "(--id)"),
    "two columns of one name": (lambda: tables(NODES.replace("age", "label", 1)), "two columns named 'label'"),
    "label column mistyped": (lambda: tables(NODES, EDGES, "--label", "lable"), "(--label label)"),
    "one class": (lambda: tables(NODES.replace(",y,", ",x,")), "column 'label' has a single value, 'x'"),
    "all labels missing": (lambda: tables(NODES.replace(",y,", ",,").replace(",x,", ",,")), "has no splits and too few labels"),
    "a label for each node": (lambda: tables("id,label\n" + "".join(f"n{i},c{i}\n" for i in range(200)), EDGES), "probably a number or a name, not a class"),
    "too few labels for a split": (lambda: tables("id,label,age\nn0,x,1\nn1,y,2\nn2,,3\n", "source,target\nn0,n1\n"), "too few labels to make some"),
    "edge to nobody": (lambda: tables(NODES, EDGES.replace("n3,", "m3,")), "row 4 below the header has the source 'm3'"),
    "ids differ by blanks": (lambda: tables(NODES, EDGES.replace("n3,", "n3 ,")), "the source 'n3 '"),
    "edge without a target": (lambda: tables(NODES, EDGES + "n3,\n"), "has no target"),
    "no target column": (lambda: tables(NODES, EDGES.replace("target", "towards")), "no column for the target"),
    "edges name numbers": (lambda: tables(NODES, EDGES.replace("n", "")), "(--drop-unknown-edges)"),
    "weight of words": (lambda: tables(NODES, EDGES.replace("\n", ",much\n").replace("target,much", "target,weight")), "holds 'much' in row 1 below the header, which is not a number"),
    "weight not positive": (lambda: tables(NODES, EDGES.replace("\n", ",0\n").replace("target,0", "target,weight")), "has weight 0 (20 such edges in all)"),
    "weight missing": (lambda: tables(NODES, EDGES.replace("\n", ",1\n").replace("target,1", "target,weight").replace("n0,n1,1", "n0,n1,")), "has no weight"),
    "infinite attribute": (lambda: tables(NODES.replace(",24", ",inf")), "beyond ±3.4e38, the first in row 5"),
    "text among numbers for convert": (lambda: convert(NODES.replace(",24", ",old"), EDGES, "--label", "", "--drop", "label"), "column 'age' holds 'old' in row 5"),
    "missing number for convert": (lambda: convert(NODES.replace(",24", ","), EDGES), "1 missing number"),
    "unknown split word": (lambda: tables(NODES.replace("age", "split")), "holds '20' in row 1 below the header (20 such rows in all). Use train, val, test"),
    "split without validation": (lambda: tables("id,label,split\n" + "".join(f"n{i},{'xy'[i % 2]},train\n" for i in range(20))), "has no val nodes"),
    "split of an unlabelled node": (lambda: tables("id,label,split\n" + "".join(f"n{i},,train\n" for i in range(20))), "is in split 'train' but has no label"),
    "split by an unknown kind": (lambda: tables(NODES, EDGES, "--split-by", "day", "age"), "'day'"),
    "split by a constant": (lambda: tables(NODES.replace("age", "age,year").replace("\nn", "\nn").replace("\n", ",1\n").replace("year,1", "year"), EDGES, "--split-by", "time", "year"), "too few different times"),
    "node table twice": (lambda: (parquet(id=["a"]), Path("t/nodes.csv").write_text(NODES), [*TRAIN, "t"])[2], "has both nodes.csv and nodes.parquet. Keep one"),
    "no edge table": (lambda: (tables(), Path("t/edges.csv").unlink(), [*TRAIN, "t"])[2], "has no table edges"),
    "Parquet that is none": (lambda: (parquet(id=["a"]), Path("t/nodes.parquet").write_bytes(b"PAR1"), [*TRAIN, "t"])[2], "cannot be read as a parquet file"),
    "Parquet ids of fractions": (lambda: parquet(id=[0.5, 1.5], label=["x", "y"]), "column 'id' holds fractions"),
    "Parquet ids of lists": (lambda: parquet(id=[[1], [2]], label=["x", "y"]), "cannot be read as text. Choose another column"),
    "edge list of nothing": (lambda: listed("# no edges\n\n"), "lists no edges"),
    "edge list of one column": (lambda: listed("n0\nn1\n"), "no column for the target"),
    "edge list without nodes": (lambda: (listed("n0 n1\n"), ["convert", "list.txt", "--out", "g.npz"])[1], "(--nodes)"),
    "edge list of another kind": (lambda: listed("n0 n1\n", "list.docx"), "'list.docx'"),
    "GraphML that is no XML": (lambda: (Path("g.graphml").write_text("<graphml"), [*TRAIN, "g.graphml"])[1], "cannot be read as GraphML"),
    "GraphML without a graph": (lambda: (Path("g.graphml").write_text("<graphml xmlns='http://graphml.graphdrawing.org/xmlns'/>"), [*TRAIN, "g.graphml"])[1], "cannot be read as GraphML"),
    "convert to a strange ending": (lambda: (tables(), ["convert", "t", "--out", "g.csv"])[1], "'g.csv'"),
    "convert onto something else": (lambda: (tables(), ["convert", "t", "--out", "t"])[1], "t/nodes.csv exists"),
}  # fmt: skip


def config(text, *options):
    Path("c.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return [*graph_file(), "--config", "c.yaml", *options]


def given(*pairs):
    return [*graph_file(), *(word for pair in pairs for word in ("--set", pair))]


CONFIGS: dict[str, tuple[Make, str]] = {
    "empty config": (lambda: config(""), "must hold 'name: value' lines"),
    "unknown setting": (lambda: config("learning: 0.1\n"), "Unknown setting 'learning'. Did you mean"),
    "word for a number": (lambda: config("lr: fast\n"), "Setting 'lr' takes a number (got 'fast')"),
    "NaN": (lambda: config("lr: .nan\n"), "Setting 'lr' takes a finite number"),
    "negative": (lambda: config("lr: -1\n"), "Setting 'lr' must be at least 0 (got -1)"),
    "huge": (lambda: config("patience: 1e30\n"), "at most 2,147,483,647"),
    "fraction of an epoch": (lambda: config("patience: 1.5\n"), "Setting 'patience' takes a whole number"),
    "null": (lambda: config("lr: null\n"), "Setting 'lr' takes a number (got None)"),
    "truth for a number": (lambda: config("patience: true\n"), "Setting 'patience' takes a number (got True)"),
    "list for a number": (lambda: config("lr: [0.1, 0.2]\n"), "takes a number (got [0.1, 0.2])"),
    "mapping for a number": (lambda: config("lr: {a: 1}\n"), "takes a number (got {'a': 1})"),
    "unknown choice": (lambda: config("neighbors: inn\n"), "Unknown value for 'neighbors': 'inn'"),
    "unknown member of a list": (lambda: config("statistics: [nothing]\n"), "Unknown value for 'statistics': 'nothing'"),
    "a list of nothing": (lambda: config("statistics: []\n"), "takes distinct names, at least one"),
    "setting twice": (lambda: config("lr: 0.1\nlr: 0.2\n"), "'lr' is given twice"),
    "tab": (lambda: config("lr: 0.1\n\tepochs: 3\n"), "is not valid YAML at line 2"),
    "open bracket": (lambda: config("lr: [0.1\n"), "is not valid YAML"),
    "two documents": (lambda: config("lr: 0.1\n---\nlr: 0.2\n"), "is not valid YAML"),
    "a list of settings": (lambda: config("- lr\n- 0.1\n"), "must hold 'name: value' lines"),
    "not text": (lambda: config(b"lr: \xff\xfe\n"), "Save it with the encoding UTF-8"),
    "refers to itself": (lambda: config("lr: &a [*a]\n"), "c.yaml"),
    "a number as a name": (lambda: config("settings: {1: 2}\n"), "`hpgmn settings`"),
    "unknown entry": (lambda: config("settings: {}\nspeed: 3\n"), "Unknown entry 'speed'"),
    "splits of words": (lambda: config("settings: {}\nsplits: [a]\n"), "'splits' must be a list of split numbers"),
    "splits of nothing": (lambda: config("settings: {}\nsplits: []\n"), "'splits' must be a list of split numbers"),
    "split that is not there": (lambda: config("settings: {}\nsplits: [7]\n"), "Unknown split 7"),
    "seeds of text": (lambda: config("settings: {}\nseeds: two\n"), "'seeds' must be a whole number"),
    "no seeds": (lambda: config("settings: {}\nseeds: 0\n"), "(--seeds 1)"),
    "device of another world": (lambda: config("settings: {}\ndevice: tpu\n"), "Unknown device 'tpu'"),
    "metric of another world": (lambda: config("settings: {}\nmetric: f7\n"), "Unknown metric 'f7'"),
    "model of another world": (lambda: config("model: hpgmm\nsettings: {}\n"), "Unknown model 'hpgmm'. Did you mean 'hpgmn'?"),
    "model that is a file": (lambda: config("model: own.py:Net\nsettings: {}\n"), "code is imported only when you name it"),
    "tables that is a list": (lambda: config("settings: {}\ntables: [id]\n"), "'tables' must be a mapping"),
    "tables with a number": (lambda: config("settings: {}\ntables: {id: 3}\n"), "id takes a column name (got 3)"),
    "tables with an unknown entry": (lambda: config("settings: {}\ntables: {ids: a}\n"), "Unknown entry of tables: 'ids'"),
    "settings that exclude each other": (lambda: config("batch_size: 4\nconsistency_weight: 1\n"), "(--set batch_size=0)"),
    "folder in place of a config": (lambda: (Path("c").mkdir(), [*graph_file(), "--config", "c"])[1], "Cannot read the config file c"),
    "no such config": (lambda: [*graph_file(), "--config", "papers"], "Did you mean 'paper'?"),
    "assignment without a sign": (lambda: given("lr"), "A setting takes the form key=value (got 'lr')"),
    "assignment without a name": (lambda: given("=3"), "A setting takes the form key=value (got '=3')"),
    "assignment of nothing": (lambda: given("lr="), "Setting 'lr' takes a number (got '')"),
    "hexadecimal": (lambda: given("epochs=0x10"), "Setting 'epochs' takes a number (got '0x10')"),
    "beyond every float": (lambda: given("lr=1e999"), "Setting 'lr' takes a finite number (got '1e999')"),
    "dropout of one": (lambda: given("dropout=1"), "Setting 'dropout' must be 0 to below 1"),
    "splits that are none": (lambda: [*graph_file(), "--splits", "a,b"], "'a,b'"),
    "split named twice": (lambda: [*graph_file(), "--splits", "0,0"], "'0,0'"),
    "negative split": (lambda: [*graph_file(), "--splits=-1"], "Unknown split -1"),
    "negative seeds": (lambda: [*graph_file(), "--seeds=-1"], "(--seeds 1)"),
}  # fmt: skip


def with_column(name, values):
    """The node table with one more column."""
    lines = zip(NODES.splitlines(), [name, *values], strict=True)
    return "".join(f"{line},{value}\n" for line, value in lines)


def labelled(labels):
    return tables(
        "id,label,age\n" + "".join(f"n{i},{label},{i}\n" for i, label in enumerate(labels))
    )


def renamed(*names):
    tables()
    for old, new in zip(("nodes", "edges"), names, strict=True):
        Path(f"t/{old}.csv").rename(f"t/{new}")
    return [*TRAIN, "t"]


def portfolio(*options):
    tables()
    return ["train", "t", *options]


def weighted(value, *options):
    edges = EDGES.replace("\n", f",{value}\n").replace(f"target,{value}", "target,w")
    return tables(NODES, edges, "--weight", "w", *options)


USERS: dict[str, tuple[Make, str]] = {
    "words among numbers": (lambda: tables(with_column("size", [*range(18), "big", "small"])), "holds 'big' in row 19 below the header"),
    "infinity": (lambda: tables(with_column("size", ["-Infinity", *range(19)])), "(--drop size)"),
    "number of 400 digits": (lambda: tables(with_column("size", ["9" * 400, *range(19)])), "beyond ±3.4e38"),
    "a word among dates": (lambda: tables(with_column("day", [*["2024-01-01", "2024-01-02"] * 9, "2024-01-03", "soon"])), "holds 'soon' in row 20 below the header, but most of its values are of type date"),
    "month 13": (lambda: tables(with_column("day", ["2024-13-01", *["2024-01-01"] * 19])), "'2024-13-01'"),
    "tables swapped": (lambda: tables(EDGES, NODES), "Swap the two tables"),
    "edges twice": (lambda: tables(EDGES, EDGES), "nodes.csv has no column for the id"),
    "columns of both tables renamed": (lambda: tables(NODES.replace("id,", "key,", 1), EDGES.replace("source,target", "payer,payee")), "(--id), name the source column (--source), and name the target column (--target)"),
    "separated by blanks": (lambda: tables(NODES.replace(",", " ")), "Separate the columns of nodes.csv by commas"),
    "a line above the header": (lambda: tables("export of Monday\n" + NODES), "Remove lines above the header"),
    "edge columns of one name": (lambda: tables(NODES, EDGES.replace("target", "source")), "two columns named 'source'"),
    "HTML": (lambda: tables("<html>please log in</html>\n"), "nodes.csv has no column for the id"),
    "a workbook named CSV": (lambda: tables(b"PK\x03\x04\x14\x00\x06\x00"), "cannot be read as a csv file"),
    "NUL bytes": (lambda: tables(b"\0" * 100), "nodes.csv"),
    "edges in Latin letters": (lambda: tables(NODES, EDGES.encode() + b"n\xe9,n1\n"), "edges.csv is not UTF-8 text (line 22"),
    "labels all missing": (lambda: labelled([""] * 20), "name another label column (--label)"),
    "labels all different": (lambda: labelled([f"c{i}" for i in range(20)]), "(--label)"),
    "one label": (lambda: labelled(["x"] * 20), "single value, 'x'"),
    "label not named": (lambda: tables(NODES.replace("label", "is_fraud", 1)), "(--label is_fraud)"),
    "the ids as labels": (lambda: tables(NODES, EDGES, "--label", "id"), "cannot be both id and label"),
    "blanks before ids": (lambda: tables(NODES.replace("\nn", "\n n")), "Spell ids alike: 'n0' in edges.csv is ' n0'"),
    "ids without their zeros": (lambda: tables(NODES.replace("\nn", "\n0"), EDGES.replace("n", "")), "Spell ids alike"),
    "tables of other names": (lambda: renamed("accounts.csv", "transfers.csv"), "it holds 'accounts.csv', 'transfers.csv'. Save the tables under these names"),
    "workbooks": (lambda: renamed("nodes.xlsx", "edges.xlsx"), "Save the tables under these names"),
    "an empty folder": (lambda: (Path("t").mkdir(), [*TRAIN, "t"])[1], "has no tables nodes and edges"),
    "no node table": (lambda: renamed("n.csv", "edges.csv"), "has no table nodes"),
    "a table alone": (lambda: (tables(), [*TRAIN, "t/nodes.csv"])[1], "pass their folder"),
    "a workbook": (lambda: (Path("t.xlsx").write_bytes(b"PK\x03\x04"), [*TRAIN, "t.xlsx"])[1], "pass their folder"),
    "a folder named nodes.csv": (lambda: (renamed("n.csv", "edges.csv"), Path("t/nodes.csv").mkdir(), [*TRAIN, "t"])[2], "is not a file"),
    "several columns mistyped": (lambda: tables(NODES, EDGES, "--label", "lable", "--drop", "agee", "--edge-drop", "amount"), "(--label label), use 'age' (--drop age)"),
    "the ids left out": (lambda: tables(NODES, EDGES, "--drop", "id"), "already has another role"),
    "the label as a category": (lambda: tables(NODES, EDGES, "--category", "label"), "(--category)"),
    "no such weights": (lambda: tables(NODES, EDGES, "--weight", "amount"), "edges.csv has no column 'amount'"),
    "negative weights": (lambda: weighted(-1), "(--weight '')"),
    "dates as weights": (lambda: weighted("2024-01-01"), "which is not a number"),
    "source and target alike": (lambda: tables(NODES, EDGES, "--source", "target"), "(--target)"),
    "time of words": (lambda: tables(with_column("when", ["early", "late"] * 10), EDGES, "--split-by", "time", "when"), "holds neither numbers nor dates"),
    "dates of another form": (lambda: tables(with_column("when", ["03.04.2024"] * 20), EDGES, "--split-by", "time", "when"), "write them as 2024-04-03"),
    "two groups": (lambda: tables(with_column("town", ["a", "b"] * 10), EDGES, "--split-by", "group", "town"), "has 2 groups"),
    "no such group": (lambda: tables(NODES, EDGES, "--split-by", "group", "town"), "(--split-by)"),
    "unknown positive class": (lambda: tables(NODES, EDGES, "--positive", "fraud"), "Unknown positive class 'fraud'. Choose from: x, y"),
    "positive of three classes": (lambda: [*labelled("xyz" * 10), "--positive", "x", "--metric", "average_precision"], "needs two classes (got 3)"),
    "precision of none": (lambda: [*tables(), "--metric", "precision@0"], "precision@50"),
    "two metrics": (lambda: [*tables(), "--metric", "accuracy,roc_auc"], "Did you mean 'accuracy'?"),
    "no time": (lambda: portfolio("--time-limit", "0"), "(--time-limit 300)"),
    "time that is no number": (lambda: portfolio("--time-limit", "nan"), "(--time-limit 300)"),
    "time in words": (lambda: portfolio("--time-limit", "2min"), "`hpgmn train --help`"),
    "members of no portfolio": (lambda: portfolio("--members", "boosting", "--no-portfolio"), "(--no-portfolio)"),
    "single of no portfolio": (lambda: portfolio("--single", "--no-portfolio"), "(--no-portfolio)"),
    "no such member": (lambda: portfolio("--members", "hpgmn-bot"), "Did you mean 'hpgmn-both'?"),
    "a billion seeds": (lambda: [*tables(), "--seeds", "1000000000"], "Seeds must be 1 to 10,000"),
    "tables of the demo into a file": (lambda: (Path("o").write_text("x"), ["demo", "--tables", "o"])[1], "Choose a writable path"),
    "demo of a negative seed": (lambda: ["demo", "--tables", "o", "--seed=-1"], "seed must be a whole number"),
}  # fmt: skip

CASES = {
    **{f"graph: {name}": case for name, case in GRAPHS.items()},
    **{f"table: {name}": case for name, case in TABLES.items()},
    **{f"config: {name}": case for name, case in CONFIGS.items()},
    **{f"user: {name}": case for name, case in USERS.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_broken_input_is_one_sentence(name, capsys, good_message):
    make, fragment = CASES[name]
    words = make()
    assert main(words) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith("Error: ")] == told[-1:]
    good_message(told[-1])
    assert fragment in told[-1], told[-1]
    assert not Path("runs").exists()
    assert not Path("g.npz").exists()


def test_the_corpus_is_large():
    assert len(CASES) >= 200


ODD_BUT_RIGHT: dict[str, tuple[Make, str]] = {
    "byte order mark": (lambda: convert("\ufeff" + NODES, EDGES), "20 nodes, 20 edges"),
    "Windows line ends": (lambda: convert(NODES.replace("\n", "\r\n"), EDGES.replace("\n", "\r\n")), "20 nodes, 20 edges"),
    "semicolons": (lambda: convert(NODES.replace(",", ";"), EDGES.replace(",", ";")), "20 nodes, 20 edges"),
    "no last line end": (lambda: convert(NODES.rstrip("\n"), EDGES.rstrip("\n")), "20 nodes, 20 edges"),
    "bars": (lambda: convert(NODES.replace(",", "|"), EDGES.replace(",", "|")), "20 nodes, 20 edges"),
    "capital letters": (lambda: convert(NODES.replace("id", "ID", 1), EDGES.replace("source", "Source")), "20 nodes, 20 edges"),
    "self-loop and repeat": (lambda: convert(NODES, EDGES + "n1,n1\nn0,n1\n"), "22 edges as listed"),
    "unknown edges left out": (lambda: convert(NODES, EDGES + "n1,nobody\n", "--drop-unknown-edges"), "20 edges as listed"),
    "quoted line ends in an id": (lambda: convert(NODES.replace("n4,", '"n\n4",'), EDGES.replace("n4,", '"n\n4",').replace(",n4\n", ',"n\n4"\n')), "20 nodes"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_BUT_RIGHT)
def test_odd_tables_are_read_as_they_are_meant(name, capsys):
    from hpgmn.graph.files import read_graph

    make, fragment = ODD_BUT_RIGHT[name]
    assert main(make()) == 0
    assert fragment in capsys.readouterr().err.replace("\n", " ")
    graph = read_graph("g.npz")
    assert graph.x[:, 0].tolist() == [20 + place for place in range(20)]
    assert graph.edge_index[1, :20].tolist() == [(place * 7 + 1) % 20 for place in range(20)]


PEOPLE = {"id": list("abcdefghij"), "label": ["x", "y"] * 5, "age": list(range(10))}
PAYMENTS = {"source": list("abcdefghi"), "target": list("bcdefghij")}


def in_python(nodes=PEOPLE, edges=PAYMENTS, **options):
    return lambda: hpgmn.from_tables(nodes, edges, **options)


CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "no tables": (in_python(None), "a mapping of columns (got NoneType)"),
    "columns of two lengths": (in_python({**PEOPLE, "age": [1]}), "all columns the same length"),
    "values of several types": (in_python({**PEOPLE, "age": [1, "a", [2], *range(7)]}), "values of one type"),
    "complex numbers": (in_python({**PEOPLE, "age": [1j] * 10}), "The table of nodes cannot be read"),
    "integers beyond every type": (in_python({**PEOPLE, "age": [10**400] * 10}), "too large"),
    "an infinite number": (in_python({**PEOPLE, "age": [float("inf"), *range(9)]}), '(drop=["age"])'),
    "ids that are no numbers": (in_python({**PEOPLE, "id": [float("nan")] * 10}), "has no id"),
    "tables without columns": (in_python({}, {}), "has no column for the id"),
    "tables without rows": (in_python({"id": [], "label": []}, {"source": [], "target": []}), "Add a row"),
    "a mistyped option": (in_python(lable="label"), "Did you mean 'label'?"),
    "a number as a column": (in_python(label=3), "label takes a column name (got 3)"),
    "a word as a switch": (in_python(directed="no"), "directed takes true or false"),
    "a name to extend": (in_python(onto="bank"), "onto takes a graph (got 'bank')"),
    "a number to be like": (in_python(like=3), "like takes a graph (got 3)"),
    "a word as a seed": (lambda: hpgmn.bank_transfers("x"), "a whole number of at least 0 (got 'x')"),  # type: ignore[arg-type]
    "seeds in words": (lambda: hpgmn.train("t", seeds="two"), "Seeds must be 1 to 10,000 (got 'two')"),  # type: ignore[arg-type]
    "half a split": (lambda: hpgmn.train("t", splits=0.5), "Unknown splits '0.5'"),  # type: ignore[arg-type]
    "a number as a metric": (lambda: hpgmn.train("t", metric=3), "Unknown metric '3'"),  # type: ignore[arg-type]
    "a URL": (lambda: hpgmn.load("https://example.org/bank"), "does not exist. Check the path"),
    "no run": (lambda: hpgmn.open_run("nowhere"), "nowhere is not a finished run folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_broken_call_is_one_sentence(name):
    call, fragment = CALLS[name]
    with pytest.raises(hpgmn.HPGMNError) as caught:
        call()
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)
