"""What is known: every dataset and protocol by name, and where their graph files are found."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpgmn.base.errors import DataNotFoundError, GraphError, HPGMNError, SettingError, unknown_name
from hpgmn.base.files import cache_folder
from hpgmn.graph.files import FOLDER_ENDING, graph_name, is_graph_folder, read_graph
from hpgmn.graph.graph import Array, Graph, Splits
from hpgmn.graph.splits import random_splits
from hpgmn.tables import Columns, Preparation, Tables, open_tables, read_tables
from hpgmn.tables.joining import as_in, preparation_of
from hpgmn.tables.reading import Progress, silent
from hpgmn.tables.sources import TABLES

logger = logging.getLogger(__name__)

DATA_VARIABLE = "HPGMN_DATA"
"""The environment variable that names a folder of graph files."""


@dataclass(frozen=True)
class Download:
    """How PyTorch Geometric gets a dataset.

    Args:
        dataset_class: the class in ``torch_geometric.datasets``.
        arguments: what it is called with, beside the folder.
        directed: whether its edges run one way.
        families: further families of splits: name → changed arguments.
        unlabels_empty: whether nodes without attributes have no true label either.
    """

    dataset_class: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    directed: bool = False
    families: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    unlabels_empty: bool = False


@dataclass(frozen=True)
class Dataset:
    """What is known of a dataset without its file.

    Args:
        name: the name in every command, report and file (``<name>.npz``).
        num_nodes: N.
        num_edges: edges as the source lists them, self-loops and repeats included.
        num_features: F.
        num_classes: C.
        homophily: node homophily of the undirected graph, where it was measured.
        metric: how it is scored, "accuracy" or "roc_auc".
        source: where the graph comes from.
        download: how to get it; None means that the user brings the file.
        defects: what to know before trusting a score; empty if nothing.
        is_defective: whether loading it warns of the defects.
        random_splits: whether it comes without splits and gets random ones (60/20/20).
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    homophily: float | None
    metric: str
    source: str
    download: Download | None = None
    defects: str = ""
    is_defective: bool = False
    random_splits: bool = False


# name, nodes, edges as listed, attributes, classes, node homophily, score, source
# (citeseer's homophily is .717 where its 15 unlabelled nodes are counted as class 0)
_TABLE: tuple[tuple[str, int, int, int, int, float | None, str, str], ...] = (
    ("texas", 183, 325, 1703, 5, 0.057, "accuracy", "WebKB, Geom-GCN"),
    ("wisconsin", 251, 515, 1703, 5, 0.155, "accuracy", "WebKB, Geom-GCN"),
    ("cornell", 183, 277, 1703, 5, 0.111, "accuracy", "WebKB, heterophilous-graphs"),
    ("cornell-geomgcn", 183, 298, 1703, 5, 0.301, "accuracy", "WebKB, Geom-GCN"),
    ("chameleon", 2277, 36101, 2325, 5, 0.247, "accuracy", "Wikipedia, Geom-GCN"),
    ("squirrel", 5201, 217073, 2089, 5, 0.217, "accuracy", "Wikipedia, Geom-GCN"),
    ("crocodile", 11631, 360040, 128, 5, 0.296, "accuracy", "Wikipedia, MUSAE"),
    ("chameleon-filtered", 890, 13584, 2325, 5, 0.244, "accuracy", "heterophilous-graphs"),
    ("squirrel-filtered", 2223, 65718, 2089, 5, 0.191, "accuracy", "heterophilous-graphs"),
    ("actor", 7600, 33391, 932, 5, 0.220, "accuracy", "film, Geom-GCN"),
    ("cora", 2708, 10556, 1433, 7, 0.825, "accuracy", "citations, Planetoid"),
    ("citeseer", 3327, 9104, 3703, 6, 0.720, "accuracy", "citations, Planetoid"),
    ("pubmed", 19717, 88648, 500, 3, 0.792, "accuracy", "citations, Planetoid"),
    ("minesweeper", 10000, 39402, 7, 2, 0.683, "roc_auc", "heterophilous-graphs"),
    ("tolokers", 11758, 519000, 10, 2, None, "roc_auc", "heterophilous-graphs"),
    ("questions", 48921, 153540, 301, 2, None, "roc_auc", "heterophilous-graphs"),
    ("roman-empire", 22662, 32927, 300, 18, None, "accuracy", "heterophilous-graphs"),
    ("amazon-ratings", 24492, 93050, 300, 5, None, "accuracy", "heterophilous-graphs"),
    ("penn94", 41554, 1362229, 4814, 2, None, "accuracy", "Facebook, LINKX"),
    ("genius", 421961, 984979, 12, 2, None, "roc_auc", "Genius, LINKX"),
    ("twitch-gamers", 168114, 6797557, 7, 2, None, "accuracy", "Twitch, LINKX"),
    ("arxiv-year", 169343, 1166243, 128, 5, None, "accuracy", "citations, LINKX"),
    ("snap-patents", 2923922, 13975788, 269, 5, None, "accuracy", "citations, LINKX"),
    ("pokec", 1632803, 30622564, 65, 2, None, "accuracy", "Pokec, LINKX"),
)

