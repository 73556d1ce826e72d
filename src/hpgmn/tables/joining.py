"""Tables of what is new, added to a graph: new nodes, and edges that lead to known ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from hpgmn.base.errors import GraphError
from hpgmn.graph import Array, Graph, Splits
from hpgmn.tables.degrees import log_degrees
from hpgmn.tables.layout import Columns, Tables
from hpgmn.tables.preparation import Preparation


@dataclass(frozen=True, eq=False)
class NewNodes:
    """What tables hold that is not in the graph yet.

    Attributes:
        x: (M, F).
        y: (M,), -1 where unknown; None: all unknown.
        class_names: those of the graph, then those that nobody had before.
        node_ids: (M,).
        edge_index: (2, E) positions among the graph's nodes and, after them, the new ones.
        edge_weight: (E,), or None.
    """

    x: Array
    y: Array | None
    class_names: list[str] | None
    node_ids: Array
    edge_index: Array
    edge_weight: Array | None


def preparation_of(graph: Graph) -> Preparation | None:
    """How the attributes of a graph were made; None where they are as they were given."""
    return None if graph.preparation is None else Preparation.from_dict(graph.preparation)


def as_in(graph: Graph, columns: Columns) -> Columns:
    """What the user says of columns, with the attributes and the weights that a graph has.

    A graph whose nodes have no names is refused: edges of the tables could not lead to them.
    """
    if graph.node_ids is None:
        raise GraphError(
            f"Graph '{graph.name}' has no node_ids, so new edges cannot name its nodes. Give the "
            "whole graph, old and new, without --add."
        )
    if not graph.is_weighted:
        columns = replace(columns, weight="")
    if graph.preparation is None and graph.feature_names is not None:
        columns = replace(columns, attributes=tuple(graph.feature_names.tolist()))
    return columns


def all_names(graph: Graph, tables: Tables, ids: Any) -> Any:
    """The ids of a graph and those of new nodes after them; an id in both is refused.

    Args:
        graph: the graph.
        tables: where the new ids are from.
        ids: the new ids as text.
    """
    assert graph.node_ids is not None  # as_in has looked
    known = pa.array(graph.node_ids.tolist(), pa.large_string())
    again = pc.is_in(ids, value_set=known).to_numpy(zero_copy_only=False)
    if again.any():
        place, table = int(np.flatnonzero(again)[0]), tables.nodes
        count = int(again.sum())
        such = f" ({count:,} such rows in all)" if count > 1 else ""
        raise GraphError(
            f"{table.label}: {table.row(place)} has the id '{ids[place].as_py()}', which graph "
            f"'{graph.name}' has already{such}. Leave such rows out; or, if the table holds all "
            "nodes, old and new, leave out --add."
        )
    return pa.concat_arrays([known, ids.cast(known.type)])


def refuse_other_edges(graph: Graph, tables: Tables) -> None:
    """Refuse edges without weights where those of the graph have some."""
    if graph.is_weighted and tables.weight is None:
        raise GraphError(
            f"{tables.edges.label} has no weights, but the edges of graph '{graph.name}' have. Add "
            "the column, or name it with --weight."
        )


def joined(graph: Graph, new: NewNodes, name: str) -> Graph:
    """The graph with new nodes after its own; they are in no part of its splits.

    Args:
        graph: the graph.
        new: what is added.
        name: what to call the result.
    """
    if new.x.shape[1] != graph.num_features:
        raise GraphError(
            f"The numbers of attributes differ: {new.x.shape[1]} of the new nodes, "
            f"{graph.num_features} of graph '{graph.name}'. Give the same columns."
        )
    count = len(new.x)
    x: Any = np.concatenate([graph.x, new.x]) if not graph.has_sparse_attributes else None
    if x is None:
        x = sp.vstack([graph.x, sp.csr_array(new.x)], format="csr")
    edge_index = np.concatenate([graph.edge_index, new.edge_index], axis=1)
    fitted = preparation_of(graph)
    if fitted is not None and fitted.degree is not None:  # new edges change those of old nodes, too
        x = fitted.degree.attributes(log_degrees(edge_index, len(x))).astype(np.float32)
    own, more = graph.edge_weight, new.edge_weight
    splits = graph.splits and Splits(
        *(
            np.pad(mask, ((0, count), (0, 0)))
            for mask in (graph.splits.train, graph.splits.val, graph.splits.test)
        )
    )
    assert graph.node_ids is not None
    larger = Graph(
        x,
        edge_index,
        np.append(graph.y, np.full(count, -1) if new.y is None else new.y),
        edge_weight=None if own is None or more is None else np.append(own, more),
        directed=graph.directed,
        node_ids=np.concatenate([graph.node_ids, new.node_ids]),
        class_names=new.class_names or graph.class_names,
        feature_names=graph.feature_names,
        name=name,
    )
    larger.preparation = graph.preparation
    return larger if splits is None else larger.with_splits(splits)
