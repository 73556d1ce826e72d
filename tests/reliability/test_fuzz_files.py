"""Whatever a file holds: the graph in it, or a sentence. Files are damaged by bytes and whole."""

import io
import shutil
import warnings
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st

pytestmark = pytest.mark.soak

CELLS = [
    *("", " ", "0", "1", "-1", "1e400", "nan", "inf", "NA", "null", "x", '"', '""', "a,b", "\x00"),
    *("2020-01-01", "20:15:00", "true", "1;2", "\u202e", "\u200b", "é", "🙂", "=cmd()", "../../x"),
    *("99999999999999999999", "1.5", "1,5", "0x1f", "  n1", "n1 ", "N1", "train", "'", "\t", "\\"),
    "w" * 5000,
]
LINES = [
    b"",
    b"\n",
    b",,,,\n",
    b"n1\n",
    b"n0,n1,n2,n3,n4,n5\n",
    b"\xff\xfe\n",
    b'"\n',
    b"\x00\n",
    b"\r",
]


@st.composite
def damages(draw):
    """Changes of a file's bytes: what, where (a share of the file), and a number."""
    kinds = ["flip", "set", "cut", "insert", "delete", "repeat", "zero", "line"]
    change = st.tuples(st.sampled_from(kinds), st.floats(0, 1), st.integers(0, 255))
    return draw(st.sampled_from([0, 0, 1, 1, 2, 4]).flatmap(lambda n: st.lists(change, max_size=n)))


def damaged(content, changes):
    """The bytes of a file after some changes."""
    found = bytearray(content)
    for kind, share, number in changes:
        place = int(share * max(len(found) - 1, 0))
        if kind == "cut":
            del found[place:]
        elif kind == "insert":
            found[place:place] = bytes([number]) * (1 + number % 9)
        elif kind == "delete":
            del found[place : place + 1 + number % 40]
        elif kind == "repeat":
            found[place:place] = found[place : place + 1 + number]
        elif kind == "zero":
            found[place : place + 1 + number % 16] = bytes(
                len(found[place : place + 1 + number % 16])
            )
        elif kind == "line":
            found[place:place] = LINES[number % len(LINES)]
        elif found:
            found[place] = number if kind == "set" else found[place] ^ (1 << number % 8)
    return bytes(found)


def check_finite(graph):
    """What holds of every graph, however it was read."""
    x: Any = graph.x.data if sp.issparse(graph.x) else graph.x
    assert np.isfinite(x).all()
    ends = graph.edge_index
    assert ends.size == 0 or 0 <= ends.min() <= ends.max() < graph.num_nodes
    assert -1 <= graph.y.min() <= graph.y.max() < graph.num_classes
    assert np.isfinite(graph.adjacency("undirected").data).all()
    if graph.node_ids is not None:
        assert len(set(graph.node_ids.tolist())) == graph.num_nodes
    if graph.splits is not None:
        parts = np.stack([graph.splits.train, graph.splits.val, graph.splits.test])
        assert parts.sum(axis=0).max() <= 1
        assert not parts[:, graph.y < 0].any()
    assert len(graph.fingerprint) == 64


def arrays(sparse, in_folder):
    """The arrays of a small graph file that has everything."""
    random = np.random.default_rng(3)
    y = np.arange(8) % 2
    role = np.arange(8)[:, None] % 3 == np.arange(3)[:, None, None]
    found: dict[str, Any] = {
        "directed": np.array(True),
        "y": y,
        "class_names": np.array(["good", "bad"]),
        "node_ids": np.array([f"n{place}" for place in range(8)]),
        "feature_names": np.array(["a", "b"]),
        "train_mask": role[0],
        "val_mask": role[1],
        "test_mask": role[2],
    }
    x = random.normal(size=(8, 2)).astype(np.float32)
    if sparse:
        matrix = sp.csr_array(np.where(x > 0, x, 0))
        found |= {"x_indptr": matrix.indptr, "x_indices": matrix.indices, "x_data": matrix.data}
        found["x_shape"] = np.array([8, 2])
    else:
        found["x"] = x
    if in_folder:
        found |= {"edges_indptr": np.arange(9), "edges_indices": (np.arange(8) + 1) % 8}
        found |= {"edges_data": np.ones(8, "f4"), "edges_places": np.arange(8)[::-1].copy()}
    else:
        found |= {"edge_index": np.stack([np.arange(8), (np.arange(8) + 1) % 8])}
        found["edge_weight"] = np.ones(8, "f4")
    return found


