"""Known datasets and protocols (``datasets.yaml``), and loading of graphs by name or path."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from hpgmn.base.errors import (
    DataNotFoundError,
    GraphError,
    HPGMNError,
    Remedy,
    SettingError,
    list_names,
)
from hpgmn.base.files import cache_folder
from hpgmn.base.parsing import load_yaml
from hpgmn.base.tasks import is_known
from hpgmn.graph.edges import Array
from hpgmn.graph.files import FOLDER_ENDING, graph_name, is_graph_folder, read_graph
from hpgmn.graph.graph import Graph, Splits, random_splits

if TYPE_CHECKING:
    from hpgmn.tables.columns import Tables
    from hpgmn.tables.options import ColumnOptions

logger = logging.getLogger(__name__)

DATA_VARIABLE = "HPGMN_DATA"
"""The environment variable that names a folder of graph files."""

_TABLES = (".csv", ".tsv", ".parquet")  # tables.sources would load pyarrow


@dataclass(frozen=True)
class Download:
    """How PyTorch Geometric gets a dataset.

    Args:
        dataset_class: the class in ``torch_geometric.datasets``.
        arguments: its arguments beside the folder.
        directed: whether edges are directed.
        families: further families of splits: name → changed arguments.
        unlabels_empty: whether nodes without attributes have no true label either.
        merged_edges: distinct edges if the source lists some of them twice.
    """

    dataset_class: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    directed: bool = False
    families: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    unlabels_empty: bool = False
    merged_edges: int | None = None


@dataclass(frozen=True)
class Dataset:
    """A known dataset.

    Args:
        name: the name in every command, report and file (``<name>.npz``).
        num_edges: edges as the source lists them, self-loops and repeats included.
        num_classes: 0 for a regression.
        metric: "accuracy", "roc_auc" or "r2".
        source: where the graph comes from.
        homophily: node homophily of the undirected graph, where it was measured.
        download: how to download it; None: the user supplies the file.
        defects: known defects.
        is_defective: whether loading it warns of the defects.
        random_splits: whether it has no stored splits and gets random ones, not stratified.
    """

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    metric: str
    source: str
    homophily: float | None = None
    download: Download | None = None
    defects: str = ""
    is_defective: bool = False
    random_splits: bool = False


@dataclass(frozen=True)
class Protocol:
    """The graphs, splits and seeds of a published table.

    Args:
        name: the protocol's name.
        graphs: its datasets, in the table's order.
        splits: a description of the splits.
        seeds: how many seeds are trained on each split.
        family: the family of splits; None: the graph's own splits.
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
        """The metric of each graph."""
        return {name: DATASETS[name].metric for name in self.graphs}


def _dataset(name: str, entry: dict[str, Any]) -> Dataset:
    if "download" in entry:
        entry["download"] = Download(**entry["download"])
    return Dataset(name, **entry.pop("size"), **entry)


_REGISTRY = load_yaml(Path(__file__).with_suffix(".yaml"))

DATASETS: dict[str, Dataset] = {
    name: _dataset(name, entry) for name, entry in _REGISTRY["datasets"].items()
}
"""All known datasets by name."""

PROTOCOLS: dict[str, Protocol] = {
    name: Protocol(name, **{**entry, "graphs": tuple(entry["graphs"])})
    for name, entry in _REGISTRY["protocols"].items()
}
"""All protocols by name."""


