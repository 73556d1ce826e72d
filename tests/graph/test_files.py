"""Graph files: an exact round trip, and one sentence for every way a file can be wrong."""

import logging
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.errors import GraphError, HPGMNError
from hpgmn.graph import Graph, Splits, files
from hpgmn.graph.files import read_graph, write_graph

NO_ROOM = "(No space left on device). Free disk space, or choose another path."

MASKS = np.eye(3, dtype=bool)
CSR = ("x_indptr", "x_indices", "x_data", "x_shape")


def full_graph(is_sparse=False):
    """A graph that has everything that a graph can have."""
    x: Any = np.array([[0.1, 0.0], [0.0, -2.5], [3e-20, 4.0]], np.float32)
    return Graph(
        sp.csr_array(x) if is_sparse else x,
        [[0, 1, 1, 2], [1, 2, 2, 2]],
        [0, 2, -1],
        edge_weight=[0.1, 1.0, 2.0, 3.0],
        edge_type=[1, 0, 1, 0],
        edge_type_names=["wire", "card"],
        directed=False,
        train_mask=MASKS[:, :2],
        val_mask=MASKS[:, 1::-1],
        test_mask=np.zeros((3, 2), bool),
        node_ids=["a", "Łódź", "c" * 40],
        class_names=["red", "green", "blue", "nobody"],
        feature_names=["first", "second"],
        alternative_splits={
            "geom": Splits(MASKS[:, :1], MASKS[:, 1:2], np.zeros((3, 1), bool)),
            "my_own": Splits(MASKS[:, 1:2], MASKS[:, :1], np.zeros((3, 1), bool)),
        },
        name="full",
    )


def assert_same_graph(one, two):
    assert one.fingerprint == two.fingerprint
    assert one.preparation == two.preparation
    assert one.name == two.name
    assert one.class_names == two.class_names
    np.testing.assert_array_equal(one.y, two.y)
    assert one.edge_type_names == two.edge_type_names
    for name in ("edge_weight", "edge_type", "node_ids", "feature_names"):
        left, right = getattr(one, name), getattr(two, name)
        assert (left is None) == (right is None)
        if left is not None:
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype
    assert (one.splits is None) == (two.splits is None)
    assert one.alternative_splits.keys() == two.alternative_splits.keys()
    families = one.alternative_splits
    pairs = [(families[family], two.alternative_splits[family]) for family in families]
    if one.splits is not None and two.splits is not None:
        pairs.append((one.splits, two.splits))
    for left, right in pairs:
        for part in ("train", "val", "test"):
            np.testing.assert_array_equal(getattr(left, part), getattr(right, part))


def stored(path):
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def rewrite(path, **changes):
    """The full graph's file with some arrays changed, or left out where None."""
    write_graph(full_graph(is_sparse=True), path)
    arrays = {key: value for key, value in (stored(path) | changes).items() if value is not None}
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("name", ["full.npz", "full.graph", "full"])
@pytest.mark.parametrize("mapped_bytes", [0, 1 << 20])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_round_trip_is_exact(tmp_path, monkeypatch, name, mapped_bytes, is_sparse):
    monkeypatch.setattr(files, "_MAPPED_BYTES", mapped_bytes)
    graph = full_graph(is_sparse)
    write_graph(graph, tmp_path / name)
    assert_same_graph(read_graph(tmp_path / name), graph)


@given(
    num_nodes=st.integers(1, 4),
    edges=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5),
    value=st.floats(width=32, allow_nan=False, allow_infinity=False),
    label=st.integers(-1, 3),
    is_sparse=st.booleans(),
    directed=st.booleans(),
    ending=st.sampled_from([".npz", ".graph"]),
)
def test_round_trip_is_exact_for_any_graph(
    tmp_path_factory, num_nodes, edges, value, label, is_sparse, directed, ending
):
    x: Any = np.zeros((num_nodes, 2), np.float32)
    x[-1, 1] = value
    kept = [edge for edge in edges if max(edge) < num_nodes]
    graph = Graph(
        sp.csr_array(x) if is_sparse else x,
        np.array(kept, np.int64).reshape(-1, 2).T,
        [label] * num_nodes,
        directed=directed,
        name="any",
    )
    path = tmp_path_factory.mktemp("any") / f"any{ending}"
    write_graph(graph, path)
    assert_same_graph(read_graph(path), graph)