@st.composite
def changed_arrays(draw):
    """The arrays of a graph file, some of them another, gone or new."""
    found = arrays(draw(st.booleans()), draw(st.booleans()))
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(found)))
        array = found[name]
        how = draw(st.sampled_from(["value", "value", "type", "shape", "gone", "more", "other"]))
        if how == "value":
            value = draw(st.sampled_from([-1, -2, 0, 1, 7, 8, 2**31, 2**62, np.nan, np.inf, 1e38]))
            array = array.copy()
            with np.errstate(all="ignore"):
                try:
                    array.flat[draw(st.integers(0, max(array.size - 1, 0)))] = value
                except (ValueError, OverflowError, IndexError):
                    array = np.full(array.shape, value)
        elif how == "type":
            kind = draw(
                st.sampled_from(["f4", "f8", "i1", "u8", "?", "U9", "S4", "c8", "f2", "i8"])
            )
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                    array = array.astype(kind)
            except (ValueError, TypeError, OverflowError):
                array = np.zeros(array.shape, kind)
        elif how == "shape":
            flat = array.reshape(-1)
            forms: list[Any] = [
                flat,
                flat[:-1],
                flat[:0],
                flat[None],
                array[None],
                np.zeros((), array.dtype),
            ]
            array = draw(st.sampled_from(forms))
        elif how == "gone":
            del found[name]
            continue
        elif how == "more":
            name = draw(
                st.sampled_from(["x", "edge_index", "extra", "a_train_mask", "_val_mask", "../y"])
            )
        else:
            array = found[draw(st.sampled_from(sorted(found)))]
        found[name] = array
    return found


def check_arrays(graph, found):
    """A graph is the one of which these are the arrays."""
    x = graph.x.toarray() if sp.issparse(graph.x) else graph.x
    if "x" in found:
        assert x.tolist() == found["x"].tolist()
    else:
        parts = (found["x_data"], found["x_indices"], found["x_indptr"])
        assert x.tolist() == sp.csr_array(parts, shape=found["x_shape"]).toarray().tolist()
    if "edge_index" in found:
        wanted = found["edge_index"].tolist()
    else:  # one edge for each node, listed backwards
        wanted = [list(range(8))[::-1], found["edges_indices"].tolist()[::-1]]
    assert graph.edge_index.tolist() == wanted
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [1.0] * 8
    assert graph.directed
    assert graph.y.tolist() == found["y"].tolist()
    assert graph.class_names == ("good", "bad")
    for key in ("node_ids", "feature_names"):
        assert getattr(graph, key).tolist() == found[key].tolist()
    assert graph.splits is not None
    for part in ("train", "val", "test"):
        assert getattr(graph.splits, part).tolist() == found[f"{part}_mask"].tolist()


def npz(found):
    file = io.BytesIO()
    np.savez(file, **found)
    return file.getvalue()


def test_any_arrays_in_a_graph_file(fuzz, tmp_path):
    from hpgmn.graph.files import read_graph

    def check(found):
        path = tmp_path / "any.npz"
        path.write_bytes(npz(found))
        graph = read_graph(path)
        check_finite(graph)
        if "edge_index" in found:
            assert graph.edge_index.reshape(-1).tolist() == found["edge_index"].reshape(-1).tolist()
        if "x" in found:
            assert graph.x.tolist() == found["x"].astype("f4").tolist()
        missing = np.full(graph.num_nodes, -1)
        assert graph.y.tolist() == found.get("y", missing).reshape(-1).tolist()
        for name in ("node_ids", "feature_names"):
            names = getattr(graph, name)
            wanted = found[name].reshape(-1).astype(str).tolist() if name in found else None
            assert (None if names is None else names.tolist()) == wanted
        for part in ("train", "val", "test") if "train_mask" in found else ():
            mask = found.get(f"{part}_mask", np.zeros_like(found["train_mask"]))
            assert getattr(graph.splits, part).reshape(-1).tolist() == mask.reshape(-1).tolist()

    fuzz("graph files", changed_arrays(), check, short=80, long=2500)


