"""Convert graphs from and to PyTorch Geometric, networkx and tables, and to HTML for notebooks.

:class:`Graph` imports this module on use and passes itself; other libraries are imported by the
function that needs them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from hpgmn.base.errors import GraphError, SettingError
from hpgmn.base.html import table_html
from hpgmn.base.tasks import bin_edges, bin_names, hide_labels, is_known
from hpgmn.graph.edges import Array, SortedEdges
from hpgmn.graph.homophily import node_homophily
from hpgmn.graph.validation import PARTS

if TYPE_CHECKING:
    from hpgmn.tables.columns import Tables
    from hpgmn.tables.options import ColumnOptions, Columns
    from hpgmn.tables.reading import TableData

logger = logging.getLogger(__name__)

HOMOPHILY_EDGES = 2_000_000
"""Homophily is computed for at most this many edges: a table should appear at once."""

_MAX_CLASSES = 20


def from_pyg(make: Any, data: Any, name: str) -> Any:
    """Make a graph of class ``make``; see ``Graph.from_pyg``."""
    for attribute, advice in (
        ("x", "Add a column, for example the degree"),
        ("edge_index", "Add one, possibly of shape (2, 0)"),
    ):
        if getattr(data, attribute, None) is None:
            raise GraphError(f"The PyG object has no {attribute}.", advice)
    optional = ("edge_weight", "edge_type", *(f"{part}_mask" for part in PARTS))
    options = {key: getattr(data, key, None) for key in optional}
    graph = make(data.x, data.edge_index, getattr(data, "y", None), name=name, **options)
    values = getattr(data, "edge_attr", None)
    return graph if values is None else _with_edge_attributes(make, graph, values, options)


def _with_edge_attributes(make: Any, graph: Any, values: Any, options: Mapping[str, Any]) -> Any:
    """Return the graph with aggregates of PyG's ``edge_attr`` as further attributes."""
    from hpgmn.tables.column_types import Number
    from hpgmn.tables.edge_columns import add_aggregates

    values = np.asarray(values, np.float64)
    if len(values) != graph.num_listed_edges or values.ndim > 2 or not np.isfinite(values).all():
        raise GraphError(
            f"edge_attr must be finite numbers, one row for each of {graph.num_listed_edges} edges "
            f"(got shape {values.shape}, {(~np.isfinite(values)).sum():,} values not finite).",
            "Correct it, or set it to None",
        )
    values = values.reshape(len(values), -1)
    columns = [Number(f"edge_attr[{number}]") for number in range(values.shape[1])]
    nothing = np.empty((graph.num_nodes, 0), np.float32)
    block, aggregates = add_aggregates(nothing, graph.edge_index, values, columns, graph.directed)
    is_sparse = graph.has_sparse_attributes
    x = sp.hstack([graph.x, block], format="csr") if is_sparse else np.hstack([graph.x, block])
    names = [f"x[{number}]" for number in range(graph.num_features)]
    names += [column.name for column in aggregates]
    return make(x, graph.edge_index, graph.y, feature_names=names, name=graph.name, **options)


def to_pyg(graph: Any) -> Any:
    """See ``Graph.to_pyg``."""
    import torch
    from torch_geometric.data import Data

    def tensor(array: Array) -> Any:
        return torch.from_numpy(np.require(array, requirements="W"))  # copies if read-only

    edge_index, weight, types = graph.edge_index, graph.edge_weight, graph.edge_type
    if not graph.directed:
        numbers = range(len(graph.edge_type_names)) if graph.edge_type_names else [None]
        parts = [graph.adjacency("out", number).tocoo() for number in numbers]
        ends = [np.stack([part.row, part.col]) for part in parts]
        edge_index = np.concatenate(ends, axis=1).astype(np.int64)
        weight = np.concatenate([part.data for part in parts]) if weight is not None else None
        if types is not None:
            types = np.repeat(np.arange(len(parts)), [part.nnz for part in parts])
    if sp.issparse(graph.x):
        x = graph.x.tocoo()
        index = tensor(np.stack([x.row, x.col]).astype(np.int64))
        values = torch.sparse_coo_tensor(index, tensor(x.data), x.shape, check_invariants=True)
        attributes = values.coalesce()
    else:
        attributes = tensor(graph.x)
    data = Data(attributes, tensor(edge_index), y=tensor(graph.y))
    if weight is not None:
        data.edge_weight = tensor(weight)
    if types is not None:
        data.edge_type = tensor(types.astype(np.int64))
    if graph.splits is not None:
        for part in PARTS:
            data[f"{part}_mask"] = tensor(getattr(graph.splits, part))
    return data


def from_tables(
    make: Any,
    nodes: Any,
    edges: Any,
    columns: ColumnOptions,
    prepare: bool,
    like: Any | None,
    onto: Any | None,
    name: str,
) -> Any:
    """Make a graph of class ``make``; see ``Graph.from_tables``."""
    from hpgmn.tables.columns import assign_roles
    from hpgmn.tables.memory import memory_table

    roles, options = reading_options(columns, prepare, like, onto)
    node_table, edge_table = memory_table(nodes, "nodes"), memory_table(edges, "edges")
    tables = assign_roles(node_table, edge_table, roles, **options)
    ids = getattr(like, "node_ids", None)
    return read_graph_tables(make, tables, name, onto=onto, earlier_ids=ids)