def test_written_file_is_the_documented_form(tmp_path):
    write_graph(full_graph(is_sparse=True), tmp_path / "full.npz")
    arrays = stored(tmp_path / "full.npz")
    assert arrays["edge_index"].dtype == np.int32
    assert arrays["edge_index"].tolist() == [[0, 1, 1, 2], [1, 2, 2, 2]]
    assert arrays["x_shape"].tolist() == [3, 2]
    assert arrays["x_indptr"].tolist() == [0, 1, 2, 4]
    assert not arrays["directed"]
    assert arrays["my_own_val_mask"].tolist() == [[True], [False], [False]]
    assert arrays["node_ids"].dtype.kind == "U"


def test_small_integers_are_cast(tmp_path):
    path = rewrite(
        tmp_path / "small.npz",
        x_indices=np.array([1, 0, 1], np.uint16),
        x_indptr=np.array([0, 1, 1, 3], np.uint8),
        x_data=np.array([200, 1, 2], np.uint8),
    )
    x: Any = read_graph(path).x
    assert x.dtype == np.float32
    assert x.toarray().tolist() == [[0, 200], [0, 0], [1, 2]]


def test_labels_may_be_left_out(tmp_path):
    masks = {
        f"{family}{part}_mask": None
        for family in ("", "geom_", "my_own_")
        for part in ("train", "val", "test")
    }
    graph = read_graph(rewrite(tmp_path / "bare.npz", y=None, **masks))
    assert graph.y.tolist() == [-1, -1, -1]
    assert graph.alternative_splits == {}


def test_unknown_arrays_are_told(tmp_path, caplog):
    path = rewrite(tmp_path / "odd.npz", trainmask=MASKS)
    with caplog.at_level(logging.WARNING):
        read_graph(path)
    assert "ignored: trainmask" in caplog.text


def test_writing_makes_folders_and_replaces(tmp_path):
    path = tmp_path / "new" / "folder" / "g.npz"
    write_graph(full_graph(), path)
    write_graph(Graph([[1.0]], []), path)
    assert read_graph(path).num_nodes == 1
    assert [file.name for file in path.parent.iterdir()] == ["g.npz"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "g.npz"
    write_graph(full_graph(), path)
    before = path.read_bytes()

    def full_disk(file, **arrays):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(HPGMNError) as caught:
        write_graph(full_graph(), path)
    assert str(caught.value) == f"Cannot write {path} {NO_ROOM}"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_no_place_for_a_file(tmp_path):
    (tmp_path / "g.npz").mkdir()
    with pytest.raises(HPGMNError) as caught:
        write_graph(full_graph(), tmp_path / "g.npz")
    assert str(caught.value) == (
        f"Cannot write {tmp_path / 'g.npz'} (Is a directory). Choose a writable path."
    )


# The form of a folder.


def folder_with(path, **changes):
    """The full graph's folder with some arrays changed, or left out where None."""
    write_graph(full_graph(), path)
    (path / files.CHECKSUMS).unlink()  # the change is meant
    for name, array in changes.items():
        (path / f"{name}.npy").unlink(missing_ok=True)
        if array is not None:
            np.save(path / f"{name}.npy", array)
    return path


def test_a_folder_holds_the_arrays_of_a_file_and_sorted_edges(tmp_path):
    for is_sparse in (False, True):
        graph = full_graph(is_sparse)
        write_graph(graph, tmp_path / "full.npz")
        write_graph(graph, tmp_path / "full.graph")
        arrays = stored(tmp_path / "full.npz")
        del arrays["edge_index"]
        arrays["edges_indptr"] = np.array([0, 1, 3, 4], np.int32)
        arrays["edges_indices"] = np.array([1, 2, 2, 2], np.int32)
        arrays["edges_data"] = arrays.pop("edge_weight")
        arrays["edges_types"] = arrays.pop("edge_type")
        members = sorted(path.name for path in (tmp_path / "full.graph").iterdir())
        assert members == sorted([*(f"{name}.npy" for name in arrays), files.CHECKSUMS])
        for name, array in arrays.items():
            held = np.load(tmp_path / "full.graph" / f"{name}.npy", allow_pickle=False)
            np.testing.assert_array_equal(held, array)
            assert held.dtype == array.dtype


def test_a_folder_that_was_changed_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "g.graph"
    write_graph(full_graph(), path)
    content = (path / "x.npy").read_bytes()
    (path / "x.npy").write_bytes(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])
    with pytest.raises(GraphError, match=r"x\.npy was changed since .* delete checksums\.json"):
        read_graph(path)
    monkeypatch.setattr(files, "CHECKED_BYTES", 0)  # of a large one sizes alone are compared
    read_graph(path)
    (path / "x.npy").write_bytes(content + b" ")
    with pytest.raises(GraphError, match=r"x\.npy is missing or has another size"):
        read_graph(path)
    (path / files.CHECKSUMS).write_text("[]")
    with pytest.raises(GraphError, match=r"checksums\.json is damaged"):
        read_graph(path)
    (path / files.CHECKSUMS).unlink()
    read_graph(path)  # of an earlier version, or changed on purpose