def test_damaged_bytes_of_a_graph_file(fuzz, tmp_path):
    from hpgmn.graph.files import read_graph

    found = [arrays(False, False), arrays(True, True)]
    whole = [npz(one) for one in found]

    def check(case):
        path = tmp_path / "damaged.npz"
        path.write_bytes(damaged(whole[case[0]], case[1]))
        graph = read_graph(path)
        check_finite(graph)
        check_arrays(graph, found[case[0]])  # every array has its checksum

    cases = st.tuples(st.integers(0, 1), damages())  # most of which a checksum rightly refuses
    fuzz("damaged graph files", cases, check, short=60, long=1500, accepted=0.05)


def test_no_bit_of_a_graph_file_s_directory_hides_an_array(tmp_path, soak):
    """The directory has no checksum of its own, and names all arrays."""
    from hpgmn.base.errors import HPGMNError
    from hpgmn.graph.files import read_graph

    found = arrays(False, False)
    whole, path = npz(found), tmp_path / "damaged.npz"
    places = range(8 * whole.index(b"PK\x01\x02"), 8 * len(whole), soak.amount(101, 1))
    refused = 0
    for place in places:
        content = bytearray(whole)
        content[place // 8] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            graph = read_graph(path)
        except HPGMNError:
            refused += 1
        else:
            check_arrays(graph, found)
    assert 0 < refused < len(places)
    soak.record(
        "bits-of-a-directory",
        "A graph file with a wrong bit in its directory is read whole or refused.",
        bits_flipped=len(places),
        files_refused=refused,
    )


def test_damaged_bytes_of_a_graph_folder(fuzz, tmp_path):
    from hpgmn.graph.files import read_graph

    found = arrays(True, True)
    folder = tmp_path / "damaged.graph"
    folder.mkdir()
    for name, array in found.items():
        np.save(folder / f"{name}.npy", array)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}

    def check(case):
        (folder / case[0]).write_bytes(damaged(whole[case[0]], case[1]))
        try:
            graph = read_graph(folder)
            check_finite(graph)
            if (folder / case[0]).read_bytes() == whole[case[0]]:
                check_arrays(graph, found)
        finally:
            (folder / case[0]).write_bytes(whole[case[0]])

    cases = st.tuples(st.sampled_from(sorted(whole)), damages())
    fuzz("damaged graph folders", cases, check, short=60, long=1500)


def node_rows():
    rows = [["id", "label", "age", "town", "split"]]
    words = ("train", "train", "val", "test")
    for place in range(12):
        town = ("Rome", "Oslo", "")[place % 3]
        rows.append([f"n{place}", "xy"[place % 2], str(20 + place), town, words[place % 4]])
    return rows


def edge_rows():
    return [["source", "target", "weight"]] + [
        [f"n{place}", f"n{(place * 5 + 1) % 12}", str(1 + place / 2)] for place in range(12)
    ]


@st.composite
def changed_tables(draw):
    """Two tables with odd cells, rows too short or too long, and a way to write them."""
    tables = {"nodes": node_rows(), "edges": edge_rows()}
    is_usual = draw(st.booleans())
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        rows = tables[draw(st.sampled_from(["nodes", "nodes", "edges"]))]
        place = draw(st.integers(0, max(len(rows) - 1, 0)))
        how = draw(
            st.sampled_from(
                [*["usual"] * 6, *["cell"] * 3, "column", "short", "long", "gone", "twice"]
            )
        )
        if not rows or not rows[place]:
            continue
        column = draw(st.integers(0, len(rows[place]) - 1))
        if how == "usual" and len(rows[-1]) > 2:
            rows[-1][2] = str(draw(st.integers(20, 99)))  # an age, or a weight
        elif how == "cell":
            rows[place][column] = draw(st.one_of(st.sampled_from(CELLS), st.text(max_size=5)))
        elif how == "column":
            value = draw(st.sampled_from(CELLS))
            for row in rows[1:]:
                if column < len(row):
                    row[column] = value
        elif how == "short":
            rows[place] = rows[place][:column]
        elif how == "long":
            rows[place] = [*rows[place], draw(st.sampled_from(CELLS))]
        elif how == "gone":
            del rows[place:]
        elif how == "twice":
            rows.insert(place, list(rows[place]))
    return {
        **tables,
        "separator": "," if is_usual else draw(st.sampled_from([",", ";", "\t", "|"])),
        "end": draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])),
        "encoding": "utf-8"
        if is_usual
        else draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"])),
        "ending": "csv" if is_usual else draw(st.sampled_from(["csv", "tsv"])),
        "quote": draw(st.booleans()),
    }


