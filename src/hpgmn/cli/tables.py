"""Options that say what the columns of a user's own tables are, the same for every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from hpgmn.tables import Columns

GRAPH_HELP = (
    "A dataset's name, a graph file or folder, or a folder with tables nodes and edges (.csv or "
    ".parquet)."
)

IdColumn: TypeAlias = Annotated[
    str | None, typer.Option("--id", help="The nodes' names [id, node, node_id or name].")
]
LabelColumn: TypeAlias = Annotated[
    str | None,
    typer.Option("--label", help="The classes [label, class, y or target]; '' for none."),
]
SplitColumn: TypeAlias = Annotated[
    str | None,
    typer.Option("--split-column", help="The words train, val and test [split]; '' for none."),
]
SourceColumn: TypeAlias = Annotated[
    str | None, typer.Option("--source", help="Where edges begin [source, src or from].")
]
TargetColumn: TypeAlias = Annotated[
    str | None, typer.Option("--target", help="Where edges end [target, dst or to].")
]
WeightColumn: TypeAlias = Annotated[
    str | None, typer.Option("--weight", help="The edges' weights [weight]; '' for none.")
]
DroppedColumns: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--drop", help="Leave out this node column; may be repeated."),
]
Categories: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--category", help="Node column that is a category though it holds numbers; repeatable."
    ),
]
SplitBy: TypeAlias = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--split-by",
        metavar="group|time COLUMN",
        help="Make splits whose groups never straddle, or oldest nodes train and newest test "
        "[random, stratified].",
    ),
]
DropUnknownEdges: TypeAlias = Annotated[
    bool, typer.Option("--drop-unknown-edges", help="Leave out edges that name no node.")
]
Directed: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--directed/--undirected",
        help="Whether the tables' edges run one way [directed; GraphML says itself].",
    ),
]


def named_columns(
    id_: str | None,
    label: str | None,
    split_column: str | None,
    source: str | None,
    target: str | None,
    weight: str | None,
    drop: list[str] | None,
    category: list[str] | None = None,
    split_by: tuple[str, str] | None = None,
    drop_unknown_edges: bool = False,
    directed: bool | None = None,
) -> Columns:
    """What the options say of the columns."""
    from hpgmn.tables import Columns

    return Columns(
        *(id_, label, split_column, source, target, weight, tuple(drop or ())),
        categories=tuple(category or ()),
        split_by=split_by,
        drop_unknown_edges=drop_unknown_edges,
        directed=directed,
    )