def test_the_order_of_edges_is_kept_where_they_were_not_sorted(tmp_path):
    graph = Graph(np.ones((3, 1)), [[2, 0, 1], [1, 2, 0]], edge_weight=[3, 1, 2])
    write_graph(graph, tmp_path / "g")
    held = np.load(tmp_path / "g" / "edges_places.npy", allow_pickle=False)
    assert held.tolist() == [2, 0, 1]
    assert held.dtype == np.int32
    assert_same_graph(read_graph(tmp_path / "g", name="graph"), graph)
    assert read_graph(tmp_path / "g").edge_index.tolist() == [[2, 0, 1], [1, 2, 0]]


def test_a_folder_of_listed_edges_is_still_read(tmp_path):
    """As folders were written before they held sorted edges."""
    graph = full_graph()
    write_graph(graph, tmp_path / "full.npz")
    (tmp_path / "old").mkdir()
    for name, array in stored(tmp_path / "full.npz").items():
        np.save(tmp_path / "old" / f"{name}.npy", array)
    assert_same_graph(read_graph(tmp_path / "old", name="full"), graph)


def test_sorted_edges_are_mapped_into_the_adjacency(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MAPPED_BYTES", 0)
    write_graph(Graph(np.ones((3, 1)), [[2, 0, 1], [1, 2, 0]]), tmp_path / "g")
    graph = read_graph(tmp_path / "g")
    adjacency = graph.adjacency("out")
    assert isinstance(graph.sorted_edges.targets, np.memmap)
    assert np.shares_memory(adjacency.indices, graph.sorted_edges.targets)
    assert np.shares_memory(adjacency.indptr, graph.sorted_edges.indptr)
    np.testing.assert_array_equal(adjacency.toarray(), [[0, 0, 1], [1, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges_indptr": None}, "array 'edges_indptr' is missing"),
        ({"edges_indices": None}, "array 'edges_indices' is missing"),
        ({"edge_index": np.zeros((2, 1), int)}, "it holds both 'edge_index' and 'edges_indptr'"),
        ({"edge_weight": np.ones(4)}, "it holds 'edge_weight' beside 'edges_indices'"),
        ({"edge_type": np.ones(4, int)}, "it holds 'edge_type' beside .* Use 'edges_types'"),
        ({"edges_types": np.ones(3, int)}, "'edges_types' must have 4 values"),
        ({"edges_indptr": np.array([0, 1, 4])}, r"'edges_indptr' must have 4 values \(got shape"),
        ({"edges_indptr": np.array([0, 3, 1, 4])}, "'edges_indptr' must rise from 0 to 4"),
        ({"edges_indptr": np.array([0, 1, 3, 3])}, "'edges_indptr' must rise from 0 to 4"),
        ({"edges_indices": np.array([[1, 2, 2, 2]])}, "'edges_indices' must have 4 values"),
        ({"edges_indices": np.array([1, 2, -2, 2])}, "'edges_indices' holds -2, but there are 3"),
        ({"edges_indices": np.array([1, 2, 3, 2])}, "'edges_indices' holds 3, but there are 3"),
        ({"edges_indices": np.array([1, 2, 1, 2])}, "'edges_indices' must ascend for each source"),
        ({"edges_data": np.ones(3)}, "'edges_data' must have 4 values"),
        ({"edges_data": np.array([1, 0, 1, 1])}, "is not valid: edge_weight must be finite"),
        ({"edges_places": np.array([0, 1, 2, 2])}, "'edges_places' must name every edge once"),
        ({"edges_places": np.array([0, 1, 2, 4])}, "'edges_places' must name every edge once"),
    ],
)
def test_sorted_edges_that_cannot_be_right_are_refused(tmp_path, changes, message):
    with pytest.raises(GraphError, match=rf"^Graph folder '.*bad'.*{message}"):
        read_graph(folder_with(tmp_path / "bad", **changes))


@pytest.mark.parametrize(
    ("folder", "name"),
    [("big.npz", "big"), ("big.graph", "big"), ("big", "big"), ("big.v2", "big.v2")],
)
def test_a_graph_is_named_after_its_path_unless_given(tmp_path, monkeypatch, folder, name):
    write_graph(full_graph(), tmp_path / folder)
    assert read_graph(tmp_path / folder).name == name
    assert read_graph(tmp_path / folder, name="ours").name == "ours"
    if folder in ("big", "big.v2"):
        monkeypatch.chdir(tmp_path / folder)
        assert read_graph(".").name == name


def test_large_arrays_are_mapped_and_the_file_is_safe_from_writing(tmp_path):
    x = np.random.default_rng(0).normal(size=(5000, 64)).astype(np.float32)
    ids = [f"node {place:06}" for place in range(5000)]
    write_graph(Graph(x, [[0], [1]], node_ids=ids), tmp_path / "big")
    graph = read_graph(tmp_path / "big")
    assert isinstance(graph.x.base, np.memmap)
    assert not isinstance(graph.y.base, np.memmap)  # small
    graph.x[0, 0] = 100.0  # writable, as torch wants it; the file does not change
    assert read_graph(tmp_path / "big").x[0, 0] == x[0, 0]


def test_a_graph_folder_is_replaced_even_by_itself(tmp_path):
    path = tmp_path / "new" / "g.graph"
    write_graph(Graph(np.ones((5000, 64)), []), path)
    graph = read_graph(path)
    write_graph(graph, path)
    assert_same_graph(read_graph(path), graph)
    write_graph(Graph([[1.0]], []), path)
    assert read_graph(path).num_nodes == 1
    assert graph.x.sum() == 5000 * 64  # what is mapped stays
    assert [file.name for file in path.parent.iterdir()] == ["g.graph"]


def test_an_empty_folder_may_be_written_to(tmp_path):
    (tmp_path / "empty").mkdir()
    write_graph(full_graph(), tmp_path / "empty")
    assert read_graph(tmp_path / "empty").num_nodes == 3


def test_other_things_are_never_replaced_by_a_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for name in ("mine", "file"):
        with pytest.raises(GraphError, match=r"cannot be written: .* exists"):
            write_graph(full_graph(), tmp_path / name)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "dear"
    assert (tmp_path / "file").read_text() == "dear"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine"]


@pytest.mark.parametrize("fails", ["save", "rename"])
def test_a_failed_write_leaves_the_old_folder_and_nothing_else(tmp_path, monkeypatch, fails):
    path = tmp_path / "g"
    write_graph(full_graph(), path)

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    if fails == "save":
        monkeypatch.setattr(np, "save", full_disk)
    else:
        monkeypatch.setattr(os, "rename", full_disk)
    with pytest.raises(HPGMNError) as caught:
        write_graph(Graph([[1.0]], []), path)
    assert str(caught.value) == f"Cannot write {path} {NO_ROOM}"
    assert_same_graph(read_graph(path, name="full"), full_graph())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mapped_bytes", [0, 1 << 20])
@pytest.mark.parametrize("damage", ["cut", "header", "empty"])
def test_a_damaged_folder_is_refused(tmp_path, monkeypatch, mapped_bytes, damage):
    monkeypatch.setattr(files, "_MAPPED_BYTES", mapped_bytes)
    path = folder_with(tmp_path / "g")
    content = (path / "x.npy").read_bytes()
    spoilt = {"cut": content[:-4], "header": b"?" + content[1:], "empty": b""}[damage]
    (path / "x.npy").write_bytes(spoilt)
    message = r"Graph folder '.*g': it is truncated or damaged \(.*\)"
    with pytest.raises(GraphError, match=message):
        read_graph(path)


@pytest.mark.parametrize("mapped_bytes", [0, 1 << 20])
def test_pickled_objects_in_a_folder_are_never_loaded(tmp_path, monkeypatch, mapped_bytes):
    monkeypatch.setattr(files, "_MAPPED_BYTES", mapped_bytes)
    path = folder_with(tmp_path / "g", y=np.array([0, {}, 1], object))
    with pytest.raises(GraphError, match="array 'y' holds pickled Python objects, which are never"):
        read_graph(path)


def test_what_a_folder_lacks_or_has_wrong_is_told(tmp_path, caplog):
    for name in ("x", "edge_index", "directed"):
        gone: tuple[str, ...] = (name,)
        if name == "edge_index":
            gone = ("edges_indptr", "edges_indices", "edges_data", "edges_types")
        path = folder_with(tmp_path / "part", **dict.fromkeys(gone))
        with pytest.raises(GraphError, match=rf"Graph folder '.*part': array '{name}' is missing"):
            read_graph(path)
    path = folder_with(tmp_path / "odd", y=np.array(["a", "b", "c"]))
    with pytest.raises(GraphError, match=r"Graph folder '.*odd': array 'y' has type <U1"):
        read_graph(path)
    with caplog.at_level(logging.WARNING):
        read_graph(folder_with(tmp_path / "more", trainmask=MASKS))
    assert "more': ignored: trainmask" in caplog.text


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(GraphError, match=r"absent\.npz' does not exist\."):
        read_graph(tmp_path / "absent.npz")


def test_folder_is_refused(tmp_path):
    with pytest.raises(GraphError, match=r"is a folder, not a graph file\. Pass a \.npz file"):
        read_graph(tmp_path)


def test_unreadable_file_is_refused(tmp_path, monkeypatch):
    path = rewrite(tmp_path / "locked.npz")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(GraphError, match=r"it cannot be read \(Permission denied\)"):
        read_graph(path)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "table.npz"
    path.write_text("id,class\n0,1\n")
    with pytest.raises(GraphError, match=r"it is not a \.npz file"):
        read_graph(path)
    path.write_bytes(b"")
    with pytest.raises(GraphError, match=r"it is not a \.npz file"):
        read_graph(path)


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_truncated_file_is_refused(tmp_path, share):
    path = rewrite(tmp_path / "cut.npz")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(GraphError, match=r"cut\.npz': it is truncated or damaged \(.*\)"):
        read_graph(path)


def test_damaged_file_is_refused(tmp_path):
    path = tmp_path / "damaged.npz"
    write_graph(Graph(np.random.default_rng(0).normal(size=(50, 8)), []), path)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(GraphError, match="it is truncated or damaged"):
        read_graph(path)


def test_zip_of_something_else_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "texts.npz", "w") as archive:
        archive.writestr("x", "not an array")
        archive.writestr("edge_index", "not an array")
    with pytest.raises(GraphError, match="array 'directed' is missing"):
        read_graph(tmp_path / "texts.npz")


def test_pickled_objects_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    path = rewrite(tmp_path / "trap.npz", y=np.array([Trap(), Trap(), Trap()], object))
    message = "array 'y' holds pickled Python objects, which are never loaded"
    with pytest.raises(GraphError, match=message):
        read_graph(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["edge_index", "directed", *CSR, "geom_val_mask"])
def test_missing_array_is_named(tmp_path, name):
    path = rewrite(tmp_path / "part.npz", **{name: None})
    with pytest.raises(GraphError, match=f"part.npz': array '{name}' is missing"):
        read_graph(path)


def test_missing_attributes_are_named(tmp_path):
    path = rewrite(tmp_path / "part.npz", **dict.fromkeys(CSR))
    with pytest.raises(GraphError, match="array 'x' is missing"):
        read_graph(path)


REFUSED = {
    "attributes twice": ({"x": np.eye(3)}, "holds both 'x' and 'x_indptr'"),
    "text attributes": (
        {**dict.fromkeys(CSR), "x": np.array([["a"], ["b"], ["c"]])},
        "array 'x' has type <U1",
    ),
    "fractional places": ({"x_indices": np.ones(4)}, "'x_indices' has type float64"),
    "fractional edges": ({"edge_index": np.ones((2, 1))}, "'edge_index' has type float64"),
    "fractional labels": ({"y": np.array([0.0, 1.5, 0.0])}, "y holds targets of type float"),
    "numbers as direction": ({"directed": np.array(1)}, "'directed' has type int64"),
    "two directions": ({"directed": np.array([True, False])}, "has 2 values"),
    "numbers as mask": ({"train_mask": np.eye(3)}, "'train_mask' has type float64"),
    "numbers as names": ({"node_ids": np.arange(3)}, "'node_ids' has type int64"),
    "one size": ({"x_shape": np.array([3])}, r"'x_shape' must be two sizes \(got \[3\]\)"),
    "short index": ({"x_indptr": np.array([0, 1, 2])}, r"'x_indptr' must have 4 values"),
    "falling index": ({"x_indptr": np.array([0, 3, 2, 4])}, "'x_indptr' must rise from 0 to 4"),
    "late index": ({"x_indptr": np.array([1, 1, 2, 4])}, "'x_indptr' must rise from 0 to 4"),
    "absent attribute": (
        {"x_indices": np.array([0, 1, 0, 2])},
        "'x_indices' holds 2, but there are 2 attributes",
    ),
    "too few values": ({"x_data": np.ones(3)}, "'x_data' must have 4 values"),
    "edge to an absent node": (
        {"edge_index": np.array([[0, 1, 1, 2], [1, 2, 2, 3]])},
        "is not valid: Edge 3 runs from 2 to 3, but nodes are numbered 0 to 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_content_is_one_sentence_with_its_place(tmp_path, case):
    changes, message = REFUSED[case]
    path = rewrite(tmp_path / "bad.npz", **changes)
    with pytest.raises(GraphError, match=message) as caught:
        read_graph(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["texas", "cora", "crocodile", "minesweeper"])
def test_real_file_is_read_and_written_exactly(data_dir, tmp_path, name):
    graph = read_graph(data_dir / f"{name}.npz")
    write_graph(graph, tmp_path / f"{name}.npz")
    assert_same_graph(read_graph(tmp_path / f"{name}.npz"), graph)


def test_real_file_holds_what_it_should(data_dir):
    cora = read_graph(data_dir / "cora.npz")
    assert not cora.directed
    assert cora.has_sparse_attributes
    assert cora.splits.train.sum(axis=0).tolist() == [140]
    assert cora.alternative_splits["geom"].train.sum(axis=0).tolist() == [1192] * 10


@pytest.mark.parametrize("kind", ["uint64", "int8", "uint16"])
def test_sorted_edges_may_be_whole_numbers_of_any_type(tmp_path, kind):
    """A type that cannot count all nodes must not make edges begin elsewhere."""
    folder = tmp_path / "g.graph"
    folder.mkdir()
    nodes = 300
    targets = np.arange(nodes) % 100
    arrays = {
        "x": np.ones((nodes, 1), "f4"),
        "directed": np.array(True),
        "edges_indptr": np.arange(nodes + 1, dtype="uint64"),
        "edges_indices": targets.astype(kind),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    graph = read_graph(folder)
    assert graph.edge_index.tolist() == [list(range(nodes)), targets.tolist()]
    assert graph.adjacency("out").nnz == nodes - 100


PREPARATION = {"roles": {"id": "Łódź", "has_whole_ids": True}, "columns": [{"mean": 0.1 + 0.2}]}


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("name", ["other.npz", "other.graph"])
def test_a_copy_keeps_the_name_and_every_file_the_preparation(tmp_path, name, is_sparse):
    graph = full_graph(is_sparse)
    graph.preparation = PREPARATION
    write_graph(graph, tmp_path / name, as_copy=True)
    assert_same_graph(read_graph(tmp_path / name), graph)
    write_graph(graph, tmp_path / name)
    found = read_graph(tmp_path / name)
    assert (found.name, found.preparation) == ("other", PREPARATION)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"{", "is not JSON"), (b"[]", "preparation"), (b'{"roles": 3}', "preparation")],
)
def test_a_damaged_preparation_is_refused(tmp_path, content, told):
    path = rewrite(tmp_path / "g.npz", preparation=np.frombuffer(content, np.uint8))
    with pytest.raises(GraphError, match=told):
        read_graph(path)


def test_the_size_of_a_file_is_known_before_it_is_written(tmp_path):
    rng = np.random.default_rng(0)
    x, edges = rng.normal(size=(3000, 7)), rng.integers(0, 3000, (2, 20_000))
    masks = np.zeros((3000, 3), bool)
    masks[:10] = True
    for attributes in (x, sp.csr_array(x * (x > 1))):
        graph = Graph(
            *(attributes, edges, np.zeros(3000)),
            node_ids=[f"node-{number}" for number in range(3000)],
            edge_weight=rng.random(20_000) + 0.1,
            train_mask=masks,
        )
        write_graph(graph, tmp_path / "g.npz", as_copy=True)
        size = (tmp_path / "g.npz").stat().st_size
        assert files.graph_size(graph) == pytest.approx(size, rel=0.1)
