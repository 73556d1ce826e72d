"""From tables to a graph: batches in, the graph's own arrays out.

The node table is read twice: first names, labels and splits, which say how many nodes there are,
then the attributes, straight into their place. So is the edge table where its length is not known.
What is held at any time is the graph, one batch, and the names of the nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpgmn.base.errors import GraphError
from hpgmn.graph import Array, Graph
from hpgmn.graph.edges import SortedEdges
from hpgmn.tables.degrees import degree_column, log_degrees
from hpgmn.tables.ends import earlier, other_names
from hpgmn.tables.joining import NewNodes, all_names, joined, refuse_other_edges
from hpgmn.tables.layout import Tables
from hpgmn.tables.preparation import DEGREE, Preparation, Tell, fit, with_roles
from hpgmn.tables.sources import NUMBER, TEXT, Table, as_numbers, as_text, plain
from hpgmn.tables.splitting import split_by
from hpgmn.tables.words import Words, alike, canonical

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and how much there is, if known."""

ROLES = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}
"""The words of a split column."""

MOST_CLASSES, MANY_CLASSES, FEW_NODES = 1_000, 100, 5
"""More classes than the first are no classes; nor more than the second with so few nodes each."""

_VALUES = 1 << 22  # numbers of a batch of attributes
_LEAST_ROWS = 1 << 10
_EDGES = 1 << 21  # edges that are looked up at once, or more: as many as there are nodes


def silent(what: str, done: int, total: int | None) -> None:
    """Progress that nobody sees."""


def read_tables(
    tables: Tables,
    name: str = "graph",
    progress: Progress = silent,
    tell: Tell = logger.info,
    *,
    onto: Graph | None = None,
    known: Array | None = None,
) -> Graph:
    """The graph in two tables.

    Ids become ``node_ids`` and stay text; classes are in the order of their names, or of their
    numbers where all are whole; a node without a label is unknown; edges keep their order.

    Args:
        tables: from :func:`open_tables`.
        name: what to call the graph.
        progress: told after each batch.
        tell: told what becomes of columns and edges.
        onto: a graph with ``node_ids`` to which the tables are added; edges may name its nodes.
        known: ids of an earlier graph, to tell edges that lead there from other mistakes.
    """
    whole = onto is None and all(
        table.has_whole(column)
        for table, column in (
            (tables.nodes, tables.id),
            (tables.edges, tables.source),
            (tables.edges, tables.target),
        )
    )
    ids, labels, roles = _names(tables, whole, progress)
    every = ids if onto is None else all_names(onto, tables, ids)
    if onto is not None:
        refuse_other_edges(onto, tables)
    fitted = tables.preparation
    given = fitted if fitted is not None else onto
    y, class_names = labels.classes(() if given is None else given.class_names)
    if tables.prepare and fitted is None and y is not None:
        refuse_labels(tables, y, class_names or [])
    _warn_of_alike(tables, class_names or [])
    splits = _splits(tables, roles, y)
    if tables.split_by is not None and y is not None:
        splits = split_by(tables.nodes, *tables.split_by, y, tell)
    x = None
    feature_names = list(tables.attributes) or [DEGREE]
    if tables.prepare:
        progress(f"Preparing the attributes in {tables.nodes.label}", 0, None)
        fitted, x = _prepared(tables, class_names or (), tell)
    elif tables.attributes:
        x = _attributes(tables.nodes, tables.attributes, len(ids), progress)
    edges = _edges(tables, every, whole, progress, tell, known)
    if x is None:
        fitted, x = _by_degree(tables, fitted, log_degrees(edges[0], len(every))[-len(ids) :])
    if fitted is not None:
        feature_names = fitted.feature_names
    progress("Checking the graph", 0, None)
    if onto is not None:
        ends, _, weights = edges
        new = NewNodes(x, y, class_names, _text_array(ids), ends, weights)
        return joined(onto, new, name)
    graph = Graph(
        x,
        SortedEdges.of(*edges),
        y,
        directed=tables.directed,
        node_ids=_text_array(ids),
        class_names=class_names,
        feature_names=feature_names,
        name=name,
        train_mask=splits.get("train"),
        val_mask=splits.get("val"),
        test_mask=splits.get("test"),
    )
    graph.preparation = None if fitted is None else fitted.as_dict()
    return graph


