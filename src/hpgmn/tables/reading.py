"""Read two tables into the arrays of a graph, in batches.

The node table is read twice: ids, labels and splits first, which give the number of nodes, then the
attributes, straight into their array. The edge table is read twice if its length is not known.
Memory holds the arrays, one batch, and the ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpgmn.base.edge_types import MAX_TYPES, OTHER, match_types, merge_rare_types
from hpgmn.base.errors import GraphError, Remedy, count_noun, list_names
from hpgmn.base.tasks import is_known
from hpgmn.tables.column_types import Column, Degree
from hpgmn.tables.columns import Tables
from hpgmn.tables.edge_columns import add_aggregates, is_repeated, log_degrees
from hpgmn.tables.edges import EdgeData, id_keys, newest_validation_time, read_edges
from hpgmn.tables.options import column_remedy
from hpgmn.tables.preparation import Log, Preparation, fit
from hpgmn.tables.sources import (
    NUMBER,
    TEXT,
    Array,
    Table,
    as_numbers,
    as_text,
    canonical,
    is_integer,
    number_words,
)
from hpgmn.tables.splitting import PARTS, split_by
from hpgmn.tables.targets import read_targets

logger = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the step, the amount done, and the total if it is known."""

ROLES = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}
"""The words of a split column."""

MAX_CLASSES, MANY_CLASSES, FEW_NODES = 1_000, 100, 5
"""Labels are refused above the first, or above the second with fewer nodes per class than this."""
SOME_CLASSES = 20
"""More classes than this that are integers are probably numbers."""

_FEW_REPEATS = 0.05  # the share of repeated edges that may be accidents
_BATCH_VALUES = 1 << 22
_MIN_BATCH_ROWS = 1 << 10


@dataclass(frozen=True, eq=False)
class TableData:
    """A graph as plain arrays, in the form that ``Graph`` takes.

    Attributes:
        edge_index: (2, E) positions among the nodes; of an extension, the old nodes come first.
        edge_values: (E, columns) the columns of the edge table that are used.
        masks: (N,) or (N, S) booleans by part, or empty.
        preparation: how columns became attributes, in plain values; None if they are unchanged.
        as_of: the time after which edges were left out; None: there are all.
    """

    x: Array
    edge_index: Array
    edge_weight: Array | None
    edge_type: Array | None
    edge_type_names: Sequence[str]
    edge_values: Array | None
    y: Array | None
    class_names: list[str] | None
    node_ids: Array
    feature_names: list[str]
    masks: dict[str, Array]
    directed: bool
    preparation: dict[str, Any] | None
    as_of: str | None = None


def ignore_progress(step: str, done: int, total: int | None) -> None:
    """Report progress nowhere."""