def written(rows, case):
    """A table as the bytes of a file, written without any care."""
    quote = '"' if case["quote"] else ""
    lines = [case["separator"].join(f"{quote}{cell}{quote}" for cell in row) for row in rows]
    text: str = case["end"].join(lines) + case["end"]
    return text.encode(case["encoding"], errors="replace")


def check_plain(graph):
    """A graph is that of the tables before anything was changed."""
    assert graph.node_ids is not None
    assert graph.node_ids.tolist() == [f"n{place}" for place in range(12)]
    assert graph.y.tolist() == [place % 2 for place in range(12)]
    assert graph.edge_index[0].tolist() == list(range(12))
    assert graph.edge_index[1].tolist() == [(place * 5 + 1) % 12 for place in range(12)]
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [1 + place / 2 for place in range(12)]
    assert graph.feature_names is not None
    ages = graph.x[:, graph.feature_names.tolist().index("age")]
    np.testing.assert_allclose(np.diff(ages), 1 / np.std(np.arange(12)), rtol=1e-5)


def test_any_text_tables(fuzz, tmp_path):
    from hpgmn.graph.datasets import load

    def check(case):
        folder = tmp_path / "tables"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in ("nodes", "edges"):
            (folder / f"{name}.{case['ending']}").write_bytes(written(case[name], case))
        graph = load(folder)
        check_finite(graph)
        plain = case["nodes"] == node_rows() and case["edges"] == edge_rows()
        if plain and case["encoding"] in ("utf-8", "utf-8-sig"):
            check_plain(graph)

    fuzz("tables of text", changed_tables(), check, short=60, long=2000)


def parquet(rows):
    columns = {name: [row[place] for row in rows[1:]] for place, name in enumerate(rows[0])}
    for name in ("age", "weight"):
        if name in columns:
            columns[name] = [float(one) for one in columns[name]]  # type: ignore[misc]
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def graphml():
    network = nx.DiGraph()
    for row in node_rows()[1:]:
        network.add_node(row[0], label=row[1], age=int(row[2]))
    network.add_edges_from(
        (source, target, {"weight": float(w)}) for source, target, w in edge_rows()[1:]
    )
    file = io.BytesIO()
    nx.write_graphml(network, file)
    return file.getvalue()


def test_damaged_bytes_of_tables(fuzz, tmp_path):
    from hpgmn.graph import Graph
    from hpgmn.graph.conversion import read_graph_tables
    from hpgmn.tables.columns import open_tables

    plain: dict[str, Any] = {"separator": ",", "end": "\n", "encoding": "utf-8", "quote": False}
    nodes, edges = (written(rows, plain) for rows in (node_rows(), edge_rows()))
    forms = {
        "csv": ({"nodes.csv": nodes, "edges.csv": edges}, None),
        "parquet": ({"nodes.parquet": parquet(node_rows()), "edges.csv": edges}, None),
        "list": (
            {"nodes.csv": nodes, "list.txt": edges[len("source,target,weight\n") :]},
            "list.txt",
        ),
        "graphml": ({"net.graphml": graphml()}, "net.graphml"),
    }

    def check(case):
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        files, source = forms[case[0]]
        victim = sorted(files)[case[1] % len(files)]
        for name, content in files.items():
            (folder / name).write_bytes(damaged(content, case[2]) if name == victim else content)
        own = folder / "nodes.csv" if source == "list.txt" else None
        found = open_tables(folder / (source or ""), nodes=own, prepare=True)
        graph = read_graph_tables(Graph, found)
        check_finite(graph)
        if (folder / victim).read_bytes() == files[victim]:
            check_plain(graph)

    cases = st.tuples(st.sampled_from(sorted(forms)), st.integers(0, 1), damages())
    fuzz("damaged tables", cases, check, short=60, long=2000)