def _prepared(
    tables: Tables, class_names: Sequence[str], tell: Tell
) -> tuple[Preparation, Array | None]:
    """How the attributes are made, fitted to these nodes or to earlier ones, and themselves.

    They are None where no column can be used.
    """
    table, fitted = tables.nodes, tables.preparation
    if fitted is None:
        fitted, x = fit(table, tables.attributes, tables.categories, tell, logger.warning)
        return with_roles(fitted, tables.roles, class_names), x
    x = fitted.attributes(table, tell) if tables.attributes else None
    known = {*tables.attributes, *fitted.left_out, tables.id, tables.label, tables.split}
    known |= {fitted.roles["label"], fitted.roles["split"], *(tables.split_by or ())}
    classes = [f"'{name}'" for name in class_names if name not in fitted.class_names]
    if classes:
        tell(
            f"{table.label}: column '{tables.label}' holds {', '.join(classes[:5])}, which the "
            "model does not know and never predicts."
        )
    extra = [f"'{name}'" for name in table.types if name not in known]
    if extra:
        tell(f"{table.label}: ignored, because the model does not know it: {', '.join(extra)}.")
    own = {"has_whole_ids": table.has_whole(tables.id)}
    return replace(fitted, roles=fitted.roles | own), x


def _by_degree(
    tables: Tables, fitted: Preparation | None, degrees: Array
) -> tuple[Preparation | None, Array]:
    """The degrees as the only attribute, and the preparation that knows of it."""
    column = None if fitted is None else fitted.degree
    if column is None:
        if not degrees.any():
            raise GraphError(
                f"{tables.nodes.label} has no attributes that can be used, and "
                f"{tables.edges.label} no edges, so there is nothing to learn from. Add a column "
                "that varies, or edges."
            )
        logger.warning(
            "%s has no attributes that can be used, so nodes have one: degree, the logarithm of "
            "1 + their edges.",
            tables.nodes.label,
        )
    if fitted is None:
        return None, degrees[:, None].astype(np.float32)
    column = column or degree_column(degrees)
    return replace(fitted, columns=(column,)), column.attributes(degrees).astype(np.float32)


def refuse_labels(tables: Tables, y: Array, class_names: Sequence[str]) -> None:
    """Refuse labels that no model can learn: one class only, or what is probably a number."""
    labelled, classes = int((y >= 0).sum()), len(class_names)
    where = f"{tables.nodes.label}: column '{tables.label}' has"
    if classes == 1:
        raise GraphError(
            f"{where} one value only, '{class_names[0]}', and telling classes apart needs two. "
            "Choose another column with --label."
        )
    if classes > MOST_CLASSES or (classes > MANY_CLASSES and labelled < FEW_NODES * classes):
        raise GraphError(
            f"{where} {classes:,} different values for {labelled:,} labelled nodes: it is probably "
            "a number or a name, not a class. Choose another column with --label, or put its "
            "values into a few groups."
        )


def _warn_of_alike(tables: Tables, class_names: Sequence[str]) -> None:
    """Warn of classes that are probably one."""
    pairs = [f"'{one}' and '{other}'" for one, other in alike(class_names)]
    if pairs:
        logger.warning(
            "%s: column '%s' has classes that differ only by case, spaces or a trailing '.0': %s. "
            "Spell them alike if they are one class.",
            tables.nodes.label,
            tables.label,
            ", ".join(pairs[:3]),
        )


@dataclass
class _Faults:
    """How many rows are wrong in one way, and the first of them."""

    count: int = 0
    place: int = 0
    value: Any = None

    def note(
        self, wrong: Array, start: int = 0, value: Callable[[int], Any] = lambda row: None
    ) -> None:
        """Add the rows of a batch that starts at row ``start``; ``wrong`` marks them."""
        found = np.flatnonzero(wrong)
        if found.size and not self.count:
            first = int(found[0])
            self.place, self.value = start + first, value(first)
        self.count += int(found.size)

    def such(self, noun: str) -> str:
        """The count in brackets, such as "(3 such edges)"; nothing for one."""
        return f" ({self.count:,} such {noun}s in all)" if self.count > 1 else ""


def _keys(table: Table, name: str, column: Any, whole: bool) -> Any:
    """Ids in the form in which they are compared: int64 or text, null where empty."""
    column = plain(column)
    if pa.types.is_floating(column.type):  # whole numbers that some library made floats
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise GraphError(
                f"{table.label}: column '{name}' holds fractions; ids are text or whole numbers. "
                "Choose another column, or write them as text."
            ) from None
    if whole:
        return column.cast(pa.int64())
    text = as_text(table, name, column)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text)


