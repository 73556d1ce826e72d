"""Graphs from objects of PyTorch Geometric, and as such."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import GraphError
from hpgmn.graph.graph import Array, Graph


def from_pyg(data: Any, name: str = "graph") -> Graph:
    """A graph from a PyTorch Geometric ``Data`` object (edges taken as listed)."""
    if getattr(data, "x", None) is None:
        raise GraphError("The PyG object has no attributes x; add a column, e.g. the degree.")
    if getattr(data, "edge_index", None) is None:
        raise GraphError("The PyG object has no edge_index; add one, be it of shape (2, 0).")
    return Graph(
        data.x,
        data.edge_index,
        getattr(data, "y", None),
        edge_weight=getattr(data, "edge_weight", None),
        train_mask=getattr(data, "train_mask", None),
        val_mask=getattr(data, "val_mask", None),
        test_mask=getattr(data, "test_mask", None),
        name=name,
    )


def to_pyg(graph: Graph) -> Any:
    """The graph as a PyTorch Geometric ``Data`` object; sparse attributes stay sparse."""
    import torch
    from torch_geometric.data import Data

    def tensor(array: Array) -> Any:
        return torch.from_numpy(np.require(array, requirements="W"))  # copies if read-only

    edge_index, weight = graph.edge_index, graph.edge_weight
    if not graph.directed:
        coo = graph.adjacency("out").tocoo()
        edge_index = np.stack([coo.row, coo.col]).astype(np.int64)
        weight = coo.data if weight is not None else None
    x: Any = graph.x
    if sp.issparse(x):
        x = x.tocoo()
        place = np.stack([x.row, x.col]).astype(np.int64)
        attributes = torch.sparse_coo_tensor(
            tensor(place), tensor(x.data), x.shape, check_invariants=True
        ).coalesce()
    else:
        attributes = tensor(x)
    data = Data(attributes, tensor(edge_index), y=tensor(graph.y))
    if weight is not None:
        data.edge_weight = tensor(weight)
    if graph.splits is not None:
        for part in ("train", "val", "test"):
            data[f"{part}_mask"] = tensor(getattr(graph.splits, part))
    return data
