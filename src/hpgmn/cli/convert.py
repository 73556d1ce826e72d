"""The command that makes a graph file of a user's own tables: convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpgmn.cli.console import say, step_progress
from hpgmn.errors import SettingError


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
    id_: Annotated[
        str | None, typer.Option("--id", help="The nodes' names [id, node, node_id or name].")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The classes [label, class, y or target]; '' for none.")
    ] = None,
    split_column: Annotated[
        str | None, typer.Option(help="The words train, val and test [split]; '' for none.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Where edges begin [source, src or from].")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Where edges end [target, dst or to].")] = None,
    weight: Annotated[
        str | None, typer.Option(help="The edges' weights [weight]; '' for none.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="Leave out this node column; may be repeated.")
    ] = None,
    directed: Annotated[
        bool | None,
        typer.Option(
            "--directed/--undirected",
            help="Whether edges run one way [directed; GraphML says itself].",
        ),
    ] = None,
) -> None:
    """Make a graph file of tables, GraphML, or an edge list with a node table.

    Columns are found by their names in brackets, or named by the options; all other columns of
    the node table are attributes and must hold numbers.
    """
    from hpgmn.datasets.files import FOLDER_ENDING, graph_name, refuse_taken, write_graph
    from hpgmn.tables import Columns, open_tables, read_tables

    if out.suffix not in (".npz", FOLDER_ENDING, ""):
        raise SettingError(
            f"--out must end in .npz, or name a folder with the ending {FOLDER_ENDING} or none "
            f"(got '{out}')."
        )
    refuse_taken(out)
    columns = Columns(id_, label, split_column, source, target, weight, tuple(drop or ()))
    found = open_tables(tables, columns, nodes=nodes, directed=directed)
    for sentence in found.sentences():
        say(sentence)
    with step_progress() as progress:
        graph = read_tables(found, graph_name(out), progress)
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