_DEFECTS = {
    "texas": "One class has a single node; 78 of the 183 nodes have no out-edge once self-loops "
    "are dropped.",
    "cornell-geomgcn": "The attributes and labels are those of texas, on the graph of cornell; "
    "cornell is the right one.",
    "chameleon": "About half of the nodes are near-duplicates shared between train and test; "
    "chameleon-filtered is the graph without them.",
    "squirrel": "About half of the nodes are near-duplicates shared between train and test; "
    "squirrel-filtered is the graph without them.",
    "crocodile": "The original attributes are not to be had; these were rebuilt from the raw "
    "article nouns by the same recipe (NMF to 128, standardised).",
    "citeseer": "48 nodes are isolated; 15 others have neither attributes nor a label (y = -1, "
    "in no split).",
}
_WARNED = {"cornell-geomgcn", "chameleon", "squirrel"}

_GEOM_SPLITS = {"geom": {"split": "geom-gcn"}}
_CHAMELEON = {"name": "chameleon", "geom_gcn_preprocess": True}
_SQUIRREL = {"name": "squirrel", "geom_gcn_preprocess": True}
_DOWNLOADS = {
    "texas": Download("WebKB", {"name": "texas"}, directed=True),
    "wisconsin": Download("WebKB", {"name": "wisconsin"}, directed=True),
    "cornell-geomgcn": Download("WebKB", {"name": "cornell"}, directed=True),
    "chameleon": Download("WikipediaNetwork", _CHAMELEON, directed=True),
    "squirrel": Download("WikipediaNetwork", _SQUIRREL, directed=True),
    "actor": Download("Actor", directed=True),
    "cora": Download("Planetoid", {"name": "Cora"}, families=_GEOM_SPLITS),
    "citeseer": Download(
        "Planetoid", {"name": "CiteSeer"}, families=_GEOM_SPLITS, unlabels_empty=True
    ),
    "pubmed": Download("Planetoid", {"name": "PubMed"}, families=_GEOM_SPLITS),
    "minesweeper": Download("HeterophilousGraphDataset", {"name": "Minesweeper"}),
    "tolokers": Download("HeterophilousGraphDataset", {"name": "Tolokers"}),
    "questions": Download("HeterophilousGraphDataset", {"name": "Questions"}),
    "roman-empire": Download("HeterophilousGraphDataset", {"name": "Roman-empire"}),
    "amazon-ratings": Download("HeterophilousGraphDataset", {"name": "Amazon-ratings"}),
    "penn94": Download("LINKXDataset", {"name": "penn94"}),
    "genius": Download("LINKXDataset", {"name": "genius"}),
}

DATASETS: dict[str, Dataset] = {
    row[0]: Dataset(
        *row,
        download=_DOWNLOADS.get(row[0]),
        defects=_DEFECTS.get(row[0], ""),
        is_defective=row[0] in _WARNED,
        random_splits=row[0] == "crocodile",
    )
    for row in _TABLE
}
"""Every dataset that is known by name."""


@dataclass(frozen=True)
class Protocol:
    """Which graphs a published table uses, with which splits and seeds.

    Args:
        name: the protocol's name.
        graphs: its datasets, in the table's order.
        splits: the splits in words.
        seeds: how many seeds are trained on each split.
        family: the family of splits to take instead of the graph's own ones.
        random_splits: whether the splits are drawn (60/20/20, not stratified, split i from
            seed i) rather than stored.
    """

    name: str
    graphs: tuple[str, ...]
    splits: str
    seeds: int = 1
    family: str | None = None
    random_splits: bool = False

    @property
    def metrics(self) -> dict[str, str]:
        """How each of its graphs is scored."""
        return {name: DATASETS[name].metric for name in self.graphs}


