"""Tables and networks that a program holds in memory, read by the code that reads files.

pandas and networkx are used through the objects that the user passes; neither need be installed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hpgmn.base.errors import GraphError, HPGMNError, SettingError
from hpgmn.graph import Array, Graph
from hpgmn.tables.graphml import network_tables
from hpgmn.tables.joining import as_in, preparation_of
from hpgmn.tables.layout import Columns, arranged
from hpgmn.tables.preparation import Preparation
from hpgmn.tables.reading import read_tables
from hpgmn.tables.sources import HeldTable, without_nat

logger = logging.getLogger(__name__)

_VALUED = re.compile(r"--(id|weight) (\w+)(?= uses|\.)")
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)( '')?")
_KEYWORDS = {"category": "categories", "add": "onto"}  # where a keyword is not the option's name


def from_tables(
    nodes: Any,
    edges: Any,
    *,
    id: str | None = None,
    label: str | None = None,
    split: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    attributes: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    directed: bool = True,
    categories: Sequence[str] = (),
    split_by: tuple[str, str] | None = None,
    drop_unknown_edges: bool = False,
    prepare: bool = True,
    like: Graph | None = None,
    onto: Graph | None = None,
    name: str = "graph",
) -> Graph:
    """A graph from a table of nodes and a table of edges, as ``hpgmn train`` reads them from files.

    Columns are found by their usual names unless you name them. Ids become ``node_ids``; a node
    without a label is unknown; every other node column is prepared: numbers are standardised,
    words become attributes of their own, missing values are filled in and marked. Text is read as
    that of a CSV file: a column whose text is all numbers or dates holds numbers or dates. Nodes
    without attributes have one, their degree.

    Args:
        nodes: a pandas DataFrame, a pyarrow Table, or a mapping of columns. A named index of a
            DataFrame is a column, too.
        edges: the same for edges.
        id: the column of the nodes' names [id, node, node_id or name].
        label: the column of classes [label, class, y or target]; "" for none.
        split: the column with the words train, val and test [split]; "" for none.
        source: the column where edges begin [source, src or from].
        target: the column where edges end [target, dst or to].
        weight: the column of edge weights [weight]; "" for none.
        attributes: the columns that describe a node; None: all without another role.
        drop: node columns to leave out.
        directed: whether edges run one way.
        categories: columns that are categories even if they hold numbers.
        split_by: how to make splits: ("group", column), whose groups never straddle, or
            ("time", column), oldest nodes train and newest test.
        drop_unknown_edges: leave out edges that name no node rather than refuse them.
        prepare: False takes attributes as they are; all must then be numbers.
        like: a graph made by this function, for instance the one trained on: columns, scales,
            categories and classes are then as there, not found anew.
        onto: a graph to which the tables are added: they hold new nodes only, their edges may name
            its nodes, and columns are prepared like its own. New nodes come after the others.
        name: what to call the graph.

    >>> people = {"id": ["ann", "bob", "cat"], "age": [41, 35, 28], "label": ["good", "bad", None]}
    >>> payments = {"source": ["ann", "bob"], "target": ["bob", "cat"]}
    >>> from_tables(people, payments)
    Graph('graph': 3 nodes, 2 edges, 1 attribute, 2 classes)
    """
    wanted = None if attributes is None else listed(attributes, "attributes")
    left_out = listed(drop, "drop")
    words = listed(categories, "categories")
    columns = Columns(
        *(id, label, split, source, target, weight, left_out, wanted, words),
        split_by=split_by,
        drop_unknown_edges=drop_unknown_edges,
    )
    if like is not None and onto is not None:
        raise SettingError("like and onto exclude each other; give one.")
    given = preparation_like(like)
    fitted = None if given is None else Preparation.from_dict(given)
    if onto is not None:
        with in_python():
            columns = as_in(onto, columns)
        fitted, directed = preparation_of(onto), onto.directed
        prepare = fitted is not None
    both = _table(nodes, "nodes"), _table(edges, "edges")
    return _graph(
        *both,
        columns,
        directed=directed,
        name=name,
        prepare=prepare,
        preparation=fitted,
        onto=onto,
        known=None if like is None else like.node_ids,
    )


def from_networkx(
    network: Any,
    *,
    label: str | None = None,
    split: str | None = None,
    weight: str | None = None,
    attributes: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    prepare: bool = True,
    name: str | None = None,
) -> Graph:
    """A graph from a networkx graph, whose nodes' names become ``node_ids``.

    Attributes of nodes are as in :func:`from_tables`, or lists of numbers of one length, which
    become columns such as ``x[0]`` and ``x[1]``; without any, nodes have their degree. Edges run
    both ways unless the network is directed.

    Args:
        network: a ``networkx`` Graph, DiGraph, MultiGraph or MultiDiGraph.
        label: the node attribute that is the class [label, class, y or target]; "" for none.
        split: the node attribute with the words train, val and test [split]; "" for none.
        weight: the edge attribute that is the weight [weight]; "" for none.
        attributes: the node attributes to use; None: all without another role.
        drop: node attributes to leave out.
        prepare: False takes attributes as they are; all must then be numbers.
        name: what to call the graph; None: what the network is called.
    """
    if not (hasattr(network, "nodes") and hasattr(network, "is_directed")):
        raise GraphError(f"from_networkx takes a networkx graph (got {type(network).__name__}).")
    if network.number_of_nodes() == 0:
        raise GraphError("The networkx graph has no nodes. Add some first.")
    nodes, edges, id_column = network_tables(network)
    wide, parts = _spread(nodes)
    wanted = None if attributes is None else _names(attributes, parts, "attributes")
    left_out = _names(drop, parts, "drop")
    columns = Columns(id_column, label, split, "source", "target", weight, left_out, wanted)
    called = name or str(getattr(network, "name", "") or "graph")
    directed = bool(network.is_directed())
    return _graph(wide, edges, columns, directed=directed, name=called, prepare=prepare)


def _graph(
    nodes: pa.Table,
    edges: pa.Table,
    columns: Columns,
    *,
    directed: bool,
    name: str,
    prepare: bool,
    preparation: Preparation | None = None,
    onto: Graph | None = None,
    known: Array | None = None,
) -> Graph:
    """The graph in two tables."""
    with in_python() as spelt:
        node_table = HeldTable(Path("nodes"), nodes, "nodes")
        edge_table = HeldTable(Path("edges"), edges, "edges")
        found = arranged(
            node_table,
            edge_table,
            columns,
            directed=directed,
            prepare=prepare,
            preparation=preparation,
        )
        for sentence in found.ignored():
            logger.warning("%s", spelt(sentence))
        return read_tables(found, name, onto=onto, known=known)


def preparation_like(graph: Graph | None) -> dict[str, Any] | None:
    """How the tables of a graph were prepared; None where no graph is given."""
    if graph is None:
        return None
    if graph.preparation is None:
        raise SettingError("like takes a graph whose tables were prepared; leave it out.")
    return graph.preparation


def listed(names: Sequence[str], what: str) -> tuple[str, ...]:
    """Names that the user gave for the keyword ``what``."""
    return _names(names, {}, what)


def _names(names: Sequence[str], parts: Mapping[str, Sequence[str]], what: str) -> tuple[str, ...]:
    """Names of columns, those of lists replaced by the names of their places."""
    if isinstance(names, str):
        raise SettingError(f"{what} takes a list of names: give ['{names}'].")
    if not isinstance(names, Iterable):
        raise SettingError(f"{what} takes a list of names (got {names!r}).")
    return tuple(part for one in names for part in parts.get(str(one), [one]))


def _table(value: Any, what: str) -> pa.Table:
    """A table of any kind as one of pyarrow."""
    try:
        if isinstance(value, pa.Table):
            return value
        if type(value).__module__.split(".")[0] == "pandas" and hasattr(value, "columns"):
            named = any(level is not None for level in value.index.names)
            frame = (value.reset_index() if named else value).copy(deep=False)
            for place, kind in enumerate(frame.dtypes):
                if kind == object:  # noqa: E721 (a type of NumPy)
                    frame.isetitem(place, _objects(without_nat(frame.iloc[:, place])))
            return pa.Table.from_pandas(frame, preserve_index=False)
        if isinstance(value, Mapping):
            return pa.table({str(name): pa.array(without_nat(own)) for name, own in value.items()})
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = "; ".join(" ".join(str(part).split()) for part in error.args).rstrip(".")
        raise GraphError(
            f"The table of {what} cannot be read ({reason[:200]}). Give every column values of one "
            "type, and all columns the same length."
        ) from None
    raise GraphError(
        f"The table of {what} must be a pandas DataFrame, a pyarrow Table or a mapping of columns "
        f"(got {type(value).__name__})."
    )


def _objects(values: list[Any]) -> Array:
    """Values as an array of objects, lists among them included."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _spread(nodes: pa.Table) -> tuple[pa.Table, dict[str, list[str]]]:
    """Columns of lists as a column for each place, and what became of them: name → new names."""
    spread, parts = {}, {}
    for name, column in zip(nodes.column_names, nodes.columns, strict=True):
        if not (pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)):
            spread[name] = column
            continue
        rows = [() if row is None else row for row in column.to_pylist()]
        lengths = {len(row) for row in rows}
        if len(lengths) > 1:
            raise GraphError(
                f"nodes: attribute '{name}' has lists of {min(lengths)} to {max(lengths)} numbers. "
                "Give every node as many."
            )
        parts[name] = [f"{name}[{place}]" for place in range(lengths.pop())]
        for part, own in zip(parts[name], zip(*rows, strict=True), strict=True):
            spread[part] = pa.array(own)
    return pa.table(spread), parts


@contextmanager
def in_python() -> Iterator[Callable[[str], str]]:
    """Options of the command line become keywords in errors, and in what the function gets."""
    try:
        yield _spelt
    except HPGMNError as error:
        raise type(error)(_spelt(str(error))) from None


def _spelt(text: str) -> str:
    r"""A message for Python.

    >>> _spelt("'paid' (--weight paid uses it). Give --id name. Ignore it (--weight '').")
    '\'paid\' (weight="paid" uses it). Give id="name". Ignore it (weight="").'
    """
    return _OPTION.sub(_keyword, _VALUED.sub(r'\1="\2"', text))


def _keyword(found: re.Match[str]) -> str:
    """The keyword for an option of the command line."""
    name = found[1].removesuffix("-column").replace("-", "_")
    return _KEYWORDS.get(name, name) + ('=""' if found[2] else "")