def read_tables(
    tables: Tables,
    progress: Progress = ignore_progress,
    log: Log = logger.info,
    *,
    onto: Any | None = None,
    earlier_ids: Array | None = None,
) -> TableData:
    """Read two tables into arrays.

    Ids stay text; classes are sorted by name, or by number if all are integers; edges keep their
    order.

    Args:
        tables: from :func:`hpgmn.tables.columns.open_tables`.
        progress: called after each batch.
        log: receives what becomes of columns and edges.
        onto: a graph that the tables extend; edges may name its nodes.
        earlier_ids: ids of an earlier graph, for the message about edges to unknown nodes.
    """
    has_integer_ids = onto is None and all(
        table.has_integers(column)
        for table, column in (
            (tables.nodes, tables.id),
            (tables.edges, tables.source),
            (tables.edges, tables.target),
        )
    )
    ids, labels, roles = _read_names(
        tables, has_integer_ids, progress, may_be_empty=onto is not None
    )
    all_ids = ids
    if onto is not None:
        for role, noun, has_role in (
            ("weight", "weights", onto.is_weighted),
            ("edge_type", "edge types", onto.edge_type_names),
        ):
            if has_role and getattr(tables, role) is None:
                raise GraphError(
                    f"{tables.edges.label} has no {noun}, but the edges of graph '{onto.name}' "
                    "have.",
                    Remedy("Add the column") | Remedy("Name it", option=role),
                )
        all_ids = _extend_ids(onto, tables, ids)
    preparation = tables.preparation
    earlier = preparation if preparation is not None else onto
    y, class_names = read_targets(tables, list(labels.numbers), labels.codes, onto), None
    if y is not None:
        tables = replace(tables, task="regression")
        if preparation is None:
            log(f"{tables.nodes.label}: column '{tables.label}' holds numbers to predict.")
    else:
        y, class_names = labels.classes(() if earlier is None else earlier.class_names)
    if tables.prepare and preparation is None and y is not None and class_names is not None:
        check_labels(tables, y, class_names or [])
    _warn_similar(tables, class_names or [])
    masks = _masks(tables, roles, y)
    if tables.split_by is not None and y is not None:
        masks = split_by(tables.nodes, *tables.split_by, y, log)
        if tables.preparation is None and tables.as_of is None:
            tables = replace(tables, as_of=newest_validation_time(tables, masks["val"], log))
    x = None
    if tables.prepare:
        progress(f"Preparing the attributes in {tables.nodes.label}", 0, None)
        preparation, x = _prepare(tables, class_names or (), log)
    elif tables.attributes:
        x = _read_attributes(tables.nodes, tables.attributes, len(ids), progress)
    edges = read_edges(tables, all_ids, has_integer_ids, progress, log, earlier_ids)
    edge_type, type_names = edges.type, edges.type_names
    if edge_type is not None:
        known = () if onto is None else onto.edge_type_names
        if preparation is not None and onto is None:
            known = preparation.roles.get("edge_type_names", ())
        edge_type, type_names = _order_types(tables, edge_type, type_names, known, log)
    if preparation is not None:
        x = np.empty((len(ids), 0), np.float32) if x is None else x
        if onto is None:
            if edges.columns:
                progress(f"Aggregating the columns in {tables.edges.label}", 0, None)
            preparation, x = _aggregate(tables, preparation, x, edges, log)
    elif x is None:
        degrees = _only_degrees(tables, edges.index, len(all_ids))
        x = degrees[-len(ids) :, None].astype(np.float32)
    feature_names = list(tables.attributes) or [Degree.kind]
    return TableData(
        x,
        edges.index,
        edges.weight,
        edge_type,
        type_names,
        edges.values,
        y,
        class_names,
        _text_array(ids),
        feature_names if preparation is None else preparation.feature_names,
        masks,
        tables.directed,
        None if preparation is None else preparation.as_dict(),
        tables.as_of,
    )


def _aggregate(
    tables: Tables, preparation: Preparation, x: Array, edges: EdgeData, log: Log
) -> tuple[Preparation, Array]:
    """Append aggregates of edges to the attributes, fitted now or earlier."""
    fitted: Sequence[Column] | None = preparation.aggregates
    if tables.preparation is None:
        count, repeats = edges.index.shape[1], int(is_repeated(edges.index, len(x)).sum())
        if repeats:
            log(f"{tables.edges.label}: {count:,} edges, {count - repeats:,} distinct pairs.")
        fitted = None if repeats > _FEW_REPEATS * count or edges.columns else ()
    x, aggregates = add_aggregates(
        x, edges.index, edges.values, edges.columns, tables.directed, fitted
    )
    if not x.shape[1]:
        degrees = _only_degrees(tables, edges.index, len(x))
        aggregates = (Degree.fitted(degrees),)
        x = aggregates[0].attributes(degrees).astype(np.float32)
    columns = (*preparation.node_columns, *aggregates)
    for name in {column.name for column in aggregates} & set(preparation.names):
        raise GraphError(
            f"Column '{name}' of {tables.nodes.label} has the name of an aggregate of edges.",
            Remedy("Rename it") | tables.nodes.drop_remedy(name),
        )
    return replace(preparation, columns=columns, edge_columns=edges.columns), x