_STORED = "the 10 stored splits ({})"
_CITATIONS = ("cora", "citeseer", "pubmed")

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "paper-heterophily",
            ("texas", "wisconsin", "cornell-geomgcn", "chameleon", "squirrel"),
            _STORED.format("48/32/20"),
        ),
        Protocol(
            "paper-crocodile",
            ("crocodile",),
            "10 random splits 60/20/20, not stratified",
            random_splits=True,
        ),
        Protocol("paper-homophily", _CITATIONS, "the public split", seeds=5),
        Protocol(
            "platonov",
            ("minesweeper", "tolokers", "questions", "roman-empire", "amazon-ratings"),
            _STORED.format("50/25/25"),
        ),
        Protocol(
            "sound",
            ("chameleon-filtered", "squirrel-filtered", "cornell", "actor", "minesweeper"),
            _STORED.format("48/32/20, minesweeper 50/25/25"),
        ),
        Protocol(
            "geom-gcn",
            _CITATIONS,
            "the 10 splits 48/32/20 stored beside the public one",
            family="geom",
        ),
    )
}
"""Every protocol by name."""


_MEMBERS = ("nodes", "edges")  # the tables in a folder


def load(
    source: str | Path,
    protocol: str | None = None,
    *,
    columns: Columns | None = None,
    preparation: Mapping[str, Any] | None = None,
    prepare: bool = True,
    tell: Callable[[str], None] = logger.info,
    warn: Callable[[str], None] | None = None,
    progress: Progress = silent,
    onto: Graph | None = None,
    known: Array | None = None,
) -> Graph:
    """A graph by dataset name, from a graph file or folder, or from tables of nodes and edges.

    A named dataset is looked for in the folder that ``HPGMN_DATA`` names, then in the user's
    cache. Tables are a folder with ``nodes`` and ``edges`` (CSV or Parquet), or a GraphML file;
    their columns are prepared as ``hpgmn.tables.preparation`` says. A graph without splits gets ten
    random ones 60/20/20, stratified (crocodile: not).

    Args:
        source: a name in ``DATASETS``, or the path of a graph file, graph folder or tables.
        protocol: a name in ``PROTOCOLS``, whose splits the graph then has.
        columns: what is known of the columns of tables; they are found by name otherwise.
        preparation: how the columns of tables are prepared, the ``preparation`` of another graph;
            None: fitted to these nodes.
        prepare: False takes attributes as they are; all must then be numbers.
        tell: told what the columns of tables are taken for, and what becomes of them.
        warn: told which columns of the edge table are ignored; None: ``tell`` is.
        progress: told how far the reading of tables is.
        onto: a graph to which the tables are added: they hold new nodes only, and their edges may
            name its nodes. New nodes are in no part of its splits.
        known: ids of an earlier graph, which a message about edges to unknown nodes looks at.

    Returns:
        The graph, with splits wherever two classes or more have labels.
    """
    if protocol is not None and protocol not in PROTOCOLS:
        raise HPGMNError.unknown("protocol", protocol, PROTOCOLS)
    tables = _tables(source)
    if tables is None:
        path = _file(source)
        if columns is not None and columns != Columns():
            raise SettingError(
                f"'{source}' has no tables, so nothing can be said of their columns. Leave out "
                f"{', '.join(columns.as_dict())}."
            )
        graph = read_graph(path)
        if onto is not None:
            raise SettingError(
                f"--add takes a folder with tables of the new nodes and edges ('{source}' is a "
                "whole graph). Leave out --add."
            )
    else:
        fitted = None if preparation is None else Preparation.from_dict(preparation)
        columns = columns or Columns()
        if onto is not None:
            columns, fitted = as_in(onto, columns), preparation_of(onto)
            prepare = fitted is not None
        directed = None if onto is None else onto.directed
        found = open_tables(tables, columns, directed=directed, prepare=prepare, preparation=fitted)
        for sentence in found.sentences():
            tell(sentence)
        for sentence in found.ignored():
            (warn or tell)(sentence)
        graph = read_tables(found, graph_name(tables), progress, tell, onto=onto, known=known)
        if onto is not None:
            return graph
        if fitted is None:
            _refuse_empty_parts(graph, found)
    dataset = DATASETS.get(graph.name)
    if dataset is not None and dataset.num_nodes != graph.num_nodes:
        dataset = None  # the user's own graph, which happens to have the name of another
    if dataset is not None and dataset.is_defective:
        logger.warning("Dataset '%s' has a defect. %s", dataset.name, dataset.defects)
    if protocol is not None:
        return graph.with_splits(_protocol_splits(graph, PROTOCOLS[protocol]))
    if graph.splits is None:
        stratified = dataset is None or not dataset.random_splits
        is_new = tables is not None and preparation is None
        return _with_random_splits(graph, stratified, tell if is_new else logger.info)
    return graph


