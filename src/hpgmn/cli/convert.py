"""``hpgmn convert``: tables, GraphML or an edge list to a graph file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hpgmn.base.errors import count_noun
from hpgmn.cli.console import say, step_progress
from hpgmn.cli.options import column_options


@column_options("categories", "edge_drop", "edge_categories")
def convert(
    tables: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A folder with tables nodes and edges (.csv or .parquet), a .graphml file, or an "
            "edge list together with --nodes.",
        ),
    ],
    *,
    out: Annotated[
        Path, typer.Option(help="FILE.npz; or a folder, which is faster to read if it is large.")
    ],
    nodes: Annotated[Path | None, typer.Option(help="The node table of an edge list.")] = None,
    columns: dict[str, Any],
    overwrite: Annotated[bool, typer.Option(help="Replace the graph in --out.")] = False,
) -> None:
    """Convert tables, GraphML, or an edge list with a node table to a graph file.

    Columns are detected by the names in brackets, or named by the options; all other columns of
    the node table are attributes and must hold numbers, which stay as they are. (`hpgmn train`
    reads tables directly, with columns of any type.)
    """
    from hpgmn.graph import Graph
    from hpgmn.graph.conversion import read_graph_tables
    from hpgmn.graph.files import check_target, graph_name, write_graph
    from hpgmn.tables.columns import open_tables
    from hpgmn.tables.options import Columns

    check_target(out, overwrite=overwrite)
    opened = open_tables(tables, Columns(**columns), nodes=nodes)
    with step_progress() as progress:
        graph = read_graph_tables(Graph, opened, graph_name(out), log=say, progress=progress)
        progress(f"Writing {out}", 0, None)
        write_graph(graph, out)
    unlabelled = int((graph.y < 0).sum())
    parts = [
        count_noun(graph.num_nodes, "node"),
        f"{count_noun(graph.num_listed_edges, 'edge')} as listed",
        count_noun(graph.num_features, "attribute"),
        count_noun(graph.num_classes, "class"),
    ]
    if unlabelled:
        parts.append(f"{count_noun(unlabelled, 'node')} without a label")
    if graph.splits is not None:
        sizes = [int(getattr(graph.splits, part).sum()) for part in ("train", "val", "test")]
        parts.append("split " + "/".join(f"{size:,}" for size in sizes))
    say(f"{out}: {', '.join(parts)}.")