def _only_degrees(tables: Tables, edge_index: Array, num_nodes: int) -> Array:
    """Return the only attribute of nodes without columns, with a warning."""
    if not edge_index.size:
        raise GraphError(
            f"{tables.nodes.label} has no attributes that can be used, and "
            f"{tables.edges.label} no edges, so there is nothing to learn from.",
            "Add a column that varies, or edges",
        )
    logger.warning(
        "%s has no attributes that can be used, so nodes have one: degree, the logarithm of "
        "1 + their edges.",
        tables.nodes.label,
    )
    return log_degrees(edge_index, num_nodes)


def _order_types(
    tables: Tables, types: Array, names: Sequence[str], known: Sequence[str], log: Log
) -> tuple[Array, Sequence[str]]:
    """Return types (E,) and names as in an earlier graph, or sorted by name and merged."""
    column = f"{tables.edges.label}: column '{tables.edge_type}'"
    if known:
        numbers = np.asarray(match_types(names, known, column), np.uint8)
        if new := [name for name in names if name not in known]:
            log(f"{column} holds {list_names(new)}, unknown to the model: read as '{OTHER}'.")
        return numbers[types], known
    order = sorted(range(len(names)), key=names.__getitem__)
    types, kept = merge_rare_types(np.argsort(order)[types], [names[number] for number in order])
    merged = f", rarer ones of {len(names):,} merged" if len(names) > MAX_TYPES else ""
    log(f"{column}: {count_noun(len(kept), 'edge type')}{merged}: {list_names(kept, MAX_TYPES)}.")
    if merged and 2 * np.count_nonzero(types == MAX_TYPES - 1) > len(types):
        logger.warning(
            "%s holds %s values, so most edges are of type '%s'. %s",
            *(column, f"{len(names):,}", OTHER),
            column_remedy("Name a column of few types", "edge_type"),
        )
    return types, kept


def _extend_ids(graph: Any, tables: Tables, ids: Any) -> Any:
    """Append new ids to those of a graph; refuse ids in both."""
    known = pa.array(graph.node_ids.tolist(), pa.large_string())
    table = tables.nodes
    table.refuse_rows(
        pc.is_in(ids, value_set=known).to_numpy(zero_copy_only=False),
        lambda row: (
            f"{table.row(row)} has the id '{ids[row].as_py()}', which graph '{graph.name}' has "
            "already"
        ),
        "Leave such rows out, or pass the whole graph, old and new, instead of adding to it",
    )
    return pa.concat_arrays([known, ids.cast(known.type)])


def _prepare(
    tables: Tables, class_names: Sequence[str], log: Log
) -> tuple[Preparation, Array | None]:
    """Return the preparation, fitted now or earlier, and the attributes, None without any."""
    table, fitted = tables.nodes, tables.preparation
    if fitted is None:
        fitted, x = fit(table, tables.attributes, tables.categories, log)
        return replace(fitted, roles=tables.roles, class_names=tuple(class_names)), x
    x = fitted.attributes(table, log) if tables.attributes else None
    known = {*tables.attributes, *fitted.left_out, tables.id, tables.label, tables.split}
    known |= {fitted.roles["label"], fitted.roles["split"], *(tables.split_by or ())}
    if new_classes := [name for name in class_names if name not in fitted.class_names]:
        log(
            f"{table.label}: column '{tables.label}' holds {list_names(new_classes)}, which the "
            "model does not know and never predicts."
        )
    if new_columns := [name for name in table.types if name not in known]:
        names = list_names(new_columns, most=len(new_columns))
        log(f"{table.label}: ignored, because the model does not know: {names}.")
    id_role = {"has_whole_ids": table.has_integers(tables.id)}
    return replace(fitted, roles=fitted.roles | id_role), x