def find_file(name: str) -> Path | None:
    """The graph file or folder of a known dataset on this machine, or None.

    Args:
        name: a name in ``DATASETS``.
    """
    dataset = known_dataset(name)
    for folder in _folders():
        path = folder / f"{dataset.name}.npz"
        if path.is_file():
            return path
        for ending in (FOLDER_ENDING, ""):
            if is_graph_folder(folder / f"{dataset.name}{ending}"):
                return folder / f"{dataset.name}{ending}"
    return None


def known_dataset(name: str) -> Dataset:
    """The dataset of that name; an unknown name is the user's mistake."""
    if name not in DATASETS:
        raise HPGMNError.unknown("dataset", name, DATASETS)
    return DATASETS[name]


def bring_the_file(name: str) -> str:
    """What to do about a dataset that cannot be downloaded."""
    return f"bring the file as {name}.npz into the folder named by {DATA_VARIABLE}"


def _folders() -> list[Path]:
    """Where graph files are looked for, in order."""
    named = os.environ.get(DATA_VARIABLE)
    if not named:
        return [cache_folder()]
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise HPGMNError(
            f"{DATA_VARIABLE} names '{named}', which is not a folder: set it to a folder of .npz "
            "graph files, or unset it."
        )
    return [folder, cache_folder()]


def _file(source: str | Path) -> Path:
    """The file behind what the user gave: a known name first, then a path."""
    path = Path(source).expanduser()
    if isinstance(source, str) and source in DATASETS:
        found = find_file(source)
        if found is not None:
            return found
        remedy = bring_the_file(source)
        if DATASETS[source].download is not None:
            remedy = f"run `hpgmn datasets --download {source}`, or {remedy}"
        raise DataNotFoundError(f"Dataset '{source}' is not on this machine: {remedy}.")
    if is_graph_folder(path):
        return path
    if path.is_dir():
        raise HPGMNError(
            f"'{source}' is a folder, not a graph file: give a .npz file, or put tables nodes and "
            f"edges ({', '.join(TABLES)}) into it."
        )
    is_path = isinstance(source, Path) or path.suffix == ".npz" or len(path.parts) > 1
    if is_path or path.exists():
        return path
    message = unknown_name("dataset", str(source), DATASETS)
    raise HPGMNError(f"{message} Or give the path of a .npz graph file.")


def _tables(source: str | Path) -> Path | None:
    """The folder of tables or the GraphML file that the user gave, or None."""
    path = Path(source).expanduser()
    if source in DATASETS or is_graph_folder(path):
        return None
    is_folder = any((path / f"{name}{end}").is_file() for name in _MEMBERS for end in TABLES)
    return path if is_folder or path.suffix == ".graphml" else None


def _protocol_splits(graph: Graph, protocol: Protocol) -> Splits:
    if graph.name not in protocol.graphs:
        raise HPGMNError(
            f"Protocol '{protocol.name}' does not use '{graph.name}'. "
            f"Choose from: {', '.join(protocol.graphs)}."
        )
    if protocol.random_splits:
        return random_splits(graph)
    splits = graph.splits
    if protocol.family is not None:
        splits = graph.alternative_splits.get(protocol.family)
    if splits is None:
        missing = f"{protocol.family}_train_mask" if protocol.family else "train_mask"
        raise GraphError(
            f"Protocol '{protocol.name}' needs {protocol.splits}, but the file of '{graph.name}' "
            f"has no array '{missing}': take the published file."
        )
    return splits


def _refuse_empty_parts(graph: Graph, tables: Tables) -> None:
    """Refuse a split column that leaves nothing to train on, or to choose by."""
    if graph.splits is None or tables.split is None:
        return
    empty = [part for part in ("train", "val") if not getattr(graph.splits, part).any()]
    if empty:
        raise GraphError(
            f"{tables.nodes.label}: column '{tables.split}' has no {' and no '.join(empty)} nodes. "
            "Write the words train, val and test there, or ignore the column for random splits "
            "(--split-column '')."
        )


def _with_random_splits(graph: Graph, stratified: bool, tell: Callable[[str], None]) -> Graph:
    """The graph with ten random splits, or as it is where its labels do not suffice."""
    kind = "stratified" if stratified else "not stratified"
    if np.unique(graph.y[graph.y >= 0]).size >= 2:
        try:
            splits = random_splits(graph, stratified=stratified)
        except GraphError as error:  # whoever needs splits says so
            logger.info("Graph '%s' has no splits and gets none. %s", graph.name, error)
        else:
            tell(
                f"Graph '{graph.name}' has no splits and gets 10 random ones 60/20/20, {kind}, "
                "seeds 0 to 9."
            )
            return graph.with_splits(splits)
    return graph
