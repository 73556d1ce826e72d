"""The command that makes a graph file of a user's own tables: convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpgmn.base.errors import HPGMNError, SettingError
from hpgmn.cli.console import say, step_progress
from hpgmn.cli.tables import (
    Directed,
    DroppedColumns,
    DropUnknownEdges,
    IdColumn,
    LabelColumn,
    SourceColumn,
    SplitColumn,
    TargetColumn,
    WeightColumn,
    named_columns,
)


def convert(
    tables: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A folder with tables nodes and edges (.csv or .parquet), a .graphml file, or an "
            "edge list together with --nodes.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="FILE.npz; or the name of a folder, read faster if the graph is large."),
    ],
    nodes: Annotated[Path | None, typer.Option(help="The node table of an edge list.")] = None,
    id_: IdColumn = None,
    label: LabelColumn = None,
    split_column: SplitColumn = None,
    source: SourceColumn = None,
    target: TargetColumn = None,
    weight: WeightColumn = None,
    drop: DroppedColumns = None,
    drop_unknown_edges: DropUnknownEdges = False,
    directed: Directed = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the graph in --out.")] = False,
) -> None:
    """Make a graph file of tables, GraphML, or an edge list with a node table.

    Columns are found by their names in brackets, or named by the options; all other columns of
    the node table are attributes and must hold numbers, which stay as they are. (`hpgmn train`
    reads tables by itself, and takes columns of any type.)
    """
    from hpgmn.graph.files import FOLDER_ENDING, graph_name, refuse_taken, write_graph
    from hpgmn.tables import open_tables, read_tables

    if out.suffix not in (".npz", FOLDER_ENDING, ""):
        raise SettingError(
            f"--out must end in .npz, or name a folder with the ending {FOLDER_ENDING} or none "
            f"(got '{out}')."
        )
    refuse_taken(out)
    if out.exists() and not overwrite:
        raise HPGMNError(f"{out} exists. Replace it with --overwrite, or choose another --out.")
    columns = named_columns(
        *(id_, label, split_column, source, target, weight, drop),
        drop_unknown_edges=drop_unknown_edges,
    )
    found = open_tables(tables, columns, nodes=nodes, directed=directed)
    for sentence in [*found.sentences(), *found.ignored()]:
        say(sentence)
    with step_progress() as progress:
        graph = read_tables(found, graph_name(out), progress, say)
        progress(f"Writing {out}", 0, None)
        write_graph(graph, out)
    unlabelled = int((graph.y < 0).sum())
    parts = [
        _count(graph.num_nodes, "node"),
        f"{_count(graph.num_listed_edges, 'edge')} as listed",
        _count(graph.num_features, "attribute"),
        _count(graph.num_classes, "class"),
    ]
    if unlabelled:
        parts.append(f"{_count(unlabelled, 'node')} without a label")
    if graph.splits is not None:
        sizes = [int(getattr(graph.splits, part).sum()) for part in ("train", "val", "test")]
        parts.append("split " + "/".join(f"{size:,}" for size in sizes))
    say(f"{out}: {', '.join(parts)}.")


def _count(number: int, word: str) -> str:
    """A number with its noun.

    >>> _count(1, "class"), _count(2_000, "class"), _count(0, "node")
    ('1 class', '2,000 classes', '0 nodes')
    """
    plural = word + ("es" if word.endswith("s") else "s")
    return f"{number:,} {word if number == 1 else plural}"