def check_labels(tables: Tables, y: Array, class_names: Sequence[str]) -> None:
    """Refuse labels that no model can learn: a single class, or what is probably a number."""
    labelled, classes = int((y >= 0).sum()), len(class_names)
    where = f"{tables.nodes.label}: column '{tables.label}' has"
    another = Remedy("Choose another column", option="label")
    numbers = Remedy("Predict numbers", option="task", value="regression")
    if classes == 1:
        raise GraphError(
            f"{where} a single value, '{class_names[0]}', but classification needs two classes.",
            another,
        )
    if classes > MAX_CLASSES or (classes > MANY_CLASSES and labelled < FEW_NODES * classes):
        raise GraphError(
            f"{where} {classes:,} different values for {labelled:,} labelled nodes: it is probably "
            "a number or a name, not a class.",
            another | "Group its values into a few classes" | numbers,
        )
    if classes > SOME_CLASSES and all(map(is_integer, class_names)):
        logger.warning("%s %d different integers, read as classes. %s", where, classes, numbers)


def _warn_similar(tables: Tables, class_names: Sequence[str]) -> None:
    """Warn of classes that are probably one."""
    pairs = [f"'{first}' and '{second}'" for first, second in similar_names(class_names)]
    if pairs:
        logger.warning(
            "%s: column '%s' has classes that differ only by case, spaces or a trailing '.0': %s. "
            "Spell them alike if they are one class.",
            *(tables.nodes.label, tables.label, list_names(pairs, quote="")),
        )