def load(
    graph: str | Path,
    protocol: str | None = None,
    *,
    prepare: bool = True,
    like: Graph | None = None,
    onto: Graph | None = None,
    preparation: Mapping[str, Any] | None = None,
    earlier_ids: Array | None = None,
    log: Callable[[str], None] = logger.info,
    progress: Callable[[str, int, int | None], None] | None = None,
    **columns: Unpack[ColumnOptions],
) -> Graph:
    """Load a graph by dataset name, from a graph file or folder, or from tables.

    A dataset is looked up in the folder that ``HPGMN_DATA`` names, then in the user's cache. Tables
    are a folder with ``nodes`` and ``edges`` (CSV or Parquet), or a GraphML file; all keywords but
    ``protocol`` are about them. A graph without splits gets ten random ones 60/20/20, stratified
    (crocodile: not).

    Args:
        graph: the name of a dataset, or the path of a graph file, graph folder or tables.
        protocol: a published protocol, whose splits the graph gets.
        prepare: see :meth:`Graph.from_tables`; the same for ``like`` and ``onto``.
        like: a graph from tables whose columns are used.
        onto: a graph to extend.
        preparation: the ``preparation`` of a graph, instead of ``like``.
        earlier_ids: the ids of an earlier graph, for the message about edges to unknown nodes.
        log: receives the roles of columns and what becomes of them.
        progress: called with the step, the amount done, and the total if it is known.
        **columns: ``id``, ``label``, ``split``, ``source``, ``target``, ``weight``,
            ``edge_type``, ``attributes``, ``drop``, ``categories``, ``split_by``,
            ``drop_unknown_edges`` and ``directed``; see :class:`hpgmn.tables.options.Columns`.

    Returns:
        The graph, with splits if at least two classes have labels.
    """
    if protocol is not None and protocol not in PROTOCOLS:
        raise HPGMNError.unknown("protocol", protocol, PROTOCOLS)
    tables_path = _tables_path(graph)
    if tables_path is None:
        _refuse_table_options(graph, columns, onto)
        loaded: Graph = read_graph(_graph_path(graph))
    else:
        from hpgmn.graph.conversion import read_graph_tables, reading_options
        from hpgmn.tables.columns import open_tables

        roles, options = reading_options(columns, prepare, like, onto, preparation)
        tables = open_tables(tables_path, roles, **options)
        loaded = read_graph_tables(
            Graph,
            tables,
            graph_name(tables_path),
            onto=onto,
            earlier_ids=like.node_ids if like is not None else earlier_ids,
            log=log,
            progress=progress,
        )
        if onto is not None:
            return loaded
        if tables.preparation is None:
            _require_parts(loaded, tables)
    dataset = DATASETS.get(loaded.name)
    if dataset is not None and dataset.num_nodes != loaded.num_nodes:
        dataset = None  # the user's own graph of the same name
    if dataset is not None and dataset.is_defective:
        logger.warning("Dataset '%s' has a defect. %s", dataset.name, dataset.defects)
    if protocol is not None:
        return loaded.with_splits(_protocol_splits(loaded, PROTOCOLS[protocol]))
    if loaded.splits is not None:
        return loaded
    is_new = tables_path is not None and preparation is None and like is None
    stratified = dataset is None or not dataset.random_splits
    return with_random_splits(loaded, stratified, log if is_new else logger.info)


def find_file(name: str) -> Path | None:
    """Return the path of the local copy of a known dataset, or None."""
    dataset = known_dataset(name)
    for folder in _data_folders():
        path = folder / f"{dataset.name}.npz"
        if path.is_file():
            return path
        for ending in (FOLDER_ENDING, ""):
            if is_graph_folder(folder / f"{dataset.name}{ending}"):
                return folder / f"{dataset.name}{ending}"
    return None


def known_dataset(name: str) -> Dataset:
    """Return the dataset of that name."""
    if name not in DATASETS:
        raise HPGMNError.unknown("dataset", name, DATASETS)
    return DATASETS[name]


def supply_file(name: str) -> Remedy:
    """Return the remedy for a dataset that cannot be downloaded."""
    return Remedy(f"Put {name}.npz into the folder that {DATA_VARIABLE} names")


def _data_folders() -> list[Path]:
    """Return the folders of graph files, in the order of look-up."""
    value = os.environ.get(DATA_VARIABLE)
    if not value:
        return [cache_folder()]
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise HPGMNError(
            f"{DATA_VARIABLE} names '{value}', which is not a folder.",
            "Set it to a folder of .npz graph files, or unset it",
        )
    return [folder, cache_folder()]


