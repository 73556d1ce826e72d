"""Options about the columns of tables, shared by the commands."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer

GRAPH_HELP = (
    "A dataset's name, a graph file or folder, or a folder with tables nodes and edges (.csv or "
    ".parquet)."
)

IdColumn: TypeAlias = Annotated[
    str | None, typer.Option("--id", help="The node ids [id, node, node_id or name].")
]
LabelColumn: TypeAlias = Annotated[
    str | None,
    typer.Option("--label", help="The classes [label, class, y or target]; '' for none."),
]
SplitColumn: TypeAlias = Annotated[
    str | None, typer.Option("--split-column", help="Train, val and test [split]; '' for none.")
]
SourceColumn: TypeAlias = Annotated[
    str | None, typer.Option("--source", help="The edges' sources [source, src or from].")
]
TargetColumn: TypeAlias = Annotated[
    str | None, typer.Option("--target", help="The edges' targets [target, dst or to].")
]
WeightColumn: TypeAlias = Annotated[
    str | None, typer.Option("--weight", help="The edge weights [weight]; '' for none.")
]
DroppedColumns: TypeAlias = Annotated[
    list[str] | None, typer.Option("--drop", help="Leave out this node column; may be repeated.")
]
Categories: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--category", help="Node column of numbers to read as categories; may be repeated."
    ),
]
SplitBy: TypeAlias = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--split-by",
        metavar="group|time COLUMN",
        help="Make splits that keep groups together, or that train on the oldest nodes and test on "
        "the newest [random, stratified].",
    ),
]
DropUnknownEdges: TypeAlias = Annotated[
    bool, typer.Option("--drop-unknown-edges", help="Leave out edges to unknown nodes.")
]
Directed: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--directed/--undirected",
        help="Whether the tables' edges are directed [directed; GraphML: as the file says].",
    ),
]


def column_options(
    id: str | None,
    label: str | None,
    split: str | None,
    source: str | None,
    target: str | None,
    weight: str | None,
    drop: list[str] | None,
    categories: list[str] | None = None,
    split_by: tuple[str, str] | None = None,
    drop_unknown_edges: bool = False,
    directed: bool | None = None,
) -> dict[str, Any]:
    """Return the given options as keywords of ``hpgmn.load``.

    >>> column_options(None, "kind", None, None, None, "", ["age"])
    {'label': 'kind', 'weight': '', 'drop': ['age']}
    """
    options = {
        "id": id,
        "label": label,
        "split": split,
        "source": source,
        "target": target,
        "weight": weight,
        "drop": drop or None,
        "categories": categories or None,
        "split_by": None if split_by is None else list(split_by),
        "drop_unknown_edges": drop_unknown_edges or None,
        "directed": directed,
    }
    return {name: value for name, value in options.items() if value is not None}