def similar_names(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of names that differ only by case, surrounding spaces, or a trailing ".0".

    >>> similar_names(["red", "blue", "Red ", "1", "1.0"])
    [('red', 'Red '), ('1', '1.0')]
    """
    first_spelling: dict[str, str] = {}
    pairs = []
    for name in names:
        first = first_spelling.setdefault(canonical(name.strip()).casefold(), name)
        if first != name:
            pairs.append((first, name))
    return pairs


@dataclass
class EncodedWords:
    """A column of words as codes, numbered in the order of first occurrence; -1 where empty."""

    numbers: dict[str, int] = field(default_factory=dict)
    codes: list[Array] = field(default_factory=list)

    def add(self, column: Any, spell: Callable[[str], str] = str) -> None:
        """Add a batch of text; ``spell`` gives the spelling to store."""
        codes = number_words(column, self.numbers, lambda word: word.strip() and spell(word))
        self.codes.append(codes)

    def classes(self, known: Sequence[str] = ()) -> tuple[Array | None, list[str] | None]:
        """Return labels (N,) and class names, both None without a column.

        Args:
            known: classes that come first, in their order; a word of the same value is such a
                class, however it is spelt.
        """
        if not self.codes:
            return None, list(known) or None
        spelling = {canonical(name): name for name in reversed(known)}
        spelling |= {name: name for name in known}
        words = list(self.numbers)
        names = [spelling.get(word, spelling.get(canonical(word), word)) for word in words]
        new_names = sorted(names)
        if all(map(is_integer, words)):
            new_names = sorted(names, key=lambda name: (int(canonical(name)), names.index(name)))
        class_names = list(dict.fromkeys([*known, *new_names]))
        number = {name: number for number, name in enumerate(class_names)}
        label = np.asarray([*(number[name] for name in names), -1], np.int64)
        return label[np.concatenate(self.codes)], class_names


def _read_names(
    tables: Tables, has_integer_ids: bool, progress: Progress, *, may_be_empty: bool
) -> tuple[Any, EncodedWords, EncodedWords]:
    """Read ids, labels and split words; ids must be present and distinct."""
    table, step = tables.nodes, f"Reading the names in {tables.nodes.label}"
    read_as = {name: TEXT for name in (tables.id, tables.label, tables.split) if name is not None}
    chunks, labels, roles = [], EncodedWords(), EncodedWords()
    count = 0
    for batch in table.batches(read_as):
        chunks.append(id_keys(table, tables.id, batch.column(tables.id), has_integer_ids))
        if tables.label is not None:
            # true and TRUE in a CSV file are the booleans of other files.
            spell = canonical if pa.types.is_boolean(table.types[tables.label]) else str
            labels.add(as_text(table, tables.label, batch.column(tables.label)), spell)
        if tables.split is not None:
            roles.add(as_text(table, tables.split, batch.column(tables.split)))
        count += batch.num_rows
        progress(step, count, None)
    if not count and not (may_be_empty and chunks):
        raise GraphError(f"{table.label} has no rows.", "Add a row for each node")
    ids = pa.chunked_array(chunks).combine_chunks()
    column = f"column '{tables.id}'"
    table.refuse_rows(
        ids.is_null().to_numpy(zero_copy_only=False),
        lambda row: f"{table.row(row)} has no id in {column}",
        "Give every node one",
    )
    if not has_integer_ids:
        table.refuse_rows(
            pc.match_substring(ids, "\0").to_numpy(zero_copy_only=False),
            lambda row: f"{table.row(row)} has an id with a NUL character in {column}",
            "Remove it",
        )
    first = pc.index_in(ids, value_set=ids).to_numpy()
    table.refuse_rows(
        first != np.arange(count),
        lambda row: (
            f"{table.row(row)} repeats the id '{ids[row].as_py()}' of row {first[row] + 1:,}"
        ),
        "Keep one row for each node",
    )
    return ids, labels, roles


def _masks(tables: Tables, words: EncodedWords, y: Array | None) -> dict[str, Array]:
    """Return the masks of the split column."""
    if not words.codes:
        return {}
    table = tables.nodes
    codes = np.concatenate(words.codes)
    role = np.asarray([*(ROLES.get(word.strip().casefold(), -2) for word in words.numbers), -1])
    role = role[codes]

    def word(row: int) -> str:
        return list(words.numbers)[int(codes[row])]

    table.refuse_rows(
        role == -2,
        lambda row: f"column '{tables.split}' holds '{word(row)}' in {table.row(row)}",
        Remedy("Use train, val, test, or nothing")
        | Remedy("Name another column", option="split", flag="split-column"),
    )
    unlabelled = (role >= 0) & (~is_known(y) if y is not None else True)
    if tables.preparation is None:
        table.refuse_rows(
            unlabelled,
            lambda row: f"{table.row(row)} is in split '{word(row)}' but has no label",
            "Leave the split of such nodes empty",
        )
    role = np.where(unlabelled, -1, role)  # later nodes are to be predicted, whatever their part
    return {part: role == number for number, part in enumerate(PARTS)}


def _read_attributes(
    table: Table, columns: tuple[str, ...], num_nodes: int, progress: Progress
) -> Array:
    """Read (N, F) float32; missing and infinite numbers are refused."""
    x = np.empty((num_nodes, len(columns)), np.float32)
    start, is_finite = 0, True
    rows = max(_BATCH_VALUES // len(columns), _MIN_BATCH_ROWS)
    for batch in table.batches(dict.fromkeys(columns, NUMBER), rows):
        block = x[start : start + batch.num_rows]
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            for number, column in enumerate(batch.columns):
                block[:, number] = as_numbers(column)
        is_finite = is_finite and bool(np.isfinite(block).all())
        start += batch.num_rows
        progress(f"Reading the attributes in {table.label}", start, num_nodes)
    if is_finite:
        return x
    is_wrong = np.isnan(x)
    noun, limit = "missing number", ""
    if not is_wrong.any():
        is_wrong, noun, limit = np.isinf(x), "number", " beyond ±3.4e38"
    wrong = np.flatnonzero(is_wrong.any(axis=0))
    name, marks = columns[wrong[0]], is_wrong[:, wrong[0]]
    others = f", and in {count_noun(len(wrong) - 1, 'other column')}" if len(wrong) > 1 else ""
    raise GraphError(
        f"{table.label}: column '{name}' has {count_noun(int(marks.sum()), noun)}{limit}, the "
        f"first in {table.row(int(marks.argmax()))}{others}.",
        Remedy("Put finite numbers there, for example the column's mean") | table.drop_remedy(name),
    )


def _text_array(ids: Any) -> Array:
    """Convert ids to the text array of a graph."""
    text = ids.cast(pa.large_string())
    width = pc.max(pc.utf8_length(text)).as_py()
    array = np.empty(len(text), f"U{max(width or 0, 1)}")
    for start in range(0, len(text), 1 << 16):
        part = text[start : start + (1 << 16)]
        array[start : start + len(part)] = part.to_pylist()
    return array