def from_networkx(
    make: Any,
    network: Any,
    columns: ColumnOptions,
    prepare: bool,
    name: str | None,
    preparation: Mapping[str, Any] | None = None,
) -> Any:
    """Make a graph of class ``make``; see ``Graph.from_networkx``.

    With the ``preparation`` of another graph, attributes and classes are read as there.
    """
    from hpgmn.tables.columns import assign_roles, network_columns
    from hpgmn.tables.memory import read_networkx

    requested, options = reading_options(columns, prepare, None, None, preparation)
    read = read_networkx(network)
    roles = network_columns(requested, read)
    tables = assign_roles(read.nodes, read.edges, roles, **options)
    return read_graph_tables(make, tables, name or str(getattr(network, "name", "") or "graph"))


def reading_options(
    options: ColumnOptions,
    prepare: bool,
    like: Any | None,
    onto: Any | None,
    preparation: Mapping[str, Any] | None = None,
) -> tuple[Columns, dict[str, Any]]:
    """Return the columns and preparation to read with, as those of another graph if given."""
    from hpgmn.tables.options import Columns, check_column_options
    from hpgmn.tables.preparation import Preparation

    columns = Columns(**check_column_options(options))
    if like is not None and onto is not None:
        raise SettingError("like and onto exclude each other.", "Pass one of them")
    for name, graph in (("like", like), ("onto", onto)):
        if graph is not None and not hasattr(graph, "preparation"):
            raise SettingError(f"{name} takes a graph (got {graph!r}).", "Read it by hpgmn.load")
    if like is not None:
        preparation = like.preparation
        if preparation is None:
            raise SettingError("like takes a graph whose tables were prepared.", "Leave it out")
    if onto is not None:
        if onto.node_ids is None:
            raise GraphError(
                f"Graph '{onto.name}' has no node_ids, so new edges cannot name its nodes.",
                "Pass the whole graph, old and new, instead of adding to it",
            )
        changes: dict[str, Any] = {"directed": onto.directed}
        if not onto.is_weighted:
            changes["weight"] = ""
        if not onto.edge_type_names:
            changes["edge_type"] = ""
        if onto.preparation is None and onto.feature_names is not None:
            changes["attributes"] = tuple(onto.feature_names.tolist())
        columns, preparation = replace(columns, **changes), onto.preparation
        prepare = preparation is not None
    fitted = None if preparation is None else Preparation.from_dict(preparation)
    return columns, {"prepare": prepare, "preparation": fitted}