def _graph_path(graph: str | Path) -> Path:
    """Return the path of a known dataset, or else the given path."""
    path = Path(graph).expanduser()
    if isinstance(graph, str) and graph in DATASETS:
        local_copy = find_file(graph)
        if local_copy is not None:
            return local_copy
        remedy = supply_file(graph)
        if DATASETS[graph].download is not None:
            download = Remedy("Download it", command="datasets", option="download", value=graph)
            remedy = download | remedy
        raise DataNotFoundError(f"Dataset '{graph}' has no local copy.", remedy)
    if is_graph_folder(path):
        return path
    if path.is_dir():
        present = sorted(member.name for member in path.iterdir() if member.suffix)
        held = f"; it holds {list_names(present)}" if present else ""
        raise HPGMNError(
            f"Folder '{graph}' has no tables nodes and edges ({', '.join(_TABLES)}){held}.",
            "Save the tables under these names, or pass a .npz file",
        )
    if path.suffix in (*_TABLES, ".xls", ".xlsx"):
        raise HPGMNError(
            f"'{graph}' is one table, but a graph has two.",
            "Save them as nodes.csv and edges.csv, and pass their folder",
        )
    is_path = isinstance(graph, Path) or path.suffix == ".npz" or len(path.parts) > 1
    if is_path or path.exists():
        return path
    error = HPGMNError.unknown("dataset", str(graph), DATASETS)
    assert error.remedy is not None
    raise HPGMNError(
        error.message, error.remedy | "Pass the path of a graph file or a folder of tables"
    )


def _tables_path(graph: str | Path) -> Path | None:
    """Return the path of a folder of tables or a GraphML file, or None for other graphs."""
    path = Path(graph).expanduser()
    if graph in DATASETS or is_graph_folder(path):
        return None
    is_folder = any(
        (path / f"{name}{suffix}").is_file() for name in ("nodes", "edges") for suffix in _TABLES
    )
    return path if is_folder or path.suffix == ".graphml" else None


def _refuse_table_options(graph: str | Path, columns: ColumnOptions, onto: Graph | None) -> None:
    """Refuse options about tables for a graph without tables."""
    if columns:
        from hpgmn.tables.options import Columns, check_column_options, column_remedy

        options = check_column_options(columns)
        given = Columns(**{key: value for key, value in options.items() if value is not None})
        defaults = vars(Columns())
        names = [key for key, value in vars(given).items() if value != defaults[key]]
        is_present = graph in DATASETS or Path(graph).expanduser().exists()
        if names and is_present:  # otherwise the graph is reported as missing
            raise SettingError(
                f"'{graph}' has no tables, so its columns cannot be named ({', '.join(names)}).",
                column_remedy("Leave out such options", names[0]),
            )
    if onto is not None:
        raise SettingError(
            f"'{graph}' is a whole graph; only tables of new nodes and edges can be added.",
            "Pass it alone, or give a folder with tables of what is new",
        )


def _protocol_splits(graph: Graph, protocol: Protocol) -> Splits:
    if graph.name not in protocol.graphs:
        raise HPGMNError(
            f"Protocol '{protocol.name}' does not use '{graph.name}'.",
            f"Choose from: {', '.join(protocol.graphs)}",
        )
    if protocol.random_splits:
        return random_splits(graph, stratified=False)
    splits = graph.splits
    if protocol.family is not None:
        splits = graph.alternative_splits.get(protocol.family)
    if splits is None:
        missing = f"{protocol.family}_train_mask" if protocol.family else "train_mask"
        raise GraphError(
            f"Protocol '{protocol.name}' needs {protocol.splits}, but the file of '{graph.name}' "
            f"has no array '{missing}'.",
            "Use the published file",
        )
    return splits


def _require_parts(graph: Graph, tables: Tables) -> None:
    """Refuse a split column without train or validation nodes."""
    if graph.splits is None or tables.split is None:
        return
    empty = [part for part in ("train", "val") if not getattr(graph.splits, part).any()]
    if empty:
        ignore = "Ignore the column and use random splits"
        raise GraphError(
            f"{tables.nodes.label}: column '{tables.split}' has no {' and no '.join(empty)} nodes.",
            Remedy("Write train, val and test there")
            | Remedy(ignore, option="split", value="", flag="split-column"),
        )


def with_random_splits(graph: Graph, stratified: bool, log: Callable[[str], None]) -> Graph:
    """Return the graph with ten random splits, or unchanged if it has too few labels."""
    if np.unique(graph.y[is_known(graph.y)]).size < 2:
        return graph
    stratified = stratified and not graph.is_regression
    try:
        splits = random_splits(graph, stratified=stratified)
    except GraphError as error:  # an error only where splits are needed
        logger.info("Graph '%s' has no splits. %s", graph.name, error)
        return graph
    kind = "stratified" if stratified else "not stratified"
    drawn = f"using 10 random splits 60/20/20, {kind}, seeds 0 to 9"
    log(f"Graph '{graph.name}' has no splits; {drawn}.")
    return graph.with_splits(splits)
