"""``hpgmn predict``: classes and probabilities as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hpgmn.base.errors import SettingError
from hpgmn.cli.console import say
from hpgmn.cli.tables import (
    DropUnknownEdges,
    IdColumn,
    LabelColumn,
    SourceColumn,
    TargetColumn,
    WeightColumn,
    column_options,
)

OWN = typer.Option("--model", help="Your own model, package.module:Class, if the run has one.")


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    graph: Annotated[str | None, typer.Argument(help="Another graph [the trained one].")] = None,
    split: Annotated[int | None, typer.Option(help="Which split's models [the first].")] = None,
    own: Annotated[str | None, OWN] = None,
    out_file: Annotated[Path, typer.Option("--out", help="FILE.csv or FILE.parquet.")] = Path(
        "predictions.csv"
    ),
    min_confidence: Annotated[
        float,
        typer.Option(
            help="Below this confidence the prediction stays empty. Thresholds for a required "
            "accuracy: metrics.json, calibration; they are slightly optimistic, because the same "
            "validation nodes selected the epoch."
        ),
    ] = 0.0,
    add: Annotated[
        bool,
        typer.Option(
            "--add",
            help="GRAPH holds only new nodes and edges, as tables; they are added to the trained "
            "graph, whose nodes the edges may name.",
        ),
    ] = False,
    only_new: Annotated[
        bool | None,
        typer.Option(
            "--only-new/--all-nodes",
            help="Write only the nodes that the model was not trained on [with --add].",
        ),
    ] = None,
    id_: IdColumn = None,
    label: LabelColumn = None,
    source: SourceColumn = None,
    target: TargetColumn = None,
    weight: WeightColumn = None,
    drop_unknown_edges: DropUnknownEdges = False,
) -> None:
    """Write class and calibrated probabilities per node: averaged over seeds, never over splits.

    Tables are read as those of the training were, so options for columns are needed only where
    names differ from then.
    """
    if out_file.suffix not in (".csv", ".parquet"):
        raise SettingError(f"--out must end in .csv or .parquet (got '{out_file}').")
    if not 0 <= min_confidence <= 1:
        raise SettingError(f"--min-confidence must be 0 to 1 (got {min_confidence:g}).")
    columns = column_options(
        *(id_, label, None, source, target, weight, None), drop_unknown_edges=drop_unknown_edges
    )
    if graph is None and (add or only_new or columns):
        raise SettingError(
            "--add, --only-new and options for columns are about another graph than the trained "
            "one.",
            "Name it after the run folder.",
        )
    from hpgmn.runs.run import open_run

    opened = open_run(run, own)
    loaded = opened.load_graph(graph, add=add, columns=columns, notify=say)
    is_new = add if only_new is None else only_new
    found = opened.predict(loaded, split, only_new=is_new, min_confidence=min_confidence)
    found.write(out_file)
    if is_new:
        nodes = f"new nodes of {loaded.num_nodes}"
    elif found.num_new is None:
        nodes = "nodes"
    else:
        nodes = f"nodes ({found.num_new} of them new to the model)"
    count = sum(label is None for label in found.labels)
    empty = f", {count} below {min_confidence:g} left empty" if min_confidence else ""
    place = f"split {found.split}, {found.seeds} seed(s)"
    say(f"{len(found.node_ids)} {nodes}, {place}{empty}: {out_file}")