def read_graph_tables(
    cls: Any,
    tables: Tables,
    name: str = "graph",
    *,
    onto: Any | None = None,
    earlier_ids: Array | None = None,
    log: Callable[[str], None] = logger.info,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Any:
    """Read opened tables into a graph of class ``cls``; log and warn about their columns."""
    from hpgmn.tables.preparation import Preparation
    from hpgmn.tables.reading import ignore_progress, read_tables

    progress = progress or ignore_progress
    for line in tables.describe():
        log(line)
    onto = None if onto is None else onto.full
    data = read_tables(tables, progress, log, onto=onto, earlier_ids=earlier_ids)
    progress("Checking the graph", 0, None)
    if onto is not None:
        return _extend(onto, data, name)
    graph = _make_graph(cls, data, name)
    if data.as_of is not None:
        fitted = None if data.preparation is None else Preparation.from_dict(data.preparation)
        tables = replace(tables, as_of=None, split_by=None, preparation=fitted)
        later = read_tables(tables, progress, lambda line: None, earlier_ids=earlier_ids)
        graph.with_later_edges = _make_graph(cls, replace(later, masks=data.masks), name)
    return graph


def _make_graph(cls: Any, data: TableData, name: str) -> Any:
    graph = cls(
        data.x,
        SortedEdges.of(data.edge_index, len(data.x), data.edge_weight, data.edge_type),
        data.y,
        edge_type_names=data.edge_type_names,
        directed=data.directed,
        node_ids=data.node_ids,
        class_names=data.class_names,
        feature_names=data.feature_names,
        name=name,
        **{f"{part}_mask": mask for part, mask in data.masks.items()},
    )
    graph.preparation, graph.edge_values = data.preparation, data.edge_values
    if graph.preparation is not None and graph.edge_type_names:
        graph.preparation["roles"]["edge_type_names"] = list(graph.edge_type_names)
    return graph


def _extend(graph: Any, new: TableData, name: str) -> Any:
    """Return the graph with new nodes after its own; they are in no part of its splits."""
    from hpgmn.tables.edge_columns import add_aggregates
    from hpgmn.tables.preparation import Preparation

    count = len(new.x)
    old_x, edge_values = graph.x, None
    edge_index = np.concatenate([graph.edge_index, new.edge_index], axis=1)
    fitted = None if graph.preparation is None else Preparation.from_dict(graph.preparation)
    if fitted is not None:
        old_x = old_x[:, : graph.num_features - len(fitted.aggregates)]
    if new.x.shape[1] != old_x.shape[1]:
        raise GraphError(
            f"The numbers of attributes differ: {new.x.shape[1]} of the new nodes, "
            f"{old_x.shape[1]} of graph '{graph.name}'.",
            "Pass the same columns",
        )
    x: Any
    if graph.has_sparse_attributes:
        x = sp.vstack([old_x, sp.csr_array(new.x)], format="csr")
    else:
        x = np.concatenate([old_x, new.x])
    if fitted is not None:  # new edges change aggregates of old nodes
        edge_values = _append(graph.edge_values, new.edge_values)
        edges = (edge_index, edge_values, fitted.edge_columns)
        x, _ = add_aggregates(x, *edges, graph.directed, fitted.aggregates)
    y = hide_labels(np.zeros(count, graph.y.dtype), False) if new.y is None else new.y
    larger = type(graph)(
        x,
        edge_index,
        np.append(graph.y, y),
        edge_weight=_append(graph.edge_weight, new.edge_weight),
        edge_type=_append(graph.edge_type, new.edge_type),
        edge_type_names=graph.edge_type_names,
        directed=graph.directed,
        node_ids=np.concatenate([graph.node_ids, new.node_ids]),
        class_names=new.class_names or graph.class_names,
        feature_names=graph.feature_names,
        name=name,
    )
    larger.preparation, larger.edge_values = graph.preparation, edge_values
    if graph.splits is None:
        return larger
    masks = (getattr(graph.splits, part) for part in PARTS)
    padded = (np.pad(mask, ((0, count), (0, 0))) for mask in masks)
    return larger.with_splits(type(graph.splits)(*padded))


def _append(old: Array | None, new: Array | None) -> Array | None:
    """Return the values of old and new edges; None unless both have some."""
    return None if old is None or new is None else np.concatenate([old, new])


def targets_to_classes(graph: Any, bins: int) -> Any:
    """Return the same graph with classes: quantile bins of its targets."""
    same, edges = copy(graph), bin_edges(graph.y, bins)
    same.y = np.where(is_known(graph.y), np.searchsorted(edges, graph.y, side="right"), -1)
    same.class_names = bin_names(edges)
    return same


def original_ids(node_ids: Array, preparation: Mapping[str, Any] | None) -> Array:
    """Return ids of the type that they had in the node table: integers if it had such.

    >>> original_ids(np.array(["7", "9"]), {"roles": {"has_whole_ids": True}}).tolist()
    [7, 9]
    """
    roles = {} if preparation is None else preparation["roles"]
    if not roles.get("has_whole_ids", False):  # absent in older models
        return node_ids
    try:
        return node_ids.astype(np.int64)
    except ValueError:  # nodes that were added from a table of text
        return node_ids


def to_html(graph: Any) -> str:
    """Render a graph: sizes, class counts, splits and homophily."""
    edges = f"{graph.num_edges:,}, {'directed' if graph.directed else 'undirected'}"
    known = graph.y[is_known(graph.y)]
    counts = np.bincount([] if graph.is_regression else known, minlength=graph.num_classes)
    classes = [f"{name}: {count:,}" for name, count in zip(graph.class_names, counts, strict=True)]
    if len(classes) > _MAX_CLASSES:
        classes[_MAX_CLASSES:] = [f"and {len(classes) - _MAX_CLASSES:,} more classes"]
    if graph.is_regression and known.size:
        classes = [f"numbers from {known.min():.4g} to {known.max():.4g}, mean {known.mean():.4g}"]
    if num_unlabelled := graph.num_nodes - len(known):
        classes.append(f"without a label: {num_unlabelled:,}")
    splits = "none"
    if graph.splits is not None:
        splits = ", ".join(f"{part} {getattr(graph.splits[0], part).sum():,}" for part in PARTS)
        if len(graph.splits) > 1:
            splits = f"{len(graph.splits)}, the first: {splits}"
    homophily = f"not computed above {HOMOPHILY_EDGES:,} edges"
    if graph.num_listed_edges <= HOMOPHILY_EDGES:
        value = node_homophily(graph)
        homophily = "unknown: no labelled neighbours" if math.isnan(value) else f"{value:.2f}"
    facts = [
        ("Nodes", f"{graph.num_nodes:,}"),
        ("Edges", f"{edges}{', weighted' if graph.is_weighted else ''}"),
        *((("Edge types", ", ".join(graph.edge_type_names)),) if graph.edge_type_names else ()),
        ("Attributes", f"{graph.num_features:,}{', sparse' * graph.has_sparse_attributes}"),
        ("Targets" if graph.is_regression else "Classes", ", ".join(classes)),
        ("Splits", splits),
        ("Node homophily", homophily),
    ]
    return table_html(f"Graph '{graph.name}'", facts)
