"""The rows of a rank: what is read is what was written; products are those of the whole matrix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from hpgmn.base.errors import HPGMNError
from hpgmn.graph import Graph
from hpgmn.shards import Shards
from hpgmn.training.rank_rows import BlockRows, Rows

SETTINGS = {"batch_size": 4, "statistics": ("attributes", "class_counts", "adjacency")}


def test_rows_of_a_rank_are_those_of_the_graph(
    tmp_path: Path, small_graph: Graph, shards_writer: Callable[..., Path]
) -> None:
    shards = Shards(shards_writer(tmp_path, small_graph, SETTINGS, ranges=5))
    first, last = shards.ranges[1][0], shards.ranges[3][1]
    assert 0 < first < last < 18
    rows = Rows(shards, range(1, 4))
    assert (rows.first, rows.last, len(rows)) == (first, last, last - first)
    assert (rows.name, rows.class_names) == ("small", small_graph.class_names)
    split = small_graph.split(0)
    assert rows.y.tolist() == small_graph.y[first:last].tolist()
    for part in ("train", "val", "test"):
        assert getattr(rows.split, part).tolist() == getattr(split, part)[first:last].tolist()
    wanted = torch.tensor([len(rows) - 1, 0, 4, 4, 3])
    attributes = rows.statistic("attributes", torch.device("cpu"))
    expected = small_graph.x[wanted.numpy() + first]
    np.testing.assert_allclose(attributes.rows(wanted).numpy(), expected)
    adjacency = rows.statistic("adjacency_out", torch.device("cpu"))
    matrix = small_graph.adjacency("out").toarray()
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-30)
    np.testing.assert_allclose(adjacency.rows(wanted).numpy(), matrix[wanted + first], rtol=1e-6)


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
    rows = BlockRows(blocks, torch.device("cpu"))
    weight = torch.from_numpy(random.normal(size=(2, 6, 3)).astype(np.float32))
    columns = torch.from_numpy(random.random((2, 6)).astype(np.float32))
    nodes = torch.tensor([9, 4, 4, 0]).expand(2, -1)
    whole = np.einsum("nf,rf,rfd->rnd", matrix, columns.numpy(), weight.numpy())
    close = {"rtol": 1e-2, "atol": 1e-2} if kind == "half" else {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(rows.times(weight, None, columns).numpy(), whole, **close)
    some = rows.times(weight, nodes, columns).numpy()
    np.testing.assert_allclose(some, whole[:, [9, 4, 4, 0]], **close)
    assert rows.width == 6


def test_rows_need_a_split(tmp_path: Path, shards_writer: Callable[..., Path]) -> None:
    bare = Graph(np.eye(4), [[0, 1], [1, 2]], [0, 1, -1, -1])
    shards = Shards(shards_writer(tmp_path, bare, SETTINGS, ranges=2, labels=bare.y))
    with pytest.raises(HPGMNError, match="Give it splits and make them again"):
        Rows(shards, range(2))


def test_spoiled_rows_are_not_trained_on(
    tmp_path: Path, small_graph: Graph, shards_writer: Callable[..., Path]
) -> None:
    folder = shards_writer(tmp_path, small_graph, SETTINGS, ranges=3)
    path = folder / "rows-00001" / "attributes.npy"
    content = bytearray(path.read_bytes())
    content[-2] ^= 4
    path.write_bytes(content)
    Rows(Shards(folder), range(2, 3))
    with pytest.raises(HPGMNError, match=r"attributes\.npy is missing, damaged"):
        Rows(Shards(folder), range(0, 2))
