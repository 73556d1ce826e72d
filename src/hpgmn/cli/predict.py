"""``hpgmn predict``: classes and probabilities as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hpgmn.base.errors import SettingError, count_noun
from hpgmn.cli.console import say
from hpgmn.cli.options import Add, ModelsSplit, OtherGraph, OwnModel, RunFolder, column_options


@column_options(
    *("split", "drop", "categories", "edge_drop", "edge_categories", "edge_time", "as_of"),
    *("split_by", "directed"),
)
def predict(
    run: RunFolder,
    graph: OtherGraph = None,
    *,
    split: ModelsSplit = None,
    own: OwnModel = None,
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
    add: Add = False,
    only_new: Annotated[
        bool | None,
        typer.Option(
            "--only-new/--all-nodes",
            help="Write only the nodes that the model was not trained on [with --add].",
        ),
    ] = None,
    columns: dict[str, Any],
) -> None:
    """Write class and calibrated probabilities per node: averaged over seeds, never over splits.

    Tables are read with the column names used in training; pass column options only if the names
    have changed.
    """
    if out_file.suffix not in (".csv", ".parquet"):
        raise SettingError(f"--out must end in .csv or .parquet (got '{out_file}').")
    if not 0 <= min_confidence <= 1:
        raise SettingError(f"--min-confidence must be 0 to 1 (got {min_confidence:g}).")
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
    predictions = opened.predict(loaded, split, only_new=is_new, min_confidence=min_confidence)
    predictions.write(out_file)
    nodes = count_noun(len(predictions.node_ids), "new node" if is_new else "node")
    if is_new:
        nodes += f" of {loaded.num_nodes:,}"
    elif predictions.num_new is not None:
        nodes += f" ({predictions.num_new:,} of them new to the model)"
    empty = sum(label is None for label in predictions.labels)
    left_out = f", {empty:,} below {min_confidence:g} left empty" if min_confidence else ""
    seeds = count_noun(predictions.seeds, "member" if opened.spec.model == "ensemble" else "seed")
    say(f"{nodes}, split {predictions.split}, {seeds}{left_out}: {out_file}")
