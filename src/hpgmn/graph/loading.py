"""Graphs for Python programs: what the commands load, with keywords in place of options."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from hpgmn.base.errors import SettingError
from hpgmn.graph import datasets as registry
from hpgmn.graph.graph import Graph
from hpgmn.tables.layout import Columns
from hpgmn.tables.objects import in_python, listed, preparation_like

logger = logging.getLogger(__name__)


def load(
    graph: str | Path,
    protocol: str | None = None,
    *,
    id: str | None = None,
    label: str | None = None,
    split: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    attributes: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    directed: bool | None = None,
    categories: Sequence[str] = (),
    split_by: tuple[str, str] | None = None,
    drop_unknown_edges: bool = False,
    prepare: bool = True,
    like: Graph | None = None,
    onto: Graph | None = None,
) -> Graph:
    """A graph by dataset name, from a graph file or folder, or from tables of nodes and edges.

    A named dataset is looked for in the folder that ``HPGMN_DATA`` names, then in the user's
    cache. Tables are a folder with ``nodes`` and ``edges`` (CSV or Parquet), or a GraphML file;
    all keywords but ``protocol`` are about their columns. A graph without splits gets ten random
    ones 60/20/20, stratified (crocodile: not).

    Args:
        graph: the name of a dataset, or the path of a graph file, graph folder or tables.
        protocol: a published protocol, whose splits the graph then has.
        id: the column of the nodes' names [id, node, node_id or name].
        label: the column of classes [label, class, y or target]; "" for none.
        split: the column with the words train, val and test [split]; "" for none.
        source: the column where edges begin [source, src or from].
        target: the column where edges end [target, dst or to].
        weight: the column of edge weights [weight]; "" for none.
        attributes: the columns that describe a node; None: all without another role.
        drop: node columns to leave out.
        directed: whether edges run one way; None: as GraphML says, and otherwise yes.
        categories: columns that are categories even if they hold numbers.
        split_by: how to make splits: ("group", column), whose groups never straddle, or
            ("time", column), oldest nodes train and newest test.
        drop_unknown_edges: leave out edges that name no node rather than refuse them.
        prepare: False takes attributes as they are; all must then be numbers.
        like: a graph made of tables, for instance the one trained on: columns, scales, categories
            and classes are then as there, not found anew.
        onto: a graph to which the tables are added: they hold new nodes only, and their edges may
            name its nodes. New nodes are in no part of its splits.

    Returns:
        The graph, with splits wherever two classes or more have labels.
    """
    if like is not None and onto is not None:
        raise SettingError("like and onto exclude each other; give one.")
    columns = Columns(
        *(id, label, split, source, target, weight, listed(drop, "drop")),
        None if attributes is None else listed(attributes, "attributes"),
        listed(categories, "categories"),
        split_by=split_by,
        drop_unknown_edges=drop_unknown_edges,
        directed=directed,
    )
    with in_python() as spelt:
        return registry.load(
            graph,
            protocol,
            columns=columns,
            preparation=preparation_like(like),
            prepare=prepare,
            warn=lambda line: logger.warning("%s", spelt(line)),
            onto=onto,
            known=None if like is None else like.node_ids,
        )