def _names(tables: Tables, whole: bool, progress: Progress) -> tuple[Any, Words, Words]:
    """The ids, checked to be there and distinct, with the labels and the split words."""
    table, what = tables.nodes, f"Reading the names in {tables.nodes.label}"
    kinds = {name: TEXT for name in (tables.id, tables.label, tables.split) if name is not None}
    chunks, labels, roles = [], Words(), Words()
    count = 0
    for batch in table.batches(kinds):
        chunks.append(_keys(table, tables.id, batch.column(tables.id), whole))
        if tables.label is not None:
            # What a CSV file calls true or TRUE has the name it has elsewhere.
            spelt = canonical if pa.types.is_boolean(table.types[tables.label]) else str
            labels.add(as_text(table, tables.label, batch.column(tables.label)), spelt)
        if tables.split is not None:
            roles.add(as_text(table, tables.split, batch.column(tables.split)))
        count += batch.num_rows
        progress(what, count, None)
    if not count:
        raise GraphError(f"{table.label} has no rows. Add a row for each node.")
    ids = pa.chunked_array(chunks).combine_chunks()
    faults = _Faults()
    faults.note(ids.is_null().to_numpy(zero_copy_only=False))
    if faults.count:
        raise GraphError(
            f"{table.label}: {table.row(faults.place)} has no id in column '{tables.id}'"
            f"{faults.such('row')}. Give every node one."
        )
    if not whole:
        faults.note(pc.match_substring(ids, "\0").to_numpy(zero_copy_only=False))
    if faults.count:
        raise GraphError(
            f"{table.label}: {table.row(faults.place)} has an id with a NUL character in column "
            f"'{tables.id}'{faults.such('row')}. Remove it."
        )
    first = pc.index_in(ids, value_set=ids).to_numpy()
    faults.note(first != np.arange(count), 0, lambda row: (ids[row].as_py(), int(first[row])))
    if faults.count:
        value, before = faults.value
        raise GraphError(
            f"{table.label}: {table.row(faults.place)} repeats the id '{value}' of row "
            f"{before + 1:,}{faults.such('row')}. Keep one row for each node."
        )
    return ids, labels, roles


def _splits(tables: Tables, words: Words, y: Array | None) -> dict[str, Array]:
    """The masks of the split column."""
    if not words.codes:
        return {}
    table = tables.nodes
    codes = np.concatenate(words.codes)
    roles = [ROLES.get(word.strip().casefold(), -2) for word in words.numbers]
    role = np.asarray([*roles, -1])[codes]
    faults = _Faults()
    faults.note(role == -2, 0, lambda row: list(words.numbers)[codes[row]])
    if faults.count:
        raise GraphError(
            f"{table.label}: column '{tables.split}' holds '{faults.value}' in "
            f"{table.row(faults.place)}{faults.such('row')}. Use train, val, test, or nothing; or "
            "choose with --split-column."
        )
    unlabelled = (role >= 0) & (y < 0 if y is not None else True)
    if tables.preparation is not None:  # later nodes are to be predicted, whatever their part
        role = np.where(unlabelled, -1, role)
    else:
        faults.note(unlabelled)
    if faults.count:
        word = list(words.numbers)[codes[faults.place]]
        raise GraphError(
            f"{table.label}: {table.row(faults.place)} is in split '{word}' but has no label"
            f"{faults.such('row')}. Leave the split of such nodes empty."
        )
    return {part: role == number for number, part in enumerate(("train", "val", "test"))}


