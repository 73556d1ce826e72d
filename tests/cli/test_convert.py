"""``hpgmn convert``: tables in, a graph file or folder out, which the other commands accept."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from hpgmn.graph.files import read_graph

NAMES = [f"Knoten {number:02} ü" for number in range(18)]


@pytest.fixture
def tables(small_graph, tmp_path):
    """The small graph with its first split as two CSV files."""
    folder = tmp_path / "tables"
    folder.mkdir()
    split = small_graph.split(0)
    with (folder / "nodes.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "class", "split", *(f"a{place}" for place in range(5))])
        for node, x in enumerate(small_graph.x.tolist()):
            part = "train" if split.train[node] else "val" if split.val[node] else "test"
            writer.writerow([NAMES[node], f"class {small_graph.y[node]}", part, *x])
    with (folder / "edges.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["src", "dst"])
        for source, target in small_graph.edge_index.T.tolist():
            writer.writerow([NAMES[source], NAMES[target]])
    return folder


def as_parquet(folder):
    """The same tables as Parquet files, in a folder of their own."""
    other = folder.with_name("parquet")
    other.mkdir()
    for name in ("nodes", "edges"):
        pq.write_table(pa.csv.read_csv(folder / f"{name}.csv"), other / f"{name}.parquet")
    return other


@pytest.mark.parametrize("out", ["mine.npz", "mine.graph", "mine"])
def test_tables_become_a_graph_file(hpgmn, tables, small_graph, out):
    answer = hpgmn("convert", tables, "--out", out)
    assert answer.code == 0, answer.err
    assert answer.out == ""
    assert answer.err.splitlines() == [
        "nodes.csv: id is 'name', label is 'class', split is 'split'; 5 attributes: a0, a1, a2, "
        "a3, a4.",
        "edges.csv: source is 'src', target is 'dst', directed.",
        f"{out}: 18 nodes, 53 edges as listed, 5 attributes, 3 classes, split 6/6/6.",
    ]
    graph = read_graph(out)
    assert graph.name == "mine"
    np.testing.assert_array_equal(graph.x, small_graph.x)
    np.testing.assert_array_equal(graph.edge_index, small_graph.edge_index)
    np.testing.assert_array_equal(graph.y, small_graph.y)
    assert graph.class_names == ("class 0", "class 1", "class 2")
    assert graph.node_ids is not None
    assert graph.node_ids.tolist() == NAMES
    assert graph.splits is not None
    assert small_graph.splits is not None
    for part in ("train", "val", "test"):
        np.testing.assert_array_equal(
            getattr(graph.splits, part), getattr(small_graph.splits, part)[:, :1]
        )


def test_csv_and_parquet_give_the_same_file(hpgmn, tables):
    assert hpgmn("convert", tables, "--out", "one.npz").code == 0
    assert hpgmn("convert", as_parquet(tables), "--out", "two.npz").code == 0
    with np.load("one.npz") as one, np.load("two.npz") as two:
        assert sorted(one) == sorted(two)
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])
            assert one[name].dtype == two[name].dtype


@pytest.mark.parametrize("out", ["mine.npz", "mine"])
def test_what_was_converted_is_trained_scored_and_used(hpgmn, tables, tiny, out):
    assert hpgmn("convert", tables, "--out", out).code == 0
    options = [*tiny(), "--device", "cpu", "--out", "run"]
    answer = hpgmn("train", out, *options)
    assert answer.code == 0, answer.err
    assert hpgmn("evaluate", "run").code == 0
    assert hpgmn("evaluate", "run", out).code == 0
    assert hpgmn("settings", out).code == 0
    assert hpgmn("statistics", out, "--out", "s.npz").code == 0
    assert hpgmn("predict", "run", "--out", "p.csv").code == 0
    with Path("p.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["node_id"] for row in rows] == NAMES
    assert {row["prediction"] for row in rows} <= {"class 0", "class 1", "class 2"}


def test_every_column_may_be_named(hpgmn, tmp_path):
    (tmp_path / "nodes.tsv").write_text("who\tkind\tpart\ta\tb\n1\tx\ttrain\t5\tx\n2\t\t\t6\ty\n")
    (tmp_path / "list.txt").write_text("# u v w\n1 2 0.5\n2 1 0.25\n")
    columns = ["--id", "who", "--label", "kind", "--split-column", "part", "--drop", "b"]
    columns += ["--source", "target", "--target", "source", "--weight", "weight"]
    options = ["--nodes", "nodes.tsv", *columns, "--undirected", "--out", "g.npz"]
    answer = hpgmn("convert", "list.txt", *options)
    assert answer.code == 0, answer.err
    assert answer.err.splitlines() == [
        "nodes.tsv: id is 'who', label is 'kind', split is 'part'; 1 attribute: a.",
        "list.txt: source is 'target', target is 'source', weight is 'weight', undirected.",
        "g.npz: 2 nodes, 2 edges as listed, 1 attribute, 1 class, 1 node without a label, split "
        "1/0/0.",
    ]
    graph = read_graph("g.npz")
    assert not graph.directed
    assert graph.edge_index.tolist() == [[1, 0], [0, 1]]
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [0.5, 0.25]
    assert graph.y.tolist() == [0, -1]


def test_graphml_becomes_a_graph_file(hpgmn, tmp_path):
    import networkx

    graph = networkx.Graph()
    graph.add_node("a", age=1.5, label="x")
    graph.add_node("b", age=2.5, label="y")
    graph.add_edge("a", "b")
    networkx.write_graphml(graph, tmp_path / "g.graphml")
    answer = hpgmn("convert", "g.graphml", "--out", "g.npz")
    assert answer.code == 0, answer.err
    made = read_graph("g.npz")
    assert not made.directed
    assert made.x.tolist() == [[1.5], [2.5]]
    assert made.class_names == ("x", "y")


def test_an_existing_graph_is_replaced_when_asked(hpgmn, tables):
    for out in ("mine.npz", "mine"):
        assert hpgmn("convert", tables, "--out", out).code == 0
        refused = hpgmn("convert", tables, "--out", out)
        assert refused.code == 2
        assert (
            f"{out} exists. Replace it (--overwrite), or choose another path (--out)" in refused.err
        )
        again = ("convert", tables, "--out", out, "--overwrite")
        assert hpgmn(*again, "--label", "", "--split-column", "").code == 2
        drop = [word for name in ("class", "split", "a0") for word in ("--drop", name)]
        bare = ["--label", "", "--split-column", "", *drop]
        assert hpgmn(*again, *bare).code == 0
        assert read_graph(out).num_features == 4
        assert read_graph(out).num_classes == 0


PLACES = {
    "an ending": ("mine.csv", "or to a folder (got 'mine.csv'). End the name in"),
    "the source": ("tables", "Graph folder 'tables' cannot be written: tables/"),
    "another folder": ("full", "'full' cannot be written: full/file exists"),
    "a file": ("full/file", "'full/file' cannot be written: full/file exists"),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_path_in_use_is_refused_before_anything_is_read(hpgmn, tables, tmp_path, contents, case):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("dear")
    out, message = PLACES[case]
    before = contents(tmp_path)
    answer = hpgmn("convert", "tables", "--out", out)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert message in answer.err
    assert contents(tmp_path) == before


def test_missing_arguments_are_named(hpgmn):
    assert "Missing option '--out'" in hpgmn("convert", "tables").err
    answer = hpgmn("convert", "absent", "--out", "g.npz")
    assert (answer.code, answer.err) == (2, "Error: 'absent' does not exist. Check the path.\n")


def test_an_interrupted_conversion_leaves_nothing(hpgmn, tables, tmp_path, contents, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupt)
    before = contents(tmp_path)
    assert hpgmn("convert", tables, "--out", "mine").code == 130
    assert contents(tmp_path) == before


def test_converting_needs_no_torch(tables, tmp_path):
    code = (
        "import sys; from hpgmn.cli import main\n"
        f"code = main(['convert', {str(tables)!r}, '--out', {str(tmp_path / 'g.npz')!r}])\n"
        "print(*({'torch', 'networkx', 'duckdb'} & set(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.slow
def test_large_tables_stay_small_in_memory(tmp_path):
    """A tenth of the size that is promised: 100,000 nodes of 64 attributes, 1,000,000 edges."""
    num_nodes, num_edges, num_features = 100_000, 1_000_000, 64
    random = np.random.default_rng(0)
    ids = random.permutation(5 * num_nodes)[:num_nodes]
    attributes = {f"a{place}": random.normal(size=num_nodes) for place in range(num_features)}
    ends = random.integers(0, num_nodes, (2, num_edges))
    pq.write_table(pa.table({"id": ids, **attributes}), tmp_path / "nodes.parquet")
    edges = {"source": ids[ends[0]], "target": ids[ends[1]]}
    pq.write_table(pa.table(edges), tmp_path / "edges.parquet")
    code = (
        "import resource, sys; from hpgmn.cli import main\n"
        "import hpgmn.graph.datasets, hpgmn.tables.reading\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"code = main(['convert', {str(tmp_path)!r}, '--out', {str(tmp_path / 'big')!r}])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) / 1024 < 400
    graph = read_graph(tmp_path / "big")
    np.testing.assert_array_equal(graph.edge_index, ends)
    np.testing.assert_array_equal(graph.x[:, 7], attributes["a7"].astype(np.float32))
