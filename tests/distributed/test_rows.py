"""Folders of rows: what is read is what was written, and what is wrong is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hpgmn.distributed.shards import Manifest, Rows, ShardedRows

from hpgmn.errors import HPGMNError
from hpgmn.graph import Graph

SETTINGS = {"batch_size": 4, "statistics": ("attributes", "class_counts", "adjacency")}


@pytest.fixture
def folder(tmp_path: Path, small_graph: Graph, rows_writer: Callable[..., Path]) -> Path:
    """The 18 nodes of the small graph in five ranges."""
    return rows_writer(tmp_path / "small rows", small_graph, SETTINGS, parts=5)


def change(folder: Path, **content: Any) -> Path:
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | content))
    return folder


def test_the_manifest_says_what_there_is(folder: Path, small_graph: Graph) -> None:
    manifest = Manifest.read(folder)
    assert manifest.num_nodes == 18
    assert manifest.ranges == ((0, 3), (3, 7), (7, 10), (10, 14), (14, 18))
    assert manifest.class_names == small_graph.class_names
    assert manifest.widths["adjacency_out"] == 18
    assert manifest.settings["batch_size"] == 4
    assert manifest.name == "small"
    assert Manifest.read(change(folder, graph=None)).name == "small rows"
    assert Manifest.read(change(folder, split=1)).identity != manifest.identity


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_rank_has_ranges_and_every_range_one_rank(folder: Path, size: int) -> None:
    shares = Manifest.read(folder).shares(size)
    assert len(shares) == size
    assert [number for share in shares for number in share] == [0, 1, 2, 3, 4]
    assert all(len(share) for share in shares)


def test_ranks_have_about_as_many_nodes_each(folder: Path) -> None:
    ranges = [(0, 10), (10, 11), (11, 12), (12, 18)]
    manifest = Manifest.read(change(folder, ranges=ranges))
    assert manifest.shares(2) == [range(0, 1), range(1, 4)]
    late = Manifest.read(change(folder, ranges=[(0, 1), (1, 2), (2, 3), (3, 18)]))
    assert late.shares(3) == [range(0, 2), range(2, 3), range(3, 4)]
    with pytest.raises(HPGMNError, match="has 4 ranges of nodes, too few for 5 ranks"):
        late.shares(5)


def test_rows_of_a_rank_are_those_of_the_graph(folder: Path, small_graph: Graph) -> None:
    rows = Rows(Manifest.read(folder), range(1, 4))
    assert (rows.first, rows.last, len(rows)) == (3, 14, 11)
    split = small_graph.split(0)
    assert rows.y.tolist() == small_graph.y[3:14].tolist()
    for part in ("train", "val", "test"):
        assert getattr(rows.split, part).tolist() == getattr(split, part)[3:14].tolist()
    wanted = torch.tensor([10, 0, 4, 4, 7])
    attributes = rows.statistic("attributes", torch.device("cpu"))
    expected = small_graph.x[wanted.numpy() + 3]
    np.testing.assert_allclose(attributes.rows(wanted).numpy(), expected)
    adjacency = rows.statistic("adjacency_out", torch.device("cpu"))
    matrix = small_graph.adjacency("out").toarray()
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-30)
    np.testing.assert_allclose(adjacency.rows(wanted).numpy(), matrix[wanted + 3], rtol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "half", "sparse"])
def test_products_are_those_of_the_whole_matrix(kind: str) -> None:
    random = np.random.default_rng(0)
    matrix = random.normal(size=(11, 6)).round(2).astype(np.float32)
    matrix[random.random(matrix.shape) < 0.5] = 0
    blocks: list[Any] = [matrix[:4], matrix[4:5], matrix[5:]]
    if kind == "sparse":
        blocks = [sp.csr_array(block.astype(np.float64)) for block in blocks]
    if kind == "half":
        blocks = [block.astype(np.float16) for block in blocks]
    rows = ShardedRows(blocks, torch.device("cpu"))
    weight = torch.from_numpy(random.normal(size=(2, 6, 3)).astype(np.float32))
    columns = torch.from_numpy(random.random((2, 6)).astype(np.float32))
    nodes = torch.tensor([9, 4, 4, 0]).expand(2, -1)
    whole = np.einsum("nf,rf,rfd->rnd", matrix, columns.numpy(), weight.numpy())
    close = {"rtol": 1e-2, "atol": 1e-2} if kind == "half" else {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(rows.times(weight, None, columns).numpy(), whole, **close)
    some = rows.times(weight, nodes, columns).numpy()
    np.testing.assert_allclose(some, whole[:, [9, 4, 4, 0]], **close)
    assert rows.width == 6


def test_nodes_without_names_are_named_by_their_numbers(folder: Path) -> None:
    manifest = Manifest.read(folder)
    assert manifest.names([0, 2]).tolist() == ["0", "1", "2", "7", "8", "9"]
    assert not manifest.has_names
    np.save(folder / "rows-00000" / "node_ids.npy", np.arange(3))
    assert not manifest.has_names
    np.save(folder / "rows-00000" / "node_ids.npy", np.array(["a", "b", "c"]))
    assert manifest.has_names
    assert manifest.names([0, 2]).tolist() == ["a", "b", "c", "7", "8", "9"]


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HPGMNError, match=r"is not a folder of rows: it has no manifest\.json"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"ranges": None}, "TypeError"),
        ({"statistics": {"attributes": {}}}, "KeyError"),
        ({"ranges": [[0, 9], [10, 18]]}, "its ranges are not all nodes in order"),
        ({"num_nodes": 19}, "its ranges are not all nodes in order"),
    ],
)
def test_a_wrong_manifest_is_refused(folder: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(HPGMNError, match=message):
        Manifest.read(change(folder, **content))


def test_wrong_rows_are_refused(folder: Path) -> None:
    manifest = Manifest.read(folder)
    np.save(folder / "rows-00000" / "y.npy", np.zeros(4))
    with pytest.raises(HPGMNError, match="4 rows for 3 nodes"):
        Rows(manifest, range(1))
    (folder / "rows-00001" / "attributes.npy").unlink()
    with pytest.raises(HPGMNError, match=r"attributes.npy is missing, damaged"):
        manifest.block(1, "attributes")
    np.save(folder / "rows-00002" / "attributes.npy", np.zeros((3, 4), np.float32))
    with pytest.raises(HPGMNError, match=r"shape \(3, 4\) instead of \(3, 5\)"):
        manifest.block(2, "attributes")
    (folder / "rows-00003" / "adjacency_in.npz").write_bytes(b"nothing")
    with pytest.raises(HPGMNError, match=r"adjacency_in.npz is missing, damaged"):
        manifest.block(3, "adjacency_in")