def _attributes(
    table: Table, columns: tuple[str, ...], num_nodes: int, progress: Progress
) -> Array:
    """(N, F) float32; missing and infinite numbers are refused, counted by column."""
    what = f"Reading the attributes in {table.label}"
    x = np.empty((num_nodes, len(columns)), np.float32)
    missing = [_Faults() for _ in columns]
    infinite = [_Faults() for _ in columns]
    start = 0
    rows = max(_VALUES // len(columns), _LEAST_ROWS)
    for batch in table.batches(dict.fromkeys(columns, NUMBER), rows):
        block = x[start : start + batch.num_rows]
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            for place, column in enumerate(batch.columns):
                block[:, place] = as_numbers(column)
        if not np.isfinite(block).all():
            for place in range(len(columns)):
                missing[place].note(np.isnan(block[:, place]), start)
                infinite[place].note(np.isinf(block[:, place]), start)
        start += batch.num_rows
        progress(what, start, num_nodes)
    for faults, before, after in ((missing, "missing ", ""), (infinite, "", " beyond ±3.4e38")):
        wrong = [place for place, fault in enumerate(faults) if fault.count]
        if wrong:
            fault, name = faults[wrong[0]], columns[wrong[0]]
            others = len(wrong) - 1
            more = f", and {others:,} more column{'s'[: others > 1]} likewise" if others else ""
            many = f"{fault.count:,} {before}number{'s'[: fault.count > 1]}{after}"
            raise GraphError(
                f"{table.label}: column '{name}' has {many}, the first in "
                f"{table.row(fault.place)}{more}. Put finite numbers there, for example the "
                "column's mean, or leave the column out (--drop)."
            )
    return x


def _edges(
    tables: Tables, ids: Any, whole: bool, progress: Progress, tell: Tell, known: Array | None
) -> tuple[Array, int, Array | None]:
    """(2, E) positions, N and (E,) weights, or None; edges that name no node are refused.

    Args:
        tables: where they are.
        ids: the nodes' ids, in the form in which they are compared.
        whole: whether that is as whole numbers.
        progress: told after each batch.
        tell: told of edges that are left out.
        known: ids of an earlier graph.
    """
    table, what = tables.edges, f"Reading the edges in {tables.edges.label}"
    count = f"Counting the edges in {table.label}"
    num_edges = table.num_rows(lambda rows: progress(count, rows, None))
    kinds = {tables.source: TEXT, tables.target: TEXT}
    if tables.weight is not None:
        kinds[tables.weight] = NUMBER
    edge_index = np.empty((2, num_edges), np.int32)
    edge_weight = None if tables.weight is None else np.empty(num_edges, np.float32)
    unknown, unusable = _Faults(), _Faults()
    missing: set[str | None] = set()  # ends that are no id
    start = 0
    batches = table.batches(kinds, min(_EDGES, 1 << 18))
    for group in _groups(batches, max(_EDGES, len(ids))):
        size = group.num_rows
        columns = (tables.source, tables.target)
        ends = [group.column(name) for name in columns]
        keys = [_keys(table, name, end, whole) for name, end in zip(columns, ends, strict=True)]
        both = pa.chunked_array([chunk for key in keys for chunk in key.chunks], keys[0].type)
        found = pc.index_in(both, value_set=ids).fill_null(-1)  # one hash table for both ends
        block = edge_index[:, start : start + size]
        block[:] = found.to_numpy().reshape(2, size)
        unknown.note(block.min(axis=0) < 0, start, partial(_unknown_end, ends, block))
        if unknown.count:
            missing.update(both.filter(pc.equal(found, -1)).unique().cast(pa.string()).to_pylist())
        if edge_weight is not None:
            given = group.column(tables.weight)
            with np.errstate(over="ignore"):
                weight = as_numbers(given.combine_chunks()).astype(np.float32)
            edge_weight[start : start + size] = weight
            usable: Array = np.isfinite(weight) & (weight > 0)
            if tables.drop_unknown_edges:
                usable |= block.min(axis=0) < 0
            unusable.note(~usable, start, given.__getitem__)
        start += size
        progress(what, start, num_edges)
    if unknown.count:
        end, value = unknown.value
        is_empty = value is None or value == "" or value != value  # null, empty, not a number
        told = f"no {end}" if is_empty else f"the {end} '{value}', no id in {tables.nodes.label}"
        fault = f"{table.label}: {table.row(unknown.place)} has {told}{unknown.such('edge')}"
        words = {end for end in missing if end is not None}
        why = ""
        if 2 * unknown.count > num_edges:
            why = other_names(tables, ids.cast(pa.string()).to_pylist(), words)
        remedy = why or "Add the node, or remove the edge (--drop-unknown-edges does)."
        if not why and (why := earlier(words, known)):
            remedy = f"{why} Otherwise add{remedy.removeprefix('Add')}"
        if not tables.drop_unknown_edges:
            raise GraphError(f"{fault}. {remedy}")
        tell(f"{fault}; left out. {why}".rstrip())
    if unusable.count:
        value = unusable.value.as_py()
        told = "no weight" if value is None else f"weight {value:g}"
        raise GraphError(
            f"{table.label}: {table.row(unusable.place)} has {told}{unusable.such('edge')}; "
            "weights must be finite and positive. Remove such edges, or ignore the column "
            "(--weight '')."
        )
    if unknown.count:
        kept = edge_index.min(axis=0) >= 0
        edge_index = edge_index[:, kept]
        edge_weight = None if edge_weight is None else edge_weight[kept]
    return edge_index, len(ids), edge_weight


def _unknown_end(ends: list[Any], block: Array, row: int) -> tuple[str, Any]:
    """Which end of an edge names no node, and what stands there."""
    end = 0 if block[0, row] < 0 else 1
    return ("source", "target")[end], ends[end][row].as_py()


def _groups(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Batches put together to that many rows and more: each group costs a hash table of all ids."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.num_rows for one in held) >= rows:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _text_array(ids: Any) -> Array:
    """Ids as the text array that a graph keeps."""
    text = ids.cast(pa.large_string())
    width = pc.max(pc.utf8_length(text)).as_py()
    array = np.empty(len(text), f"U{max(width, 1)}")
    for start in range(0, len(text), 1 << 16):
        part = text[start : start + (1 << 16)]
        array[start : start + len(part)] = part.to_pylist()
    return array
